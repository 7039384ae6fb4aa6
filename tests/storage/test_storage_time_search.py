"""The search for the first message since a time, among blocks of all sizes with gaps between them."""

import random

import pytest

from omq_storage.records import BlockRecord
from omq_storage.time_search import TimeSearch


def make_blocks(chance: random.Random) -> list[BlockRecord]:
    """Return blocks in order; some messages between them are gone, and some begin at the same time."""
    blocks: list[BlockRecord] = []
    id, time = chance.randrange(1, 5), 0
    for _ in range(chance.randrange(7)):
        count, span = chance.randrange(1, 5), chance.randrange(3)
        blocks.append(BlockRecord(id, count, time, span, 100))
        id += count + chance.choice((0, 0, 1, 6))
        time += span + chance.randrange(3)
    return blocks


def found_at(blocks: list[BlockRecord], message: int, end: int) -> BlockRecord | None:
    """Return the block that contains a message, or else the next one that begins below `end`."""
    return next((block for block in blocks if block.next > message and block.first < end), None)


@pytest.mark.parametrize("seed", range(200))
def test_every_time_is_found(seed: int) -> None:
    blocks = make_blocks(random.Random(seed))
    first = blocks[0].first if blocks else 1
    end = blocks[-1].next if blocks else 1
    for time in range(-1, 40):
        search = TimeSearch[BlockRecord](first, end, time)
        looks = 0
        while search.is_open:
            search.found(found_at(blocks, search.middle, search.high))
            looks += 1
        earlier = [block for block in blocks if block.time < time]
        assert search.before == (earlier[-1] if earlier else None)
        behind = search.before.next if search.before is not None else first
        assert search.high <= behind
        assert all(block.time >= time for block in blocks if block.first >= behind)
        assert looks <= end.bit_length() + 1


def test_a_block_that_was_merged_meanwhile_ends_the_search_behind_it() -> None:
    search = TimeSearch[BlockRecord](1, 100, 50)
    search.found(BlockRecord(50, 1, 60, 0, 100))
    assert (search.is_open, search.high) == (True, 50)
    merged = BlockRecord(1, 80, 10, 60, 100)
    search.found(merged)
    assert (search.is_open, search.before) == (False, merged)


def test_nothing_is_searched_where_there_is_nothing() -> None:
    search = TimeSearch[BlockRecord](7, 7, 0)
    assert (search.is_open, search.high, search.before) == (False, 7, None)
