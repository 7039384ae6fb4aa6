"""Publish lines for many stored topics: what the compiled codec commits at once is kept as all posts are."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from counted_steps import looked_at, steps
from trio.testing import wait_all_tasks_blocked

from omq.drivers.routed import QUIET_SECONDS, RoutedPost, assign_ids
from omq.drivers.signal import Signal
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Confirmed, Deleted, Error, Subscribed
from omq.terminals.omq.replies import COLLECTED_OCTETS, Replies
from omq.terminals.omq.terminal import OmqTerminal
from omq_storage import codec
from omq_storage.blocks import Block
from omq_storage.environment import Environment
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.routes import Route

from .conversation import STORED, Conversation, InProcess, eventually, publish, serving

pytestmark = pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")

TOPICS = [b"topic-%d" % number for number in range(60)]


async def declare(client: Conversation, topics: Sequence[bytes], persistence: bytes) -> None:
    for topic in topics:
        await client.ask(b"(Declare %s Broadcast %s)" % (topic, persistence))


async def replayed(host: InProcess, topic: bytes, count: int) -> list[bytes]:
    """Return the bodies of the stored messages of a topic, whose ids must begin with 1."""
    client = await host.connect()
    assert isinstance(await client.ask(b"(Subscribe %s From_beginning)" % topic), Subscribed)
    found = [await client.message() for _ in range(count)]
    assert [message.id for message in found] == list(range(1, count + 1))
    await client.stream.aclose()
    return [message.body for message in found]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the messages of each commit that the compiled codec has made."""
    found = []
    append = Environment.append_commit

    def counted(environment: Environment, commit: Any) -> None:
        found.append(commit.messages)
        append(environment, commit)

    monkeypatch.setattr(Environment, "append_commit", counted)
    return found


async def test_connections_whose_confirms_take_longer_than_a_slice_are_sent_to_by_their_own_tasks(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.drivers.immediate_sends.SLICE_SECONDS", -1.0)
    async with serving(store) as host:
        clients = [await host.connect() for _ in range(4)]
        await clients[0].ask(b"(Declare t Broadcast (Persistent Weak))")
        for number in range(5):
            for client in clients:  # all in one commit, or nearly so
                await client.send(publish(b"t", [b"x"]) + b"(Confirm %d)\n" % number)
            for client in clients:
                assert await client.frame() == Confirmed(number)


async def test_a_defect_of_sending_confirms_is_logged_and_costs_no_commit(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: OmqTerminal) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(OmqTerminal, "send_at_once", fail)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast (Persistent Weak))")
        for number in range(2):
            await client.send(publish(b"t", [b"x"]) + b"(Confirm %d)\n" % number)
            assert await client.frame() == Confirmed(number)
    assert any("sending at once failed by a defect of the server" in line for line in caplog.messages)


@pytest.mark.parametrize("level", [b"Weak", b"Strong"])
async def test_the_step_that_ends_a_commit_confirms_its_messages(
    store: Path, level: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("immediate_sends", "slices"):  # the same steps on a slow machine
        monkeypatch.setattr(f"omq.drivers.{module}.SLICE_SECONDS", 60.0)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast (Persistent %s))" % level)
        await wait_all_tasks_blocked()
        (terminal,) = host.server.terminals()
        writers = host.server.catalogue.writers.values()

        def look() -> tuple[int, int]:
            """Return the messages that are not stored, and the answers that wait."""
            stored = sum(writer.statistics().messages for writer in writers)
            statistics = terminal.statistics()
            return statistics.messages_in - stored, statistics.waiting_answers

        with looked_at(look) as seen:
            for number in range(5):
                await client.send(publish(b"t", [b"x"]) + b"(Confirm %d)\n" % number)
                assert await client.frame() == Confirmed(number)
        assert seen == {(0, 0), (1, 2)}  # two answers: the outcome and Confirmed


