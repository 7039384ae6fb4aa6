"""The synchronous client with a real server."""

import gc
import math
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import trio
from certificates import Authority
from interrupts import interrupted_as_it_ends
from scarcity import no_descriptors
from server_command import running_server

from omq.blocking import Client, connect
from omq.blocking.portal import Portal
from omq.client import Client as AsyncClient
from omq.client import (
    ConnectionFailed,
    ConnectionLost,
    Delivery,
    EnvelopeRun,
    FromBeginning,
    FromMessage,
    MessageRun,
    MessageTooLong,
    Persistent,
    Properties,
    PublishRefused,
    ServerError,
    Sync,
    Transient,
)
from omq.management import ListExchanges
from omq.watching import Limits

SECONDS = 60.0
"""The time limit of a step, so that a lost message fails the test instead of blocking it."""


def test_publish_confirm_subscribe(client: Client, topic: str) -> None:
    client.publish(topic, b"one")
    assert client.publish_many(topic, (b"%d" % number for number in range(2, 5000))) == 4998
    client.publish_confirmed(topic, b"last")
    client.confirm()
    with client.subscribe(topic, FromBeginning(), timeout=SECONDS) as messages:
        assert messages.topic is not None
        assert messages.topic.topic == topic.encode()
        received = [next(messages) for _ in range(5000)]
    assert [message.id for message in received] == list(range(1, 5001))
    assert [received[0].body, received[1].body, received[-1].body] == [b"one", b"2", b"last"]
    (info,) = [info for info in client.topics() if info.topic == topic.encode()]
    assert (info.messages, info.last) == (5000, 5000)
    assert client.ping() > 0


def test_a_client_that_can_open_nothing_fails(url: str) -> None:
    with no_descriptors(), pytest.raises(ConnectionFailed, match="Too many open files"):
        connect(url)


def test_topics_are_declared_and_deleted(client: Client, topic: str) -> None:
    declared = client.declare("another", Delivery.ROUND_ROBIN, Persistent(Sync.STRONG))
    assert declared.topic == b"another"
    with pytest.raises(ServerError):
        client.declare("another", Delivery.BROADCAST, Transient())
    with client.subscribe(topic) as messages:
        assert client.delete(topic).topic == topic.encode()
        assert list(messages) == []
        assert messages.ended
        assert messages.receive() is None
        assert list(messages.runs()) == []
    assert client.delete("another").id == declared.id


def test_closing_is_not_the_end_of_a_topic(client: Client, topic: str) -> None:
    for receive in (client.subscribe, client.feed):
        messages = receive(topic)
        messages.close()
        assert list(messages) == []
        assert messages.receive() is None
        assert not messages.ended


def test_an_interrupt_as_a_block_or_a_round_is_complete_loses_none(
    client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.publish_confirmed(topic, b"1")
    with client.fetch(topic) as blocks:
        interrupted_as_it_ends(monkeypatch, lambda: next(blocks))
        assert [block.first for block in blocks] == [1]
        assert blocks.next == 2
        assert list(blocks) == []
    with client.watch(3600) as rounds:
        interrupted_as_it_ends(monkeypatch, lambda: next(rounds))
        assert next(rounds).topics


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan])
def test_a_timeout_that_cannot_be_is_refused(client: Client, topic: str, timeout: float) -> None:
    refused = pytest.raises(ValueError, match=f"^timeout must not be negative: {timeout}$")
    with client.subscribe(topic) as messages, refused:
        messages.receive(timeout=timeout)
    with client.feed(topic) as feed, refused:
        feed.next_run(timeout=timeout)
    for call in (client.confirm, partial(client.subscribe, topic), partial(client.feed, topic)):
        with refused:
            call(timeout=timeout)


def test_waiting_ends_after_the_timeout(client: Client, topic: str) -> None:
    with client.subscribe(topic, timeout=0.01) as messages:
        assert list(messages) == []
        assert list(messages.runs()) == []
        with pytest.raises(TimeoutError):
            messages.receive(timeout=0)
        client.publish(topic, b"late")
        assert not messages.ended
        message = messages.receive(SECONDS)
        assert message is not None
        assert message.body == b"late"


def test_a_timeout_of_zero_receives_what_has_arrived(client: Client, topic: str) -> None:
    def polled(receive: Callable[[float], EnvelopeRun | MessageRun | None]) -> list[bytes]:
        for _ in range(1000):
            try:
                run = receive(0)
            except TimeoutError:
                client.ping()
            else:
                assert run is not None
                return run.bodies
        raise AssertionError("nothing was received")

    client.publish_confirmed(topic, b"x")
    with client.subscribe(topic, FromBeginning()) as messages, client.feed(topic, FromBeginning()) as feed:
        assert polled(messages.next_run) == polled(feed.next_run) == [b"x"]
        with pytest.raises(TimeoutError):
            feed.next_run(timeout=0)


def test_runs(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 100)
    client.confirm(timeout=SECONDS)
    with client.subscribe(topic, FromMessage(11), timeout=SECONDS) as messages:
        ids: list[int] = []
        for run in messages.runs():
            ids += run.ids
            if run.ids[-1] == 100:
                break
    assert ids == list(range(11, 101))


