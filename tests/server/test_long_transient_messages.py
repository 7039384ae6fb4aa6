"""Long messages of transient broadcast topics: they wait on the spool, and never in memory."""

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from omq.client import connect
from omq.drivers.spool import SpoolStatistics
from omq.protocol.omq.types import Deleted, Subscribed
from omq.terminals.connection.statistics import Kind
from omq_storage import codec

from .conversation import PATIENCE, Conversation, InProcess, declared, eventually, serving, serving_process
from .dmp_conversation import envelopes, feed, news, said, sink, stored
from .large_messages import MIB, body, send
from .test_spool import spool_file, spool_names

SETTINGS: dict[str, Any] = {
    "memory_bytes": 4 * MIB,
    "max_message_bytes": 1 << 30,
    "stall_seconds": PATIENCE,
    "spool_seconds": PATIENCE,
}

LONG = body(6 * MIB + 17, 1)
"""A message that is larger than the memory."""

PAGE = 4096


@pytest.fixture(params=[True, False], ids=["compiled", "plain"])
def codecs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with either codec."""
    monkeypatch.setattr(codec, "COMPILED", request.param and codec.COMPILED)


CODECS = pytest.mark.usefixtures("codecs")


def spool(host: InProcess) -> SpoolStatistics:
    return host.server.statistics().spool


async def emptied(host: InProcess) -> None:
    """Wait until nothing is on the spool, and neither memory nor room is taken."""
    await eventually(lambda: spool(host).used == 0)
    memory = host.server.memory
    await eventually(lambda: memory.uploaded.used == memory.unfinished.used == memory.replayed.used == 0)
    await eventually(lambda: has_no_spool(host))


def has_no_spool(host: InProcess) -> bool:
    """Return whether the file of the spool is closed."""
    try:
        spool_file(Path(host.server.config.store))
    except AssertionError:
        return True
    return False


async def subscribed(host: InProcess, receive_octets: int | None = None) -> Conversation:
    client = await (host.connect() if receive_octets is None else host.connect(receive_octets=receive_octets))
    assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
    return client


async def topic(host: InProcess) -> Conversation:
    return await declared(host, b"Broadcast Transient")


@CODECS
async def test_subscribers_of_different_pace_get_it_as_it_was_sent(store: Path) -> None:
    """Messages before and after it wait in memory for the slower one, and keep their order."""
    bodies = [b"first", LONG, b"second", body(300_000, 2), body(5 * MIB, 3), body(MIB, 4), b"last"]
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        late, quick = await subscribed(host, 4096), await subscribed(host)
        consumer = await feed(host, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, client, bodies)
            assert await quick.bodies(len(bodies)) == bodies
            assert await consumer.bodies(len(bodies)) == bodies
        assert spool(host).used >= 11 * MIB
        (info,) = [info for name, info in (await client.topics()).items() if name == b"t"]
        assert info.bytes > 11 * MIB
        messages = await late.messages(len(bodies))
        assert [message.id for message in messages] == list(range(1, len(bodies) + 1))
        assert [message.body for message in messages] == bodies
        await emptied(host)
        # They follow again.
        await send(host, client, [b"next"])
        for each in (late, quick):
            assert (await each.message()).body == b"next"


async def test_several_topics_and_publishers_together(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await host.connect()
        names = [b"t%d" % number for number in range(4)]
        for name in names:
            await client.ask(b"(Declare %s Broadcast Transient)" % name)
        sent = {
            name: [body(5 * MIB, number), b"small", body(MIB // 2, number)]
            for number, name in enumerate(names)
        }

        async def publish(name: bytes) -> None:
            connection = await sink(host, client_of[name], name)
            await connection.send(envelopes(sent[name]))
            assert await stored(connection) == 3

        async def read(reader: Conversation, name: bytes) -> None:
            assert await reader.bodies(3) == sent[name]

        client_of = {name: await host.connect() for name in names}
        async with trio.open_nursery() as nursery:
            for name in names:
                for _ in range(2):
                    reader = await host.connect()
                    assert isinstance(await reader.ask(b"(Subscribe %s From_current)" % name), Subscribed)
                    nursery.start_soon(read, reader, name)
                nursery.start_soon(publish, name)
        await emptied(host)


async def begun(host: InProcess, client: Conversation, octets: int = 2 * MIB) -> Conversation:
    """Return a sink that has sent a part of LONG, of which something is on the spool."""
    connection = await sink(host, client)
    await connection.send(envelopes([LONG])[:octets])
    await eventually(lambda: spool(host).used > 0)
    return connection


@pytest.mark.parametrize("how", ["done", "reset"])
async def test_a_sink_that_ends_in_the_middle_leaves_nothing(store: Path, how: str) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await begun(host, client)
        assert not list(spool_names(store))
        if how == "done":
            await connection.done()
            (answer,) = await said(connection)
            assert answer.startswith(b"502 SYNTAX-ERROR 0 messages stored; the connection ended "), answer
        else:
            connection.reset()
        await emptied(host)
        await send(host, await host.connect(), [b"next"])
        message = await reader.message()
        assert (message.id, message.body) == (1, b"next")


async def test_a_topic_that_is_deleted_in_the_middle(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await subscribed(host)
        connection = await begun(host, client)
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        await connection.send(envelopes([LONG])[2 * MIB : 4 * MIB])
        (answer,) = await said(connection)
        assert answer == b"404 NOT-FOUND 0 messages stored; the topic was deleted", answer
        await emptied(host)


async def test_a_topic_that_is_deleted_with_long_messages(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await subscribed(host, 4096)
        await send(host, client, [LONG])
        assert spool(host).used >= len(LONG)
        other = await host.connect()
        assert isinstance(await other.ask(b"(Delete t)"), Deleted)
        await emptied(host)


async def test_without_a_subscriber_nothing_is_written(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await send(host, client, [LONG, LONG])
        assert spool(host).written == 0
        late = await subscribed(host)
        await send(host, await host.connect(), [b"next"])
        message = await late.message()
        assert (message.id, message.body) == (3, b"next")


def received(host: InProcess, kind: Kind) -> int:
    """Return the octets that came on connections of this kind."""
    connections = [terminal.statistics() for terminal in host.server.terminals()]
    return sum(each.octets_in for each in connections if each.kind is kind)


async def test_who_comes_in_the_middle_gets_nothing_of_what_had_no_subscriber(store: Path) -> None:
    settings = {**SETTINGS, "memory_bytes": 64 * MIB}
    async with serving(store, **settings) as host:
        client = await topic(host)
        connection = await sink(host, client)
        octets = envelopes([LONG])
        await connection.send(octets[: 2 * MIB])
        await eventually(lambda: received(host, Kind.SINK) >= MIB)
        late, behind = await subscribed(host), await subscribed(host, 4096)
        publisher = await host.connect()
        await send(host, publisher, [body(4 * MIB - 1000, 2)])  # the socket of the one does not take it
        assert (await late.message()).body == body(4 * MIB - 1000, 2)
        await connection.send(octets[2 * MIB :])
        assert await stored(connection) == 1
        assert spool(host).written == 0
        await send(host, await host.connect(), [b"next"])
        assert (await late.message()).body == b"next"
        assert await behind.bodies(2) == [body(4 * MIB - 1000, 2), b"next"]


async def test_who_comes_in_the_middle_gets_all_of_what_had_a_subscriber(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await begun(host, client)
        late = await subscribed(host)
        await connection.send(envelopes([LONG])[2 * MIB :])
        assert await stored(connection) == 1
        for each in (reader, late):
            assert (await each.message()).body == LONG
        await emptied(host)


async def test_all_subscribers_end_before_it_is_complete(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await begun(host, client)
        await reader.say(b"(Unsubscribe t)")
        await reader.settle()
        await connection.send(envelopes([LONG])[2 * MIB :])
        assert await stored(connection) == 1
        await emptied(host)


async def test_a_message_that_the_spool_cannot_hold(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store, **SETTINGS, spool_bytes=5 * MIB) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[: 2 * MIB])
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer
        assert await news(client) == b"Sink t: " + answer
        await emptied(host)
        await send(host, client, [LONG[: 4 * MIB]])
        assert (await reader.message()).body == LONG[: 4 * MIB]
    assert "long messages were refused: a message of 6291473 octets: the spool is full" in caplog.messages


async def test_two_messages_that_the_spool_cannot_hold_together(store: Path) -> None:
    """The second one waits for the first one, until its subscriber has it."""
    async with serving(store, **SETTINGS, spool_bytes=8 * MIB) as host:
        client = await topic(host)
        reader = await subscribed(host)
        second = body(6 * MIB, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, client, [LONG])
            await eventually(lambda: spool(host).used > 0)
            nursery.start_soon(send, host, await host.connect(), [second])
            assert await reader.bodies(2) == [LONG, second]
        await emptied(host)


async def test_a_full_spool_refuses_what_the_memory_cannot_hold_and_disturbs_nobody(store: Path) -> None:
    settings = {**SETTINGS, "spool_bytes": 7 * MIB, "spool_seconds": 0.5, "stall_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await begun(host, client, 4 * MIB)
        other = await sink(host, await host.connect())
        await other.send(envelopes([LONG])[:MIB])
        (answer,) = await said(other)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer
        # A shorter one is held in memory.
        await send(host, await host.connect(), [body(4 * MIB - 1000, 2)])
        assert (await reader.message()).body == body(4 * MIB - 1000, 2)
        await connection.send(envelopes([LONG])[4 * MIB :])
        assert await stored(connection) == 1
        assert (await reader.message()).body == LONG
        await emptied(host)


async def test_a_length_that_is_announced_keeps_no_room_from_others(store: Path) -> None:
    """Its message is refused when the others have the room."""
    settings = {**SETTINGS, "spool_bytes": 9 * MIB, "spool_seconds": 0.2}
    async with serving(store, **settings) as host:
        client = await topic(host)
        await subscribed(host, 4096)
        idle = await begun(host, client)
        await send(host, await host.connect(), [LONG])
        await idle.send(envelopes([LONG])[2 * MIB : 5 * MIB])
        (answer,) = await said(idle)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer


async def test_the_disk_has_only_its_reserve_free(store: Path) -> None:
    async with serving(store, **SETTINGS, disk_reserve_bytes=1 << 60) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[: 2 * MIB])
        (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the disk is full", answer
        await send(host, await host.connect(), [body(3 * MIB)])
        assert (await reader.message()).body == body(3 * MIB)
        assert spool(host).written == 0


async def test_a_disk_that_becomes_full_in_the_middle(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = os.fstatvfs

    def full(file: int) -> os.statvfs_result:
        found = list(actual(file))
        found[4] = 0
        return os.statvfs_result(found)

    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        reader = await subscribed(host)
        connection = await begun(host, client)
        with monkeypatch.context() as filled:
            filled.setattr(os, "fstatvfs", full)
            await connection.send(envelopes([LONG])[2 * MIB : 4 * MIB])
            (answer,) = await said(connection)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the disk is full", answer
        await emptied(host)
        await send(host, await host.connect(), [LONG])
        assert (await reader.message()).body == LONG


async def test_a_subscriber_that_stalls_in_its_middle_gets_the_rest(store: Path) -> None:
    """It is left behind, but what it has begun stays; it is told what it has missed after that."""
    settings = {**SETTINGS, "spool_seconds": 0.1, "stall_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        stalled, quick = await subscribed(host, 4096), await subscribed(host)
        for number in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, host, client, [LONG, b"%d" % number])
                assert await quick.bodies(2) == [LONG, b"%d" % number]
        await eventually(lambda: spool(host).used < 2 * len(LONG))  # the first one is there still
        assert spool(host).used >= len(LONG)
        assert (await stalled.message()).body == LONG
        await stalled.settle()
        await emptied(host)


async def test_a_stalled_subscriber_holds_nothing_that_others_need(store: Path) -> None:
    """The message in whose middle it is goes when the spool is full: then its connection is closed."""
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.2, "stall_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        stalled, quick = await subscribed(host, 4096), await subscribed(host)
        for number in range(2):
            long = body(6 * MIB, number)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, host, client, [long])
                assert (await quick.message()).body == long
        while await stalled.receive():
            pass
        assert stalled.unfinished


async def test_without_a_spool_the_memory_is_the_limit(store: Path) -> None:
    async with serving(store, **SETTINGS, spool_bytes=0) as host:
        client = await topic(host)
        connection = await sink(host, client)
        await connection.send(envelopes([LONG])[:300_000])
        (answer,) = await said(connection)
        assert b"no message may take more than" in answer


async def test_damage_of_the_spool_ends_the_message(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        late = await subscribed(host, 4096)
        await send(host, client, [LONG])
        os.pwrite(spool_file(store), b"damage", 4 * MIB)
        while await late.receive():
            pass
        assert late.unfinished


async def test_a_repeated_long_message_is_sent_once(store: Path) -> None:
    async with serving(store, **SETTINGS) as host, connect(f"omq://127.0.0.1:{host.port}") as client:
        await topic(host)
        reader = await subscribed(host)

        async def publish() -> None:
            for _ in range(2):
                async with client.sink("t", producer="p") as numbered:
                    await numbered.publish(LONG)
            async with client.sink("t") as plain:
                await plain.publish(b"last")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            assert await reader.bodies(2) == [LONG, b"last"]
        await emptied(host)


async def test_many_at_once_take_little_memory(store: Path) -> None:
    """`RssAnon` of a server in a process of its own."""
    most, count, size = 120 * MIB, 8, 24 * MIB
    async with serving_process(
        store, "max_message_bytes = 4_294_967_282\nmemory_bytes = 16_777_216\n"
    ) as host:
        client = await declared(host, b"Broadcast Transient")
        reader = await host.connect()
        assert isinstance(await reader.ask(b"(Subscribe t From_current)"), Subscribed)
        sinks = [await sink(host, client) for _ in range(count)]
        high = 0

        async def watch() -> None:
            nonlocal high
            while True:
                high = max(high, anonymous(host.process.pid))
                await trio.sleep(0.02)

        async def publish(connection: Conversation, octets: bytes) -> None:
            await connection.stream.send_all(octets)
            assert await stored(connection) == 1

        async def read() -> None:
            for _ in range(count):
                assert len((await reader.message()).body) == size

        async with trio.open_nursery() as watching:
            watching.start_soon(watch)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                for number, connection in enumerate(sinks):
                    nursery.start_soon(publish, connection, envelopes([bytes([number]) * size]))
            watching.cancel_scope.cancel()
        assert high < most


def anonymous(process: int) -> int:
    """Return the anonymous memory of a process in octets."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10
