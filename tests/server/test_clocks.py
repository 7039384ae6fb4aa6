"""Clocks that are set while the server runs, back and forth: nothing is lost for it, nobody disconnected, and
what is due comes when it is due.
"""

import time
from pathlib import Path

import pytest
import trio
from quietness import pass_time
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.protocol.omq.types import BlockList, Error
from omq_storage.levels import Level

from . import dmp_conversation as dmp
from .conversation import Conversation, InProcess, declared, eventually, numbered, publish, serving, tidied
from .test_liveness import ACK, pinged

YEAR = 365 * 86_400
HOUR = 3600.0


class WallClock:
    """The machine's clock as a server sees it that somebody sets; it goes as Trio's does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offset = time.time() - trio.current_time()
        monkeypatch.setattr(time, "time", self.now)
        monkeypatch.setattr(time, "time_ns", lambda: int(self.now() * 1e9))

    def now(self) -> float:
        return trio.current_time() + self._offset

    def set(self, seconds: float) -> None:
        """Set the clock forth by N seconds, or back."""
        self._offset += seconds


@pytest.fixture
async def wall(clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(monkeypatch)


async def stored(host: InProcess) -> Conversation:
    """Return a client that has published ten messages to t."""
    client = await declared(host, b"Broadcast (Persistent Strong)")
    await client.send(publish(b"t", numbered(1, 10)))
    await client.confirm()
    return client


async def kept(client: Conversation) -> int:
    return (await client.topics())[b"t"].messages


async def gone(client: Conversation, clock: MockClock) -> None:
    """Wait until the messages are deleted: within a quarter of an hour."""
    await tidied(client, clock, b"t", lambda info: info.messages == 0)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_messages_do_not_grow_old_because_the_clock_is_set(
    store: Path, clock: MockClock, wall: WallClock, jump: int
) -> None:
    async with serving(store, retention_seconds=HOUR, missed_pings=0) as host:
        client = await stored(host)
        for direction in (jump, -jump, -jump, jump):
            wall.set(direction)
            await pass_time(clock, 60, step=2)
            await client.send(publish(b"t", numbered(1, 10)))
            await client.confirm()
        assert await kept(client) == 50
        # An hour after they came they go, however the clock was set between.
        wall.set(jump)
        await pass_time(clock, HOUR - 300, step=60)
        assert await kept(client) == 50
        await gone(client, clock)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_messages_of_before_the_start_do_not_either(
    store: Path, clock: MockClock, wall: WallClock, jump: int
) -> None:
    async with serving(store, retention_seconds=HOUR, missed_pings=0) as host:
        await stored(host)
    await pass_time(clock, HOUR / 2, step=HOUR)
    async with serving(store, retention_seconds=HOUR, missed_pings=0) as host:
        client = await host.connect()
        await pass_time(clock, 60, step=2)
        wall.set(jump)
        await pass_time(clock, HOUR / 4, step=60)
        assert await kept(client) == 10
        if jump < 0:  # they may be younger than it seemed, but have been there since the start
            await pass_time(clock, HOUR / 2, step=60)
            assert await kept(client) == 10
        await gone(client, clock)


async def test_a_clock_that_was_set_back_while_the_server_was_down(
    store: Path, clock: MockClock, wall: WallClock
) -> None:
    async with serving(store, missed_pings=0) as host:
        await stored(host)
    wall.set(-YEAR)
    async with serving(store, retention_seconds=HOUR, missed_pings=0) as host:
        client = await host.connect()
        await pass_time(clock, HOUR - 60, step=60)
        assert await kept(client) == 10
        await gone(client, clock)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_pings_and_their_answers_do_not_care(
    store: Path, clock: MockClock, wall: WallClock, jump: int
) -> None:
    async with serving(store) as host:
        silent, lively = await host.connect(), await host.connect()
        for number in range(1, 4):
            wall.set(jump)
            await pass_time(clock, 46)
            await pinged(lively, number)
            await lively.say(ACK)
            await lively.settle()
        assert host.connections == 2
        await pass_time(clock, 60)
        assert isinstance((await silent.rest())[-1], Error)
        await eventually(lambda: host.connections == 1)


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_leases_and_handshakes_do_not_care(
    store: Path, clock: MockClock, wall: WallClock, jump: int
) -> None:
    async with serving(store, lease_seconds=60, handshake_seconds=10, missed_pings=0) as host:
        client = await host.connect()
        first, second = [await dmp.lease(client, b"(Put t)") for _ in range(2)]
        dumb = await host.open()
        await eventually(lambda: host.handshakes == 1)
        wall.set(jump)
        await pass_time(clock, 8)
        assert host.handshakes == 1
        await pass_time(clock, 4)
        await eventually(lambda: host.handshakes == 0)
        await dumb.ended()
        await pass_time(clock, 40)
        sink = await dmp.show(host, first)
        assert await dmp.response(sink) == b"200 OK Sink 't' ready"
        wall.set(-jump)
        await pass_time(clock, 20)
        late = await dmp.show(host, second)
        assert (await dmp.response(late)).startswith(b"402 BAD-LEASE")


@pytest.mark.parametrize("jump", [YEAR, -YEAR])
async def test_weak_messages_become_durable_in_time(
    store: Path, clock: MockClock, wall: WallClock, jump: int
) -> None:
    async with serving(store, weak_flush_seconds=5, missed_pings=0) as host:
        client = await host.connect()
        environment = host.server.catalogue.writers[Level.WEAK].environment
        await client.ask(b"(Declare t Broadcast (Persistent Weak))")
        for _ in range(3):
            wall.set(jump)
            await client.send(publish(b"t", numbered(1, 10)))
            await client.confirm()
            await pass_time(clock, 6)
            # Only housekeeping may have written since.
            await eventually(lambda: environment.usage().durable == environment.usage().transaction)


async def test_the_times_of_messages_never_go_back(store: Path, clock: MockClock, wall: WallClock) -> None:
    async with serving(store) as host:
        client = await stored(host)
        for jump in (YEAR, -2 * YEAR, YEAR + 60):
            wall.set(jump)
            await client.send(publish(b"t", numbered(1, 10)))
            await client.confirm()
        listed = await client.ask(b"(Blocks t 1 100)")
        assert isinstance(listed, BlockList)
        times = [block.time for block in listed.blocks]
        assert times == sorted(times)
        assert len(times) == 4


async def test_messages_are_kept_hardly_longer_than_the_retention(
    store: Path, clock: MockClock, wall: WallClock
) -> None:
    """Also where messages come seldom: blocks are merged, and one is deleted when all in it is too old."""
    async with serving(store, retention_seconds=HOUR, missed_pings=0) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        for number in range(1, 201):
            await client.send(publish(b"t", [b"%d" % number]))
            await client.confirm()
            clock.jump(60)
            await wait_all_tasks_blocked(0.01)
        info = await tidied(client, clock, b"t", lambda info: info.messages <= 66)
        assert info.messages >= 59
        listed = await client.ask(b"(Blocks t 1 1000)")
        assert isinstance(listed, BlockList)
        assert len(listed.blocks) <= 40  # they are merged all the same
