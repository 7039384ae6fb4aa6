"""Messages and acknowledgements that a server of AMQP 0-9-1 reads, many at a time."""

import pytest
from amqp_0_9_helpers import (
    GET,
    NO_PROPERTIES,
    OPENAMQ,
    PERSISTENT,
    WIDE,
    body,
    call,
    failure,
    feed,
    merged,
    one,
    opened,
    publish,
)

from omq.protocol.amqp_0_9.events import (
    AckRun,
    ChannelFault,
    CloseAnswered,
    Event,
    LongBegun,
    LongEnded,
    LongPart,
    MethodCalled,
    PublishRun,
)
from omq.protocol.amqp_0_9.frames import FRAME, HEARTBEAT, FrameType, frame, header_frame
from omq.protocol.amqp_0_9.methods import (
    BasicAck,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    QueueDeclare,
    decode,
)
from omq.protocol.amqp_0_9.server import MOST_HELD, WHOLE_BODY

BEGUN = call(1, BasicPublish(b"", b"q"))


def test_messages_that_are_alike_are_one_run() -> None:
    octets = b"".join(publish(1, b"q", b"%d" % number, b"e", PERSISTENT) for number in range(100))
    run = one(feed(opened(1), octets))
    assert (run.channel, run.exchange, run.routing_key, run.mandatory) == (1, b"e", b"q", False)
    assert list(run.batch.bodies()) == [b"%d" % number for number in range(100)]
    assert set(run.heads) == {b"\x01e\x01q" + PERSISTENT}
    assert len(run.heads) == 100
    assert run.properties == 0x1000


def test_runs_end_where_exchange_key_or_flags_change() -> None:
    octets = b"".join(
        (
            publish(1, b"a", b"1"),
            publish(1, b"a", b"2", properties=PERSISTENT),
            publish(1, b"b", b"3"),
            publish(1, b"b", b"4", b"e"),
            publish(1, b"b", b"5", b"e", mandatory=True),
            publish(2, b"b", b"6", b"e", mandatory=True),
        )
    )
    runs = feed(opened(1, 2), octets)
    assert [list(run.batch.bodies()) for run in runs if isinstance(run, PublishRun)] == [
        [b"1", b"2"], [b"3"], [b"4"], [b"5"], [b"6"],
    ]  # fmt: skip
    first = runs[0]
    assert isinstance(first, PublishRun)
    assert list(first.heads) == [b"\0\x01a\0\0", b"\0\x01a" + PERSISTENT]


def test_empty_bodies() -> None:
    connection = opened(1)
    assert list(one(feed(connection, publish(1, b"q", b"") * 3)).batch.bodies()) == [b""] * 3
    begun = BEGUN + header_frame(1, NO_PROPERTIES, 2)
    assert feed(connection, begun + body(1, b"")) == []
    assert list(one(feed(connection, body(1, b"hi"))).batch.bodies()) == [b"hi"]
    # If the body is complete, another frame of it is one too many.
    assert failure(feed(connection, publish(1, b"q", b"") + body(1, b""))[1:]) == (505, 0, 0)


