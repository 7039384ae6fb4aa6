"""AMQP 1.0: a connection that publishes to a queue in memory and consumes from it never waits for itself.

All of this is done with the least memory that a server may have.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0.performatives import Close, Disposition, Transfer

from .amqp_1_0_peer import ACCEPTED, RELEASED, Peer, data, opened
from .conversation import InProcess, eventually, serving
from .test_amqp_1_0_relay import rejected, relay, to

MIB = 1 << 20
MESSAGE = to("jobs", b"x" * 1000)

IN_TURN = 10
"""Messages that are sent at a time, until the topic is full."""

TOO_MANY = 3000
"""Messages that are more."""


@asynccontextmanager
async def worker(store: Path) -> AsyncIterator[tuple[InProcess, Peer]]:
    """Yield a server with a queue in memory, and a client that consumes from it, one message at a time."""
    async with small(store) as host, worker_of(host) as client:
        yield host, client


def small(store: Path) -> AbstractAsyncContextManager[InProcess]:
    """Return a server with little memory."""
    return serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB, amqp1_credit=TOO_MANY)


@asynccontextmanager
async def worker_of(host: InProcess) -> AsyncIterator[Peer]:
    """Declare a queue in memory, and yield a client that consumes from it, one message at a time."""
    omq = await host.connect()
    await omq.say(b"(Declare jobs Round_robin Transient)")
    await omq.settle()
    async with opened(host.port) as client:
        await client.receiver("jobs", 0, credit=1)
        yield client


def held(host: InProcess) -> int:
    """Return the octets that the connections hold."""
    return sum(terminal.statistics().held.publishes for terminal in host.server.terminals())


async def publish(client: Peer, ids: range, *, settled: bool = False) -> None:
    """Send messages to the link 1, all at once."""
    await client.say(*(Transfer(1, id, b"t", 0, settled) for id in ids), payload=MESSAGE)


async def fill(host: InProcess, client: Peer, *, settled: bool = False) -> int:
    """Send messages until the topic is full, and some more; return their number."""
    count = 0
    while held(host) < 3 * IN_TURN * len(MESSAGE):
        await publish(client, range(count, count + IN_TURN), settled=settled)
        count += IN_TURN
        await client.settle()  # the connection is read on
        assert count < TOO_MANY
    return count


async def work(client: Peer, count: int) -> None:
    """Take messages, and tell the outcome of each."""
    await client.credit(count)
    for _ in range(count):
        message = await client.message()
        assert message.octets == MESSAGE
        await client.told(message.delivery, message.delivery)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("is_relayed", [False, True])
async def test_outcomes_behind_messages_without_room_are_read(
    store: Path, is_relayed: bool, settled: bool
) -> None:
    async with worker(store) as (host, client):
        await (relay(client) if is_relayed else client.sender("jobs"))
        await work(client, await fill(host, client, settled=settled))
        assert held(host) == 0


async def test_messages_beyond_what_a_connection_can_hold_are_rejected(store: Path) -> None:
    async with worker(store) as (host, client):
        await client.sender("jobs")
        async with opened(host.port) as other:
            for begin in range(0, TOO_MANY, IN_TURN):
                await publish(client, range(begin, begin + IN_TURN))
                await client.settle()  # no client sends more than the window of its session
            accepted = refused = 0
            while not refused:
                outcome = await client.outcome()
                count = (outcome.first if outcome.last is None else outcome.last) - outcome.first + 1
                if outcome.state == ACCEPTED:
                    accepted += count
                else:
                    assert rejected(outcome.state) == "amqp:resource-limit-exceeded"
                    refused += count
            assert accepted
            await other.settle()
        await client.settle()
        await client.sender("after", 2)


async def test_messages_without_room_are_posted_before_the_connection_is_closed(store: Path) -> None:
    async with worker(store) as (host, client), opened(host.port) as other:
        await client.sender("jobs")
        count = await fill(host, client, settled=True)
        await other.receiver("jobs", 0, credit=count)
        await client.say(Close())
        for _ in range(count):
            message = await other.message()
            await other.told(message.delivery, message.delivery)
        await client.until(Close)


async def test_a_client_that_goes_away_leaves_nothing_held(store: Path) -> None:
    async with worker(store) as (host, client):
        await client.sender("jobs")
        await fill(host, client)
        async with opened(host.port) as other:
            await client.stream.aclose()
            await eventually(lambda: len(host.server.terminals()) == 2)
            assert held(host) == 0
            await other.sender("after")
            assert await other.publish(data(b"x")) == 0


@pytest.mark.parametrize("is_relayed", [False, True])
async def test_a_server_that_stops_releases_the_messages_that_it_holds(store: Path, is_relayed: bool) -> None:
    """They are in no queue, so the client may send them again."""
    async with AsyncExitStack() as stack:
        async with small(store) as host:
            client = await stack.enter_async_context(worker_of(host))
            await (relay(client) if is_relayed else client.sender("jobs"))
            count = await fill(host, client)
        states = [b""] * count
        while not isinstance(said := (await client.next())[0], Close):
            if isinstance(said, Disposition) and said.role:
                for id in range(said.first, 1 + (said.first if said.last is None else said.last)):
                    states[id] = said.state
        released = states.count(RELEASED)
        assert released > IN_TURN
        assert states == [ACCEPTED] * (count - released) + [RELEASED] * released


@pytest.mark.parametrize("credit", [0, 10])
async def test_a_worker_that_has_all_messages_does_not_wait_for_one_that_has_none(
    store: Path, credit: int
) -> None:
    """The other one could not make room: all messages that take it are with the connection that waits."""
    async with worker(store) as (host, client):
        await client.credit(TOO_MANY)
        await client.sender("jobs")
        async with opened(host.port) as idle:
            count = await fill(host, client)
            await idle.receiver("jobs", 0, credit=credit)
            while count < TOO_MANY:
                await publish(client, range(count, count + IN_TURN))
                await client.settle()
                count += IN_TURN
            await client.settle()
            outcome = await client.outcome()
            while outcome.state == ACCEPTED:
                outcome = await client.outcome()
            assert rejected(outcome.state) == "amqp:resource-limit-exceeded"
