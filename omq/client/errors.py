"""The client's exceptions. All derive from `OmqError`."""

from dataclasses import dataclass

import anyio

from omq.client.refusals import together
from omq.errors import ConnectionLost as ConnectionLost
from omq.errors import OmqError as OmqError
from omq.protocol.dmp.responses import Response


class ConnectionFailed(OmqError):
    """Connecting failed; the cause is the operating system's error, if there is one."""


class HandshakeRefused(OmqError):
    """The peer answered, but does not speak version one of the protocol."""


class ProtocolError(ConnectionLost):
    """The server violated version one of the protocol; the client closed the connection."""


class ReplyBlocked(OmqError):
    """The client gave up waiting for a reply: too many messages that no task took preceded it.

    Subscribe on a separate connection, or take messages while you wait for replies.
    """


class ServerError(OmqError):
    """The server answered a command with an Error.

    `text` is the whole sentence, `command` the name of the answered command ("Declare"), `argument` the
    topic, or the n of a Confirm, as octets.
    """

    def __init__(self, text: str, command: str, argument: bytes) -> None:
        super().__init__(text)
        self.text = text
        self.command = command
        self.argument = argument


class PublishRefused(ServerError):
    """The server refused messages that were published before.

    `refusals` are the server's sentences about them, in order, at most `MOST_REFUSALS`. As text, the error
    has one sentence for all that say the same.
    """

    def __init__(self, text: str, command: str, argument: bytes, refusals: tuple[str, ...]) -> None:
        super().__init__(text, command, argument)
        self.refusals = refusals

    def __str__(self) -> str:
        return "; ".join((self.text, *together(self.refusals)))


class BodyTooLong(OmqError):
    """A body has more octets than its receiver wants to hold."""


class MessageTooLong(OmqError, ValueError):
    """The message makes a line longer than the server accepts. Nothing of it was sent."""


class SinkClosed(OmqError, anyio.ClosedResourceError):
    """The program has closed the sink. Nothing was sent."""


class SinkFailed(OmqError):
    """The server did not store all messages of a sink.

    `response` is the server's response, and `server_error` its text. `sent` is the number of messages given
    to the sink, and `stored` the number of those, from the first one on, that are certainly stored.
    """

    def __init__(self, response: Response, sent: int, stored: int) -> None:
        said = _said(response)
        super().__init__(f"messages stored: {stored} of {sent}; the server said: {said}" if sent else said)
        self.response = response
        self.server_error = said
        self.sent = sent
        self.stored = stored


class FeedFailed(OmqError):
    """The server ended a feed, or did not begin it. `response` is the server's response, if there was one."""

    def __init__(self, text: str, response: Response | None = None) -> None:
        super().__init__(text if response is None else _said(response))
        self.response = response


def _said(response: Response) -> str:
    return f"{response.code:03d} {response.words.decode('utf-8', 'backslashreplace')}".rstrip()


MOST_REFUSALS = 16
"""The most sentences about refused messages that are kept until a task calls `confirm`."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages `first` to `last` (inclusive) of a topic are not available, and the reason. This is not an
    exception: the subscription continues after them.
    """

    topic: bytes
    first: int
    last: int
    reason: str
