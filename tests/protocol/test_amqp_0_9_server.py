"""A server's side of AMQP 0-9-1: the handshake, channels, contents, and every rule a client can break."""

from itertools import pairwise

import pytest
from amqp_0_9_helpers import (
    NO_PROPERTIES,
    OPENAMQ,
    PERSISTENT,
    START_OK,
    body,
    call,
    feed,
    merged,
    opened,
    publish,
    tuned,
)
from hypothesis import given
from hypothesis import strategies as st

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9 import runs
from omq.protocol.amqp_0_9.events import (
    AckRun,
    Called,
    ChannelFault,
    ClosedByPeer,
    ConnectionFault,
    Event,
    Freed,
    LongBegun,
    LongEnded,
    LongPart,
    Opened,
    PublishRun,
    Reply,
    StartOk,
    Tuned,
)
from omq.protocol.amqp_0_9.frames import FRAME, HEARTBEAT, FrameType, frame, header_frame, method_frame
from omq.protocol.amqp_0_9.methods import (
    AccessRequest,
    BasicAck,
    BasicCancelOk,
    BasicDeliver,
    BasicGet,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    DirectPut,
    Method,
    QueueDeclare,
    decode,
)
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.protocol.amqp_0_9.runs import RunLimits
from omq.protocol.amqp_0_9.server import MOST_HELD, WHOLE_BODY, ServerConnection
from omq_storage import codec
from omq_storage.batches import Framed

GET = BasicGet(b"q")
BEGUN = call(1, BasicPublish(b"", b"q"))


def failure(events: list[Event]) -> tuple[int, int, int]:
    """Return the code, class and method of the one event, a failure."""
    assert len(events) == 1, events
    (event,) = events
    assert isinstance(event, ConnectionFault | ChannelFault)
    return event.problem.code, event.problem.class_id, event.problem.method_id


# -- the handshake ------------------------------------------------------------------------------------------


def test_the_handshake() -> None:
    connection = ServerConnection()
    start = connection.start(Table(), b"PLAIN AMQPLAIN")
    assert decode(start[FRAME.size : -1]) == ConnectionStart(0, 9, Table(), b"PLAIN AMQPLAIN", b"en_US")
    assert feed(connection, call(0, START_OK)) == [StartOk(Table(), b"PLAIN", b"\0guest\0guest", b"en_US")]
    tune = connection.tune(100, 8192, 30)
    assert decode(tune[FRAME.size : -1]).METHOD == 30
    events = feed(connection, call(0, ConnectionTuneOk(7, 4096, 10)) + call(0, ConnectionOpen(b"/")))
    assert events == [Tuned(7, 4096, 10), Opened()]
    assert (connection.channel_max, connection.frame_max) == (7, 4096)
    assert feed(connection, call(7, ChannelOpen())) == [Called(7, ChannelOpen())]


def test_zero_in_tune_ok_leaves_the_limits_to_the_server() -> None:
    assert tuned(ConnectionTuneOk(0, 0, 5))[1] == [Tuned(2047, 131072, 5)]


@pytest.mark.parametrize(
    "tune_ok",
    [
        ConnectionTuneOk(0, 4095, 0),
        ConnectionTuneOk(0, 1024, 0),
        ConnectionTuneOk(0, 1 << 30, 0),
        ConnectionTuneOk(2048, 0, 0),
    ],
)
def test_limits_beyond_those_of_the_server(tune_ok: ConnectionTuneOk) -> None:
    assert failure(tuned(tune_ok)[1]) == (501, 10, 31)


@pytest.mark.parametrize("host", [b"nosuch", b"//"])
def test_other_virtual_hosts(host: bytes) -> None:
    connection, _ = tuned()
    assert failure(feed(connection, call(0, ConnectionOpen(host)))) == (530, 10, 40)


