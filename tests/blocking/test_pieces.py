"""Messages that the synchronous client publishes and receives in pieces."""

import io
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import pytest
from interrupts import ALARM, Program, interrupted_as_it_ends
from server_command import RunningServer, configured_server

from omq.blocking import Client, Feed, OpenMessage, connect
from omq.client import BodyTooLong, ConnectionLost, Delivery, FromBeginning, Properties, SinkFailed

SECONDS = 60.0
"""The time limit of a step, so that what is lost fails the test instead of blocking it."""

MIB = 1 << 20

LONG = b"".join(b"%07d\n" % number for number in range(1_000_000))
"""A body that is longer than what the system buffers for a connection."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with configured_server(tmp_path_factory.mktemp("long"), f"max_message_bytes = {256 * MIB}\n") as running:
        yield running


@pytest.fixture(scope="module")
def url(server: RunningServer) -> str:
    return f"omq://{server.address}"


def pieces_of(body: bytes, octets: int) -> Iterator[bytes]:
    for begin in range(0, len(body), octets):
        yield body[begin : begin + octets]


def messages_in(client: Client, topic: str) -> int:
    return next(info.messages for info in client.topics() if info.topic == topic.encode())


def next_opened(feed: Feed) -> OpenMessage:
    message = feed.next_opened(SECONDS)
    assert message is not None
    return message


# -- publish ------------------------------------------------------------------------------------------------


def test_a_body_in_pieces(client: Client, topic: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(LONG)
    with client.sink(topic, producer="p") as sink:
        sink.publish(b"first")
        properties = Properties(content_type=b"text/plain")
        sink.publish_from(pieces_of(LONG, 10_007), len(LONG), routing_key=b"key", properties=properties)
        sink.publish_from(pieces_of(LONG, 3 * MIB), len(LONG))
        with (tmp_path / "body").open("rb") as file:
            sink.publish_from(file, len(LONG))
        sink.publish_from(io.BytesIO(b"short"), 5)
        sink.publish_from([], 0)
        sink.publish_from(repeat(b"", 20_000), 0)
        sink.publish_from(pieces_of(b"x" * 20_000, 1), 20_000)
        assert (sink.sent, sink.next) == (8, 9)
    assert sink.stored == 8
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        received = [next(feed) for _ in range(8)]
    expected = [b"first", LONG, LONG, LONG, b"short", b"", b"", b"x" * 20_000]
    assert [message.body for message in received] == expected
    assert received[1].head.routing_key == b"key"
    assert received[1].head.properties.content_type == b"text/plain"


def test_the_memory_of_pieces_may_be_used_again(client: Client, topic: str) -> None:
    memory = bytearray(1000)

    def pieces() -> Iterator[bytes]:
        for number in range(1000):
            memory[:] = b"%03d." % number * 250
            yield memoryview(memory)

    with client.sink(topic) as sink:
        sink.publish_from(pieces(), 1_000_000)
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert next(feed).body == b"".join(b"%03d." % number * 250 for number in range(1000))


@pytest.mark.parametrize("length", [len(LONG) - 1, len(LONG) + 1])
def test_pieces_of_another_length_end_the_sink(client: Client, topic: str, length: int) -> None:
    with pytest.raises(ValueError, match=f"do not have {length} octets together"), client.sink(topic) as sink:
        sink.publish_from(pieces_of(LONG, 10_007), length)
    sink = client.sink(topic)
    with pytest.raises(ValueError, match=f"do not have {length} octets together"):
        sink.publish_from(io.BytesIO(LONG), length)
    for call in (lambda: sink.publish(b"x"), lambda: sink.publish_from([b"x"], 1), sink.close):
        with pytest.raises(ConnectionLost, match="in the middle of a message"):
            call()
    assert messages_in(client, topic) == 0


def test_pieces_without_an_end_are_too_many(client: Client, topic: str) -> None:
    with pytest.raises(ValueError, match="do not have 1000000 octets together"), client.sink(topic) as sink:
        sink.publish_from(repeat(b"abc"), 1_000_000)
    assert messages_in(client, topic) == 0


def test_an_exception_of_the_pieces_ends_the_sink(client: Client, topic: str) -> None:
    def failing() -> Iterator[bytes]:
        yield LONG
        raise ZeroDivisionError

    sink = client.sink(topic)
    with pytest.raises(ZeroDivisionError):
        sink.publish_from(failing(), 2 * len(LONG))
    with pytest.raises(ConnectionLost, match="in the middle of a message"):
        sink.close()
    assert messages_in(client, topic) == 0


def test_what_cannot_be_sent_is_refused(client: Client, topic: str) -> None:
    with client.sink(topic) as sink:
        for length in (-1, 1 << 32):
            with pytest.raises(ValueError, match="does not fit into an envelope"):
                sink.publish_from([], length)
        with pytest.raises(ValueError, match="longer than 255"):
            sink.publish_from([], 0, routing_key=bytes(256))
        sink.publish(b"good")
    assert messages_in(client, topic) == 1
    for wrong in (["text"], io.StringIO("text")):
        with pytest.raises(TypeError, match="must be bytes, not str: encode it"), client.sink(topic) as sink:
            sink.publish_from(wrong, 4)  # type: ignore[arg-type]  # it is wrong
    with pytest.raises(SinkFailed, match="no message may take more than"), client.sink(topic) as sink:
        sink.publish_from(repeat(bytes(MIB), 257), 257 * MIB)
    assert messages_in(client, topic) == 1


def test_other_threads_publish_before_and_after_a_body_in_pieces(client: Client, topic: str) -> None:
    begun, going_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        begun.set()
        assert going_on.wait(SECONDS)
        client.ping()  # the pieces may use the client
        yield LONG

    with client.sink(topic) as sink:
        threads = [threading.Thread(target=sink.publish_from, args=(slowly(), len(LONG)))]
        threads[0].start()
        assert begun.wait(SECONDS)
        threads.append(threading.Thread(target=sink.publish, args=(b"other",)))
        threads.append(threading.Thread(target=sink.publish_from, args=([b"an", b"other"], 7)))
        for thread in threads[1:]:
            thread.start()
        client.ping()
        assert sink.sent == 0
        going_on.set()
        for thread in threads:
            thread.join(SECONDS)
    assert sink.stored == 3
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert next(feed).body == LONG
        assert {next(feed).body, next(feed).body} == {b"other", b"another"}


# -- receive ------------------------------------------------------------------------------------------------


def test_messages_of_any_size_are_received_in_pieces(client: Client, topic: str) -> None:
    bodies = [b"first", LONG, b"", LONG[:MIB], b"last"]
    with client.sink(topic) as sink:
        for body in bodies:
            sink.publish(body, routing_key=b"key")
    found: list[bytes] = []
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        for message in feed.opened():
            assert message.head.routing_key == b"key"
            with message.open() as pieces:
                come = list(pieces)
                assert all(0 < len(piece) <= MIB + (1 << 16) for piece in come)
                found.append(b"".join(come))
            assert list(pieces) == []
            assert len(found[-1]) == message.size
            for again in (message.body, message.open().__enter__):
                with pytest.raises(RuntimeError, match="received already"):
                    again()
            if len(found) == len(bodies):
                break
    assert found == bodies
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert [next_opened(feed).body() for _ in bodies] == bodies


def test_the_unread_rest_of_a_body_is_skipped(client: Client, topic: str) -> None:
    with client.sink(topic) as sink:
        sink.publish_many([LONG, b"between", LONG, LONG, LONG, b"last"])
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        messages = feed.opened()
        unopened, between = next(messages), next(messages)
        assert (unopened.size, between.body()) == (len(LONG), b"between")
        with pytest.raises(RuntimeError, match="was skipped"):
            unopened.body()
        with next(messages).open() as pieces:
            assert LONG.startswith(next(pieces))
            too_long = next(messages)
            with pytest.raises(RuntimeError, match="was skipped"):
                next(pieces)
        with pytest.raises(BodyTooLong, match="has 8000000 octets, more than the 7999999 to be held"):
            too_long.body(longest=7_999_999)
        assert too_long.body(longest=8_000_000) == LONG
        told = next(messages)
        told.skip()
        assert next(messages).body() == b"last"


def test_an_iteration_over_open_messages_ends_with_its_topic_and_after_its_timeout(
    client: Client, topic: str
) -> None:
    with client.feed(topic, timeout=0.01) as feed:
        assert list(feed.opened()) == []
        with pytest.raises(TimeoutError):
            feed.next_opened(0)
        with client.sink(topic) as sink:
            sink.publish(b"late")
        assert next_opened(feed).body() == b"late"
        assert not feed.ended
        client.delete(topic)
        assert feed.next_opened(SECONDS) is None
        assert feed.ended
        assert list(feed.opened()) == []


def test_a_closed_feed_has_no_more_messages(client: Client, topic: str) -> None:
    with client.sink(topic) as sink:
        sink.publish_many([LONG, LONG])
    feed = client.feed(topic, FromBeginning(), timeout=SECONDS)
    message = next_opened(feed)
    feed.close()
    assert list(feed.opened()) == []
    assert not feed.ended
    with pytest.raises(ConnectionLost, match="the feed was closed in the middle of a message"):
        message.body()


def test_a_body_goes_on_after_a_timeout(client: Client, topic: str, server: RunningServer) -> None:
    body = LONG * 4
    with client.sink(topic) as sink:
        sink.publish_from(repeat(LONG, 4), len(body))
        sink.publish_from(repeat(LONG, 4), len(body))
        sink.publish_from(repeat(LONG, 4), len(body))
        sink.publish(b"last")
    with client.feed(topic, FromBeginning(), timeout=0.5) as feed:
        message = next_opened(feed)
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                message.body(longest=len(body))
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert until_in_time(lambda: message.body(longest=len(body))) == body

        message = next_opened(feed)
        come = b""
        with message.open() as pieces:
            server.process.send_signal(signal.SIGSTOP)
            try:
                for piece in pieces:
                    come += piece
            except TimeoutError:
                pass
            finally:
                server.process.send_signal(signal.SIGCONT)
            assert len(come) < message.size
            while len(come) < message.size:
                come += until_in_time(lambda: next(pieces))
            assert list(pieces) == []
        assert come == body

        next_opened(feed)
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                feed.next_opened(0.5)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert next_opened(feed).body() == b"last"


def until_in_time(call: Callable[[], bytes]) -> bytes:
    while True:
        try:
            return call()
        except TimeoutError:
            pass


def test_the_server_goes_away_in_the_middle_of_a_message(tmp_path: Path) -> None:
    configuration = "max_message_bytes = 4_294_967_282\n"
    with configured_server(tmp_path, configuration) as server, connect(f"omq://{server.address}") as client:
        with client.sink("t") as sink:
            sink.publish(LONG * 2)

        def killing() -> Iterator[bytes]:
            yield LONG
            server.process.kill()
            while True:
                yield LONG

        sink = client.sink("t")
        with client.feed("t", FromBeginning(), timeout=SECONDS) as feed:
            message = next_opened(feed)
            with message.open() as pieces:
                next(pieces)
                with pytest.raises(ConnectionLost):
                    sink.publish_from(killing(), 1 << 31)
                with pytest.raises(ConnectionLost):
                    list(pieces)
                with pytest.raises(ConnectionLost):
                    next(pieces)
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    next(feed.opened())
        with pytest.raises(ConnectionLost):
            sink.close()


def test_a_body_that_is_too_long_to_be_held_is_refused_and_opened(client: Client, topic: str) -> None:
    length = 9 * len(LONG)
    with client.sink(topic) as sink:
        sink.publish(b"before")
        sink.publish_from(repeat(LONG, 9), length)
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert next(feed).body == b"before"
        for call in (feed.receive, feed.next_run):
            with pytest.raises(BodyTooLong, match=r"a body of 72000000 octets, .* by opened\(\)"):
                call()
        assert next_opened(feed).body(longest=length) == LONG * 9


# -- memory, and Ctrl-C ------------------------------------------------------------------------------------


def test_a_body_of_100_mib_takes_little_memory(url: str, topic: str) -> None:
    text = f"""
