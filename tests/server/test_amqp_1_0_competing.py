"""AMQP 1.0: producers that compete for the memory of incomplete messages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from trio.testing import MockClock

from omq.protocol.amqp_1_0 import encoding, performatives, types
from omq.protocol.amqp_1_0.performatives import Detach, Error, Rejected, Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.terminals.amqp_1_0.terminal import HELD_SECONDS, Amqp1Terminal
from omq.terminals.connection.statistics import LinkStatistics

from .amqp_1_0_peer import Peer, condition, data, opened
from .conversation import InProcess, eventually, serving
from .test_amqp_1_0_idempotent import numbered, ulong
from .test_amqp_1_0_relay import rejected

MIB = 1 << 20
PART = 60_000

pytestmark = pytest.mark.usefixtures("patience")


def message(to: str) -> bytes:
    """Return a message of 2 MiB, also for the relay."""
    return b"\x00\x53%c%s" % (
        Section.PROPERTIES,
        encoding.write(types.List((None, None, to))),
    ) + data(bytes(2 * MIB))


def links(host: InProcess) -> list[list[LinkStatistics]]:
    """Return the links on which clients send, of each connection."""
    terminals = [each for each in host.server.terminals() if isinstance(each, Amqp1Terminal)]
    return [terminal.links() for terminal in terminals]


async def begin(client: Peer, octets: bytes, *, settled: bool = False) -> None:
    """Send the first part of a message."""
    await client.say(Transfer(1, 0, b"0", 0, settled, True), payload=octets[:PART])


async def end(client: Peer, octets: bytes) -> None:
    """Send the rest of it."""
    for at in range(PART, len(octets), PART):
        part = octets[at : at + PART]
        await client.say(Transfer(1, more=at + len(part) < len(octets)), payload=part)


@asynccontextmanager
async def crowded(store: Path, long: bytes) -> AsyncIterator[tuple[InProcess, Peer, Peer]]:
    """Yield a server, and two clients that have begun this message, and hold the memory for such ones."""
    async with (
        serving(store, memory_bytes=4 * MIB, max_message_bytes=3 * MIB, fragment_octets=64 * MIB) as host,
        opened(host.port) as first,
        opened(host.port) as second,
    ):
        for holders, client in enumerate((first, second), 1):
            await client.sender("q")
            await begin(client, long)
            await eventually(lambda holders=holders: host.server.memory.unfinished.holders == holders)
        yield host, first, second


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("address", ["q", "unicast.node", None])
async def test_an_incomplete_message_gives_way_and_its_connection_goes_on(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, address: str | None, settled: bool
) -> None:
    """Behind a router a connection is that of many clients. The slowest message is dropped, and rejected when
    the rest of it comes.
    """
    caplog.set_level("INFO")
    long = message("q")
    async with (
        serving(store, memory_bytes=4 * MIB, max_message_bytes=3 * MIB, fragment_octets=64 * MIB) as host,
        opened(host.port) as slow,
        opened(host.port) as other,
        opened(host.port) as waiting,
    ):
        unfinished = host.server.memory.unfinished
        await slow.sender(address)
        await other.sender("q")
        await waiting.sender("q")
        await begin(slow, long, settled=settled)
        await eventually(lambda: unfinished.holders == 1)
        clock.jump(20)  # nobody else needs its memory
        await begin(other, long)
        await eventually(lambda: unfinished.holders == 2)
        clock.jump(20)
        await begin(waiting, long)
        why = "it took too long to complete a message while others wait for its memory"
        await eventually(lambda: f"an incomplete message was dropped: {why}" in caplog.text)
        for client in (other, waiting):
            await end(client, long)
            await client.accepted(0)
        # The other links of the slow client go on at once, and its own when the message is over.
        await slow.sender("alive", handle=2)
        await slow.say(Transfer(2, 1, b"1"), payload=data(b"x"))
        await slow.accepted(1)
        await end(slow, long)
        if not settled:
            told = await slow.outcome()
            assert (told.first, told.last) in ((0, None), (0, 0))
            state = performatives.read_all(told.state)
            assert isinstance(state, Rejected)
            error = performatives.read_all(state.error)
            assert isinstance(error, Error)
            assert error.condition == "amqp:resource-limit-exceeded"
        await slow.settle()
        (found,) = [each for each in links(host) if len(each) == 2]
        assert [link.undelivered for link in found] == [1, 0]
        await slow.receiver("q", handle=3, credit=2)
        for _ in range(2):
            assert (await slow.message()).octets == long
        await eventually(lambda: unfinished.used == 0)


async def test_a_message_without_memory_delays_the_other_links_of_its_connection_a_second(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is rejected when the rest of it comes, and those that have memory are not dropped."""
    caplog.set_level("INFO")
    long = message("q")
    async with crowded(store, long) as (host, first, second), opened(host.port) as shared:
        unfinished = host.server.memory.unfinished
        await shared.sender("q")
        await shared.sender("alive", handle=2)
        await begin(shared, long)
        await eventually(lambda: unfinished.waiting == 1)
        await shared.say(Transfer(2, 1, b"1"), payload=data(b"x"))  # not before: both could be read at once
        clock.jump(HELD_SECONDS)
        await shared.accepted(1)
        why = "it got no memory, and the other links of its connection waited for it"
        assert f"an incomplete message was dropped: {why}" in caplog.text
        await end(shared, long)
        told = (await shared.outcome()).state
        assert rejected(told) == "amqp:resource-limit-exceeded"
        assert b"there was no memory for the message" in told
        for client in (first, second):
            await end(client, long)
            await client.accepted(0)
        assert "others wait" not in caplog.text
        await eventually(lambda: unfinished.used == 0)
        assert [shared.delivery() for _ in range(2)] == [0, 1]
        assert await shared.publish_long(long) == 2  # it goes on
        await shared.accepted(2)


