"""The exceptions that the Python clients share."""


class OmqError(Exception):
    """The base class of the exceptions of `omq.client`, `omq.blocking`, `omq.arrow` and `omq.spark`."""


class ConnectionLost(OmqError):
    """The connection ended. It is unknown whether unanswered commands took effect.

    `server_error` is the last Error that answered no command: servers give there the reason for closing.
    """

    def __init__(self, text: str, server_error: str | None = None) -> None:
        super().__init__(text if server_error is None else f"{text}; the server said: {server_error}")
        self.server_error = server_error