def test_a_worker_confirms_by_asking_for_the_next_message(client: Client, url: str, topic: str) -> None:
    client.declare("work", Delivery.ROUND_ROBIN)
    client.publish_many("work", [b"1", b"2", b"3", b"4"])
    client.confirm()
    with connect(url) as worker, worker.subscribe("work", credit=4, timeout=SECONDS) as messages:
        taken = [next(messages), next(messages)]  # the second is not confirmed
        third = next(messages)
        messages.received(third)
    assert [message.body for message in (*taken, third)] == [b"1", b"2", b"3"]
    with client.subscribe("work", credit=4, timeout=SECONDS) as messages:
        rest = messages.receive(SECONDS)
    assert rest is not None
    assert rest.body == b"4"
    client.delete("work")
    with client.subscribe(topic) as messages, pytest.raises(ValueError, match="credit"):
        messages.received(1)


def test_a_workers_iteration_ends_with_its_topic(client: Client) -> None:
    client.declare("work", Delivery.ROUND_ROBIN)
    with client.subscribe("work", credit=1) as messages:
        client.delete("work")
        assert messages.receive(SECONDS) is None


def test_sink_and_feed(client: Client, topic: str) -> None:
    with client.feed(topic, timeout=SECONDS) as feed:
        assert feed.topic == topic.encode()
        with client.sink(topic, producer="test", first=7) as sink:
            sink.publish(b"one", routing_key=b"k", properties=Properties(content_type=b"text/plain"))
            assert sink.publish_many(map(b"%d".__mod__, range(9000))) == 9000
            assert (sink.topic, sink.next, sink.sent, sink.stored) == (topic.encode(), 9008, 9001, None)
        assert sink.stored == sink.close() == 9001
        first = next(feed)
        assert (first.body, first.head.routing_key) == (b"one", b"k")
        bodies = [next(feed).body for _ in range(9000)]
    assert bodies == [b"%d" % number for number in range(9000)]
    assert sink.notices == ()
    with client.feed(topic, FromBeginning(), timeout=SECONDS) as feed:
        assert len(next(feed.runs()).bodies) > 0


def test_a_sink_whose_block_fails_confirms_nothing(client: Client, topic: str) -> None:
    sink = client.sink(topic)
    sink.publish(b"x")
    with pytest.raises(ZeroDivisionError), sink:
        raise ZeroDivisionError
    assert sink.stored is None
    with pytest.raises(ConnectionLost):
        sink.close()


def test_the_bodies_of_fetched_blocks(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"one", b"", b"three"])
    client.confirm()
    with client.fetch(topic) as blocks:
        bodies = [bytes(block.body(id)) for block in blocks for id in range(block.first, block.next)]
    assert bodies == [b"one", b"", b"three"]
    (block,) = client.fetch(topic)
    with pytest.raises(ValueError, match="4"):
        block.body(4)


def test_fetch_and_blocks(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 1000)
    client.confirm()
    with client.fetch(topic, 1, 1000) as blocks:
        counts = [block.count for block in blocks]
        assert blocks.next == 1001
    assert sum(counts) == 1000
    assert sum(info.count for info in client.blocks(topic)) == 1000
    blocks = client.fetch(topic)
    blocks.close()
    with pytest.raises(ServerError), client.fetch("there is no such topic") as blocks:
        next(blocks)


def test_queues_are_managed(client: Client) -> None:
    assert client.manage(ListExchanges(0))


def test_watch_and_control(client: Client, url: str, topic: str) -> None:
    assert client.publish_lines(topic, b"1\n2\n") == 2
    client.confirm()
    with client.watch(0.1) as rounds:
        assert topic.encode() in {numbers.topic.topic for numbers in next(rounds).topics.values()}
        assert next(rounds).time_us > 0
    with client.subscribe(topic):
        assert len(client.subscribers(topic)) == 1
    client.retain(topic, Limits(octets=1 << 20, ms=None))
    assert client.purge(topic) == 2
    with connect(url, id="victim") as victim, victim.subscribe(topic) as messages:
        (found,) = [info for info in client.connections() if info.client == b"victim"]
        assert client.disconnect(found.id)
        with pytest.raises(ConnectionLost):
            messages.receive(SECONDS)
    assert not client.disconnect(found.id)


def test_the_blocking_client_has_every_method_of_the_asynchronous_one() -> None:
    assert {name for name in vars(AsyncClient) if name[0] != "_"} <= set(vars(Client))


