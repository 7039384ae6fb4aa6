"""Small blocks are merged, within bounds, and nothing is lost or comes back."""

import pytest
from storage_helpers import NOON, bodies_of, heads_of, merge_all, numbered, read_all

import omq_storage.merging
from omq_storage.blocks import Block, encode, pack
from omq_storage.environment import Environment
from omq_storage.merging import (
    BLOCKS_IN_STEP,
    MERGED_BYTES,
    MERGED_MESSAGES,
    MOST_PASSES,
    MergeStep,
    SmallBlocks,
)


def test_merging_makes_large_blocks_of_small_ones(environment: Environment) -> None:
    blocks = [numbered(1, 3 * n, 3) for n in range(3000)]
    environment.append(blocks)
    environment.append([numbered(2, 0, 1)])
    before = environment.extent(1)
    merge_all(environment, 1)
    infos = environment.blocks(1, 0)
    assert [info.count for info in infos] == [4032, 4032, 936]
    assert bodies_of(read_all(environment, 1)) == bodies_of(blocks)
    after = environment.extent(1)
    assert (after.first, after.last, after.messages) == (before.first, before.last, before.messages)
    assert after.bytes == sum(info.bytes for info in infos)
    assert merge_all(environment, 1) == 1
    assert environment.read(2, 0) == [numbered(2, 0, 1)]


def test_merging_never_crosses_a_gap_or_71_minutes_or_its_sizes(environment: Environment) -> None:
    environment.append([numbered(1, 0, 1), numbered(1, 1, 1), numbered(1, 3, 1), numbered(1, 4, 1)])
    hour = 3600 * 1_000_000
    environment.append([numbered(2, n, 1, time=NOON + n * hour) for n in range(4)])
    environment.append([numbered(3, n, 1, size=100_000) for n in range(10)])
    environment.append([numbered(4, 0, 1, time=NOON + 2 * hour), numbered(4, 1, 1)])
    for topic in (1, 2, 3, 4):
        merge_all(environment, topic)
    assert [(info.first, info.count) for info in environment.blocks(1, 0)] == [(0, 2), (3, 2)]
    assert [info.count for info in environment.blocks(2, 0)] == [2, 2]
    assert [info.count for info in environment.blocks(3, 0)] == [5, 5]
    assert [info.count for info in environment.blocks(4, 0)] == [2]
    assert environment.read(4, 0)[0].message_time(1) == NOON + 2 * hour


def test_merging_fills_a_block_to_its_last_octet(environment: Environment) -> None:
    """Of blocks with and without the times of their messages."""

    def merged(topic: int, size: int) -> list[int]:
        # The first three are merged before, so the block that they become has the times of its messages.
        environment.append([numbered(topic, n, 1, 66_000, NOON + n) for n in range(3)])
        merge_all(environment, topic)
        environment.append([numbered(topic, 3, 1, 150_000, NOON + 3), numbered(topic, 4, 1, size, NOON + 4)])
        merge_all(environment, topic)
        return [info.bytes for info in environment.blocks(topic, 0)]

    (octets,) = merged(1, 140_000)
    fitting = 140_000 + MERGED_BYTES - octets
    assert merged(2, fitting) == [MERGED_BYTES]
    assert max(merged(3, fitting + 1)) < MERGED_BYTES


def test_merging_keeps_to_its_size_where_only_some_have_heads(environment: Environment) -> None:
    blocks = [
        encode(1, 100 * n, [b"x" * 95] * 100, NOON + n, [b"head"] * 100 if n % 50 == 49 else [])
        for n in range(200)
    ]
    environment.append(blocks)
    assert {info.first for info in environment.blocks(1, 0) if info.heads} == {4900, 9900, 14900, 19900}
    merge_all(environment, 1)
    merged = environment.blocks(1, 0)
    assert all(info.bytes <= MERGED_BYTES for info in merged)
    assert [(info.count, info.heads) for info in merged] == [
        (block.count, block.has_heads) for block in read_all(environment, 1)
    ]
    # Those with offsets of heads have a little less room for messages.
    assert {info.count for info in merged if info.heads} == {4000}
    assert heads_of(read_all(environment, 1)) == heads_of(blocks)


