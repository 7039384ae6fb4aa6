"""Sinks that compete for the memory of unfinished envelopes: those that do not go on give way."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from omq.drivers.unfinished import UnfinishedMemory

from .conversation import (
    Conversation,
    declared,
    eventually,
    serving,
)
from .dmp_conversation import (
    envelopes,
    said,
    sink,
    stored,
)

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CompetingSinks:
    """Three sinks of a server with memory for the unfinished envelopes of two."""

    client: Conversation
    sinks: tuple[Conversation, Conversation, Conversation]
    octets: bytes
    """An envelope for each."""
    unfinished: UnfinishedMemory


@asynccontextmanager
async def rivals(store: Path) -> AsyncIterator[CompetingSinks]:
    # Shorter messages than this are received in memory.
    sizes = {"memory_bytes": 4 * MIB, "max_message_bytes": 3 * MIB, "fragment_octets": 64 * MIB}
    async with serving(store, **sizes) as host:
        client = await declared(host, b"Broadcast Transient")
        first, second, third = [await sink(host, client) for _ in range(3)]
        octets = envelopes([b"x" * 2 * MIB])
        yield CompetingSinks(client, (first, second, third), octets, host.server.memory.unfinished)


GAVE_WAY = b"530 NOT-ALLOWED 0 messages stored; an envelope took too long to complete while others wait"


async def test_sinks_that_do_not_go_on_give_way(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with rivals(store) as found:
        slow, other, waiting = found.sinks
        octets, unfinished = found.octets, found.unfinished
        for holders, connection in enumerate((slow, other), 1):
            await connection.send(octets[:100_000])
            await eventually(lambda holders=holders: unfinished.holders == holders)  # type: ignore[misc]  # a lambda with a default has no type
            clock.jump(20)  # nobody else needs its memory
        await waiting.send(octets[:100_000])
        # The slowest gives way at once, and only that one.
        assert (await said(slow))[0].startswith(GAVE_WAY)
        for connection in (waiting, other):
            await connection.send(octets[100_000:])
            assert await stored(connection) == 1
        await eventually(lambda: unfinished.used == 0)
    why = "it took too long to complete an envelope while others wait for its memory"
    (closed,) = [record for record in caplog.records if record.message.endswith(f": closed: {why}")]
    assert vars(closed)["client"] == "test"


async def test_a_sink_that_goes_on_does_not_give_way(store: Path, clock: MockClock) -> None:
    """Of two that take the memory from a third, the one that sends nothing more gives way."""
    async with rivals(store) as found:
        quick, slow, waiting = found.sinks
        octets, unfinished = found.octets, found.unfinished
        await quick.send(octets[:100_000])
        await eventually(lambda: unfinished.used > 0)
        await slow.send(octets[:100_000])
        # The memory is spent, and `slow` may exceed it: so the third one has to wait.
        await eventually(lambda: unfinished.holders == 2)
        await waiting.send(octets[:100_000])
        await eventually(lambda: unfinished.waiting == 1)
        for sent in range(100_000, 200_000, 20_000):
            await quick.send(octets[sent : sent + 20_000])
            await found.client.settle()  # meanwhile the server has read it
            clock.jump(1)
        assert (await said(slow))[0].startswith(GAVE_WAY)
        await waiting.send(octets[100_000:])
        assert await stored(waiting) == 1
        await quick.send(octets[200_000:])
        assert await stored(quick) == 1


async def test_a_slow_sink_gives_way_however_much_it_sends(store: Path, clock: MockClock) -> None:
    async with rivals(store) as found:
        first, second, waiting = found.sinks
        octets, unfinished = found.octets, found.unfinished
        for connection, holders in ((first, 1), (second, 2)):
            await connection.send(octets[:100_000])
            await eventually(lambda holders=holders: unfinished.holders == holders)  # type: ignore[misc]  # a lambda with a default has no type
        await waiting.send(octets[:100_000])
        await eventually(lambda: unfinished.waiting == 1)
        sent = 100_000
        while unfinished.waiting:
            assert sent < 600_000
            for connection in (first, second):
                with contextlib.suppress(trio.BrokenResourceError):
                    await connection.stream.send_all(octets[sent : sent + 20_000])
            sent += 20_000
            await found.client.settle()  # meanwhile the server has read them
            clock.jump(1)
        assert sent > 240_000
        await waiting.send(octets[100_000:])
        assert await stored(waiting) == 1
