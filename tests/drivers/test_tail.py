"""One tail beside a list of blocks, and what gives when all of them together have too much."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.tail import MOST_BLOCKS, Tail, TailMemory
from omq_storage.blocks import Block, encode

PLENTY = 1 << 40


def block(first: int, count: int = 1, size: int = 10) -> Block:
    return encode(1, first, [bytes(size)] * count, 0)


def filled(counts: list[int], memory: TailMemory | None = None, limit: int = PLENTY) -> Tail:
    """Return a tail with blocks of these numbers of messages, from message 1 on."""
    tail = Tail(memory or TailMemory(PLENTY), limit)
    first = 1
    for count in counts:
        tail.append(block(first, count))
        first += count
    return tail


def firsts(tail: Tail) -> list[int]:
    """Return the first message of each block that is held."""
    if tail.first is None:
        return []
    found: list[int] = []
    position = tail.first
    while tail.covers(position):
        blocks = tail.from_position(position, PLENTY)
        found += [held.first for held in blocks]
        position = blocks[-1].next
    return found


counts = st.lists(st.integers(1, 5), max_size=12)


def test_an_empty_tail_covers_nothing() -> None:
    tail = filled([])
    assert (tail.first, tail.next, len(tail), tail.octets) == (None, None, 0, 0)
    assert not any(map(tail.covers, range(3)))
    tail.clear()
    tail.forget_below(7)
    assert not tail.forget(1, 0)
    assert tail.octets_after(0, PLENTY) == 0


@given(counts)
def test_a_covered_message_is_found_in_its_block(counts: list[int]) -> None:
    tail = filled(counts)
    end = sum(counts) + 1
    assert firsts(tail) == list(accumulate(counts, initial=1))[:-1]
    for message in range(end + 2):
        assert tail.covers(message) is (1 <= message < end)
        if tail.covers(message):
            found = tail.from_position(message, PLENTY)
            assert found[0].first <= message < found[0].next
            assert found[-1].next == end
            held = sum(one.held for one in found)
            assert tail.octets_after(message, PLENTY) == held
    assert tail.octets_after(end, PLENTY) == 0


@given(counts.filter(bool), st.integers(0, 70))
def test_forgetting_below_a_position_keeps_its_block(counts: list[int], position: int) -> None:
    memory = TailMemory(PLENTY)
    tail = filled(counts, memory)
    before = firsts(tail)
    ends = [first + count for first, count in zip(before, counts, strict=True)]
    tail.forget_below(position)
    assert firsts(tail) == [first for first, end in zip(before, ends, strict=True) if end > position]
    left = sum(block(1, count).held for count, end in zip(counts, ends, strict=True) if end > position)
    assert memory.used == tail.octets == tail.octets_after(0, PLENTY) == left


def test_a_look_gives_as_many_octets_as_are_wanted_and_one_block_at_least() -> None:
    tail = filled([2] * 10)
    one = block(1, 2).held
    for octets, found in ((1, 1), (one, 1), (one + 1, 2), (3 * one, 3), (PLENTY, 8)):
        assert [held.first for held in tail.from_position(5, octets)] == [5 + 2 * n for n in range(found)]


def test_a_look_at_many_small_blocks_ends() -> None:
    tail = filled([1] * (MOST_BLOCKS + 3))
    assert len(tail.from_position(1, PLENTY)) == MOST_BLOCKS
    assert len(tail.from_position(4, PLENTY)) == MOST_BLOCKS
    assert len(tail.from_position(5, PLENTY)) == MOST_BLOCKS - 1


def test_octets_are_counted_until_there_are_enough() -> None:
    tail = filled([1] * 10)
    one = block(1).held
    assert [tail.octets_after(1, enough) for enough in (0, 1, one, one + 1)] == [0, one, one, 2 * one]
    assert [tail.octets_after(position, PLENTY) for position in (9, 10, 11)] == [2 * one, one, 0]


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_the_oldest_are_forgotten_and_the_last_kept(kept: int) -> None:
    one = block(1).held
    tail = filled([1] * 5)
    assert not tail.forget(0, kept)
    assert tail.forget(one + 1, kept)
    assert firsts(tail) == [3, 4, 5]
    assert tail.forget(PLENTY, kept) is (kept < 3)
    assert len(tail) == kept
    assert not tail.forget(PLENTY, kept)


def test_a_tail_has_no_more_than_its_limit_but_always_its_newest_block() -> None:
    memory = TailMemory(PLENTY)
    one = block(1).held
    tail = filled([1] * 5, memory, limit=3 * one)
    assert firsts(tail) == [3, 4, 5]
    assert tail.octets == memory.used == 3 * one
    tail.append(block(6, 1, 1000))
    assert firsts(tail) == [6]
    assert tail.octets == memory.used == block(6, 1, 1000).held


def with_holes() -> Tail:
    """Return a tail with messages 1 to 3, 6, and 7, and with holes between them."""
    tail = Tail(TailMemory(PLENTY), PLENTY)
    tail.leave_out(0)  # it is empty, so there is no hole
    tail.append(block(1))
    tail.append(block(2, 2))
    tail.leave_out(4)
    tail.leave_out(5)
    tail.append(block(6))
    tail.append(block(7))
    tail.leave_out(8)
    return tail


def test_nothing_goes_on_behind_a_hole() -> None:
    tail = with_holes()
    assert [message for message in range(10) if tail.covers(message)] == [1, 2, 3, 6, 7]
    found = [[held.first for held in tail.from_position(at, PLENTY)] for at in (1, 3, 6)]
    assert found == [[1, 2], [2], [6, 7]]
    assert [held.first for held in tail.before(8, PLENTY)] == [1, 2]
    assert [tail.first_after(at) for at in range(8)] == [1, 2, 6, 6, 6, 6, 7, None]


@pytest.mark.parametrize("position", range(10))
def test_blocks_before_a_hole_are_forgotten(position: int) -> None:
    tail = with_holes()
    tail.forget_below(position)
    kept = [first for first, end in ((1, 2), (2, 4), (6, 7), (7, 8)) if end > position]
    assert [message for message in range(10) if tail.covers(message) and message != 3] == kept
    tail.append(block(9))
    assert tail.covers(9)
    assert [held.first for held in tail.before(8, PLENTY)] == ([each for each in kept if each < 6] or kept)


def test_messages_that_are_missing_are_no_hole() -> None:
    tail = with_holes()
    tail.append(block(10))
    assert [message for message in range(12) if tail.covers(message)] == [10]
    tail.append(block(12))
    assert [message for message in range(14) if tail.covers(message)] == [12]


def test_the_share_of_each_gets_smaller_with_their_number() -> None:
    memory = TailMemory(1000)
    assert memory.share() == 250
    tails = [filled([1], memory) for _ in range(4)]
    assert memory.share() == 1000 // 10
    for tail in tails[:3]:
        tail.clear()  # one without blocks takes no share
    assert memory.share() == 250
    tails[3].forget(1, 0)
    assert (memory.share(), memory.used) == (250, 0)


def test_the_largest_tails_give_until_an_eighth_is_free() -> None:
    one = block(1).held
    memory = TailMemory(40 * one)
    small, large, largest = filled([1] * 4, memory), filled([1] * 14, memory), filled([1] * 22, memory)
    assert memory.used == 40 * one
    small.append(block(5))
    assert memory.used == 35 * one
    assert firsts(small) == [1, 2, 3, 4, 5]
    assert firsts(large) == list(range(1, 15))
    assert firsts(largest) == list(range(7, 23))


def test_equally_large_tails_give_alike() -> None:
    one = block(1).held
    memory = TailMemory(40 * one)
    tails = [filled([1] * 13, memory) for _ in range(3)]
    tails[0].append(block(14))
    tails[0].append(block(15))
    assert memory.used <= 35 * one
    assert all(10 <= len(tail) <= 13 for tail in tails)


def test_the_newest_block_of_the_one_that_grows_stays_whatever_it_takes() -> None:
    one = block(1).held
    memory = TailMemory(10 * one)
    others = [filled([1] * 3, memory) for _ in range(3)]
    growing = Tail(memory, PLENTY)
    growing.append(block(1, 1, 10_000))
    assert firsts(growing) == [1]
    assert [len(other) for other in others] == [0, 0, 0]
    assert memory.used == growing.octets


def test_the_largest_gives_until_it_is_as_small_as_the_next() -> None:
    """Whatever the order in which the tails have grown."""
    memory = TailMemory(PLENTY)
    size = block(1).held
    tails = [filled([1] * count, memory) for count in (30, 10, 20, 15, 24)]
    assert memory.used == 99 * size
    memory.limit = 99 * size
    tails[1].append(block(11))
    # An eighth is free again: the largest gave until it was as small as the next, then these two in turn.
    assert memory.used <= memory.limit - memory.limit // 8
    assert [len(tail) for tail in tails[1:4]] == [11, 20, 15]
    assert sorted(len(tails[number]) for number in (0, 4)) in ([20, 20], [20, 21], [20, 19], [19, 20])
