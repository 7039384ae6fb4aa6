"""Connections that end while work in slices looks at all of them are freed one by one, and end one by one
when the server stops. When many clients go away together, few end in a round of the scheduler.
"""

import gc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from weakref import WeakSet

import pytest
import trio
from counted_steps import counted_calls, watched

from omq.drivers.queue import QueueDriver

from .conversation import eventually, serving

CONNECTIONS = 100

SHORT_STEP = 2000
"""A number of calls that no step makes, however many connections there are."""


async def test_connections_that_end_during_a_reload_are_freed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "store", ping_seconds=1000) as host, trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            await host.connect()
        await eventually(lambda: host.connections == CONNECTIONS)
        living = WeakSet(each.session for each in host.server.terminals())
        monkeypatch.setattr("omq.drivers.slices.SLICE_SECONDS", -1)  # each step of the reload is a slice
        gc.disable()
        try:
            with watched(lambda: len(living)) as numbers:
                nursery.start_soon(host.server.reload, host.server.config)
                await trio.lowlevel.checkpoint()
                host.hang_up()
                await eventually(lambda: not living)
        finally:
            gc.enable()
        assert numbers.largest_fall() <= CONNECTIONS // 4


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Async)"])
async def test_a_server_that_stops_ends_connections_one_by_one_and_gives_their_messages_to_no_others(
    persistence: bytes, tmp_path: Path
) -> None:
    """Each subscriber has a message, and room for more."""
    async with serving(tmp_path / "store", ping_seconds=1000) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare q Round_robin %s)" % persistence)
        for _ in range(CONNECTIONS):
            worker = await host.connect()
            await worker.ask(b"(Subscribe q From_current)")
            await worker.say(b"(Request q 3)")
            await worker.settle()
        await publisher.say(*[b"(Publish q %d)" % number for number in range(CONNECTIONS)])
        (driver,) = host.server.catalogue
        assert isinstance(driver, QueueDriver)
        await eventually(lambda: driver.statistics().messages_out == CONNECTIONS)
        with counted_calls() as calls:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host.server.stop)
            await eventually(lambda: not driver.subscriber_count())
        assert calls.longest < SHORT_STEP
        assert driver.statistics().messages_out == driver.ready == CONNECTIONS


class Rounds(trio.abc.Instrument):
    """The values that a number has before each round of the scheduler: all tasks that can run have a turn."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self.all = [number()]

    def after_io_wait(self, timeout: float) -> None:
        self.all.append(self._number())


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Async)"])
async def test_many_workers_that_go_away_together_end_one_by_one(
    persistence: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later one gets their messages in order."""
    monkeypatch.setattr("omq.drivers.slices.SLICE_SECONDS", -1)  # the end of each takes a slice
    async with serving(tmp_path / "store", ping_seconds=1000) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare q Round_robin %s)" % persistence)
        (driver,) = host.server.catalogue
        for _ in range(CONNECTIONS):
            worker = await host.connect()
            await worker.ask(b"(Subscribe q From_current)")
            await worker.say(b"(Request q 3)")
            await worker.settle()
        await publisher.say(*[b"(Publish q %d)" % number for number in range(3 * CONNECTIONS)])
        await eventually(lambda: driver.statistics().messages_out == 3 * CONNECTIONS)
        rounds = Rounds(lambda: host.connections)
        trio.lowlevel.add_instrument(rounds)
        try:
            host.hang_up(publisher)
            await eventually(lambda: host.connections == 1)
        finally:
            trio.lowlevel.remove_instrument(rounds)
        assert rounds.all[0] == CONNECTIONS + 1
        assert max(before - after for before, after in pairwise(rounds.all)) == 1
        last = await host.connect()
        await last.ask(b"(Subscribe q From_current)")
        await last.say(b"(Request q %d)" % CONNECTIONS)
        assert await last.ids(CONNECTIONS) == [*range(1, CONNECTIONS + 1)]
