"""Long messages of transient round-robin topics: they wait on the spool until a worker has done them."""

import os
from pathlib import Path

import pytest
import trio

from omq.client import connect
from omq.protocol.omq.types import Deleted, Error

from .conversation import Conversation, InProcess, declared, eventually, serving
from .dmp_conversation import envelopes, feed, said, sink, stored
from .large_messages import MIB, body, send
from .round_robin_workers import received, worker
from .spooled_messages import (
    LONG,
    MANY,
    MANY_OCTETS,
    SETTINGS,
    begun,
    done,
    publish_many,
    spool,
    taking_little_memory,
)
from .test_spool import spool_file


async def topic(host: InProcess) -> Conversation:
    return await declared(host, b"Round_robin Transient")


def sinks_wait(host: InProcess) -> int:
    """Return the number of long messages that wait for room."""
    return host.server.catalogue.spool.room.waiting


@pytest.mark.usefixtures("each_codec")
async def test_each_worker_gets_its_messages_as_they_were_sent(store: Path) -> None:
    """Those without a worker wait; small ones between them keep their places."""
    bodies = [b"first", LONG, b"second", body(5 * MIB, 3), b"last"]
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await send(host, client, bodies)
        assert spool(host).used >= 11 * MIB
        assert host.server.memory.statistics().waiting < 2 * MIB
        (info,) = [info for name, info in (await client.topics()).items() if name == b"t"]
        assert (info.messages, info.bytes > 11 * MIB) == (len(bodies), True)
        plain = await worker(host)
        assert await plain.bodies(len(bodies)) == bodies
        await done(host)
        await plain.say(b"(Unsubscribe t)")
        await plain.settle()
        one = await worker(host, credit=1, receive_octets=4096)
        more = [*bodies, body(300_000, 2), body(MIB, 4), LONG]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, await host.connect(), more)
            for number, expected in enumerate(more, len(bodies) + 1):
                message = await one.message()
                assert (message.id, message.body) == (number, expected)
                await received(one, [number])
        await done(host)


async def test_a_feed_gets_them(store: Path) -> None:
    bodies = [LONG, b"small", body(5 * MIB, 2)]
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        consumer = await feed(host, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, client, bodies)
            assert await consumer.bodies(3) == bodies
        await done(host)


async def test_workers_share_them(store: Path) -> None:
    bodies = [body(5 * MIB, number) for number in range(6)]
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        workers = [await worker(host, credit=1) for _ in range(3)]
        found: list[bytes] = []

        async def work(each: Conversation) -> None:
            for _ in range(2):
                message = await each.message()
                found.append(message.body)
                await received(each, [message.id])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, client, bodies)
            for each in workers:
                nursery.start_soon(work, each)
        assert sorted(found) == sorted(bodies)
        await done(host)