def test_contents_of_several_channels_at_once() -> None:
    connection = opened(1, 2)
    octets = b"".join(
        (
            call(1, BasicPublish(b"", b"a")),
            call(2, BasicPublish(b"", b"b")),
            header_frame(2, NO_PROPERTIES, 4),
            header_frame(1, NO_PROPERTIES, 2),
            body(2, b"2"),
            body(1, b"11"),
            HEARTBEAT,
            body(2, b"222"),
        )
    )
    assert merged(feed(connection, octets)) == [
        (1, b"", b"a", False, b"11", b"\0\x01a\0\0"),
        (2, b"", b"b", False, b"2222", b"\0\x01b\0\0"),
    ]
    assert connection.unfinished == 0


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (header_frame(1, NO_PROPERTIES, 1), (505, 0, 0)),
        (body(1, b"x"), (505, 0, 0)),
        (BEGUN + call(1, GET), (505, 60, 40)),
        (BEGUN + call(1, BasicPublish(b"", b"q")), (505, 60, 40)),
        (BEGUN + body(1, b"x"), (505, 60, 40)),
        (BEGUN + header_frame(1, NO_PROPERTIES, 5) + call(1, GET), (505, 60, 40)),
        (BEGUN + header_frame(1, NO_PROPERTIES, 5) * 2, (505, 60, 40)),
        (
            BEGUN + header_frame(1, NO_PROPERTIES, 3) + body(1, b"12345"),
            (501, 60, 40),
        ),
        (
            BEGUN + header_frame(1, NO_PROPERTIES, 70_000) + body(1, b"x" * 70_001),
            (501, 60, 40),
        ),
        (BEGUN + frame(FrameType.HEADER, 1, b"\0\x3c"), (501, 60, 40)),
        (BEGUN + frame(FrameType.HEADER, 1, b"\0\x3d" + bytes(12)), (505, 60, 40)),
        (BEGUN + frame(FrameType.HEADER, 1, b"\0\x3c\0\x01" + bytes(10)), (501, 60, 40)),
        (BEGUN + header_frame(1, b"\0\x01", 1), (501, 60, 40)),
        (BEGUN + header_frame(1, b"\0\0\0", 1), (501, 60, 40)),
        (BEGUN + header_frame(1, b"\x80\0\x05ab", 1), (501, 60, 40)),
        (BEGUN + header_frame(1, b"\x20\0\0\0\0\x03\x01a?", 1), (501, 60, 40)),
    ],
)  # fmt: skip
def test_broken_contents(octets: bytes, expected: tuple[int, int, int]) -> None:
    events: list[Event] = [event for event in feed(opened(1), octets) if not isinstance(event, LongBegun)]
    assert failure(events) == expected


def nested(levels: int) -> bytes:
    table = b"\0\0\0\0"
    for _ in range(levels):
        table = (len(table) + 3).to_bytes(4, "big") + b"\x01aF" + table
    return b"\x20\0" + table


def test_headers_that_are_nested_too_deep() -> None:
    assert one(feed(opened(1), publish(1, b"q", b"x", properties=nested(31))))
    assert failure(feed(opened(1), publish(1, b"q", b"x", properties=nested(2000)))) == (501, 60, 40)


def headers(octets: int) -> bytes:
    """Return properties of N `octets`."""
    return (
        b"\x20\0"
        + (octets - 6).to_bytes(4, "big")
        + b"\x01aS"
        + (octets - 13).to_bytes(4, "big")
        + bytes(octets - 13)
    )


def test_heads_over_the_limit() -> None:
    connection = opened(1, 2)
    assert one(feed(connection, publish(1, b"q", b"x", properties=headers(65533))))
    events = feed(connection, publish(1, b"q", b"x", properties=headers(65534)) + publish(2, b"q", b"y"))
    (failed, run) = events
    assert failure([failed]) == (311, 60, 40)
    assert isinstance(run, PublishRun)
    assert run.channel == 2


def test_messages_over_the_limit_end_the_channel_only() -> None:
    connection = opened(1, 2, max_message=100)
    assert one(feed(connection, publish(1, b"q", b"x" * 100)))
    octets = publish(1, b"q", b"x" * 101) + call(1, GET) + publish(2, b"q", b"y")
    failed, run = feed(connection, octets)
    assert failure([failed]) == (406, 60, 40)
    assert isinstance(run, PublishRun)
    assert not connection.is_open(1)
    assert isinstance(failed, ChannelFault)
    assert decode(connection.close_channel(1, failed.problem)[FRAME.size : -1]).METHOD == 40
    claimed = call(2, BasicPublish(b"", b"q")) + header_frame(2, NO_PROPERTIES, 1 << 63)
    assert failure(feed(connection, claimed)) == (406, 60, 40)
    assert feed(connection, call(1, ChannelCloseOk())) == [CloseAnswered(1)]


