"""Clients that stop reading in the middle of large messages: what is held for them, and how they go on."""

import gc
import logging
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from quietness import pass_until, quiet
from trio.testing import MockClock

from omq.drivers.seam import LITTLE_OCTETS, SLOW_SECONDS
from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Deleted, Message, Subscribed, Unsubscribed
from omq_storage.fragments import FRAGMENT_OCTETS

from .conversation import PATIENCE, Conversation, InProcess, declared, eventually, publish, serving, tidied
from .dmp_conversation import send_all
from .stalled_readers import (
    IN_MEMORY,
    MIB,
    SIZE,
    WAYS,
    Reader,
    body_of,
    is_stalled,
    sending_little,
    small_server,
    stall,
    stalled,
)


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace the allocated memory within the block."""
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def allocated() -> int:
    return tracemalloc.get_traced_memory()[0]


def sending(host: InProcess) -> int:
    """Return the number of connections that are being sent something."""
    return sum(terminal.statistics().is_sending for terminal in host.server.terminals())


async def stalled_subscriber(host: InProcess, client: Conversation, clock: MockClock) -> Conversation:
    """Return a subscriber of `t` that has stalled in the middle of its first message."""
    slow = await host.connect(receive_octets=4096)
    await slow.ask(b"(Subscribe t From_current)")
    await send_all(host, client, [body_of(1)])
    await stall(clock, host, 1)
    return slow


def held(host: InProcess) -> list[int]:
    """Return the number of those in the middle of each message that the server holds for them."""
    return host.server.memory.stalled.holders()


TIMES = pytest.mark.parametrize("replayed", [True, False], ids=["replayed", "live"])


@WAYS
@TIMES
@pytest.mark.usefixtures("traced")
async def test_stalled_readers_hold_no_memory_for_stored_messages(
    store: Path, clock: MockClock, way: str, replayed: bool
) -> None:
    """Each is in the middle of another message; and goes on there, when it reads again."""
    count = 5
    async with small_server(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        readers: list[Reader] = []
        if replayed:
            for number in range(1, count + 1):
                await send_all(host, client, [body_of(number)])
            before = allocated()
            tracemalloc.reset_peak()
            readers = [
                await Reader.open(host, client, way, b"(From_message %d)" % number)
                for number in range(1, count + 1)
            ]
            await stall(clock, host, count)
            assert tracemalloc.get_traced_memory()[1] - before < SIZE
        else:
            before = allocated()
            for number in range(1, count + 1):
                readers.append(await Reader.open(host, client, way, b"From_current"))
                await send_all(host, client, [body_of(number)])
                await stall(clock, host, number)
        # The newest message stays in memory for those who follow.
        await eventually(lambda: allocated() - before < 2 * SIZE)

        async def read(reader: Reader, first: int) -> None:
            for number in range(first, min(first + 2, count + 1)):
                assert await reader.bodies(1) == [body_of(number)]

        tracemalloc.stop()
        async with trio.open_nursery() as nursery:
            for first, reader in enumerate(readers, 1):
                nursery.start_soon(read, reader, first)
        host.hang_up()
        await eventually(lambda: host.connections == 0)
        assert host.server.memory.replayed.used == 0


@WAYS
@pytest.mark.usefixtures("each_codec")
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
@pytest.mark.parametrize("then", ["goes on", "leaves", "topic deleted"])
async def test_a_subscriber_that_stalls_in_fragment_two(
    store: Path,
    clock: MockClock,
    way: str,
    delivery: bytes,
    then: str,
) -> None:
    bodies = [body_of(number, 8 * FRAGMENT_OCTETS + 1) for number in (1, 2)]
    async with sending_little(store) as host:
        client = await declared(host, delivery + b" (Persistent Weak)")
        reader = await Reader.open(host, client, way, b"From_current", receive_octets=8 << 10)
        await send_all(host, client, bodies)
        while reader.of.unfinished < FRAGMENT_OCTETS:
            assert await reader.of.receive()
        await stall(clock, host, 1)
        (slow,) = filter(is_stalled, host.server.terminals())
        assert FRAGMENT_OCTETS < slow.statistics().octets_out < 2 * FRAGMENT_OCTETS
        assert host.server.memory.replayed.used == 0
        assert host.server.memory.stalled.used == 0
        match then:
            case "goes on":
                assert await reader.bodies(2) == bodies
            case "leaves":
                reader.connection.close()
                await eventually(lambda: stalled(host) == 0)
                other = await Reader.open(host, client, way, b"From_current", receive_octets=MIB)
                if delivery == b"Broadcast":
                    await send_all(host, client, bodies)
                assert await other.bodies(2) == bodies
            case _:
                assert isinstance(await client.ask(b"(Delete t)"), Deleted)
                assert await reader.is_cut_off()
        host.hang_up()
        await eventually(lambda: host.connections == 0)
        assert host.server.memory.replayed.used == 0
        assert host.memory_used == 0


@WAYS
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_a_message_deleted_while_it_is_sent_arrives_whole(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, way: str, delivery: bytes
) -> None:
    """Within the second before a client is stalled what it is sent is at hand; and so it is then. That holds
    for messages in blocks.
    """
    async with small_server(store, fragment_octets=64 * MIB) as host:
        client = await declared(host, delivery + b" (Persistent Weak)")
        reader = await Reader.open(host, client, way, b"From_current")
        clock.rate = 0  # the second passes when `stall` lets it
        await send_all(host, client, [body_of(1)])
        await quiet()
        assert (sending(host), stalled(host)) == (1, 0)
        assert isinstance(await client.ask(b"(Delete t)"), Deleted)
        await stall(clock, host, 1)
        assert await reader.bodies(1) == [body_of(1)]
        if way == "subscription":
            assert isinstance(await reader.next(), Unsubscribed)
        clock.rate = 1
        host.hang_up()
        await eventually(lambda: host.connections == 0)
        assert host.server.memory.stalled.used == 0
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@WAYS
@pytest.mark.parametrize("how", ["deleted", "retained"])
async def test_a_stalled_reader_of_a_deleted_message_is_cut_off(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, way: str, how: str
) -> None:
    async with serving(
        store, memory_bytes=8 * MIB, max_message_bytes=8 * MIB, missed_pings=0, retention_bytes=10 * MIB
    ) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await client.ask(b"(Declare other Broadcast (Persistent Weak))")
        await send_all(host, client, [body_of(1)])
        readers = [await Reader.open(host, client, way, b"From_beginning") for _ in range(8)]
        await stall(clock, host, 8)
        bystander = await host.connect()
        await bystander.ask(b"(Subscribe other From_current)")
        if how == "deleted":
            assert isinstance(await client.ask(b"(Delete t)"), Deleted)
            why = "the topic was deleted"
        else:
            await send_all(host, client, [body_of(2)])
            await tidied(client, clock, b"t", lambda info: info.first == 2)
            why = "it is no longer kept"
        for reader in readers:
            assert await reader.is_cut_off()
        if way == "feed":
            news = b"404 NOT-FOUND the topic was deleted"
            if how == "retained":
                news = b"541 INTERNAL-ERROR closed in the middle of a message: it is no longer kept"
            assert [await client.error() for _ in readers] == [b"Feed t: " + news] * len(readers)
        await client.say(b"(Publish other x)")
        assert (await bystander.message()).body == b"x"
        clock.jump(20)
        await eventually(lambda: any(line.startswith("connections were closed") for line in caplog.messages))
        told = [line for line in caplog.messages if "in the middle of a message" in line]
        assert len(told) == 6
        assert all(line.endswith(f": 't': closed in the middle of a message: {why}") for line in told[:5])
        assert told[5] == "connections were closed in the middle of a message: 3 more"


@WAYS
@pytest.mark.usefixtures("traced")
async def test_stalled_readers_of_transient_topics_hold_little_memory(
    store: Path, clock: MockClock, way: str
) -> None:
    """Those are cut off who have read nothing for the longest time, and nobody else."""
    count = 6
    async with small_server(store, fragment_octets=IN_MEMORY) as host:
        client = await declared(host, b"Broadcast Transient")
        principal = await host.connect()
        before = allocated()
        readers: list[Reader] = []
        for number in range(1, count + 1):
            # Two of them in the middle of each message, which is in memory once.
            readers += [await Reader.open(host, principal, way, b"From_current") for _ in range(2)]
            await send_all(host, client, [body_of(number)])
            await pass_until(lambda: held(host) == [2] and host.connections == 4, clock, SLOW_SECONDS / 2)
            if way == "feed" and number > 1:
                news = [await principal.error() for _ in range(2)]
                assert all(text.startswith(b"Feed t: 541 INTERNAL-ERROR closed in the") for text in news)
        await eventually(lambda: allocated() - before < 4 * SIZE)
        assert host.server.memory.stalled.used >= SIZE
        for reader in readers[:-2]:
            assert await reader.is_cut_off()
        for reader in readers[-2:]:
            assert await reader.bodies(1) == [body_of(count)]
        await eventually(lambda: host.server.memory.stalled.used == 0)


async def test_a_slow_reader_is_not_cut_off_for_stalled_ones(store: Path, clock: MockClock) -> None:
    clock.rate = 0  # time passes in the steps below only
    async with small_server(store, fragment_octets=IN_MEMORY) as host:
        client = await declared(host, b"Broadcast Transient")
        slow = await stalled_subscriber(host, client, clock)
        assert held(host) == [1]
        (taking,) = filter(is_stalled, host.server.terminals())
        for number in range(2, 5):
            silent = await Reader.open(host, client, "subscription", b"From_current")
            await send_all(host, client, [body_of(number)])
            # Before the silent one stalls, which takes a second, the slow one has always taken something.
            while host.connections > 2:
                clock.jump(SLOW_SECONDS / 2)
                before = taking.statistics().octets_out
                # A holder counts as moving with each LITTLE_OCTETS.
                while taking.statistics().octets_out < before + 2 * LITTLE_OCTETS:
                    await slow.receive()
                await quiet()
            assert await silent.is_cut_off()
        assert (await slow.message()).body == body_of(1)


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
@pytest.mark.parametrize(("way", "credit"), [("subscription", None), ("subscription", 100), ("feed", None)])
async def test_a_stalled_worker_keeps_only_the_message_it_receives(
    store: Path, clock: MockClock, persistence: bytes, credit: int | None, way: str
) -> None:
    """Other messages that it was dealt go to others. When it reads again it is dealt again."""
    async with serving(store, memory_bytes=128 * MIB, ping_seconds=1000) as host:
        client = await declared(host, b"Round_robin " + persistence)
        reader = await Reader.open(host, client, way, b"From_current")
        if credit:
            assert isinstance(reader.of, Conversation)
            await reader.of.say(b"(Request t %d)" % credit)
            await reader.of.settle()
        await send_all(host, client, [body_of(1), *(b"%d" % number * 1000 for number in range(2, 30))])
        await stall(clock, host, 1)
        other = await host.connect()
        await other.ask(b"(Subscribe t From_current)")
        got = await other.messages(28)
        assert [message.id for message in got] == list(range(2, 30))
        assert await reader.bodies(1) == [body_of(1)]
        await client.say(b"(Publish t more)", b"(Publish t more)")
        assert await reader.bodies(1) == [b"more"]
        assert (await other.message()).body == b"more"
        if credit:
            assert isinstance(reader.of, Conversation)
            await reader.of.say(b"(Received t 1)")
            await reader.of.settle()


@pytest.mark.usefixtures("traced")
async def test_stalled_workers_hold_no_memory_for_stored_messages(store: Path, clock: MockClock) -> None:
    count = 8
    async with small_server(store) as host:
        client = await declared(host, b"Round_robin (Persistent Weak)")
        for number in range(1, count + 1):
            await send_all(host, client, [body_of(number)])
        before = allocated()
        tracemalloc.reset_peak()
        readers = [await Reader.open(host, client, "subscription", b"From_current") for _ in range(count)]
        await stall(clock, host, count)
        # The dealer reads one at a time.
        assert tracemalloc.get_traced_memory()[1] - before < 4 * SIZE
        await eventually(lambda: allocated() - before < 2 * SIZE)
        # One that goes in the middle leaves its message to another.
        lost = readers.pop(3)
        assert isinstance(lost.of, Conversation)
        lost.of.reset()
        got: list[bytes] = []

        async def read(reader: Reader) -> None:
            got.extend(await reader.bodies(1))

        async with trio.open_nursery() as nursery:
            for reader in readers:
                nursery.start_soon(read, reader)
        with trio.fail_after(PATIENCE):
            # The first reader that was free was dealt the last message.
            async with trio.open_nursery() as nursery:

                async def read_last(reader: Reader) -> None:
                    got.extend(await reader.bodies(1))
                    nursery.cancel_scope.cancel()

                for reader in readers:
                    nursery.start_soon(read_last, reader)
        assert sorted(got) == [body_of(number) for number in range(1, count + 1)]


async def test_the_pieces_of_a_message_are_sent_without_interruption(store: Path, clock: MockClock) -> None:
    """Neither answers nor messages of other topics; and a topic is left only behind it."""
    async with small_server(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await send_all(host, client, [body_of(1), b"small"])
        slow = await host.connect(receive_octets=4096)
        await slow.ask(b"(Subscribe other From_current)")
        await slow.ask(b"(Subscribe t From_beginning)")
        await stall(clock, host, 1)
        await slow.say(b"(Confirm 1)", b"(Unsubscribe t)", b"(Confirm 2)")
        await client.send(publish(b"other", [b"x"]))
        await client.confirm()
        assert await slow.message() == Message(1, 0, body_of(1))
        rest = [await slow.frame() for _ in range(4)]
        assert [frame for frame in rest if not isinstance(frame, Message)] == [
            Confirmed(1),
            Unsubscribed(Topic(0, b"t")),
            Confirmed(2),
        ]
        assert [frame for frame in rest if isinstance(frame, Message)] == [Message(1, 1, b"x")]


async def test_a_topic_that_is_deleted_while_it_is_being_left_is_left_once(
    store: Path, clock: MockClock
) -> None:
    async with small_server(store, fragment_octets=IN_MEMORY) as host:
        client = await declared(host, b"Broadcast Transient")
        slow = await stalled_subscriber(host, client, clock)
        await slow.say(b"(Unsubscribe t)")
        await eventually(lambda: not subscribed_to(host, b"t"))
        assert isinstance(await client.ask(b"(Delete t)"), Deleted)
        await slow.say(b"(Confirm 1)")
        assert await slow.message() == Message(1, 0, body_of(1))
        assert [await slow.frame() for _ in range(2)] == [Unsubscribed(Topic(0, b"t")), Confirmed(1)]


def subscribed_to(host: InProcess, name: bytes) -> bool:
    """Return whether any connection has a subscription to this topic that it has not ended."""
    return any(
        subscription.topic == name
        for terminal in host.server.terminals()
        for subscription in terminal.subscriptions()
    )


async def test_a_stalled_connection_returns_messages_of_its_other_subscriptions(
    store: Path, clock: MockClock
) -> None:
    async with small_server(store) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await client.ask(b"(Declare work Round_robin Transient)")
        slow = await host.connect(receive_octets=4096)
        await slow.ask(b"(Subscribe t From_current)")
        await slow.ask(b"(Subscribe work From_current)")
        await send_all(host, client, [body_of(1)])
        await client.send(publish(b"work", [b"1", b"2"]))
        await client.confirm()
        await stall(clock, host, 1)
        other = await host.connect()
        await other.ask(b"(Subscribe work From_current)")
        assert await other.bodies(2) == [b"1", b"2"]
        # And what comes while it is stalled, too: also of topics that it subscribes to now.
        await client.ask(b"(Declare later Round_robin Transient)")
        await slow.say(b"(Subscribe later From_current)")
        await eventually(lambda: _subscribers(host, b"later") == 1)
        await other.ask(b"(Subscribe later From_current)")
        await client.send(publish(b"work", [b"3", b"4"]) + publish(b"later", [b"5", b"6"]))
        assert sorted(await other.bodies(4)) == [b"3", b"4", b"5", b"6"]
        assert (await slow.message()).body == body_of(1)
        await slow.frame()
        await client.send(publish(b"work", [b"7", b"8"]))
        assert sorted([await _body(slow), await _body(other)]) == [b"7", b"8"]


def _subscribers(host: InProcess, topic: bytes) -> int:
    driver = host.server.catalogue.lookup(topic)
    return 0 if driver is None else driver.info().subscribers


async def _body(client: Conversation) -> bytes:
    return (await client.message()).body


async def test_damage_in_the_middle_of_a_message_ends_it_there(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with small_server(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await send_all(host, client, [body_of(1)])
        await send_all(host, client, [b"small"])
        reader = await Reader.open(host, client, "subscription", b"From_beginning")
        await stall(clock, host, 1)
        data = store / "strong" / "data.mdb"
        octets = data.read_bytes()
        line = b"001 %07d\n" % (12 * 1024 * 400)
        with data.open("r+b") as file:
            for found in re.finditer(line, octets):  # the fragments may be in any order in the file
                file.seek(found.start())
                file.write(b"X")
        assert await reader.is_cut_off()
        assert any("middle of a message: the store is damaged there" in told for told in caplog.messages)
        later = await host.connect()
        await later.say(b"(Subscribe t From_beginning)")
        assert isinstance(await later.frame(), Subscribed)
        assert b"messages 1 to 1 are gone: the store is damaged there" in await later.error()
        assert (await later.message()).body == b"small"