from itertools import repeat
from pathlib import Path
def peak():  # MiB; not of getrusage, which counts what the program was before exec
    (line,) = [line for line in Path("/proc/self/status").read_text().split("\\n") if "VmHWM" in line]
    return int(line.split()[1]) >> 10
client.ping()
before = peak()
with client.sink({topic!r}) as sink:
    sink.publish_from(repeat(bytes(1 << 16), 1600), 100 << 20)
published = peak() - before
with client.feed({topic!r}, FromBeginning(), timeout={SECONDS}) as feed:
    message = next(feed.opened())
    with message.open() as pieces:
        octets = sum(map(len, pieces))
print(octets, message.size)
print(published if published > 20 else "little", flush=True)
received = peak() - before - published
print(received if received > 20 else "little", flush=True)
client.close()
"""
    with Program(url, text) as program:
        assert program.end() == (0, f"{100 * MIB} {100 * MIB}\nlittle\nlittle\n")


def test_ctrl_c_ends_a_sink_in_the_middle_of_a_message(url: str, client: Client, topic: str) -> None:
    text = f"""
import logging, time
logging.disable()  # what the server says about the sink
def waiting():
    yield bytes(1 << 20)
    print("waiting", flush=True)
    time.sleep({SECONDS})
sink = client.sink({topic!r})
try:
    sink.publish_from(waiting(), 1 << 21)
