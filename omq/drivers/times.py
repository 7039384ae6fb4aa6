"""Finds messages of a stored topic by their time."""

from bisect import bisect_left

from omq.drivers.driver import Driver
from omq.drivers.seam import Gone
from omq_storage.environment import BlockRecord


async def first_since(driver: Driver, time: int) -> int:
    """Return the id of the first message since `time`, in microseconds since the epoch; the next id if there
    is none.

    Times never decrease within a topic, so this is a binary search over blocks, followed by a search in one
    block. Raises omq_storage.errors.StoreError.
    """
    low = driver.extent.first if driver.extent.messages else driver.next_id
    high = end = driver.next_id
    before: BlockRecord | None = None  # the last block that begins before the time
    while low < high:
        middle = (low + high) // 2
        found = await driver.stored_blocks(middle, high - middle, 1, _first)
        if found is None:
            high = middle
        elif found.time >= time:
            high = max(low, min(high, found.first))
        else:
            before = found
            low = found.first + found.count
    if before is None or before.time + before.span < time:
        return min(max(low, high), end)
    blocks = await driver.replay(before.first, 1)
    if isinstance(blocks, Gone):
        return before.first  # it was deleted meanwhile, or is damaged: the subscription reports the gap
    block = blocks[0].block
    return bisect_left(range(block.first, block.next), time, key=block.message_time) + block.first


def _first(infos: list[BlockRecord]) -> BlockRecord | None:
    return infos[0] if infos else None
