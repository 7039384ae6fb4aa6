"""Find the first message of a topic since a time. Message frames have no time, but stored blocks do."""

from bisect import bisect_left

from omq.client import BlockInfo, Client
from omq.model import FromBeginning, FromMessage, Replay, TopicInfo
from omq_storage.time_search import TimeSearch


async def replay_since(client: Client, name: bytes, info: TopicInfo | None, time: int) -> Replay:
    """Find the start of a subscription that gets the messages since `time`, in microseconds since the epoch.
    `info` is None for a topic that does not exist yet.

    Raises ServerError for a topic that cannot be replayed.
    """
    if info is None:
        return FromBeginning()
    first = info.oldest
    search = TimeSearch[BlockInfo](first, info.next, time)
    while search.is_open:
        search.found(await _block_at(client, name, search.middle, search.high))
    high = search.high
    if search.before is not None:
        high = await _first_in_block(client, name, search.before, time, high)
    if not info.messages:
        # Nothing to find, but ask anyway: the server refuses for a topic that cannot be replayed.
        await client.blocks(name, max(1, first), 1)
    return FromMessage(max(1, first, high))


async def _block_at(client: Client, name: bytes, message: int, end: int) -> BlockInfo | None:
    """Return the block that holds `message`, or the next one that begins before `end`."""
    # Ask for one message first, because the answer for a range lists all its blocks.
    for count in (1, end - message):
        found = await client.blocks(name, message, count)
        if found:
            return found[0]
    return None


async def _first_in_block(client: Client, name: bytes, info: BlockInfo, time: int, otherwise: int) -> int:
    """Return the first message since `time` in a block that begins before `time`; `otherwise` if there is
    none.
    """
    async with client.fetch(name, info.first, 1) as blocks:
        async for block in blocks:
            found = bisect_left(range(block.first, block.next), time, key=block.message_time) + block.first
            return found if found < block.next else otherwise
    return info.first  # the block is damaged or deleted: the subscription will report the gap
