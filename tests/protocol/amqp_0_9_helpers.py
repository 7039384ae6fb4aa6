"""A client's octets for tests of AMQP 0-9-1, and connections that have got so far."""

from collections.abc import Iterable, Sequence
from struct import Struct

from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.events import ChannelFault, ConnectionFault, Event, PublishRun
from omq.protocol.amqp_0_9.frames import FrameType, body_frames, frame, header_frame, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.methods import (
    BasicGet,
    BasicPublish,
    ChannelOpen,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
)
from omq.protocol.amqp_0_9.server import FRAME_MAX, ServerConnection

PLAIN = b"\0guest\0guest"
START_OK = ConnectionStartOk(Table(), b"PLAIN", PLAIN, b"en_US")
OPENAMQ = ConnectionStartOk(
    Table(((b"product", LongString(b"OpenAMQ Kernel Client\0")),)), b"PLAIN", PLAIN, b"en_US"
)
NO_PROPERTIES = b"\0\0"
PERSISTENT = b"\x10\x00\x02"
BAD_END = Struct(">BHIB")
GET = BasicGet(b"q")
WIDE = b"\x20\0\0\0\0\x1b\x01tT\0\0\0\0\0\0\0\x05\x01aA\0\0\0\x09T\0\0\0\0\0\0\0\x07"
"""Properties with a table that has times of eight octets."""


def publish(
    channel: int,
    key: bytes,
    body: bytes,
    exchange: bytes = b"",
    properties: bytes = NO_PROPERTIES,
    *,
    mandatory: bool = False,
    frame_max: int = FRAME_MAX,
) -> bytes:
    """Return the frames of a message, divided at `frame_max`."""
    return b"".join(
        (
            method_frame(channel, BasicPublish(exchange, key, mandatory)),
            header_frame(channel, properties, len(body)),
            *body_frames(channel, body, frame_max),
        )
    )


def body(channel: int, octets: bytes) -> bytes:
    """Return one body frame, which may be empty."""
    return frame(FrameType.BODY, channel, octets)


def call(channel: int, method: Method) -> bytes:
    """Return the frame of a method."""
    return method_frame(channel, method)


def feed(connection: ServerConnection, octets: bytes) -> list[Event]:
    """Return the events of these octets, without pauses."""
    return [event for event in connection.feed(octets) if event is not None]


def tuned(
    tune_ok: ConnectionTuneOk = ConnectionTuneOk(0, 0, 0),  # noqa: B008 - it is frozen
    start_ok: ConnectionStartOk = START_OK,
    max_message: int = 1 << 20,
) -> tuple[ServerConnection, list[Event]]:
    """Return a connection that was sent a Tune-Ok, and its events."""
    connection = ServerConnection(max_message)
    connection.start(Table(), b"PLAIN AMQPLAIN")
    feed(connection, call(0, start_ok))
    connection.tune()
    return connection, feed(connection, call(0, tune_ok))


def opened(
    *channels: int, start_ok: ConnectionStartOk = START_OK, frame_max: int = 0, max_message: int = 1 << 20
) -> ServerConnection:
    """Return a connection with these channels open."""
    connection, _ = tuned(ConnectionTuneOk(0, frame_max, 0), start_ok, max_message)
    feed(connection, call(0, ConnectionOpen(b"/")))
    for channel in channels:
        feed(connection, call(channel, ChannelOpen()))
    return connection


def merged(events: Iterable[Event]) -> list[object]:
    """Return the events with adjacent publishes and acknowledgements taken apart, so that the division into
    runs does not matter.
    """
    found: list[object] = []
    for event in events:
        match event:
            case PublishRun(channel, exchange, key, mandatory, batch, heads):
                for octets, head in zip(batch.bodies(), heads, strict=True):
                    found.append((channel, exchange, key, mandatory, octets, head))
            case _:
                found.append(event)
    return found


def failure(events: list[Event]) -> tuple[int, int, int]:
    """Return the code, class and method of the one event, a failure."""
    assert len(events) == 1, events
    (event,) = events
    assert isinstance(event, ConnectionFault | ChannelFault)
    return event.problem.code, event.problem.class_id, event.problem.method_id


def one(events: list[Event]) -> PublishRun:
    """Return the one event, a run of messages."""
    (event,) = events
    assert isinstance(event, PublishRun)
    return event


def all_methods() -> Sequence[type[Method]]:
    """Return every class of a method."""
    return [made for made in vars(methods).values() if isinstance(made, type) and "CLASS" in vars(made)]
