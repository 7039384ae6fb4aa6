"""Finds messages of a stored topic by their time."""

from bisect import bisect_left

from omq.drivers.driver import Driver
from omq.drivers.seam import Unavailable
from omq_storage.environment import BlockRecord
from omq_storage.time_search import TimeSearch


async def first_since(driver: Driver, time: int) -> int:
    """Return the id of the first message since `time`, in microseconds since the epoch; the next id if there
    is none.

    Raises omq_storage.errors.StoreError.
    """
    end = driver.next_id
    search = TimeSearch[BlockRecord](driver.extent.oldest(end), end, time)
    while search.is_open:
        middle = search.middle
        search.found(await driver.stored_blocks(middle, search.high - middle, 1, _first))
    before = search.before
    if before is None:
        return search.high
    if before.time + before.span < time:
        return min(before.next, end)
    blocks = await driver.replay(before.first, 1)
    if isinstance(blocks, Unavailable):
        return before.first  # it was deleted meanwhile, or is damaged: the subscription reports the gap
    block = blocks[0].block
    return bisect_left(range(block.first, block.next), time, key=block.message_time) + block.first


def _first(infos: list[BlockRecord]) -> BlockRecord | None:
    return infos[0] if infos else None
