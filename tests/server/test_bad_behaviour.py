"""Clients that do not read, stop in the middle, or take memory: the others notice nothing."""

import logging
import resource
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from quietness import quiet
from trio.testing import MockClock

from omq.logs import LINES, SECONDS
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import Deleted, Error

from .busy_server import MIB, undisturbed
from .conversation import (
    VERSION_ONE,
    Conversation,
    answers_pile_up,
    eventually,
    publish,
)


async def test_a_client_that_never_reads_its_answers(store: Path, clock: MockClock) -> None:
    async with undisturbed(store, ping_seconds=10) as host:
        client = await host.connect(receive_octets=4096)

        async def ask_and_ask() -> None:
            while True:
                await client.stream.send_all(b"(Nonsense)\n" * 10_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_and_ask)
            # The server has more to say than the socket takes, and stops listening.
            await answers_pile_up(host)
            nursery.cancel_scope.cancel()
        for _ in range(10):
            await host.pass_time(clock, 10)
        await eventually(lambda: host.connections <= 3)
        for _ in range(3):
            await host.pass_time(clock, 10)
        await eventually(lambda: host.connections == 2)


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_subscriber_that_never_reads(store: Path, clock: MockClock, persistence: bytes) -> None:
    async with undisturbed(store, memory_bytes=4 * MIB, max_message_bytes=MIB, ping_seconds=8) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare much Broadcast %s)" % persistence)
        client = await host.connect(receive_octets=4096)
        await client.say(b"(Subscribe much From_current)")
        for _ in range(25):
            await publisher.send(publish(b"much", [b"x" * 16000] * 50))
            await publisher.settle()
        for _ in range(60):
            await publisher.say(b"(Ack (2026-01-01 00:00:00Z))")
            await publisher.settle()
            await host.pass_time(clock, 1)
        await eventually(lambda: host.connections == 3)


async def test_an_octet_a_second(store: Path, clock: MockClock) -> None:
    # The others exchange a message in each of the seconds, and that takes some time, too.
    async with undisturbed(store, handshake_seconds=30) as host:
        hello, line = await host.open(), await host.connect()
        text = b"(Publish slow " + b"x" * 300
        await hello.send(VERSION_ONE[:1])
        await eventually(lambda: host.handshakes == 1)
        for second in range(200):
            if second in (2, 4, 6, 8):
                await hello.send(VERSION_ONE[:1])
            elif second == 32:
                await hello.ended()  # thirty seconds for the handshake, however it is dealt out
            try:
                await line.stream.send_all(text[second : second + 1])
            except trio.BrokenResourceError:
                break
            await host.pass_time(clock, 1)
        frames = await line.rest()
        assert len(line.pings) == 3
        assert isinstance(frames[-1], Error)
        assert frames[-1].text.startswith(b"Ping: ")


@pytest.mark.parametrize(
    "octets",
    [
        b"(Publish t",
        b"(Publish t x)\n(Subscribe t From_beginning)\n(Publish t " + b"y" * 100_000,
        b"(Publish t x)\n" * 5000 + b"(Publish t ",
        b"(Confirm 1)\n" * 5000 + b"Top",
    ],
    ids=["a command", "a long command", "after many messages", "with answers unread"],
)
async def test_a_reset_in_the_middle_of_a_command(store: Path, octets: bytes) -> None:
    async with undisturbed(store) as host:
        for _ in range(5):
            client = await host.connect()
            await client.send(octets)
            client.reset()
            await eventually(lambda: host.connections == 2)
        publisher = await host.connect()
        await publisher.confirm()


async def test_a_reset_of_a_publisher_to_full_topics_gives_back_its_memory(store: Path) -> None:
    async with undisturbed(store, memory_bytes=8 * MIB, max_message_bytes=MIB) as host:
        owner = await host.connect()
        names = [b"t%d" % number for number in range(20)]
        for name in names:
            await owner.ask(b"(Declare %s Round_robin Transient)" % name)
        for _ in range(10):
            client = await host.connect()
            lines = [publish(name, [b"x" * 1000] * 10) + b"(Nonsense)\n" for name in names]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, b"".join(lines))
                await quiet()  # the server has taken what it can: the last ones find full topics
                nursery.cancel_scope.cancel()
            client.reset()
        # Those that wait for room are let go with the topic they wait for.
        for name in names:
            assert isinstance(await owner.ask(b"(Delete %s)" % name), Deleted)
        await eventually(lambda: host.connections == 3)
        await eventually(lambda: host.memory_used == 0)


