"""What a `ServerConnection` finds in the octets of a client."""

from collections.abc import Sequence
from dataclasses import dataclass

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9.methods import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem
from omq_storage.batches import Batch


@dataclass(frozen=True, slots=True)
class StartOk:
    """The client's answer to Connection.Start. Next the server sends `ServerConnection.tune`, or fails."""

    client_properties: Table
    mechanism: bytes
    response: bytes
    locale: bytes


@dataclass(frozen=True, slots=True)
class Tuned:
    """The limits that hold from now on; `heartbeat` is in seconds, 0 for none."""

    channel_max: int
    frame_max: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The client opened the virtual host. The server sends Connection.Open-Ok."""


@dataclass(frozen=True, slots=True)
class Called:
    """A method that is none of the other events; channel 0 is the connection."""

    channel: int
    method: Method


@dataclass(frozen=True, slots=True)
class PublishRun:
    """Consecutive Basic.Publish of one channel that are alike in exchange, routing key and flags."""

    channel: int
    exchange: bytes
    routing_key: bytes
    mandatory: bool
    batch: Batch
    heads: Sequence[bytes]
    """The stored head of each message. Consecutive equal heads are mostly the same object."""
    properties: int
    """The property flags of all messages together: a bit that is not set is set in none of them."""


@dataclass(frozen=True, slots=True)
class LongBegun:
    """A Basic.Publish with a body that the protocol does not hold. The body follows in `LongPart` events,
    then `LongEnded`; events of other channels may stand between them. If the channel or the connection ends
    before `LongEnded`, the message is dropped.
    """

    channel: int
    exchange: bytes
    routing_key: bytes
    mandatory: bool
    head: bytes
    properties: int
    size: int
    """The octets of the body, at most `max_message`. The client only claims them yet."""


@dataclass(frozen=True, slots=True)
class LongPart:
    """The next octets of a long body."""

    channel: int
    octets: bytes


@dataclass(frozen=True, slots=True)
class LongEnded:
    """All octets of a long body were in `LongPart` events."""

    channel: int


@dataclass(frozen=True, slots=True)
class AckRun:
    """Consecutive Basic.Ack of one channel, in order.

    A range `(first, last)` acknowledges each of these delivery tags; `(0, last)` all outstanding ones up to
    `last`, and `(0, 0)` all outstanding ones.
    """

    channel: int
    ranges: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ClosedByPeer:
    """The client closed a channel, or the connection if `channel` is 0; the server sends Close-Ok.

    Some clients send code 0 and no text.
    """

    channel: int
    reply_code: int
    reply_text: bytes


@dataclass(frozen=True, slots=True)
class Freed:
    """The client answered the server's Close of a channel, or of the connection if `channel` is 0."""

    channel: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Octets to send, without any other consequence."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class ChannelFault:
    """The client broke a rule on a channel. Everything else on it is dropped already; the server sends
    `ServerConnection.close_channel`.
    """

    channel: int
    problem: ChannelProblem


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """The client broke a rule of the connection. No event follows, except `Freed(0)` and `Reply`; the server
    sends `ServerConnection.close`.
    """

    problem: ConnectionProblem


Event = (
    StartOk
    | Tuned
    | Opened
    | Called
    | PublishRun
    | LongBegun
    | LongPart
    | LongEnded
    | AckRun
    | ClosedByPeer
    | Freed
    | Reply
    | ChannelFault
    | ConnectionFault
)
