"""Targets: a client's side of AMQP 0-9-1, its methods, and the tables of OpenAMQ."""

from dataclasses import dataclass

from fuzz_checks import Target, check_pieces, check_sentence

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import openamq
from omq.protocol.amqp.fields import LongString, Number, NumberType, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.events import (
    AckRun,
    ChannelFault,
    ConnectionFault,
    Event,
    LongPart,
    PublishRun,
    StartOk,
)
from omq.protocol.amqp_0_9.frames import HEARTBEAT, FrameType, body_frames, frame, header_frame, method_frame
from omq.protocol.amqp_0_9.methods import (
    BasicAck,
    BasicConsume,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionOpen,
    ConnectionStartOk,
    ConnectionTuneOk,
    DirectPut,
    QueueDeclare,
)
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.protocol.amqp_0_9.server import MOST_HELD, ServerConnection

_LONGEST_BODY = 300
_WHOLE_BODY = 100
_FRAME_MAX = 4096

# -- the connection -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    """A message of a run, by itself: how messages are divided into runs depends on the pieces."""

    channel: int
    exchange: bytes
    key: bytes
    mandatory: bool
    head: bytes
    body: bytes


def check_amqp(data: bytes) -> None:
    """Check that a client's octets have the same events in pieces and at once, compiled and plain."""
    check_pieces(data, _events)


def _events(pieces: list[bytes], choice: int) -> list[object]:
    """Return the events, with runs and long bodies taken apart."""
    connection = ServerConnection(_LONGEST_BODY, _WHOLE_BODY)
    if choice & 1:
        for octets in _opening(b"OpenAMQ" if choice & 2 else b"other"):
            for _ in connection.feed(octets):
                pass
            connection.tune(10, _FRAME_MAX)
        for _ in connection.feed(_OPEN):
            pass
    found: list[object] = []
    fault: ConnectionProblem | None = None
    for piece in pieces:
        for event in connection.feed(piece):
            if event is not None:
                found += _apart(event)
            match event:
                case StartOk():
                    connection.tune(10, _FRAME_MAX)
                case ChannelFault(channel, problem):
                    check_sentence(problem.reply_text)
                    connection.close_channel(channel, problem)
                case ConnectionFault(broken):
                    check_sentence(broken.reply_text)
                    fault = broken
                case PublishRun(channel, _, b"missing"):
                    connection.close_channel(channel, _MISSING)
                case _:
                    pass
        assert connection.unfinished <= MOST_HELD + connection.frame_max
    if fault is not None:
        # Not before: the next read after Connection.Close may begin with a frame, also behind octets that are
        # none. So it would depend on the pieces what is read.
        connection.close(fault)
    return found


def _apart(event: Event) -> list[object]:
    match event:
        case PublishRun(channel, exchange, key, mandatory, batch, heads, flags):
            bodies = batch.bodies()
            assert len(bodies) == len(heads) == batch.count > 0
            together = 0
            for head in heads:
                together |= int.from_bytes(_properties(head, exchange, key)[:2], "big")
            assert together == flags
            if key == b"missing":
                return [_Message(channel, exchange, key, mandatory, heads[0], bodies[0])]
            return [
                _Message(channel, exchange, key, mandatory, head, body)
                for head, body in zip(heads, bodies, strict=True)
            ]
        case AckRun(channel, ranges):
            return [
                (channel, tag) if first else (channel, 0, last)
                for first, last in ranges
                for tag in range(first or last, last + 1)
            ]
        case LongPart(channel, octets):
            return [(channel, octet) for octet in octets]
        case _:
            return [event]


def _properties(head: bytes, exchange: bytes, key: bytes) -> bytes:
    read = stored_head.decode(head)
    assert (read.exchange, read.routing_key) == (exchange, key)
    return head[2 + len(exchange) + len(key) :]


_MISSING = ChannelProblem(ReplyCode.NOT_FOUND, "no such exchange")


def _opening(product: bytes) -> list[bytes]:
    start_ok = ConnectionStartOk(Table(((b"product", LongString(product)),)), b"PLAIN", b"", b"en_US")
    return [method_frame(0, start_ok)]


_OPEN = b"".join(
    (
        method_frame(0, ConnectionTuneOk(0, 0, 0)),
        method_frame(0, ConnectionOpen(b"/")),
        method_frame(1, ChannelOpen()),
        method_frame(2, ChannelOpen()),
    )
)


# -- methods and tables -------------------------------------------------------------------------------------