@pytest.mark.parametrize(
    "method", [ConnectionTuneOk(0, 0, 0), ConnectionOpen(b"/"), ConnectionUpdateSecret(b"", b""), GET]
)
def test_methods_before_start_ok(method: Method) -> None:
    assert failure(feed(ServerConnection(), call(0, method))) == (503, method.CLASS, method.METHOD)


@pytest.mark.parametrize("method", [START_OK, ConnectionTuneOk(0, 0, 0), ConnectionOpen(b"/"), ChannelOpen()])
def test_methods_twice_or_on_channel_0(method: Method) -> None:
    assert failure(feed(opened(), call(0, method))) == (503, method.CLASS, method.METHOD)


def test_no_method_before_the_server_has_tuned() -> None:
    connection = ServerConnection()
    feed(connection, call(0, START_OK))
    assert failure(feed(connection, call(0, ConnectionTuneOk(0, 0, 0)))) == (503, 10, 31)


@pytest.mark.parametrize("kind", [FrameType.METHOD, FrameType.HEADER, FrameType.BODY])
def test_channels_before_the_connection_is_open(kind: FrameType) -> None:
    connection, _ = tuned()
    assert failure(feed(connection, frame(kind, 1, b"\0\x14\0\x0a\0"))) == (505, 0, 0)


def test_a_secret_can_be_updated() -> None:
    update = ConnectionUpdateSecret(b"s", b"r")
    assert feed(opened(), call(0, update)) == [Called(0, update)]


# -- frames -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "octets",
    [
        call(1, GET)[:-1] + b"\0",
        FRAME.pack(9, 1, 0) + b"\xce",
        FRAME.pack(3, 1, 131072 - 7),
        frame(FrameType.HEARTBEAT, 1, b""),
        frame(FrameType.HEARTBEAT, 0, b"x"),
        frame(FrameType.METHOD, 1, b"\0\x3c"),
    ],
)
def test_frame_errors(octets: bytes) -> None:
    assert failure(feed(opened(1), octets)) == (501, 0, 0)


def test_arguments_that_are_cut() -> None:
    octets = frame(FrameType.METHOD, 1, b"\0\x32\0\x0a\0\0\x05ab")
    assert failure(feed(opened(1), octets)) == (501, 50, 10)


def test_frames_of_exactly_frame_max_are_accepted() -> None:
    connection = opened(1, frame_max=4096)
    octets = publish(1, b"q", b"x" * 4088, frame_max=4096)
    assert len(octets) > 4096
    (event,) = feed(connection, octets)
    assert isinstance(event, PublishRun)
    longer = publish(1, b"q", b"x" * 4089, frame_max=5000)
    assert failure(feed(connection, longer)) == (501, 0, 0)


def test_the_size_of_a_frame_is_refused_before_its_octets_arrive() -> None:
    connection = opened(1)
    assert failure(feed(connection, FRAME.pack(3, 1, 1 << 30))) == (501, 0, 0)
    assert connection.unfinished == 0


def test_after_octets_that_are_no_frame_nothing_is_read() -> None:
    connection = opened(1)
    feed(connection, b"\x09" * 7)
    assert feed(connection, call(0, ConnectionCloseOk())) == []


@pytest.mark.parametrize("number", [2, 2047])
def test_channels_that_are_not_open(number: int) -> None:
    for octets in (call(number, GET), publish(number, b"q", b"x"), call(number, ChannelCloseOk())):
        assert failure(feed(opened(1), octets))[0] == 504
    for kind in (FrameType.HEADER, FrameType.BODY):
        assert failure(feed(opened(1), frame(kind, number, b""))) == (504, 0, 0)


def test_channels_above_channel_max() -> None:
    connection, _ = tuned(ConnectionTuneOk(5, 0, 0))
    feed(connection, call(0, ConnectionOpen(b"/")))
    assert failure(feed(connection, call(6, ChannelOpen()))) == (504, 20, 10)


def test_a_channel_that_is_opened_twice() -> None:
    assert failure(feed(opened(1), call(1, ChannelOpen()))) == (504, 20, 10)


