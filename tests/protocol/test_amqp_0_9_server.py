"""A server's side of AMQP 0-9-1: the handshake, channels, ends, and every rule a client can break."""

import pytest
from amqp_0_9_helpers import GET, START_OK, body, call, failure, feed, one, opened, publish, tuned

from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9.events import (
    CloseAnswered,
    ClosedByPeer,
    MethodCalled,
    Opened,
    PublishRun,
    Reply,
    StartOk,
    Tuned,
)
from omq.protocol.amqp_0_9.frames import FRAME, HEARTBEAT, FrameType, frame, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.methods import (
    AccessRequest,
    BasicAck,
    BasicCancelOk,
    BasicDeliver,
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
    QueueDeclare,
    decode,
)
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, ReplyCode
from omq.protocol.amqp_0_9.server import ServerConnection


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
    assert feed(connection, call(7, ChannelOpen())) == [MethodCalled(7, ChannelOpen())]


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
    assert feed(opened(), call(0, update)) == [MethodCalled(0, update)]


@pytest.mark.parametrize(
    "octets",
    [
        call(1, GET)[:-1] + b"\0",
        FRAME.pack(9, 1, 0) + b"\xce",
        FRAME.pack(3, 1, 131072 + 1),
        frame(FrameType.HEARTBEAT, 0, b"x"),
        frame(FrameType.METHOD, 1, b"\0\x3c"),
    ],
)
def test_frame_errors(octets: bytes) -> None:
    assert failure(feed(opened(1), octets)) == (501, 0, 0)


def test_a_heartbeat_on_a_channel() -> None:
    assert failure(feed(opened(1), frame(FrameType.HEARTBEAT, 1, b""))) == (505, 0, 0)


def test_arguments_that_are_cut() -> None:
    octets = frame(FrameType.METHOD, 1, b"\0\x32\0\x0a\0\0\x05ab")
    assert failure(feed(opened(1), octets)) == (501, 50, 10)


@pytest.mark.parametrize("portion", [1 << 20, 1000])
def test_frames_whose_payload_has_exactly_frame_max_are_accepted(portion: int) -> None:
    """The overhead of a frame does not count, as with RabbitMQ: AMQPStorm does not count it either."""
    connection = opened(1, frame_max=4096)
    for size in (4088, 4096):
        octets = publish(1, b"q", b"x" * size, frame_max=5000)
        cuts = range(0, len(octets), portion)
        (event,) = (each for cut in cuts for each in feed(connection, octets[cut : cut + portion]))
        assert isinstance(event, PublishRun)
    longer = publish(1, b"q", b"x" * 4097, frame_max=5000)
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


def test_more_channels_than_channel_max() -> None:
    """They may have any numbers, as with RabbitMQ: aiormq takes the numbers that its caller wants."""
    connection, _ = tuned(ConnectionTuneOk(2, 0, 0))
    feed(connection, call(0, ConnectionOpen(b"/")))
    for number in (65535, 6):
        assert feed(connection, call(number, ChannelOpen())) == [MethodCalled(number, ChannelOpen())]
    assert failure(feed(connection, call(1, ChannelOpen()))) == (530, 20, 10)


def test_a_closed_channel_leaves_room_for_another() -> None:
    connection, _ = tuned(ConnectionTuneOk(1, 0, 0))
    close = ChannelClose(0, b"", 0, 0)
    feed(connection, call(0, ConnectionOpen(b"/")) + call(1, ChannelOpen()) + call(1, close))
    assert feed(connection, call(2, ChannelOpen())) == [MethodCalled(2, ChannelOpen())]


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
    [
        BasicQos(1, 1), BasicRecover(False), BasicRecoverAsync(False), BasicPublish(b"", b"", False, True),
        ChannelFlow(False),
    ],
)  # fmt: skip
def test_methods_without_implementation_are_refused(method: Method) -> None:
    assert failure(feed(opened(1), call(1, method))) == (540, method.CLASS, method.METHOD)


@pytest.mark.parametrize(
    "method",
    [
        BasicQos(0, 5), BasicRecover(True), BasicRecoverAsync(True), ChannelFlow(True), ChannelFlowOk(True),
        BasicCancelOk(b"c"), AccessRequest(b"/data", False, False, True, True, True),
        DirectPut(b"amq.direct"), QueueDeclare(b"", exclusive=True), BasicAck(0, False),
    ],
)  # fmt: skip
def test_methods_that_the_terminal_answers(method: Method) -> None:
    assert feed(opened(1), call(1, method)) == [MethodCalled(1, method)]


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
    assert feed(connection, octets + call(2, GET)) == [MethodCalled(2, GET)]
    crossed = ChannelClose(0, b"", 0, 0)
    assert feed(connection, call(1, crossed)) == [Reply(method_frame(1, ChannelCloseOk()))]
    assert feed(connection, call(1, ChannelCloseOk()) + call(1, ChannelOpen())) == [
        CloseAnswered(1), MethodCalled(1, ChannelOpen()),
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
    assert feed(connection, call(0, ConnectionCloseOk()) + call(0, GET)) == [CloseAnswered(0)]
    assert feed(connection, call(0, GET)) == []


def test_after_a_problem_the_rest_of_a_read_is_dropped_frame_by_frame() -> None:
    connection = opened(1)
    octets = call(9, GET) + publish(1, b"q", b"x" * 1000)
    assert failure(feed(connection, octets[:500])) == (504, 60, 70)
    assert feed(connection, octets[500:] + call(0, ConnectionCloseOk())) == [CloseAnswered(0)]


def test_long_texts_are_shortened() -> None:
    problem = ChannelProblem(ReplyCode.NOT_FOUND, "x" * 300)
    assert len(problem.reply_text) == 255
    assert problem.reply_text.endswith(b"x...")


def test_many_frames_without_an_event_have_pauses() -> None:
    events = list(opened().feed(HEARTBEAT * 1000))
    assert events == [None] * (1000 // 64)