@STORED
async def test_rounds_of_many_topics_are_stored_and_sent(
    tmp_path: Path, persistence: bytes, commits: list[int]
) -> None:
    rounds = 30
    async with serving(tmp_path / "store") as host:
        client, subscriber = await host.connect(), await host.connect()
        await declare(client, TOPICS, persistence)
        names = {}
        for topic in TOPICS[::2]:
            answer = await subscriber.ask(b"(Subscribe %s From_current)" % topic)
            assert isinstance(answer, Subscribed)
            names[answer.topic.id] = topic
        for turn in range(rounds):
            await client.send(b"".join(publish(topic, [b"%s/%d" % (topic, turn)]) for topic in TOPICS))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        seen: dict[bytes, list[bytes]] = {topic: [] for topic in names.values()}
        for _ in range(rounds * len(names)):
            message = await subscriber.message()
            seen[names[message.topic]].append(message.body)
        expected = {topic: [b"%s/%d" % (topic, turn) for turn in range(rounds)] for topic in TOPICS}
        assert seen == {topic: expected[topic] for topic in TOPICS[::2]}
        assert sum(commits) == rounds * len(TOPICS)
        assert host.memory_used == 0
    async with serving(tmp_path / "store") as host:
        for topic in TOPICS[:4]:
            assert await replayed(host, topic, rounds) == expected[topic]


async def test_a_writer_counts_no_more_time_than_passed(tmp_path: Path, commits: list[int]) -> None:
    began = time.perf_counter()
    async with serving(tmp_path / "store") as host:
        client = await host.connect()
        await declare(client, TOPICS[:2], b"(Persistent Weak)")
        for turn in range(3):
            await client.send(b"".join(publish(topic, [b"%d" % turn]) for topic in TOPICS[:2]))
            await client.confirm(turn)
        (weak,) = (each for each in host.server.statistics().writers if each.level is Level.WEAK)
    passed = time.perf_counter() - began
    assert weak.commits == sum(weak.commit_times.counts) == len(commits) == 3
    # The thread of a commit counts its time, too: without that of its start and its end.
    assert 0 < weak.commit_times.seconds <= weak.commit_seconds <= passed


async def test_short_and_long_messages_of_a_topic_keep_their_order(
    tmp_path: Path, commits: list[int]
) -> None:
    """A long message takes another way into the store than the short ones beside it."""
    async with serving(tmp_path / "store") as host:
        client = await host.connect()
        await declare(client, [b"a", b"b"], b"(Persistent Weak)")
        bodies = [b"%d" % number + b"." * (80_000 if number % 7 == 3 else 20) for number in range(100)]
        await client.send(b"".join(publish(b"a", [body]) + publish(b"b", [body]) for body in bodies))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        for topic in (b"a", b"b"):
            assert await replayed(host, topic, len(bodies)) == bodies
        assert commits


async def test_many_more_messages_than_the_memory_holds_wait_for_their_commits(
    tmp_path: Path, commits: list[int]
) -> None:
    count = 20_000
    async with serving(tmp_path / "store", memory_bytes=4 << 20) as host:
        clients = [await host.connect() for _ in range(3)]
        await declare(clients[0], [b"a", b"b", b"c"], b"(Persistent Weak)")
        lines = [publish(topic, [b"%d" % number for number in range(count)]) for topic in (b"a", b"b", b"c")]
        async with trio.open_nursery() as nursery:
            for client, octets in zip(clients, lines, strict=True):
                nursery.start_soon(client.send, octets + b"(Confirm 7)\n")
            for client in clients:
                assert await client.frame() == Confirmed(7)
        assert max(commits) * 17 < 4 << 20
        for topic in (b"a", b"b", b"c"):
            assert await replayed(host, topic, count) == [b"%d" % number for number in range(count)]
        assert host.memory_used == 0