def test_errors_are_raised_where_the_call_is(client: Client, topic: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        client.publish("", b"x")
    with pytest.raises(TypeError, match="encode it"):
        client.publish(topic, "text")  # type: ignore[arg-type]  # the wrong type is the test
    with pytest.raises(TypeError, match="encode it"):
        client.publish_many(topic, [b"x", "text"])  # type: ignore[list-item]  # the wrong type is the test
    with pytest.raises(MessageTooLong):
        client.publish(topic, bytes(1 << 21))
    with pytest.raises(ServerError), client.sink("there is no such topic"):
        pass
    with pytest.raises(ValueError, match="omq://HOST:PORT"):
        connect("http://127.0.0.1")
    with pytest.raises(ConnectionFailed):
        connect("omq://127.0.0.1:1", connect_seconds=SECONDS)


def test_the_bodies_may_come_from_the_same_client(client: Client, topic: str) -> None:
    with client.subscribe(topic, FromBeginning(), timeout=SECONDS) as messages:
        client.publish_many(topic, [b"1", b"2"])
        client.confirm()
        client.declare("copy")
        assert client.publish_many("copy", (message.body for message in islice(messages, 2))) == 2


def test_each_thread_gets_its_own_report(url: str) -> None:
    client = connect(url)
    published, asked = threading.Event(), threading.Event()
    outcomes: list[str] = []

    def publish_early_and_ask_late() -> None:
        client.publish("unknown", b"x")
        published.set()
        asked.wait(SECONDS)
        with pytest.raises(PublishRefused, match="unknown"):
            client.confirm()
        client.confirm()  # once
        outcomes.append("told")

    thread = threading.Thread(target=publish_early_and_ask_late)
    thread.start()
    assert published.wait(SECONDS)
    with pytest.raises(PublishRefused):
        client.confirm()
    client.confirm()
    asked.set()
    thread.join(SECONDS)
    assert outcomes == ["told"]
    client.close()


def test_an_unsolicited_refusal_is_raised_at_the_end(url: str) -> None:
    client = connect(url)
    client.publish("unknown", b"x")
    with pytest.raises(PublishRefused):
        client.close()
    client.close()


def test_threads_share_a_client_and_a_sink(client: Client, topic: str) -> None:
    """Also while another thread waits for a message."""
    received: list[bytes] = []

    def receive() -> None:
        with client.subscribe(topic, FromBeginning(), timeout=SECONDS) as messages:
            received.extend(next(messages).body for _ in range(8 * 200))

    with client.sink(topic) as sink:

        def publish(number: int) -> None:
            for _ in range(100):
                client.publish(topic, b"%d" % number)
                sink.publish(b"%d" % number)
            client.confirm()

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        threads.append(threading.Thread(target=receive))
        for thread in threads:
            thread.start()
        for thread in threads[:-1]:
            thread.join()
    threads[-1].join()
    assert sorted(received) == sorted(b"%d" % number for number in range(8) for _ in range(200))


def test_close_wakes_the_threads_that_wait(url: str, topic: str) -> None:
    client = connect(url)
    messages = client.subscribe(topic, FromBeginning())
    feed = client.feed(topic)
    sink = client.sink(topic)
    fetched = client.fetch(topic)
    outcomes: list[type[Exception]] = []
    arrived = threading.Event()

    def wait() -> None:
        messages.receive()
        arrived.set()
        try:
            messages.receive()
        except ConnectionLost as error:
            outcomes.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    client.publish(topic, b"x")
    assert arrived.wait(SECONDS)
    client.close()
    thread.join(SECONDS)
    assert outcomes == [ConnectionLost]
    assert client.ended
    messages.close()
    feed.close()
    fetched.close()
    with pytest.raises(ConnectionLost):
        sink.close()
    with pytest.raises(ConnectionLost):
        client.topics()


def test_the_loss_of_the_server_is_told(tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as server:
        client = connect(f"omq://{server.address}")
        messages = client.subscribe("t")
        server.process.kill()
        with pytest.raises(ConnectionLost):
            messages.receive(SECONDS)
        with pytest.raises(ConnectionLost):
            client.topics()
        messages.close()
        client.close()


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    shown = authority.issue("127.0.0.1")
    certificate = ("--tls-cert", shown.cert, "--tls-key", shown.key)
    with running_server("--listen-tls", "127.0.0.1:0", "--store", tmp_path / "store", *certificate) as server:
        with connect(f"omqs://{server.address}", ca=str(authority.file)) as client:
            client.publish_confirmed("t", b"x")
            with client.sink("t") as sink:
                sink.publish(b"y")
            with client.feed("t", FromBeginning(), timeout=SECONDS) as feed:
                assert [next(feed).body, next(feed).body] == [b"x", b"y"]
        with pytest.raises(ConnectionFailed, match="certificate"):
            connect(f"omqs://{server.address}")


def test_a_callback_cannot_call_the_client() -> None:
    portal = Portal()

    async def callback() -> None:
        portal.call(trio.sleep, 0)

    with pytest.raises(RuntimeError, match="a callback of a client cannot call the client"):
        portal.call(callback)
    portal.close()
    portal.close()


def omq_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "omq"]


def test_no_thread_is_left(url: str) -> None:
    before = omq_threads()
    with connect(url):
        assert len(omq_threads()) == len(before) + 1
    with pytest.raises(ZeroDivisionError), connect(url):
        raise ZeroDivisionError
    assert omq_threads() == before
    forgotten = connect(url)
    forgotten.topics()
    del forgotten
    gc.collect()
    assert omq_threads() == before
