"""The events that a `ServerConnection` parses from the octets of a client."""

from collections.abc import Sequence

import msgspec

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem
from omq_storage.batches import Batch


class StartOk(msgspec.Struct, frozen=True):
    """The client's answer to Connection.Start. Next the server sends `ServerConnection.tune`, or fails."""

    client_properties: Table
    mechanism: bytes
    response: bytes
    locale: bytes


class Tuned(msgspec.Struct, frozen=True):
    """The limits that hold from now on; `heartbeat` is in seconds, 0 for none."""

    channel_max: int
    frame_max: int
    heartbeat: int


class Opened(msgspec.Struct, frozen=True):
    """The client opened the virtual host. The server sends Connection.Open-Ok."""


class MethodCalled(msgspec.Struct, frozen=True):
    """A method that is none of the other events; channel 0 is the connection."""

    channel: int
    method: Method


class PublishRun(msgspec.Struct, frozen=True):
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


class LongBegun(msgspec.Struct, frozen=True):
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


class LongPart(msgspec.Struct, frozen=True):
    """The next octets of a long body."""

    channel: int
    octets: bytes


class LongEnded(msgspec.Struct, frozen=True):
    """All octets of a long body were in `LongPart` events."""

    channel: int


class AckRun(msgspec.Struct, frozen=True):
    """Consecutive Basic.Ack of one channel, in order.

    A range `(first, last)` acknowledges each of these delivery tags; `(0, last)` all outstanding ones up to
    `last`, and `(0, 0)` all outstanding ones.
    """

    channel: int
    ranges: Sequence[tuple[int, int]]


class ClosedByPeer(msgspec.Struct, frozen=True):
    """The client closed a channel, or the connection if `channel` is 0; the server sends Close-Ok.

    Some clients send code 0 and no text.
    """

    channel: int
    reply_code: int
    reply_text: bytes


class CloseAnswered(msgspec.Struct, frozen=True):
    """The client answered the server's Close of a channel, or of the connection if `channel` is 0."""

    channel: int


class Reply(msgspec.Struct, frozen=True):
    """Octets to send, without any other consequence."""

    octets: bytes


class ChannelFault(msgspec.Struct, frozen=True):
    """The client broke a rule on a channel. Everything else on it is dropped already; the server sends
    `ServerConnection.close_channel`.
    """

    channel: int
    problem: ChannelProblem


class ConnectionFault(msgspec.Struct, frozen=True):
    """The client broke a rule of the connection. No event follows, except `CloseAnswered(0)` and `Reply`; the
    server sends `ServerConnection.close`.
    """

    problem: ConnectionProblem


Event = (
    StartOk
    | Tuned
    | Opened
    | MethodCalled
    | PublishRun
    | LongBegun
    | LongPart
    | LongEnded
    | AckRun
    | ClosedByPeer
    | CloseAnswered
    | Reply
    | ChannelFault
    | ConnectionFault
)
