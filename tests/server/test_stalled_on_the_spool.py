"""Clients that stop reading in the middle of messages on the spool: they get the rest, unless it is full."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from quietness import pass_until
from trio.testing import MockClock

from omq.drivers.scheduled_time import MOST_COUNTED
from omq.drivers.seam import LITTLE_OCTETS
from omq.protocol.omq.types import Error

from .conversation import PATIENCE, Conversation, InProcess, declared, eventually, publish
from .dmp_conversation import send_all
from .stalled_readers import IN_MEMORY, MIB, WAYS, Reader, body_of, sending_little, stall

STEP = 0.005
"""Seconds of a step of the clock."""


@asynccontextmanager
async def left_in_a_spooled_message(
    store: Path, clock: MockClock, way: str
) -> AsyncIterator[tuple[InProcess, Conversation, Reader]]:
    """Yield a reader that has begun message 6 of 20, which was on the spool, and does not take the rest until
    it is left behind.
    """
    bodies = [body_of(number, 300_000) for number in range(1, 21)]
    settings: dict[str, Any] = {"memory_bytes": 4 * MIB, "stall_seconds": PATIENCE / 2, "spool_seconds": 30}
    async with sending_little(store, **settings, fragment_octets=IN_MEMORY) as host:
        client = await declared(host, b"Broadcast Transient")
        principal = await host.connect()
        reader = await Reader.open(host, principal, way, b"From_current", receive_octets=8 << 10)
        quick = await Reader.open(host, principal, "subscription", b"From_current", receive_octets=MIB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, host, client, bodies)
            assert await quick.bodies(20) == bodies
        assert await reader.of.bodies(5) == bodies[:5]
        while reader.of.unfinished < LITTLE_OCTETS:
            assert await reader.of.receive()
        await stall(clock, host, 1)
        await pass_until(lambda: host.server.statistics().spool.used <= MIB, clock, MOST_COUNTED)
        yield host, client, reader
        host.hang_up()
        await eventually(lambda: host.connections == 0)
        await pass_until(lambda: host.server.statistics().spool.used == 0, clock, MOST_COUNTED)


@WAYS
async def test_who_is_left_behind_in_a_spooled_message_gets_its_rest(
    store: Path, clock: MockClock, way: str
) -> None:
    """And is told then of what is missing."""
    async with left_in_a_spooled_message(store, clock, way) as (host, client, reader):
        assert host.server.statistics().spool.used > 300_000
        assert (await reader.bodies(1))[0] == body_of(6, 300_000)
        await client.say(b"(Publish t last)")
        if way == "subscription":
            gap = await reader.next()
            assert isinstance(gap, Error)
            assert gap.text.startswith(b"Subscribe t: messages 7 to ")
            assert gap.text.endswith(b" are gone: the subscriber was too slow")
        recent = 0
        while (await reader.bodies(1))[0] != b"last":
            recent += 1
        assert recent < 4


async def test_a_full_spool_keeps_no_rests_for_whom_it_left_behind(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with left_in_a_spooled_message(store, clock, "subscription") as (host, client, reader):

        def write(file: int, octets: object, place: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        await Reader.open(host, client, "subscription", b"From_current")
        quick = await Reader.open(host, client, "subscription", b"From_current", receive_octets=MIB)
        bodies = [b"%04d" % number * 250 for number in range(8000)]
        received: list[bytes] = []
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", write)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stream.send_all, publish(b"t", bodies))
                # In small steps: the kernel, which moves the octets, takes real time.
                nursery.start_soon(pass_until, lambda: bool(received), clock, STEP)
                received += await quick.bodies(len(bodies))
        assert received == bodies
        await pass_until(lambda: not host.server.statistics().spool.used, clock, STEP)
        assert await reader.is_cut_off()
    assert any(line.endswith("in the middle of a message: it is no longer kept") for line in caplog.messages)