def test_all_channels_at_once() -> None:
    connection = opened(*range(1, 2048))
    octets = b"".join(publish(number, b"q", b"%d" % number) for number in range(1, 2048))
    events = feed(connection, octets)
    assert [event.channel for event in events if isinstance(event, PublishRun)] == list(range(1, 2048))


def test_methods_of_the_server_are_refused() -> None:
    deliver = BasicDeliver(b"c", 1, False, b"", b"")
    assert failure(feed(opened(1), call(1, deliver))) == (503, 60, 60)
    assert failure(feed(opened(1), call(1, ConnectionOpen(b"/")))) == (503, 10, 40)


@pytest.mark.parametrize(
    "method",
    [BasicQos(1, 1), BasicRecover(False), BasicRecoverAsync(False), BasicPublish(b"", b"", False, True)],
)
def test_methods_without_implementation_are_refused(method: Method) -> None:
    assert failure(feed(opened(1), call(1, method))) == (540, method.CLASS, method.METHOD)


@pytest.mark.parametrize(
    "method",
    [
        BasicQos(0, 5), BasicRecover(True), BasicRecoverAsync(True), ChannelFlow(False), ChannelFlowOk(True),
        BasicCancelOk(b"c"), AccessRequest(b"/data", False, False, True, True, True),
        DirectPut(b"amq.direct"), QueueDeclare(b"", exclusive=True), BasicAck(0, False),
    ],
)  # fmt: skip
def test_methods_that_the_terminal_answers(method: Method) -> None:
    assert feed(opened(1), call(1, method)) == [Called(1, method)]


# -- messages -----------------------------------------------------------------------------------------------


def one(events: list[Event]) -> PublishRun:
    (event,) = events
    assert isinstance(event, PublishRun)
    return event


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
    # Where the body is complete, another frame of it is one too many.
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
    events = [event for event in feed(opened(1), octets) if not isinstance(event, LongBegun)]
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
    assert feed(connection, call(1, ChannelCloseOk())) == [Freed(1)]


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
    assert one(feed(opened(1), publish(1, b"q", bytes(WHOLE_BODY))))
    events = feed(opened(1), publish(1, b"q", bytes(WHOLE_BODY + 1)))
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


# -- acknowledgements ---------------------------------------------------------------------------------------


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


# -- ends ---------------------------------------------------------------------------------------------------

MISSING = ChannelProblem(ReplyCode.NOT_FOUND, "no exchange 'x' in vhost '/'", 60, 40)


def test_after_channel_close_everything_but_close_ok_is_dropped() -> None:
    connection = opened(1, 2)
    feed(connection, publish(1, b"q", b"12345")[:-3])
    close = connection.close_channel(1, MISSING)
    assert decode(close[FRAME.size : -1]) == ChannelClose(
        404, b"NOT_FOUND - no exchange 'x' in vhost '/'", 60, 40
    )
    rest = publish(1, b"q", b"12345")[-3:]
    octets = rest + publish(1, b"q", b"x") * 3 + call(1, BasicAck(1)) + call(1, ChannelOpen()) + body(1, b"?")
    assert feed(connection, octets + call(2, GET)) == [Called(2, GET)]
    crossed = ChannelClose(0, b"", 0, 0)
    assert feed(connection, call(1, crossed)) == [Reply(method_frame(1, ChannelCloseOk()))]
    assert feed(connection, call(1, ChannelCloseOk()) + call(1, ChannelOpen())) == [
        Freed(1), Called(1, ChannelOpen()),
    ]  # fmt: skip
    assert one(feed(connection, publish(1, b"q", b"x")))
    assert connection.close_channel(3, MISSING) == b""


def test_a_channel_closed_at_an_event_yields_no_later_event() -> None:
    connection = opened(1)
    events = []
    for event in connection.feed(publish(1, b"none", b"1") + publish(1, b"q", b"2")):
        events.append(event)
        connection.close_channel(1, MISSING)
    assert len(events) == 1