async def test_the_only_link_of_a_connection_waits_for_memory_longer(store: Path, clock: MockClock) -> None:
    long = message("q")
    async with crowded(store, long) as (host, first, second), opened(host.port) as waiting:
        unfinished = host.server.memory.unfinished
        await waiting.sender("q")
        await begin(waiting, long)
        await eventually(lambda: unfinished.waiting == 1)
        clock.jump(1.5 * HELD_SECONDS)
        for client in (first, second, waiting):
            await end(client, long)
            await client.accepted(0)


async def test_an_idempotent_producer_whose_message_gives_way_is_detached(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Later numbers must not be stored without the message that was dropped."""
    caplog.set_level("INFO")
    long, short = numbered("p", ulong(1), bytes(2 * MIB)), numbered("p", ulong(2), b"short")
    async with (
        serving(store, memory_bytes=4 * MIB, max_message_bytes=3 * MIB, fragment_octets=64 * MIB) as host,
        opened(host.port) as slow,
        opened(host.port) as other,
        opened(host.port) as waiting,
    ):
        unfinished = host.server.memory.unfinished
        for holders, client in enumerate((slow, other, waiting), 1):
            await client.sender("q")
            await begin(client, long if client is slow else message("q"))
            if client is not waiting:
                await eventually(lambda holders=holders: unfinished.holders == holders)
                clock.jump(20)
        await eventually(lambda: "an incomplete message was dropped" in caplog.text)
        for client in (other, waiting):
            await end(client, message("q"))
            await client.accepted(0)
        await end(slow, long)
        assert slow.delivery() == 0
        await slow.publish(short)
        assert rejected((await slow.outcome()).state) == "amqp:resource-limit-exceeded"
        assert condition(await slow.until(Detach)) == "amqp:resource-limit-exceeded"
        await slow.sender("q", handle=2)
        await slow.publish_long(long, 2)
        await slow.accepted(await slow.publish(short, 2))
        await slow.receiver("q", handle=3, credit=4)
        assert [(await slow.message()).octets for _ in range(4)] == [message("q")] * 2 + [long, short]