def test_long_bodies_are_handed_on_in_parts() -> None:
    connection = opened(1, 2)
    octets = bytes(range(256)) * 1024
    sent = publish(1, b"k", octets, b"e", PERSISTENT, mandatory=True)
    cut = sent.index(b"\xce" + FRAME.pack(3, 1, 131072 - 8), 1000) + 1
    events = feed(connection, sent[:cut])
    assert events[0] == LongBegun(1, b"e", b"k", True, b"\x01e\x01k" + PERSISTENT, 0x1000, len(octets))
    assert one(feed(connection, publish(2, b"k", b"between"))).channel == 2
    for begin in range(cut, len(sent), 50_000):
        events += feed(connection, sent[begin : begin + 50_000])
    parts = [event.octets for event in events if isinstance(event, LongPart)]
    assert b"".join(parts) == octets
    assert events[-1] == LongEnded(1)
    assert connection.unfinished == 0


def test_the_limit_of_whole_bodies() -> None:
    assert one(feed(opened(1), publish(1, b"q", bytes(64 << 10))))
    events = feed(opened(1), publish(1, b"q", bytes((64 << 10) + 1)))
    assert [type(event) for event in events] == [LongBegun, LongPart, LongEnded]


def test_many_incomplete_messages_are_handed_on_in_parts() -> None:
    numbers = range(1, 101)
    connection = opened(*numbers)
    begun: list[Event] = []
    for number in numbers:
        begun += feed(connection, publish(number, b"q", bytes(WHOLE_BODY))[:-1])
        assert connection.unfinished <= MOST_HELD + 2 * WHOLE_BODY
        # The last octet of the frame must come before frames of other channels.
        begun += feed(connection, b"\xce")
    assert all(isinstance(event, PublishRun) for event in begun)
    for number in numbers:
        octets = call(number, BasicPublish(b"", b"q")) + header_frame(number, NO_PROPERTIES, WHOLE_BODY)
        begun += feed(connection, octets + body(number, b"x"))
        assert connection.unfinished <= MOST_HELD
    assert sum(isinstance(event, LongBegun) for event in begun) == 100 - MOST_HELD // (WHOLE_BODY + 5)
    for number in numbers:
        feed(connection, call(number, ChannelClose(200, b"", 0, 0)) if number % 2 else body(number, b"x"))
    assert connection.unfinished <= MOST_HELD


@pytest.mark.usefixtures("each_codec")
def test_acknowledgements_are_ranges() -> None:
    tags = [(1, False), (2, False), (3, False), (7, False), (9, True), (10, False), (11, False), (0, True)]
    octets = b"".join(call(1, BasicAck(*tag)) for tag in tags)
    assert feed(opened(1), octets) == [AckRun(1, [(1, 3), (7, 7), (0, 9), (10, 11), (0, 0)])]


def test_acknowledgements_of_several_channels() -> None:
    octets = call(1, BasicAck(1)) + call(2, BasicAck(1)) + call(2, BasicAck(2)) + publish(2, b"q", b"x")
    connection = opened(1, 2)
    events = feed(connection, octets)
    assert events[:2] == [AckRun(1, [(1, 1)]), AckRun(2, [(1, 2)])]
    assert len(events) == 3


TIMES = b"\x20\0\0\0\0\x13\x01tT\0\0\0\x05\x01aA\0\0\0\x05T\0\0\0\x07"


def test_times_of_openamq_have_four_octets() -> None:
    connection = opened(1, start_ok=OPENAMQ)
    assert connection.is_openamq
    run = one(feed(connection, publish(1, b"q", b"x", properties=TIMES)))
    assert list(run.heads) == [b"\0\x01q" + WIDE]
    declare = call(1, QueueDeclare(b"q"))[:-5] + TIMES[2:]
    declare = frame(FrameType.METHOD, 1, declare[FRAME.size :])
    (event,) = feed(connection, declare)
    assert isinstance(event, MethodCalled)
    assert failure(feed(connection, publish(1, b"q", b"x", properties=TIMES[:-1]))) == (501, 0, 0)


def test_other_clients_send_times_of_eight_octets() -> None:
    connection = opened(1)
    assert not connection.is_openamq
    assert list(one(feed(connection, publish(1, b"q", b"x", properties=WIDE))).heads) == [b"\0\x01q" + WIDE]
    assert failure(feed(connection, publish(1, b"q", b"x", properties=TIMES)))[0] == 501