def test_channels_are_closed_by_clients_in_the_middle_of_messages() -> None:
    connection = opened(1)
    feed(connection, call(1, BasicPublish(b"", b"q")))
    assert failure(feed(connection, call(1, ChannelClose(200, b"", 0, 0)))) == (505, 60, 40)
    connection = opened(1)
    assert feed(connection, call(1, ChannelClose(0, b"", 0, 0))) == [ClosedByPeer(1, 0, b"")]
    assert failure(feed(connection, call(1, GET))) == (504, 60, 70)


def test_connections_that_clients_close() -> None:
    connection = opened(1)
    events = feed(connection, call(0, ConnectionClose(200, b"bye", 0, 0)) + call(1, GET) + b"garbage")
    assert events == [ClosedByPeer(0, 200, b"bye")]
    assert feed(connection, b"garbage") == []


def test_after_connection_close_everything_but_close_ok_is_dropped() -> None:
    connection = opened(1)
    close = connection.close(ConnectionProblem(ReplyCode.CONNECTION_FORCED, "shutdown"))
    assert decode(close[FRAME.size : -1]) == ConnectionClose(320, b"CONNECTION_FORCED - shutdown", 0, 0)
    octets = (
        publish(1, b"q", b"x")
        + call(1, GET)
        + call(9, GET)
        + call(0, START_OK)
        + frame(FrameType.METHOD, 0, b"")
    )
    assert feed(connection, octets) == []
    crossed = call(0, ConnectionClose(0, b"", 0, 0))
    assert feed(connection, crossed) == [Reply(method_frame(0, ConnectionCloseOk()))]
    assert feed(connection, call(0, ConnectionCloseOk()) + call(0, GET)) == [Freed(0)]
    assert feed(connection, call(0, GET)) == []


def test_after_a_problem_the_rest_of_a_read_is_dropped_frame_by_frame() -> None:
    connection = opened(1)
    octets = call(9, GET) + publish(1, b"q", b"x" * 1000)
    assert failure(feed(connection, octets[:500])) == (504, 60, 70)
    assert feed(connection, octets[500:] + call(0, ConnectionCloseOk())) == [Freed(0)]


def test_long_texts_are_shortened() -> None:
    problem = ChannelProblem(ReplyCode.NOT_FOUND, "x" * 300)
    assert len(problem.reply_text) == 255
    assert problem.reply_text.endswith(b"x...")


def test_many_frames_without_an_event_have_pauses() -> None:
    events = list(opened().feed(HEARTBEAT * 1000))
    assert events == [None] * (1000 // 64)


# -- cuts ---------------------------------------------------------------------------------------------------

CONVERSATION = b"".join(
    (
        publish(1, b"a", b"1"), publish(1, b"a", b"2", properties=PERSISTENT), publish(1, b"a", b""),
        call(1, GET), publish(2, b"b", b"3" * 5000, b"e", frame_max=4096), HEARTBEAT,
        call(1, BasicAck(1)), call(1, BasicAck(2)), call(2, BasicAck(9, True)),
        call(1, BasicPublish(b"", b"a")), header_frame(1, NO_PROPERTIES, 3), publish(2, b"c", b"4"),
        body(1, b"12"), body(1, b""), body(1, b"3"), call(1, ChannelClose(0, b"", 0, 0)),
        call(1, ChannelOpen()),
        publish(1, b"a", b"5") * 3, call(7, GET),
    )
)  # fmt: skip


def flat(events: list[Event]) -> list[object]:
    found: list[object] = []
    for event in merged(events):
        match event:
            case AckRun(channel, ranges):
                found += [(channel, tag) for tag in ranges]
            case LongPart(channel, octets):
                found += [(channel, octet) for octet in octets]
            case _:
                found.append(event)
    return found


def acks_apart(found: list[object]) -> list[object]:
    """Return the events with ranges taken apart into single tags: ranges depend on the cuts."""
    apart: list[object] = []
    for item in found:
        match item:
            case (int() as channel, (int() as first, int() as last)) if first:
                apart += [(channel, tag) for tag in range(first, last + 1)]
            case _:
                apart.append(item)
    return apart


WHOLE = acks_apart(flat(feed(opened(1, 2), CONVERSATION)))


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=8))
def test_any_cuts_give_the_same_events(cuts: list[int]) -> None:
    connection = opened(1, 2)
    found: list[Event] = []
    for begin, end in pairwise([0, *sorted(cuts), len(CONVERSATION)]):
        found += feed(connection, CONVERSATION[begin:end])
    assert acks_apart(flat(found)) == WHOLE