def test_a_growing_topic_is_rewritten_a_few_times_only(environment: Environment) -> None:
    written, start = 0, 0
    for n in range(1000):
        environment.append([numbered(1, n, 1)])
        before = {info.first: info for info in environment.blocks(1, start)}
        following = environment.merge_small(1, start).following
        changed = [info for info in environment.blocks(1, start) if before.get(info.first) != info]
        written += sum(info.count for info in changed)
        start = start if following is None else following
    assert written <= 1000 * 12
    assert len(environment.blocks(1, 0)) <= 12


def test_merging_many_blocks_is_bounded(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=20_000) for n in range(1000)])
    first = environment.merge_small(1, 0).following
    assert first == 2 * 26  # of two blocks of up to 512 KiB
    assert [info.count for info in environment.blocks(1, 0)][:3] == [26, 26, 1]
    environment.append([numbered(2, n, 1, size=1) for n in range(1000)])
    assert environment.merge_small(2, 0).following == BLOCKS_IN_STEP
    assert len(environment.blocks(2, 0)) == 1001 - BLOCKS_IN_STEP


def test_blocks_of_all_steps_are_merged_with_one_another(environment: Environment) -> None:
    environment.append([numbered(1, n, 1, size=1) for n in range(9000)])
    blocks = SmallBlocks(lambda start: environment.merge_small(1, start), 0)
    steps = 1
    while blocks.step():
        steps += 1
    # One pass for the messages, one for its results, one that finds nothing more.
    assert steps <= 9000 // BLOCKS_IN_STEP + 10
    assert [info.count for info in environment.blocks(1, 0)][:2] == [MERGED_MESSAGES, MERGED_MESSAGES]
    # The next merge begins with the blocks that may still grow, and not at the beginning.
    environment.append([numbered(1, n, 1, size=1) for n in range(9000, 12_000)])
    later = SmallBlocks(lambda start: environment.merge_small(1, start), blocks.start)
    while later.step():
        pass
    assert [info.count for info in environment.blocks(1, 0)][:2] == [MERGED_MESSAGES, MERGED_MESSAGES]
    assert len(environment.blocks(1, 0)) <= 5


def test_a_merge_ends_although_blocks_are_appended_as_quickly() -> None:
    steps = 0

    def merge(start: int) -> MergeStep:
        nonlocal steps
        steps += 1
        return MergeStep(start + 1 if steps % 5 else None, has_merged=True, is_last=steps % 5 == 0)

    blocks = SmallBlocks(merge, 0)
    while blocks.step():
        pass
    assert steps == 5 * MOST_PASSES


@pytest.mark.parametrize("kept", [20, 1000])
def test_a_block_deleted_during_its_merge_stays_deleted(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """A merge reads before it writes.

    Other threads may write in between, and it must not undo their changes.
    """
    environment.append([numbered(1, 5 * n, 5) for n in range(20)])

    def delete_first(block: Block) -> bytes:
        environment.trim(1, kept)
        return pack(block)

    monkeypatch.setattr(omq_storage.merging, "pack", delete_first)
    assert not environment.merge_small(1, 0).has_merged
    monkeypatch.undo()
    expected = [(message, body) for message, body in bodies_of([numbered(1, 0, 100)]) if message >= kept]
    assert bodies_of(read_all(environment, 1)) == expected
    assert sum(info.count for info in environment.blocks(1, 0)) == len(expected)
    assert environment.extent(1).messages == len(expected)
    assert environment.extent(1).bytes == sum(info.bytes for info in environment.blocks(1, 0))
    merge_all(environment, 1)
    assert bodies_of(read_all(environment, 1)) == expected
