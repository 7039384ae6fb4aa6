"""The first stored message since a time."""

import time
from pathlib import Path

import pytest
import trio
from made_stores import damage
from served_drivers import WEAK, Drivers, opened, post

from omq.drivers.driver import Driver
from omq.drivers.housekeeping import tidy
from omq.drivers.times import first_since
from omq_storage.blocks import encode
from omq_storage.levels import Level
from omq_storage.store import Store

SECOND = 1_000_000
BEGAN = 1_700_000_000 * SECOND
COUNTS = [1, 3, 1, 2, 2, 1, 4, 1, 1, 2]


async def published(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> tuple[Driver, list[int]]:
    """Publish blocks, ten seconds from one to the next. Return the topic, and the times of its messages."""
    driver = await drivers.declare(WEAK)
    times: list[int] = []
    for number, count in enumerate(COUNTS):
        now = BEGAN + 10 * number * SECOND
        monkeypatch.setattr(time, "time_ns", lambda now=now: now * 1000)
        await post(driver, *[b"x"] * count)
        times += [now] * count
    return driver, times


async def check(driver: Driver, times: list[int], first: int = 1) -> None:
    """Compare the found messages with the times of the messages from `first` on."""
    for wanted in sorted({at + more for at in times for more in (-SECOND, -1, 0, 1, 5 * SECOND)}):
        expected = first + sum(1 for at in times if at < wanted)
        assert await first_since(driver, wanted) == expected, wanted - BEGAN


async def test_the_first_message_since_a_time_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "store") as drivers:
        driver, times = await published(drivers, monkeypatch)
        await check(driver, times)
        assert driver.writer is not None
        await tidy(driver, driver.writer)
        environment = drivers.store.level(Level.WEAK)
        assert len(environment.blocks(driver.topic.id, 0)) == 1  # with messages of different times
        await check(driver, times)
        await post(driver, b"in a block of its own")
        await check(driver, [*times, times[-1]])


async def test_deleted_messages_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "store") as drivers:
        driver, times = await published(drivers, monkeypatch)
        environment = drivers.store.level(Level.WEAK)
        environment.trim(driver.topic.id, 8)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        await check(driver, times[7:], first=8)
        drivers.store.level(Level.WEAK).trim(driver.topic.id, driver.next_id)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        assert await first_since(driver, BEGAN) == driver.next_id == len(times) + 1


async def test_a_damaged_block_is_found_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription from there reports it."""
    async with opened(tmp_path / "store") as drivers:
        driver, _ = await published(drivers, monkeypatch)
        assert driver.writer is not None
        await tidy(driver, driver.writer)
        topic = driver.topic.id
    damage(tmp_path / "store", topic, 1)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        assert await first_since(driver, BEGAN + 25 * SECOND) == 1
        assert await first_since(driver, BEGAN + 95 * SECOND) == driver.next_id


async def test_ids_that_were_lost_are_passed_over(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", map_size=1 << 28, boot_id="first") as store:
        topic = store.catalogue.create(b"t", "Broadcast", "Weak", True, reserved=2000).id
        firsts = [1, 2, 300, 301, 1500]
        blocks = [encode(topic, first, [b"x"], BEGAN + first * SECOND) for first in firsts]
        store.level(Level.WEAK).append(blocks)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        for first, before in zip(firsts, [0, *firsts], strict=False):
            for seconds in (before + 1, first):
                with trio.fail_after(60):
                    found = await first_since(driver, BEGAN + seconds * SECOND)
                assert before < found <= first
        assert await first_since(driver, BEGAN + 1501 * SECOND) == 1501