def test_octet_by_octet() -> None:
    connection = opened(1, 2)
    found: list[Event] = []
    for octet in CONVERSATION:
        found += feed(connection, bytes((octet,)))
    assert acks_apart(flat(found)) == WHOLE


@given(st.binary(max_size=300), st.integers(0, len(CONVERSATION)))
def test_any_octets_are_events(octets: bytes, at: int) -> None:
    """Nothing is raised, whatever stands in the middle of a conversation."""
    connection = opened(1, 2)
    feed(connection, CONVERSATION[:at] + octets + CONVERSATION[at:])
    assert connection.unfinished <= MOST_HELD + connection.frame_max


# -- OpenAMQ ------------------------------------------------------------------------------------------------

TIMES = b"\x20\0\0\0\0\x13\x01tT\0\0\0\x05\x01aA\0\0\0\x05T\0\0\0\x07"
WIDE = b"\x20\0\0\0\0\x1b\x01tT\0\0\0\0\0\0\0\x05\x01aA\0\0\0\x09T\0\0\0\0\0\0\0\x07"


def test_times_of_openamq_have_four_octets() -> None:
    connection = opened(1, start_ok=OPENAMQ)
    assert connection.is_openamq
    run = one(feed(connection, publish(1, b"q", b"x", properties=TIMES)))
    assert list(run.heads) == [b"\0\x01q" + WIDE]
    declare = call(1, QueueDeclare(b"q"))[:-5] + TIMES[2:]
    declare = frame(FrameType.METHOD, 1, declare[FRAME.size :])
    (event,) = feed(connection, declare)
    assert isinstance(event, Called)
    assert failure(feed(connection, publish(1, b"q", b"x", properties=TIMES[:-1]))) == (501, 0, 0)


def test_other_clients_send_times_of_eight_octets() -> None:
    connection = opened(1)
    assert not connection.is_openamq
    assert list(one(feed(connection, publish(1, b"q", b"x", properties=WIDE))).heads) == [b"\0\x01q" + WIDE]
    assert failure(feed(connection, publish(1, b"q", b"x", properties=TIMES)))[0] == 501


# -- the twins ----------------------------------------------------------------------------------------------

names = st.sampled_from([b"", b"q", b"e" * 255])
properties = st.sampled_from(
    [NO_PROPERTIES, PERSISTENT, b"\x80\0\x01t", WIDE, b"\x20\0\0\0\0\x03\x01a?", b"\0\x01"]
)
sent = st.one_of(
    st.builds(
        publish, st.integers(1, 2), names, st.binary(max_size=20), names, properties, mandatory=st.booleans()
    ),
    st.builds(lambda octets, count: octets * count, st.just(publish(1, b"q", b"abc")), st.integers(1, 5)),
    st.builds(call, st.integers(1, 2), st.builds(BasicAck, st.integers(0, 4), st.booleans())),
    st.sampled_from([
        HEARTBEAT, call(1, GET), call(1, BasicPublish(b"", b"", True, True)), body(1, b"x"),
        call(2, ChannelClose(0, b"", 0, 0)) + call(2, ChannelOpen()), header_frame(1, NO_PROPERTIES, 0),
        publish(1, b"q", bytes(200)), publish(1, b"q", bytes(80), frame_max=50),
    ]),
)  # fmt: skip


