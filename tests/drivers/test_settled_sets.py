"""Sets of unsettled messages, and what a transient topic holds of its blocks, against plain sets."""

import gc
import sys
import tracemalloc
from itertools import pairwise

import pytest
from counted_steps import counted_calls
from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.holdings import CHUNK_BLOCKS, JOINED_OCTETS, RELEASED_BLOCKS, Holdings
from omq.drivers.seam import MOST_DELIVERIES
from omq.drivers.sizes import Sizes
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unsettled import DeliveredIds, Unsettled, delivered, number_of, ranges
from omq_storage.blocks import encode
from omq_storage.runs import Run, runs_in

IDS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 7), st.integers(1, 40), st.integers(0, 3)))


def pairs(runs: list[Run]) -> list[tuple[int, int]]:
    return sorted((id, run.deliveries) for run in runs for id in run.ids())


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, (1 << 200) - 1))
def test_the_ranges_of_a_run_are_its_ids(first: int, step: int, bits: int) -> None:
    run = Run(first, step, bits)
    found = list(ranges(run))
    assert [id for ids in found for id in ids] == list(run.ids())
    assert all(ids.step == step for ids in found)
    assert all(before.stop < after.start for before, after in pairwise(found))


@given(IDS)
def test_messages_that_follow_one_another_are_added_as_one_by_one(
    added: list[tuple[int, int, int, int]],
) -> None:
    parts: list[tuple[range, int]] = []
    known: dict[int, int] = {}
    for first, step, count, deliveries in added:
        ids = range(first, first + step * count, step)
        if not known.keys() & set(ids):
            parts += [(range(id, id + 1), deliveries) for id in ids] if step == 1 else [(ids, deliveries)]
            known |= dict.fromkeys(ids, deliveries)
    messages = DeliveredIds()
    messages.add_all(parts)
    assert pairs(messages.runs()) == sorted(known.items())


