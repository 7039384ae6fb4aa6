"""The octets that a broadcast channel reads from the store at a time, and its part of the memory for that."""

from pathlib import Path

import pytest
from served_drivers import KIB, MIB, WEAK, opened, post

from omq.drivers.driver import Driver
from omq.drivers.replaying import Replaying
from omq.drivers.seam import Unavailable
from omq.drivers.stored_reads import READ_OCTETS

LIMIT = 2 * MIB
MEMORY = 16 * LIMIT
"""Replays have a sixteenth of it."""


async def read(replaying: Replaying, position: int, *, slow: bool = False) -> list[int] | None:
    """Return the first ids of the blocks that it reads."""
    blocks = await replaying.read(position, slow=slow)
    assert not isinstance(blocks, Unavailable)
    return None if blocks is None else [stored.block.first for stored in blocks]


async def stored(driver: Driver, *sizes: int) -> Replaying:
    """Store a block with one message for each of these sizes."""
    for size in sizes:
        await post(driver, bytes(size))
    return Replaying(driver)


async def test_a_read_holds_what_it_may_read_until_it_is_given_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=MEMORY) as drivers:
        share = drivers.memory.replayed
        replaying = await stored(await drivers.declare(WEAK), *[400 * KIB] * 5)
        assert await read(replaying, 1) == [1, 2]
        assert replaying.octets == share.used == READ_OCTETS
        assert await read(replaying, 4) == [4, 5]
        assert share.used == READ_OCTETS
        for _ in range(2):
            replaying.give_back()
            assert replaying.octets == share.used == 0
        assert await read(replaying, 5) == [5]
        replaying.give_back()


@pytest.mark.parametrize("why", ["it is slow", "there is no memory"])
async def test_without_memory_one_block_is_read(tmp_path: Path, why: str) -> None:
    async with opened(tmp_path / "store", memory=MEMORY) as drivers:
        share = drivers.memory.replayed
        replaying = await stored(await drivers.declare(WEAK), *[100] * 5)
        taken = LIMIT if why == "there is no memory" else 0
        assert share.try_take(taken)
        assert await read(replaying, 2, slow=not taken) == [2]
        assert replaying.octets == 0
        assert share.used == taken
        share.give(taken)


async def test_a_large_block_is_read_as_a_whole_if_the_memory_has_room_for_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=MEMORY) as drivers:
        share = drivers.memory.replayed
        replaying = await stored(await drivers.declare(WEAK), 100, 3 * LIMIT // 4, 100)
        assert await read(replaying, 2) == [2]
        assert 3 * LIMIT // 4 < replaying.octets == share.used < LIMIT
        replaying.give_back()
        assert share.try_take(LIMIT // 2)
        assert await read(replaying, 2) is None
        assert replaying.octets == 0
        assert share.used == LIMIT // 2
        share.give(LIMIT // 2)
        assert await read(replaying, 2, slow=True) is None
        assert share.used == 0


async def test_a_block_beyond_the_memory_is_not_read_as_a_whole(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=MEMORY) as drivers:
        replaying = await stored(await drivers.declare(WEAK), LIMIT + 1)
        assert await read(replaying, 1) is None
        assert replaying.octets == drivers.memory.replayed.used == 0