@given(st.lists(sent, max_size=12), st.lists(st.integers(0, 600), max_size=5), st.data())
def test_both_codecs_read_the_same(frames: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    octets = b"".join(frames)
    if octets and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(octets) - 1))
        octets = octets[:at] + data.draw(st.binary(max_size=2)) + octets[at + 1 :]
    bounds = [0, *sorted(min(cut, len(octets)) for cut in cuts), len(octets)]
    outcomes = []
    for compiled in (codec.COMPILED, False):
        connection = opened(1, 2, max_message=150)
        found: list[Event] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "COMPILED", compiled)
            for begin, end in pairwise(bounds):
                found += feed(connection, octets[begin:end])
        outcomes.append((flat(found), [event.properties for event in found if isinstance(event, PublishRun)]))
    assert outcomes[0] == outcomes[1]


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
def test_the_compiled_codec_takes_every_form_of_a_message() -> None:
    """A message that it leaves to the plain code costs a hundred times as much."""
    limits = RunLimits(1 << 16, 1 << 16)
    for octets in (
        publish(1, b"k", b"", b"e"), publish(1, b"", b"x"), publish(1, b"k", b"x", properties=WIDE),
        publish(1, b"k" * 255, bytes(1 << 16), b"e" * 255, PERSISTENT, mandatory=True),
    ):  # fmt: skip
        run, end = runs.take_publishes(octets * 3, 0, 1, limits)
        assert end == 3 * len(octets)
        assert run is not None
        plain, _ = runs.take_publishes_plain(octets * 3, 0, 1, limits)
        assert run == plain
        assert isinstance(run.batch, Framed)


def test_runs_end_before_a_limit_is_exceeded() -> None:
    """The code for single messages refuses it, and says why."""
    limits = RunLimits(10, 1 << 16)
    assert runs.take_publishes_plain(publish(1, b"k", bytes(10)), 0, 1, limits)[0] is not None
    assert runs.take_publishes_plain(publish(1, b"k", bytes(11)), 0, 1, limits) == (None, 0)


@pytest.mark.skipif(not codec.COMPILED, reason="no compiled codec here")
def test_positions_outside_of_the_octets() -> None:
    for position in (-1, 2):
        with pytest.raises(ValueError, match="not within"):
            codec.native.take_publishes(b"x", position, 1, 1, 1, 1, 1)
        with pytest.raises(ValueError, match="not within"):
            codec.native.take_acks(b"x", position, 1, 1)


@pytest.mark.parametrize("compiled", [codec.COMPILED, False])
def test_a_run_has_the_property_flags_of_all_its_messages(compiled: bool) -> None:
    octets = b"".join(
        publish(1, b"q", b"x", properties=each) for each in (b"\x80\0\x01t", PERSISTENT, NO_PROPERTIES)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "COMPILED", compiled)
        run = one(feed(opened(1), octets))
    assert (run.batch.count, run.properties) == (3, 0x9000)


@pytest.mark.parametrize("compiled", [codec.COMPILED, False])
@pytest.mark.parametrize("bits", [2, 3, 0xFF])
def test_flags_without_a_meaning_are_ignored(bits: int, compiled: bool) -> None:
    octets = call(1, BasicAck(5))[:-2] + bytes((bits,)) + b"\xce"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "COMPILED", compiled)
        assert feed(opened(1), octets) == [Called(1, BasicAck(5, bool(bits & 1)))]


def test_runs_are_limited() -> None:
    octets = publish(1, b"q", b"")
    many = octets * (runs.COMPILED_MESSAGES_A_STEP + 1)
    counts = [run.batch.count for run in feed(opened(1), many) if isinstance(run, PublishRun)]
    assert sum(counts) == runs.COMPILED_MESSAGES_A_STEP + 1
    assert max(counts) <= runs.COMPILED_MESSAGES_A_STEP
    acks = call(1, BasicAck(7)) * (runs.ACKS_A_STEP + 1)
    assert [len(run.ranges) for run in feed(opened(1), acks) if isinstance(run, AckRun)] == [
        runs.ACKS_A_STEP,
        1,
    ]