def filled(messages: DeliveredIds | Unsettled, added: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """Add ranges of ids, as far as they are new; return how often each message was delivered."""
    known: dict[int, int] = {}
    for first, step, count, deliveries in added:
        ids = range(first, first + step * count, step)
        if not known.keys() & set(ids):
            messages.add(ids, deliveries)
            known |= dict.fromkeys(ids, deliveries)
    return known


@given(IDS, IDS)
def test_messages_are_divided_with_how_often_they_were_delivered(
    added: list[tuple[int, int, int, int]], wanted: list[tuple[int, int, int, int]]
) -> None:
    messages, some = DeliveredIds(), DeliveredIds()
    known = filled(messages, added)
    chosen: set[int] = set()
    for first, step, count, _ in wanted:
        ids = range(first, first + step * count, step)
        if not chosen & set(ids):
            some.add(ids)
            chosen |= set(ids)
    found, others = messages.divided(some.runs())
    assert pairs(found) == sorted((id, times) for id, times in known.items() if id in chosen)
    assert pairs(others) == sorted((id, times) for id, times in known.items() if id not in chosen)
    assert pairs(messages.runs()) == sorted(known.items())


async def test_messages_assigned_in_turn_take_few_steps_to_divide() -> None:
    """One of forty subscribers has a thousand of them, one by one, of which some were returned meanwhile."""
    ids = [40 * number + number % 3 for number in range(1000)]
    parts = [(range(id, id + 1), 2) for id in ids]
    unsettled = DeliveredIds()
    for part, deliveries in parts:
        unsettled.add(part, deliveries)
    queued = DeliveredIds()
    queued.add_all(parts[500:])
    with counted_calls() as calls:
        found, others = unsettled.divided(queued.runs())
    assert [number_of(found), number_of(others)] == [500, 500]
    assert calls.total < 500


@given(IDS, IDS)
def test_messages_are_taken_out_with_how_often_they_were_delivered(
    added: list[tuple[int, int, int, int]], taken: list[tuple[int, int, int, int]]
) -> None:
    share = Unconfirmed(1 << 20)
    messages = Unsettled(share)
    known = filled(messages, added)
    copy = messages.copy()
    for first, step, count, _ in taken:
        ids = range(first, first + step * count, step)
        wanted = sorted((id, known.pop(id)) for id in set(ids) & known.keys())
        runs = messages.take(ids)
        assert pairs(runs) == wanted
        assert number_of(runs) == len(wanted)
        assert len(messages) == len(known)
        assert share.used == messages.octets
    assert pairs(messages.runs()) == sorted(known.items())
    assert isinstance(copy, DeliveredIds)
    again = delivered(copy.runs())
    assert pairs(again) == sorted((id, deliveries + 1) for id, deliveries in pairs(copy.runs()))
    assert delivered([Run(1, 1, 1, MOST_DELIVERIES)]) == [Run(1, 1, 1, MOST_DELIVERIES)]
    messages.clear()
    assert share.used == 0


def test_the_memory_of_a_set_is_that_of_its_parts() -> None:
    share = Unconfirmed(1 << 20)
    whole, first, again = Unsettled(share), Unsettled(share), Unsettled(share)
    for ids, deliveries, part in ((range(1, 100, 3), 0, first), (range(200, 300), 1, again)):
        for messages in (whole, part):
            messages.add(ids, deliveries)
    assert whole.octets == first.octets + again.octets
    assert share.used == 2 * whole.octets


def released(holdings: Holdings) -> int:
    """Free all blocks of messages that are done. Return how many octets became free."""
    freed = 0
    while holdings.is_settling:
        freed += holdings.release()
    return freed


@pytest.mark.parametrize(("chunk", "at_once"), [(CHUNK_BLOCKS, RELEASED_BLOCKS), (3, 2)])
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=30), data=st.data())
def test_blocks_are_held_until_all_their_messages_are_settled(
    counts: list[int], data: st.DataObject, chunk: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omq.drivers.holdings.CHUNK_BLOCKS", chunk)
        patch.setattr("omq.drivers.holdings.RELEASED_BLOCKS", at_once)
        settle_all(Holdings(), counts, data)


def settle_all(holdings: Holdings, counts: list[int], data: st.DataObject) -> None:
    """Settle the messages of blocks with these numbers of messages, in any order."""
    held, first = {}, 1
    for count in counts:
        block = encode(1, first, [b"x" * count] * count, 0)
        holdings.append(block)
        held[block] = set(range(block.first, block.next))
        first = block.next
    while any(held.values()):
        left = sorted(set().union(*held.values()))
        start = data.draw(st.sampled_from(left))
        step = data.draw(st.integers(1, 5))
        later = set(left).intersection(range(start, left[-1] + 1, step))
        ids = {start} | (later & data.draw(st.sets(st.sampled_from(left))))
        first = start - step * data.draw(st.integers(0, 2))
        holdings.settle(Run(first, step, sum(1 << (id - first) // step for id in ids)))
        freed = released(holdings)
        done = [block for block, undone in held.items() if undone and undone <= ids]
        for undone in held.values():
            undone -= ids
        assert freed == sum(block.held for block in done)
        assert holdings.messages == sum(map(len, held.values()))
        assert holdings.octets == sum(block.held for block, undone in held.items() if undone)
        assert holdings.first == min((block.first for block, undone in held.items() if undone), default=None)
        behind = [block for block, undone in held.items() if undone and block.next > start]
        assert holdings.blocks_from(start, 5) == behind[:5]
        for block, undone in held.items():
            assert all(holdings.find(message) is block for message in undone)


def test_many_blocks_are_freed_in_portions() -> None:
    holdings, count = Holdings(), 4 * RELEASED_BLOCKS
    blocks = [encode(1, id, [b"x"], 0) for id in range(1, count + 1)]
    for block in blocks:
        holdings.append(block)
    for first in (1, 2):  # two workers had every second one
        for run in runs_in(range(first, count + 1, 2)):
            holdings.settle(run)
    assert holdings.messages == 0
    portions = []
    while holdings.is_settling:
        portions.append(holdings.release())
    assert sum(portions) == count * blocks[0].held
    assert max(portions) == RELEASED_BLOCKS * blocks[0].held
    assert holdings.octets == 0


def test_many_blocks_are_removed_in_portions() -> None:
    holdings = Holdings()
    for id in range(1, 3 * CHUNK_BLOCKS + 1):
        holdings.append(encode(1, id, [b"x"], 0))
    octets = holdings.octets
    gc.collect()
    before = sys.getallocatedblocks()
    assert holdings.clear() == octets
    assert (holdings.messages, holdings.octets, holdings.first) == (0, 0, None)
    freed = []
    while holdings.free_some():
        now = sys.getallocatedblocks()
        freed.append(before - now)
        before = now
    assert len(freed) == 2
    assert all(CHUNK_BLOCKS < blocks < 6 * CHUNK_BLOCKS for blocks in freed)


BLOCKS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 100)), max_size=12)


@given(BLOCKS, st.integers(0, 80), st.integers(0, 80), st.integers(1, 4), st.integers(1, 900))
def test_the_sizes_of_messages(
    blocks: list[tuple[int, int, int]], begin: int, count: int, step: int, wanted: int
) -> None:
    sizes, known, first = Sizes(), dict[int, int](), 1
    for lost, messages, octets in blocks:
        first += lost
        sizes.arrived(first, messages, octets)
        known |= dict.fromkeys(range(first, first + messages), octets // messages)
        first += messages
    assert sizes.octets == sum(known.values())
    ids = range(begin, begin + step * count, step)
    sizes.take(ids)
    assert sizes.octets == sum(octets for id, octets in known.items() if id not in ids)
    sizes.add(ids)
    assert sizes.octets == sum(known.values())
    above = {id: octets for id, octets in known.items() if id >= begin}
    stop = sizes.after(begin, wanted)
    if sum(above.values()) < wanted:
        assert stop == max(known, default=begin - 1) + 1
    else:
        assert sum(octets for id, octets in above.items() if id < stop) >= wanted
        assert sum(octets for id, octets in above.items() if id < stop - 1) < wanted


def test_many_small_blocks_on_the_disk_take_little_memory() -> None:
    holdings, size, count = Holdings(), 200, 50_000
    tracemalloc.start()
    try:
        for id in range(1, count + 1):
            holdings.append_on_disk(id, id + 1, size)
        assert tracemalloc.get_traced_memory()[0] < count
    finally:
        tracemalloc.stop()
    begun = JOINED_OCTETS // size
    block = encode(1, count + 1, [b"x"], 0)
    holdings.append(block)
    holdings.append_on_disk(count + 2, count + 3, size)  # not joined with what comes before the one in memory
    for run in runs_in(range(1, count // 2 + 1)):
        holdings.settle(run)
    assert released(holdings) == 0
    first = holdings.first_on_disk()
    assert first is not None
    assert count // 2 - begun < first <= count // 2 + 1
    for id in range(count // 2 + 1, count + 1):
        assert holdings.done(id, 1) == 0
    assert holdings.first_on_disk() == count + 2
    assert (holdings.messages, holdings.octets, holdings.first) == (2, block.held, count + 1)
    assert holdings.find(count + 1) is block
    assert holdings.find(count + 2) is None
    assert holdings.done(count + 2, 1) == 0
    assert holdings.first_on_disk() is None
    holdings.append_on_disk(count + 3, count + 4, size)
    assert holdings.clear() == block.held
    assert holdings.first_on_disk() is None


@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=30))
def test_blocks_are_found_wherever_they_were_put_back(data: st.DataObject, counts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omq.drivers.holdings.CHUNK_BLOCKS", 2)  # so there are many chunks, which are halved
        holdings = Holdings()
        firsts = [1 + sum(counts[:place]) for place in range(len(counts))]
        blocks = [encode(1, first, [b"x"] * count, 0) for first, count in zip(firsts, counts, strict=True)]
        late = set(data.draw(st.lists(st.sampled_from(range(len(blocks))), unique=True)))
        for place, block in enumerate(blocks):
            if place not in late:
                holdings.append(block)
        for place in data.draw(st.permutations(sorted(late))):
            holdings.put_back(blocks[place])
        assert holdings.messages == sum(counts)
        assert holdings.first == 1
        assert holdings.octets == sum(block.held for block in blocks)
        for place in data.draw(st.permutations(range(len(blocks)))):
            block = blocks[place]
            for id in range(block.first, block.next):
                assert holdings.find(id) is block
            assert holdings.done(block.first, block.count) == block.held
            assert holdings.find(block.first) is None
        assert (holdings.messages, holdings.octets) == (0, 0)
