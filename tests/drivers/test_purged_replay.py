"""A replay that reads the store while messages are deleted there."""

from pathlib import Path
from threading import Event

import pytest
import trio
from served_drivers import WEAK, opened, post

from omq.drivers.purging import purge
from omq.drivers.seam import Unavailable
from omq_storage.environment import Environment
from omq_storage.records import Extent


async def test_messages_that_are_just_deleted_were_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has deleted them, and the driver does not know it yet."""
    is_deleted, is_read = Event(), Event()
    retain = Environment.retain

    def slow_retain(environment: Environment, *limits: object) -> Extent:
        extent = retain(environment, *limits)  # type: ignore[arg-type]  # passed on as they came
        is_deleted.set()
        assert is_read.wait(60)
        return extent

    monkeypatch.setattr(Environment, "retain", slow_retain)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        await post(driver, b"1", b"2")
        await post(driver, b"3")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(purge, driver)
            try:
                await trio.to_thread.run_sync(is_deleted.wait, 60)
                found = await driver.replay(2, 1 << 20)
            finally:
                is_read.set()
    assert found == Unavailable(2, 3, "they are no longer kept")