@pytest.mark.parametrize("credit", [None, 1])
async def test_what_a_lost_worker_had_goes_to_another(store: Path, credit: int | None) -> None:
    settings = {**SETTINGS, "stall_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        lost = await worker(host, credit, receive_octets=4096)
        await send(host, client, [LONG])
        await lost.octets(1000)
        assert spool(host).used >= len(LONG)
        other = await worker(host)
        lost.reset()
        assert (await other.message()).body == LONG
        await done(host)


async def test_a_worker_that_stalls_in_its_middle_gets_the_rest(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        stalled = await worker(host, receive_octets=4096)
        await send(host, client, [LONG])
        await eventually(lambda: any(t.statistics().subscriptions for t in host.server.terminals()))
        quick = await worker(host)
        await send(host, await host.connect(), [body(5 * MIB, 2)])
        assert (await quick.message()).body == body(5 * MIB, 2)
        assert (await stalled.message()).body == LONG
        await done(host)


async def test_rejected_messages_are_done(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await send(host, client, [LONG, LONG])
        await worker(host, credit=1)
        assert isinstance(await client.ask(b"(Delete t)"), Deleted)
        await done(host)


async def test_a_purge_gives_the_room_back(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        await send(host, client, [LONG, b"small", LONG])
        async with connect(f"omq://127.0.0.1:{host.port}") as other:
            assert await other.purge("t") == 3
        await done(host)


async def test_a_sink_waits_until_a_worker_has_made_room(store: Path) -> None:
    """However long that takes."""
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.02}
    async with serving(store, **settings) as host:
        client = await topic(host)
        second = body(6 * MIB, 2)
        await send(host, client, [LONG])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, host, await host.connect(), [second])
            await eventually(lambda: sinks_wait(host) == 1)
            await trio.sleep(0.2)  # ten times as long as others wait
            one = await worker(host, credit=1)
            assert (await one.message()).body == LONG
            assert sinks_wait(host) == 1
            await received(one, [1])
            assert (await one.message()).body == second
            await received(one, [2])
        await done(host)


async def test_a_sink_does_not_wait_for_one_that_stalls_in_its_middle(store: Path) -> None:
    """No worker can make the room that the message of the other one takes."""
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        stalled = await begun(host, client, 4 * MIB)
        other = await sink(host, await host.connect())
        await other.send(envelopes([LONG])[: MIB // 8])
        (answer,) = await said(other)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer
        await stalled.send(envelopes([LONG])[4 * MIB :])
        assert await stored(stalled) == 1
        assert (await (await worker(host)).message()).body == LONG
        await done(host)


async def test_a_sink_does_not_wait_for_a_topic_that_is_deleted(store: Path) -> None:
    settings = {**SETTINGS, "spool_bytes": 8 * MIB}
    async with serving(store, **settings) as host:
        client = await topic(host)
        await send(host, client, [LONG])
        other = await declared(host, b"Round_robin Transient", b"other")
        waiting_sink = await sink(host, await host.connect(), b"other")
        await waiting_sink.send(envelopes([LONG])[: MIB // 8])
        await eventually(lambda: sinks_wait(host) == 1)
        assert isinstance(await other.ask(b"(Delete other)"), Deleted)
        await eventually(lambda: sinks_wait(host) == 0)
        await waiting_sink.send(envelopes([LONG])[MIB // 8 :])
        (answer,) = await said(waiting_sink)
        assert answer == b"404 NOT-FOUND 0 messages stored; the topic was deleted", answer
        assert isinstance(await client.ask(b"(Delete t)"), Deleted)
        await done(host)


async def test_a_sink_does_not_wait_for_a_topic_that_gets_other_types(store: Path) -> None:
    defaults = {"default_delivery": "round-robin", "default_persistence": "transient"}
    async with serving(store, **SETTINGS, **defaults, spool_bytes=8 * MIB) as host:
        client = await topic(host)
        await send(host, client, [LONG])
        waiting_sink = await sink(host, await host.connect(), b"other")
        await waiting_sink.send(envelopes([LONG])[: MIB // 8])
        await eventually(lambda: sinks_wait(host) == 1)
        await declared(host, b"Broadcast Transient", b"other")
        await eventually(lambda: sinks_wait(host) == 0)
        await waiting_sink.send(envelopes([LONG])[MIB // 8 :])
        (answer,) = await said(waiting_sink)
        assert answer.endswith(b"0 messages stored; the topic was declared with other types meanwhile"), (
            answer
        )
        assert isinstance(await client.ask(b"(Delete t)"), Deleted)
        await done(host)


async def test_one_that_waits_for_workers_keeps_no_room_from_broadcast_topics(store: Path) -> None:
    """A message of a broadcast topic behind it is taken if it fits, and otherwise refused after a while."""
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        await send(host, client, [LONG])
        patient = await sink(host, await host.connect())
        await patient.send(envelopes([LONG])[: MIB // 8])
        await eventually(lambda: sinks_wait(host) == 1)
        other = await declared(host, b"Broadcast Transient", b"all")
        assert await other.ask(b"(Subscribe all From_current)")
        before = spool(host).written
        fitting = await sink(host, await host.connect(), b"all")
        await fitting.send(envelopes([LONG[:MIB]]))
        assert await stored(fitting) == 1
        assert (await other.message()).body == LONG[:MIB]
        assert spool(host).written == before + MIB
        refused = await sink(host, await host.connect(), b"all")
        await refused.send(envelopes([LONG])[: MIB // 8])
        (answer,) = await said(refused)
        assert answer == b"541 INTERNAL-ERROR 0 messages stored; the spool is full", answer
        patient.reset()


async def test_an_idle_worker_does_not_wait_for_those_of_others(store: Path) -> None:
    """When the spool is full and nothing moves there, its messages pass the memory."""
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host:
        client = await topic(host)
        await send(host, client, [LONG])
        before = spool(host).written
        other = await declared(host, b"Round_robin Transient", b"other")
        assert await other.ask(b"(Subscribe other From_current)")
        connection = await sink(host, await host.connect(), b"other")
        await connection.send(envelopes([LONG[: 4 * MIB - 1000]]))
        assert await stored(connection) == 1
        assert (await other.message()).body == LONG[: 4 * MIB - 1000]
        assert spool(host).written == before


async def test_damage_of_the_spool_ends_the_message(store: Path) -> None:
    """A worker that has a part of it is disconnected; another one is told, and gets the next one."""
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        late = await worker(host, receive_octets=4096)
        await send(host, client, [LONG])
        os.pwrite(spool_file(store), b"damage", 4 * MIB)
        await send(host, await host.connect(), [b"next"])
        while await late.receive():
            pass
        assert late.unfinished
        next_one = await worker(host)
        assert isinstance(await next_one.frame(), Error)
        assert (await next_one.message()).body == b"next"
        await done(host)


async def test_many_at_once_take_little_memory(store: Path) -> None:
    """While a worker stalls in the middle of one."""
    async with taking_little_memory(store) as host:
        client = await declared(host, b"Round_robin Transient")
        await worker(host, receive_octets=4096)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_many, host, client)
            reader = await worker(host, credit=1)
            for _ in range(MANY - 1):
                message = await reader.message()
                assert len(message.body) == MANY_OCTETS
                await received(reader, [message.id])
