"""What can go wrong for a client. All of it derives from `OmqError`."""

from dataclasses import dataclass

from omq.protocol.dmp.responses import Response


class OmqError(Exception):
    """Something went wrong between this client and a server."""


class ConnectionFailed(OmqError):
    """No connection could be made; the cause is the operating system's error, where there is one."""


class HandshakeRefused(OmqError):
    """Somebody answered, but does not speak version one of the protocol."""


class ConnectionLost(OmqError):
    """The connection ended. Whether commands that were under way took effect is not known.

    `server_error` is the last Error that answered no command: servers say there why they close.
    """

    def __init__(self, text: str, server_error: str | None = None) -> None:
        super().__init__(text if server_error is None else f"{text}; the server said: {server_error}")
        self.server_error = server_error


class ProtocolError(ConnectionLost):
    """The server sent what protocol one does not allow; the connection was given up."""


class ReplyBlocked(OmqError):
    """A reply did not come through: too many messages stood before it that nobody took.

    Subscribe on a connection of its own, or take messages while waiting for replies.
    """


class ServerError(OmqError):
    """The server answered a command with an Error.

    `text` is its whole sentence, `command` the constructor it answers ("Declare"), `argument` the topic,
    or the n of a Confirm, as octets.
    """

    def __init__(self, text: str, command: str, argument: bytes) -> None:
        super().__init__(text)
        self.text = text
        self.command = command
        self.argument = argument


class PublishRefused(ServerError):
    """Messages that were published before are not safe.

    `refusals` are the server's sentences about them, in order, at most `MOST_REFUSALS`.
    """

    def __init__(self, text: str, command: str, argument: bytes, refusals: tuple[str, ...]) -> None:
        super().__init__(text, command, argument)
        self.refusals = refusals

    def __str__(self) -> str:
        return "; ".join((self.text, *self.refusals))


class MessageTooLong(OmqError, ValueError):
    """A message that the server would not take as a line. Nothing of it was sent."""


class SinkFailed(OmqError):
    """Not everything that a sink was given is as safe as its topic declares.

    `response` is what the server said, `sent` how many messages the sink was given, and `stored` how many of
    them, from the first one on, are safe for certain.
    """

    def __init__(self, response: Response, sent: int, stored: int) -> None:
        said = _said(response)
        super().__init__(f"{stored} of {sent} messages are stored; the server said: {said}" if sent else said)
        self.response = response
        self.sent = sent
        self.stored = stored


class FeedFailed(OmqError):
    """The server ended a feed, or did not begin it. `response` is what it said, if it said something."""

    def __init__(self, text: str, response: Response | None = None) -> None:
        super().__init__(text if response is None else _said(response))
        self.response = response


def _said(response: Response) -> str:
    return f"{response.code:03d} {response.words.decode('utf-8', 'backslashreplace')}".rstrip()


MOST_REFUSALS = 16
"""How many sentences about refused messages are kept until somebody asks."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `first` to `last` (inclusive) of a topic will not come, and why. No exception: the
    subscription goes on behind them.
    """

    topic: bytes
    first: int
    last: int
    reason: str