@pytest.mark.parametrize("memory", [4 * MIB, 64 * MIB], ids=["little memory", "the default"])
async def test_many_large_messages_at_once_do_not_use_up_the_memory_for_ever(
    store: Path, memory: int
) -> None:
    async with undisturbed(store, memory_bytes=memory, max_message_bytes=MIB) as host:
        clients = [await host.connect() for _ in range(24)]
        octets = b"(Publish large %s)\n" % (b"x" * 900_000)
        # Each has begun its message before the first one ends its own.
        for client in clients:
            await client.send(octets[:100_000])

        async def publish_one(client: Conversation) -> None:
            await client.send(octets[100_000:])
            await client.confirm()

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(publish_one, client)
        assert (await host.topics())[b"large"].messages == 24


async def test_long_lines_that_never_end_do_not_keep_others_from_publishing(
    store: Path,
) -> None:
    async with undisturbed(store) as host:
        for _ in range(20):
            client = await host.connect()
            await client.send(b"(Publish t " + b"x" * 100_000)
        large = await host.connect()
        await large.say(b"(Publish large %s)" % (b"x" * 200_000))
        await large.confirm()


async def test_long_lines_that_do_not_go_on_give_way(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They hold all the memory for incomplete lines, and others have theirs through at once all the same."""
    caplog.set_level(logging.INFO)
    async with undisturbed(store) as host:
        stopped = [await host.connect() for _ in range(80)]
        for client in stopped:
            await client.send(b"(Publish t " + b"x" * 100_000)
        unfinished = host.server.memory.unfinished
        await eventually(lambda: unfinished.waiting > 0)
        await host.pass_time(clock, 3)  # longer than they may send nothing while others wait
        await eventually(lambda: unfinished.waiting == 0)
        await host.pass_time(clock, 3)
        before = trio.current_time()
        large = await host.connect()
        for _ in range(3):
            await large.say(b"(Publish large %s)" % (b"x" * 600_000))
        await large.confirm(3)
        assert trio.current_time() - before < 2  # none of the 80 had to be waited for
        told = [b"Line: it took too long to complete while others wait for its memory"]
        ended = 0
        for client in stopped:
            client.stream.socket.shutdown(trio.socket.SHUT_WR)
            errors = [frame.text for frame in await client.rest() if isinstance(frame, Error)]
            ended += errors == told
        assert 15 <= ended <= 40  # as many as was needed, and no more
        assert refusal_in(told[0]) is RefusalKind.PASSING
        why = "it took too long to complete a line while others wait for its memory"
        closed = [record for record in caplog.records if record.message.endswith(f": closed: {why}")]
        assert len(closed) == LINES
        assert {vars(record)["client"] for record in closed} == {"test"}
        assert len({vars(record)["peer"] for record in closed}) == LINES
        clock.jump(SECONDS)
        more = f"connections were closed because others needed their memory: {ended - LINES} more"
        await eventually(lambda: more in caplog.messages)


async def test_a_lone_slow_line_may_take_as_long_as_it_likes(store: Path, clock: MockClock) -> None:
    """It holds a share of the memory for incomplete lines, but nobody waits for it."""
    async with undisturbed(store, max_line_bytes=MIB) as host:
        client = await host.connect()
        line = b"(Publish slow " + b"x" * 200_000 + b")\n"
        await client.send(line[:100_000])
        await eventually(lambda: host.server.memory.unfinished.used > 0)
        for second in range(0, 30, 3):
            await host.pass_time(clock, 3)
            await client.send(line[100_000 + second : 100_003 + second])
            assert b"others" in await host.topics()
        await client.send(line[100_030:])
        await client.confirm()
        assert (await host.topics())[b"slow"].messages == 1


async def test_a_thousand_connections_that_say_nothing(store: Path, clock: MockClock) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    count = min(1000, (wanted - 200) // 2)  # both ends of each are in this process
    try:
        async with undisturbed(store) as host:
            silent = [await host.open() for _ in range(count)]
            await eventually(lambda: host.handshakes == count)
            assert b"others" in await host.topics()
            clock.jump(10)
            for client in silent:
                await client.ended()
            assert host.handshakes == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
