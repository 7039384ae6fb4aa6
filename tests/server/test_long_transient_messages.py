"""Long messages of transient broadcast topics: they wait on the spool, and never in memory."""

import os
from pathlib import Path

import pytest
import trio
from quietness import pass_until, quiet, stopped
from trio.testing import MockClock

from omq.drivers.scheduled_time import MOST_COUNTED
from omq.protocol.omq.types import Subscribed
from omq.terminals.connection.statistics import Kind

from .conversation import Conversation, InProcess, declared, eventually, serving
from .dmp_conversation import envelopes, feed, said, sink, stored
from .large_messages import MIB, body, send
from .spooled_messages import (
    LONG,
    MANY,
    MANY_OCTETS,
    SETTINGS,
    begun,
    emptied,
    publish_many,
    spool,
    subscribed,
    taking_little_memory,
)
from .test_spool import spool_file


async def topic(host: InProcess) -> Conversation:
    return await declared(host, b"Broadcast Transient")


@pytest.mark.usefixtures("each_codec")
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


async def test_a_stalled_subscriber_holds_nothing_that_others_need(store: Path, clock: MockClock) -> None:
    """The message in whose middle it is goes when the spool is full: then its connection is closed. The next
    message waits that long, also after a pause of the whole process.
    """
    settings = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 2, "stall_seconds": 0.25}
    first, second = body(6 * MIB, 1), body(6 * MIB, 2)
    received: list[bytes] = []

    async def receive(reader: Conversation) -> None:
        received.append((await reader.message()).body)

    async with serving(store, **settings) as host:
        client = await topic(host)
        stalled, quick = await subscribed(host, 4096), await subscribed(host)
        with stopped(clock):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, host, client, [first])
                await receive(quick)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, host, client, [second])
                nursery.start_soon(receive, quick)
                await quiet()
                clock.jump(5)
                await pass_until(lambda: len(received) == 2, clock, MOST_COUNTED)
        assert received == [first, second]
        while await stalled.receive():
            pass
        assert stalled.unfinished


async def test_damage_of_the_spool_ends_the_message(store: Path) -> None:
    async with serving(store, **SETTINGS) as host:
        client = await topic(host)
        late = await subscribed(host, 4096)
        await send(host, client, [LONG])
        os.pwrite(spool_file(store), b"damage", 4 * MIB)
        while await late.receive():
            pass
        assert late.unfinished


async def test_many_at_once_take_little_memory(store: Path) -> None:
    async with taking_little_memory(store) as host:
        client = await declared(host, b"Broadcast Transient")
        reader = await subscribed(host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_many, host, client)
            for _ in range(MANY):
                assert len((await reader.message()).body) == MANY_OCTETS
