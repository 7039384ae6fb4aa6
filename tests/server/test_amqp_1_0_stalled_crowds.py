"""AMQP 1.0: many links of a client that takes nothing are held in slices, and others get its messages."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from counted_steps import watched
from trio.testing import MockClock

from omq.drivers import slices
from omq.drivers.queue import QueueDriver
from omq.protocol.amqp_1_0.performatives import Attach, Flow

from .amqp_1_0_peer import Peer, data, opened, source, target
from .conversation import InProcess, eventually
from .stalled_readers import sending_little, stalled

LINKS = 40

BODIES = [b"%02d" % number + bytes(8 << 10) for number in range(LINKS)]
"""Together they are more than the sockets take."""


@asynccontextmanager
async def hosting(store: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcess]:
    """Yield a server with a queue, in which each slice has one step."""
    async with sending_little(store) as host:
        await (await host.connect()).ask(b"(Declare q Round_robin Transient)")
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        yield host


@asynccontextmanager
async def worker(host: InProcess) -> AsyncIterator[tuple[Peer, QueueDriver]]:
    """Yield a client that does not read, and whose links have one message each: the last link has the first
    one.
    """
    made = trio.socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await made.connect(("127.0.0.1", host.port))
    (driver,) = [each for each in host.server.catalogue if each.topic.topic == b"q"]
    assert isinstance(driver, QueueDriver)
    async with trio.SocketStream(made) as stream, opened(host.port) as producer:
        client = Peer(stream)
        await client.open()
        for handle in range(LINKS):
            await client.say(
                Attach(f"receiver-{handle}", handle, True, 0, source=source("q"), target=target("here"))
            )
            await client.heard(Attach)
        await producer.sender("q")
        for number, body in enumerate(BODIES):
            handle = LINKS - 1 - number
            await client.say(Flow(0, 1 << 20, 0, 1 << 20, handle, 0, 1))
            await eventually(partial(has_credit, driver, handle))
            await producer.accepted(await producer.publish(data(body)))
        assert driver.ready == 0
        yield client, driver


def has_credit(driver: QueueDriver, handle: int) -> bool:
    return driver.channels()[handle].statistics().count == 1


def held(driver: QueueDriver) -> int:
    return sum(channel.statistics().is_held for channel in driver.channels())


def unsettled(driver: QueueDriver, number: int) -> int:
    """Return the number of messages that a consumer has."""
    found = driver.channels()[number].statistics().unsettled
    assert found is not None
    return found


def dealt(driver: QueueDriver) -> int:
    """Return the number of messages that the links of the client have and that have not left."""
    return sum(channel.statistics().behind for channel in driver.channels()[:LINKS])


async def stall(clock: MockClock, host: InProcess) -> None:
    """Let time pass until the client is found to take nothing: its links are held from then on."""
    while not stalled(host):
        clock.jump(0.5)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            if stalled(host):
                return


async def begin_to_hold(clock: MockClock, host: InProcess, driver: QueueDriver) -> None:
    """Let time pass until some of the links are held, and others are not."""
    await stall(clock, host)
    while held(driver) < LINKS // 2:
        await trio.lowlevel.checkpoint()
    assert held(driver) < LINKS


def undone(driver: QueueDriver) -> int:
    return driver.ready + driver.statistics().unsettled


async def numbers(client: Peer, count: int) -> list[int]:
    """Return the numbers of the next messages."""
    return [int((await client.message()).octets[-len(BODIES[0]) :][:2]) for _ in range(count)]


async def test_the_messages_of_many_links_go_to_others_in_order(
    store: Path, slow_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        hosting(store, monkeypatch) as host,
        worker(host) as (client, driver),
        opened(host.port) as other,
    ):
        await other.receiver("q", handle=LINKS)
        await other.settle()
        returned: list[int] = []

        async def read() -> None:
            while True:
                returned.extend(await numbers(other, 1))

        def all_are_read() -> bool:
            has = unsettled(driver, LINKS)
            left = sum(unsettled(driver, each) for each in range(LINKS))
            return held(driver) == LINKS and has + left == LINKS and len(returned) == has

        with (
            watched(lambda: held(driver)) as paused,
            watched(lambda: undone(driver)) as kept,
            watched(lambda: dealt(driver)) as waiting,
        ):
            await stall(slow_clock, host)
            await other.credit(LINKS, LINKS)
            async with trio.open_nursery() as nursery:
                # It reads meanwhile: a client that reads later would be found to take nothing, too.
                nursery.start_soon(read)
                await eventually(all_are_read)
                nursery.cancel_scope.cancel()
        assert paused.largest_rise() == 1
        assert set(kept.all) == {LINKS}
        assert waiting.largest_fall() == 1
        assert len(returned) > LINKS // 2
        kept_by_client = LINKS - len(returned)
        assert returned == list(range(kept_by_client, LINKS))
        with watched(lambda: held(driver)) as paused:
            assert await numbers(client, kept_by_client) == list(range(kept_by_client))
            await eventually(lambda: held(driver) == 0)
        assert paused.largest_fall() == 1


async def test_a_client_that_takes_again_while_its_links_are_held_gets_all_messages(
    store: Path, slow_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as host, worker(host) as (client, driver):
        await begin_to_hold(slow_clock, host, driver)
        assert sorted(await numbers(client, LINKS)) == list(range(LINKS))
        await eventually(lambda: held(driver) == 0)
        assert (driver.ready, driver.statistics().unsettled) == (0, LINKS)


async def test_the_messages_of_a_client_that_leaves_while_its_links_are_held_return_in_order(
    store: Path, slow_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as host, worker(host) as (client, driver):
        await begin_to_hold(slow_clock, host, driver)
        with watched(lambda: undone(driver)) as kept:
            await client.stream.aclose()
            async with opened(host.port) as other:
                await other.receiver("q", credit=LINKS)
                assert await numbers(other, LINKS) == list(range(LINKS))
                assert set(kept.all) == {LINKS}


async def test_a_client_accepts_a_message_while_its_links_are_held(
    store: Path, slow_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch) as host, worker(host) as (client, driver):
        await begin_to_hold(slow_clock, host, driver)
        with watched(lambda: undone(driver)) as kept:
            await client.told(0, 0)
            await eventually(lambda: undone(driver) == LINKS - 1)
            await eventually(lambda: held(driver) == LINKS)
        assert set(kept.all) == {LINKS, LINKS - 1}
        assert sorted(await numbers(client, LINKS)) == list(range(LINKS))
