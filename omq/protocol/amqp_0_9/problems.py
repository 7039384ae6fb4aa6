"""The errors of AMQP 0-9-1: a reply code, a text, and the method that caused the error.

A channel problem ends a channel, a connection problem the connection (AMQP 0-9-1, section 4.10).
"""

from enum import IntEnum

from omq.protocol.amqp.shortstr import LONGEST


class ReplyCode(IntEnum):
    """The reply codes of AMQP 0-9-1 that the server sends, with the names that brokers put into texts."""

    SUCCESS = 200
    CANNOT_ROUTE = 310
    """OpenAMQ's: a message on a sink that is mandatory and has no route."""
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class Problem(Exception):
    """A problem and the method that caused it; class and method are 0 if no method did."""

    def __init__(self, code: ReplyCode, text: str, class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> bytes:
        """The text for a Close method: the name of the code and a description, as RabbitMQ writes them."""
        octets = f"{self.code.name} - {self.text}".encode()
        return octets if len(octets) <= LONGEST else octets[: LONGEST - 3] + b"..."

    def _values(self) -> tuple[object, ...]:
        return type(self), self.code, self.text, self.class_id, self.method_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        values = (int(self.code), self.text, self.class_id, self.method_id)
        return f"{type(self).__name__}({', '.join(map(repr, values))})"


class ChannelProblem(Problem):
    """Ends the channel: the server sends Channel.Close."""


class ConnectionProblem(Problem):
    """Ends the connection: the server sends Connection.Close."""
