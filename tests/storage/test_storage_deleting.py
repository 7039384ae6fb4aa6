"""The oldest blocks are deleted: by size, by age, and to make room in a full map."""

from contextlib import suppress
from pathlib import Path

import pytest
from storage_helpers import NOON, before, numbered, open_level, read_all

from omq_storage.blocks import Block, encode, pack
from omq_storage.environment import Environment, Extent, Position
from omq_storage.errors import Limit, StoreFull
from omq_storage.levels import Level
from omq_storage.records import TooOld
from omq_storage.runs import runs_of


def test_retention_by_size_keeps_the_newest_block(environment: Environment) -> None:
    blocks = [numbered(1, 10 * n, 10) for n in range(6)]
    environment.append(blocks)
    size = len(pack(blocks[0]))
    assert environment.retain(1, 3 * size, None, None).first == 30
    assert environment.retain(1, 3 * size - 1, None, None).first == 40
    assert environment.retain(1, 0, None, 45).first == 40
    assert environment.retain(1, 0, None, 50).first == 50
    assert environment.retain(1, 0, None, None) == Extent(50, 59, 10, size)
    assert environment.retain(1, None, None, None) == environment.extent(1)


def test_retention_by_age_looks_at_the_last_message(environment: Environment) -> None:
    old = [numbered(1, 0, 1, time=NOON), numbered(1, 1, 1, time=NOON + 50)]
    environment.append([*old, numbered(1, 2, 1, time=NOON + 100)])
    assert environment.merge_small(1, 0).has_merged
    assert [info.span for info in environment.blocks(1, 0)] == [100]
    assert environment.retain(1, None, before(NOON + 100), None).messages == 3
    assert environment.retain(1, None, before(NOON + 101), 2).messages == 3
    assert environment.retain(1, None, before(NOON + 101), 3) == Extent(3, 2, 0, 0)


def test_retention_by_age_uses_ids_too(environment: Environment) -> None:
    environment.append([numbered(1, 10 * n, 10, time=NOON) for n in range(4)])

    def kept(time: int, time_below: int, below: int) -> int:
        return environment.retain(1, None, TooOld(time, time_below, below), None).first

    assert kept(NOON, 1000, 0) == 0  # none is too old
    assert kept(NOON + 1, 9, 9) == 0  # not all messages of the first block are
    assert kept(NOON + 1, 10, 0) == 10
    assert kept(NOON, 1000, 20) == 20
    assert kept(NOON + 1, 1000, 0) == 40  # the newest block, too


def test_retention_is_bounded_and_continues_at_the_next_call(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=1) for n in range(600)])
    assert [environment.retain(1, None, before(NOON + 1), None).messages for _ in range(4)] == [344, 88, 0, 0]
    environment.append([numbered(2, n, 1, size=1) for n in range(600)])
    assert environment.trim(2, 599).messages == 1
    environment.append([numbered(3, n, 1, size=1) for n in range(600)])
    environment.set_positions({3: Position(4), 2: Position(1, runs_of((0,)))})
    environment.drop(3)
    assert environment.extents().keys() == {1, 2}
    assert environment.positions() == {2: Position(1, runs_of((0,)))}
    assert read_all(environment, 3) == []


def test_topics_that_are_dropped_together_share_the_limits_of_a_transaction(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=1) for n in range(600)])
    environment.append([numbered(topic, n, 1, size=1) for topic in range(2, 5) for n in range(10)])
    environment.set_sequences(2, {b"a": 1})
    assert environment.drop_some([1, 2, 3, 4, 5]) == [1]
    assert environment.extents().keys() == {1}
    assert environment.extent(1).messages == 600 - 256 // 5
    assert environment.sequences(2, [b"a"]) == {}
    assert environment.drop_some([1]) == [1]
    assert environment.extent(1).messages == 600 - 256 // 5 - 256
    assert [environment.drop_some([1]) for _ in range(2)] == [[1], []]
    assert environment.extents() == {}


def test_each_of_very_many_topics_that_are_dropped_loses_something(environment: Environment) -> None:
    topics = range(1, 301)
    environment.append([numbered(topic, n, 1, size=1) for topic in topics for n in range(2)])
    assert environment.drop_some(topics) == list(topics)
    assert {extent.messages for extent in environment.extents().values()} == {1}
    assert environment.drop_some(topics) == []
    assert environment.extents() == {}


def fill(environment: Environment, stored: list[Block], count: int) -> None:
    """Append blocks of topic 1 until there is no more room, and record which were stored."""
    full: StoreFull | None = None
    while full is None:
        block = numbered(1, stored[-1].next if stored else 0, count)
        try:
            environment.append([block])
            stored.append(block)
        except StoreFull as error:
            full = error
    assert full.limit is Limit.MAP


@pytest.mark.parametrize("level", [Level.STRONG, Level.WEAK])
def test_a_full_map(tmp_path: Path, level: Level) -> None:
    environment = open_level(tmp_path / "level", level, map_size=1 << 20)
    stored: list[Block] = []
    for round_ in range(3):
        fill(environment, stored, count=100)
        # The last few pages, too, so that nothing is left for deleting.
        fill(environment, stored, count=1)
        assert read_all(environment, 1, stored[0].first) == stored
        assert environment.extent(1).last == stored[-1].last
        cut = len(stored) // 2
        environment.trim(1, stored[cut].first)
        environment.checkpoint()
        environment.set_positions({1: Position(round_)})
        stored = stored[cut:]
        assert read_all(environment, 1) == stored
    environment.close()
    environment = open_level(tmp_path / "level", level, map_size=1 << 20)
    assert read_all(environment, 1) == stored
    environment.close()


@pytest.mark.parametrize("map_size", [1 << 20, 3_000_000])
@pytest.mark.parametrize("others", range(4))
def test_a_full_map_accepts_blocks_after_a_topic_is_deleted(
    tmp_path: Path, map_size: int, others: int
) -> None:
    """Also when the deletion used the last free pages: LMDB reuses freed pages in the commit after
    the next.
    """
    environment = open_level(tmp_path / "level", Level.STRONG, map_size=map_size)
    for topic in range(2, 2 + others):
        environment.append([encode(topic, 1, [b"x" * 20_000], 0)])
    full = False
    message = 0
    while not full:
        message += 1
        try:
            environment.append([encode(1, message, [b"x" * 20_000], 0)])
        except StoreFull:
            full = True
    with suppress(StoreFull):
        for cursor in range(others):
            environment.set_positions({1: Position(cursor)})
    environment.drop(1)
    environment.append([encode(9, 1, [b"again"], 0)])
    environment.close()