async def test_ids_of_many_topics_are_assigned_in_turns(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omq.drivers.routed.TOPICS_IN_TURN", 3)
    taken = []

    async def counted(*arguments: Any) -> bool:
        async with steps() as found:
            done = await assign_ids(*arguments)
        taken.append(found.count)
        return done

    monkeypatch.setattr("omq.drivers.writer.assign_ids", counted)
    async with serving(store) as host:
        client = await host.connect()
        await declare(client, TOPICS, b"(Persistent Async)")
        await client.send(b"".join(publish(topic, [b"x"]) for topic in TOPICS))
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
    assert sum(taken) > 3 * len(TOPICS) // 6  # a third of them when they are counted, and when they get ids


def fail(*_: object, **__: object) -> NoReturn:
    raise StoreError("The disk does not answer.")


@pytest.mark.parametrize(
    ("problem", "logged"),
    [
        (StoreError("The disk does not answer."), "cannot store: The disk does not answer."),
        (ValueError("No number."), "ValueError: No number."),  # a defect of the server
    ],
    ids=["store", "defect"],
)
async def test_a_commit_that_fails_is_stored_topic_by_topic(
    problem: Exception,
    logged: str,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail_so(*_: object) -> NoReturn:
        raise problem

    async with serving(store) as host:
        client = await host.connect()
        await declare(client, [b"a", b"b"], b"(Persistent Strong)")
        monkeypatch.setattr(Environment, "append_commit", fail_so)
        await client.send(publish(b"a", [b"1"]) + publish(b"b", [b"2", b"3"]) + b"(Confirm 1)\n")
        assert await client.frame() == Confirmed(1)
        assert logged in caplog.text
        assert await replayed(host, b"b", 2) == [b"2", b"3"]


async def test_a_topic_whose_messages_fail_is_named_and_the_others_are_stored(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await declare(client, [b"a", b"b", b"c"], b"(Persistent Strong)")
        monkeypatch.setattr(Environment, "append_commit", fail)
        append = Environment.append

        def some(environment: Environment, blocks: Sequence[Block], *others: Any) -> Any:
            if any(block.count == 2 for block in blocks):
                raise StoreError("The disk does not answer.")
            return append(environment, blocks, *others)

        monkeypatch.setattr(Environment, "append", some)
        await client.send(
            publish(b"a", [b"1"]) + publish(b"b", [b"2", b"3"]) + publish(b"c", [b"4"]) + b"(Confirm 1)\n"
        )
        assert await client.error() == b"Publish b: 2 messages: the store failed, the server's log has more"
        assert (
            await client.error()
            == b"Confirm 1: 2 published before it and after the last Confirm were refused"
        )
        for topic, bodies in ((b"a", [b"1"]), (b"c", [b"4"])):
            assert await replayed(host, topic, 1) == bodies
        monkeypatch.undo()
        await client.send(publish(b"b", [b"5"]) + b"(Confirm 2)\n")
        assert await client.frame() == Confirmed(2)
        assert await replayed(host, b"b", 1) == [b"5"]


@contextmanager
def held_commits(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the commits of strong topics within the block. Yield an event that tells that one has begun."""
    environment = host.server.catalogue.writers[Level.STRONG].environment
    append, began, may_go_on = environment.append_commit, threading.Event(), threading.Event()

    def wait(commit: Any) -> None:
        began.set()
        may_go_on.wait(60)
        append(commit)

    monkeypatch.setattr(environment, "append_commit", wait)
    try:
        yield began
    finally:
        may_go_on.set()


async def test_a_long_message_does_not_overtake_short_ones_that_wait_for_a_commit(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        (terminal,) = host.server.terminals()
        await declare(client, [b"a"], b"(Persistent Strong)")
        bodies = [b"1", b"2", b"3" * 80_000, b"4"]
        with held_commits(host, monkeypatch) as began:
            for number, body in enumerate(bodies, 1):
                await client.send(publish(b"a", [body]))
                await eventually(lambda number=number: terminal.statistics().messages_in == number)
                await eventually(began.is_set)
        assert await client.ask(b"(Confirm 1)") == Confirmed(1)
        assert await replayed(host, b"a", len(bodies)) == bodies


def test_the_errors_of_many_topics_fill_the_queue_of_answers_and_are_sent_in_pieces() -> None:
    lane = codec.native.StoreLane(1 << 20, 1 << 20)
    names = [b"topic-%d" % number + b"x" * 200 for number in range(1000)]
    routes = {name: Route(number, 1, 1 << 30) for number, name in enumerate(names)}
    for route in routes.values():
        route.open_store(lane)
    lines = b"".join(publish(name, [b"x"]) for name in names)
    passed = codec.native.Pass(codec.native.Routes(routes), None, 1 << 16, 1 << 20)
    codec.native.deal_lines(lines, 0, len(lines), passed)
    ((_, part),) = passed.parts
    post, replies = RoutedPost(part), Replies(Signal())
    replies.routed(post, lambda: pytest.fail("none is stored"))
    replies.confirm(1)
    assert not replies.is_full
    assert list(post.divided(post.take())) == []  # no topic has a driver: all were deleted
    assert replies.is_full
    pieces = []
    while len(replies):
        pieces.append(replies.collect())
    assert max(map(len, pieces)) < COLLECTED_OCTETS + 300
    assert b"".join(pieces) == b"".join(
        [encode(Error(b"Publish %s: the topic was deleted" % name)) for name in names]
        + [encode(Error(b"Confirm 1: 1000 published before it and after the last Confirm were refused"))]
    )
    assert (replies.octets, replies.unconfirmed) == (0, 0)


async def test_publishers_hear_that_a_topic_was_deleted_before_its_commit(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client, other = await host.connect(), await host.connect()
        await declare(client, [b"a", b"b"], b"(Persistent Strong)")
        with held_commits(host, monkeypatch) as began:
            await client.send(publish(b"a", [b"1"]))
            await eventually(began.is_set)
            await client.send(publish(b"a", [b"2"]) + publish(b"b", [b"3", b"4"]) + b"(Confirm 1)\n")
            await eventually(lambda: _waiting(host) == 1)
            await other.say(b"(Delete b)")
            await eventually(lambda: b"b" not in host.server.catalogue.by_name)
        assert isinstance(await other.frame(), Deleted)
        assert await client.error() == b"Publish b: 2 messages: the topic was deleted"
        assert isinstance(await client.frame(), Error)
        assert await replayed(host, b"a", 2) == [b"1", b"2"]


def _waiting(host: InProcess) -> int:
    return host.server.catalogue.writers[Level.STRONG].statistics().waiting_posts


async def test_a_subscriber_that_comes_during_a_commit_gets_its_messages(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client, subscriber = await host.connect(), await host.connect()
        await declare(client, [b"a", b"b"], b"(Persistent Strong)")
        with held_commits(host, monkeypatch) as began:
            await client.send(publish(b"a", [b"1"]) + publish(b"b", [b"2"]))
            await eventually(began.is_set)
            assert isinstance(await subscriber.ask(b"(Subscribe a From_current)"), Subscribed)
        message = await subscriber.message()
        assert (message.id, message.body) == (1, b"1")
        await client.confirm()


async def test_a_subscriber_that_comes_behind_a_post_that_fails_gets_the_messages_of_the_commit(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The post closes the way of the topic's messages before the subscriber comes."""
    async with serving(store) as host:
        client, subscriber = await host.connect(), await host.connect()
        await declare(client, [b"a"], b"(Persistent Strong)")
        monkeypatch.setattr(Environment, "append", fail)
        with held_commits(host, monkeypatch) as began:
            await client.send(publish(b"a", [b"1"]))
            await eventually(began.is_set)
            await client.send(publish(b"a", [b"2" * 80_000]))
            await eventually(lambda: _waiting(host) == 1)
            assert isinstance(await subscriber.ask(b"(Subscribe a From_current)"), Subscribed)
        message = await subscriber.message()
        assert (message.id, message.body) == (1, b"1")
        assert (await client.error()).startswith(b"Publish a: ")


async def test_a_connection_is_not_read_while_too_many_outcomes_wait(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 20
    monkeypatch.setattr("omq.terminals.omq.replies.MOST_REPLIES", most)
    async with serving(store) as host:
        client = await host.connect()
        (terminal,) = host.server.terminals()
        await declare(client, [b"slow"], b"(Persistent Strong)")
        await declare(client, [b"quick"], b"(Persistent Async)")
        with held_commits(host, monkeypatch):
            await client.send(publish(b"slow", [b"x"]))
            for number in range(2, most + 1):
                await client.send(publish(b"quick", [b"x"]))
                await eventually(lambda number=number: terminal.statistics().messages_in == number)
            quick = host.server.catalogue.by_name[b"quick"]
            await eventually(lambda: quick.next_id == most)
            assert terminal.statistics().waiting_answers == most
            await client.send(publish(b"quick", [b"x"]) + b"(Confirm 1)\n")
            await wait_all_tasks_blocked()
            assert terminal.statistics().messages_in == most
        assert await client.frame() == Confirmed(1)
        assert quick.next_id == most + 1


class Watch:
    """The time of commits, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return time.time_ns()


@pytest.mark.parametrize("passing", [QUIET_SECONDS, 1.0], ids=["quiet", "as long as the last commit"])
async def test_after_a_long_commit_the_next_one_waits_for_more_messages(
    store: Path, monkeypatch: pytest.MonkeyPatch, passing: float
) -> None:
    watch, seconds, found = Watch(), 1.0, []
    for module in ("gathering", "routed", "writer"):
        monkeypatch.setattr(f"omq.drivers.{module}.time", watch)
    append = Environment.append_commit

    def lasting(environment: Environment, commit: Any) -> None:
        found.append(commit.messages)
        append(environment, commit)
        watch.now += seconds

    monkeypatch.setattr(Environment, "append_commit", lasting)
    async with serving(store) as host:
        client = await host.connect()
        (terminal,) = host.server.terminals()
        await declare(client, [b"a", b"b"], b"(Persistent Async)")
        await client.send(publish(b"a", [b"1"]))
        await client.confirm(1)
        seconds = 0.0
        for number, topic in ((2, b"a"), (3, b"b")):
            await client.send(publish(topic, [b"%d" % number]))
            await eventually(lambda number=number: terminal.statistics().messages_in == number)
        assert found == [1]
        for _ in range(2):  # the writer looks at what has come
            await trio.lowlevel.checkpoint()
        watch.now += passing  # once: a later commit must be short
        await client.confirm(2)
        assert found == [1, 2]
        await client.send(publish(b"a", [b"4"]))
        await client.confirm(3)  # the last commit was short, so this one begins at once
        assert found == [1, 2, 1]


async def test_connections_that_wait_for_a_commit_take_turns_in_their_order(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.drivers.routed.ROUTED_MESSAGES", 1)
    async with serving(store) as host:
        clients = [await host.connect() for _ in range(12)]
        await declare(clients[0], [b"a"], b"(Persistent Strong)")
        bodies = [b"%d" % number for number in range(len(clients))]
        with held_commits(host, monkeypatch) as began:
            for client, body in zip(clients, bodies, strict=True):
                await client.send(publish(b"a", [body]))
                await eventually(began.is_set)
                await wait_all_tasks_blocked()
        for client in clients:
            await client.confirm()
        assert await replayed(host, b"a", len(clients)) == bodies


async def test_ids_that_cannot_be_reserved_fail_topic_by_topic(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(store) as host:
        client = await host.connect()
        await declare(client, [b"a", b"b"], b"(Persistent Strong)")
        with monkeypatch.context() as patch:
            patch.setattr(host.server.catalogue.ids, "reserve", fail)
            for driver in host.server.catalogue.by_name.values():
                patch.setattr(driver, "reserved", driver.next_id)
            await client.send(publish(b"a", [b"1"]) + publish(b"b", [b"2"]) + b"(Confirm 1)\n")
            for topic in (b"a", b"b"):
                assert (await client.error()).startswith(b"Publish %s: " % topic)
            assert (await client.error()).startswith(b"Confirm 1: 2 published")
