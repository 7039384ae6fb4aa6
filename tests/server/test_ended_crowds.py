"""Connections that end while work in slices looks at all of them are freed one by one."""

import gc
from pathlib import Path
from weakref import WeakSet

import pytest
import trio
from counted_steps import watched

from .conversation import eventually, serving

CONNECTIONS = 100


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
