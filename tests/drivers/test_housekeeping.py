"""When housekeeping does its work, with real stores."""

from pathlib import Path

import trio
from served_drivers import KIB, WEAK, opened, post, quiet
from trio.testing import MockClock

from omq.drivers.housekeeping import keep_tidy
from omq_storage.levels import Level


async def test_retention_is_applied_every_two_seconds(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path / "store", retention_bytes=1) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.declare(WEAK)
        nursery.start_soon(keep_tidy, drivers.catalogue, Level.WEAK)
        await quiet()
        for newest in (2, 3, 4):
            while driver.next_id <= newest:
                await post(driver, bytes(600 * KIB))
            before = driver.info().first
            mock_clock.jump(1.9)
            await quiet()
            assert driver.info().first == before < newest
            mock_clock.jump(0.1)
            await quiet()
            assert driver.info().first == newest
        nursery.cancel_scope.cancel()