def check_methods(data: bytes) -> None:
    """Check that a method that was read is written so that it is read as the same, in both dialects of
    tables.
    """
    for translate in (None, openamq.widened_table):
        try:
            method = methods.decode(data, translate)
        except ConnectionProblem as problem:
            check_sentence(problem.reply_text)
        else:
            written = methods.encode(method)
            assert methods.encode(methods.decode(written)) == written


def check_openamq(data: bytes) -> None:
    """Check that OpenAMQ's tables are translated and back, and nothing else of the properties changes."""
    try:
        wide = openamq.widened_properties(data)
    except FieldError as error:
        check_sentence(str(error))
        return
    assert openamq.narrowed_properties(wide) == data


_HEADERS = Table(((b"t", Number(NumberType.TIMESTAMP, 5)), (b"f", Table(((b"s", LongString(b"x")),)))))
_HEADS = (
    b"\0\0",
    stored_head.encode(Head(b"", b"", Properties(b"text", headers=_HEADERS, expiration=b"5")))[2:],
)


def _content(channel: int, key: bytes, properties: bytes, body: bytes) -> bytes:
    return b"".join(
        (
            method_frame(channel, BasicPublish(b"e", key, mandatory=channel == 2)),
            header_frame(channel, properties, len(body)),
            *body_frames(channel, body, 150),
        )
    )


_CONVERSATIONS = (
    _content(1, b"k", _HEADS[0], b"abc") * 3 + _content(2, b"k", _HEADS[1], b"") + HEARTBEAT,
    method_frame(1, BasicAck(1)) + method_frame(1, BasicAck(2)) + method_frame(1, BasicAck(9, True)),
    _content(1, b"missing", _HEADS[0], b"a") * 2 + method_frame(1, ChannelCloseOk())
    + method_frame(1, ChannelOpen()),
    _content(1, b"k", _HEADS[0], bytes(250)) + _content(2, b"k", _HEADS[0], bytes(301)),
    method_frame(1, BasicPublish(b"", b"k")) + _content(2, b"k", _HEADS[0], b"x")
    + header_frame(1, _HEADS[0], 2) + frame(FrameType.BODY, 1, b"") + frame(FrameType.BODY, 1, b"xy"),
    method_frame(1, ChannelClose(0, b"", 0, 0)) + method_frame(0, ConnectionClose(200, b"bye", 0, 0)),
    method_frame(1, QueueDeclare(b"", exclusive=True, arguments=_HEADERS))
    + method_frame(1, BasicConsume(b"q")) + method_frame(1, DirectPut(b"amq.direct"))
    + method_frame(1, BasicNack(1)),
)  # fmt: skip

TARGETS = (
    Target(
        "amqp",
        "what a client of AMQP 0-9-1 sends, in pieces",
        check_amqp,
        (
            *(b"\x04" + octets for octets in _CONVERSATIONS),
            *(b"\x0d\x80" + octets for octets in _CONVERSATIONS),
            b"\0" + b"".join(_opening(b"other")) + _OPEN,
        ),
        (
            b"\x01\0\x01\0\0\0",
            b"\x02\0\x01\0\0\0",
            b"\x03\0\x01\0\0\0",
            b"\xce",
            b"\0\x3c\0\x28\0\0",
            b"\0\x3c\0\x50",
            b"\0\x3c\0\0",
            b"\x07missing",
        ),
        longest=1000,
    ),
    Target(
        "methods",
        "methods of AMQP 0-9-1",
        check_methods,
        tuple(
            methods.encode(method)
            for method in (
                QueueDeclare(b"q", arguments=_HEADERS),
                ConnectionStartOk(_HEADERS, b"PLAIN", b"\0a\0b", b"en_US"),
                BasicConsume(b"q", b"tag", arguments=_HEADERS),
                BasicNack(7),
            )
        ),
        (b"\0\x32\0\x0a", b"\0\x3c\0\x14", b"\xf0\x3c\0\x0a", b"F\0\0\0", b"T\0\0\0"),
    ),
    Target(
        "openamq",
        "properties with the field tables of OpenAMQ",
        check_openamq,
        (*_HEADS, b"\x20\0\0\0\0\x07\x01tT\0\0\0\x05", b"\xa0\0\x01t\0\0\0\x07\x01aF\0\0\0\0"),
        (b"\x20\0", b"T\0\0\0", b"A\0\0\0\x05", b"F\0\0\0", b"S\0\0\0"),
    ),
)