except KeyboardInterrupt:
    print("interrupted", flush=True)
for call in (sink.close, lambda: sink.publish(b"x")):
    try:
        call()
    except Exception as error:
        print(error, flush=True)
with client.sink({topic!r}) as sink:
    sink.publish_from([b"an", b"other"], 7)
client.close()
"""
    with Program(url, text) as program:
        assert program.line() == "waiting\n"
        program.interrupt()
        expected = "interrupted\n" + "the sink was ended in the middle of a message\n" * 2
        assert program.end() == (0, expected)
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert next(feed).body == b"another"


def test_ctrl_c_at_any_moment_of_publishing_leaves_no_sink_in_the_middle(
    url: str, client: Client, topic: str
) -> None:
    text = f"""
import logging
logging.disable()  # what the server says about the sinks
for microseconds in itertools.islice(itertools.cycle(range(20, 1500, 7)), 300):
    sink = client.sink({topic!r})
    interrupted(lambda: sink.publish_from([b"12345"] * 20, 100), microseconds)
    try:
        sink.publish(b"x")  # would wait for ever in the middle of a message
        sink.close()
    except Exception as error:
        assert str(error) == "the sink was ended in the middle of a message", error
print(client.ping() > 0, flush=True)
client.close()
"""
    with Program(url, ALARM + text) as program:
        assert program.end() == (0, "True\n")
    with client.feed(topic, FromBeginning(), timeout=0.5) as feed:
        assert {envelope.body for envelope in feed} <= {b"12345" * 20, b"x"}


def test_an_interrupt_as_a_message_or_a_piece_is_there_loses_none(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.sink(topic) as sink:
        sink.publish_many([LONG, LONG, b"last"])
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        interrupted_as_it_ends(monkeypatch, lambda: feed.next_opened(SECONDS))
        message = next_opened(feed)
        with message.open() as pieces:
            come = [next(pieces)]
            interrupted_as_it_ends(monkeypatch, lambda: next(pieces))
            assert b"".join([*come, *pieces]) == LONG
        message = next_opened(feed)
        interrupted_as_it_ends(monkeypatch, message.body)
        assert message.body() == LONG
        assert next_opened(feed).body() == b"last"


def test_interrupts_at_any_moment_of_receiving_lose_no_octet(url: str, client: Client, topic: str) -> None:
    with client.sink(topic) as sink:
        sink.publish_many([LONG * 4, b"last"])
    text = f"""
feed = client.feed({topic!r}, FromBeginning(), timeout={SECONDS})
message = next(feed.opened())
for microseconds in range(20, 100, 4):  # too short for all of it
    interrupted(lambda: message.body(), microseconds)
expected = b"".join(b"%07d\\n" % number for number in range(1_000_000)) * 4
print(message.body() == expected)
print(feed.next_opened().body())
client.close()
"""
    with Program(url, ALARM + text) as program:
        assert program.end() == (0, "True\nb'last'\n")


def test_a_worker_gets_a_long_message_by_a_feed(client: Client) -> None:
    client.declare("work", Delivery.ROUND_ROBIN)
    with client.feed("work", timeout=SECONDS) as feed:
        with client.sink("work") as sink:
            sink.publish_from(repeat(LONG, 9), 9 * len(LONG))
        assert next_opened(feed).body(longest=9 * len(LONG)) == LONG * 9
