"""Sets of unsettled messages, and what a transient topic holds of its blocks, against plain sets."""

import tracemalloc
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omq.drivers.holdings import JOINED_OCTETS, Holdings
from omq.drivers.seam import MOST_DELIVERIES
from omq.drivers.unconfirmed import Unconfirmed
from omq.drivers.unsettled import Deliveries, Unsettled, delivered, number_of, ranges
from omq_storage.blocks import encode
from omq_storage.runs import Run

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


@given(IDS, IDS)
def test_messages_are_taken_out_with_how_often_they_were_delivered(
    added: list[tuple[int, int, int, int]], taken: list[tuple[int, int, int, int]]
) -> None:
    share = Unconfirmed(1 << 20)
    messages = Unsettled(share)
    known: dict[int, int] = {}
    for first, step, count, deliveries in added:
        ids = range(first, first + step * count, step)
        if not known.keys() & set(ids):
            messages.add(ids, deliveries)
            known |= dict.fromkeys(ids, deliveries)
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
    assert isinstance(copy, Deliveries)
    again = delivered(copy.runs())
    assert pairs(again) == sorted((id, deliveries + 1) for id, deliveries in pairs(copy.runs()))
    assert delivered([Run(1, 1, 1, MOST_DELIVERIES)]) == [Run(1, 1, 1, MOST_DELIVERIES)]
    messages.clear()
    assert share.used == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.data())
def test_blocks_are_held_until_all_their_messages_are_settled(counts: list[int], data: st.DataObject) -> None:
    holdings, held, first = Holdings(), {}, 1
    for count in counts:
        block = encode(1, first, [b"x" * count] * count, 0)
        holdings.append(block)
        held[block] = set(range(block.first, block.next))
        first = block.next
    while any(held.values()):
        left = sorted(set().union(*held.values()))
        start = data.draw(st.sampled_from(left))
        step = data.draw(st.integers(1, 5))
        ids = range(start, start + step, step)
        while ids.stop in left and data.draw(st.integers(0, 9)):
            ids = range(start, ids.stop + step, step)
        freed = holdings.settled(ids)
        done = [block for block, undone in held.items() if undone and undone <= set(ids)]
        for undone in held.values():
            undone -= set(ids)
        assert freed == sum(block.held for block in done)
        messages, octets, oldest = holdings.summary()
        assert messages == sum(map(len, held.values()))
        assert octets == sum(block.held for block, undone in held.items() if undone)
        assert oldest == min((block.first for block, undone in held.items() if undone), default=None)
        for block, undone in held.items():
            assert all(holdings.find(message) is block for message in undone)


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
    assert holdings.settled(range(1, count // 2 + 1)) == 0
    first = holdings.first_on_disk()
    assert first is not None
    assert count // 2 - begun < first <= count // 2 + 1
    for id in range(count // 2 + 1, count + 1):
        assert holdings.done(id, 1) == 0
    assert holdings.first_on_disk() == count + 2
    assert holdings.summary() == (2, block.held, count + 1)
    assert holdings.find(count + 1) is block
    assert holdings.find(count + 2) is None
    assert holdings.done(count + 2, 1) == 0
    assert holdings.first_on_disk() is None
    holdings.append_on_disk(count + 3, count + 4, size)
    assert holdings.clear() == block.held
    assert holdings.first_on_disk() is None
