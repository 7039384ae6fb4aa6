"""Runs of ids against plain sets."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from measuring import untraced

from omq_storage.records import Position, pack_position, topic_key, unpack_position
from omq_storage.runs import RUN_IDS, RUN_OCTETS, Ids, ReturnedIds, Run, runs_of, united

STEPS = st.sampled_from([1, 2, 3, 7, 20, 5000])
COUNTS = st.sampled_from([1, 1, 2, 5, 100, RUN_IDS + 3])


def ids_of(runs: tuple[Run, ...] | list[Run]) -> list[int]:
    """Return the ids of these runs, in their order."""
    return [id for run in runs for id in run.ids()]


class IdsAgainstASet(RuleBasedStateMachine):
    """The ids that are put in and taken out, in any order, are those that a set would have."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = Ids()
        self.known: set[int] = set()
        self.next = 1

    @rule(gap=st.sampled_from([0, 0, 1, 6, 40_000]), step=STEPS, count=COUNTS)
    def deal(self, gap: int, step: int, count: int) -> None:
        ids = range(self.next + gap, self.next + gap + step * count, step)
        self.ids.add(ids)
        self.known.update(ids)
        self.next = ids[-1] + 1

    @rule(id=st.integers(0, 30_000))
    def put_back(self, id: int) -> None:
        assert (id in self.ids) == (id in self.known)
        if id not in self.known:
            self.ids.add(range(id, id + 1))
            self.known.add(id)
            self.next = max(self.next, id + 1)

    @rule(id=st.integers(-5, 30_000))
    def remove_any(self, id: int) -> None:
        assert (id in self.ids) == (id in self.known)
        assert self.ids.remove(id) == (id in self.known)
        self.known.discard(id)

    @rule(seed=st.integers(0, 1000), share=st.sampled_from([0.5, 0.01, 1.0]))
    def remove_some(self, seed: int, share: float) -> None:
        some = sorted(self.known)
        random.Random(seed).shuffle(some)
        for id in some[: int(share * len(some))]:
            assert self.ids.remove(id)
            self.known.remove(id)

    @rule(start=st.integers(0, 30_000), step=STEPS, count=COUNTS)
    def take(self, start: int, step: int, count: int) -> None:
        ids = range(start, start + step * count, step)
        assert sorted(ids_of(self.ids.take(ids))) == sorted(self.known.intersection(ids))
        self.known.difference_update(ids)

    @rule(start=st.integers(0, 30_000), step=STEPS, bits=st.integers(1, 1 << 64))
    def take_run(self, start: int, step: int, bits: int) -> None:
        run = Run(start, step, bits)
        assert sorted(ids_of(self.ids.take_run(run))) == sorted(self.known.intersection(run.ids()))
        self.known.difference_update(run.ids())

    @rule()
    def clear(self) -> None:
        self.ids.clear()
        self.known.clear()

    @invariant()
    def agrees(self) -> None:
        runs = self.ids.runs()
        assert len(self.ids) == len(self.known)
        assert ids_of(runs) == sorted(self.known)
        assert self.ids.octets == sum(run.octets for run in runs)
        assert all(run.bits and run.bits.bit_length() <= RUN_IDS for run in runs)


class TestIdsAgainstASet(IdsAgainstASet.TestCase):
    @untraced()
    def runTest(self) -> None:
        super().runTest()


@given(st.lists(st.tuples(st.integers(1, 50), STEPS, st.integers(1, 200)), max_size=5), st.integers(0, 400))
def test_returned_ids_come_from_the_lowest_on(shapes: list[tuple[int, int, int]], limit: int) -> None:
    returned, known = ReturnedIds(), set[int]()
    for start, step, count in shapes:
        new = [id for id in range(start, start + step * count, step) if id not in known]
        returned.add(runs_of(new))
        below = [part for run in runs_of(new) if (part := run.below(limit)) is not None]
        assert ids_of(below) == [id for id in new if id < limit]
        known.update(new)
    for number, id in enumerate(sorted(known)):
        assert len(returned) == len(known) - number
        assert returned.lowest == id
        assert returned.pop() == id
        assert returned.octets == sum(run.octets for run in returned.runs())
    assert not returned
    assert returned.octets == 0


def test_ids_that_return_in_order_need_few_runs() -> None:
    returned = ReturnedIds()
    for id in range(1, 2 * RUN_IDS, 2):
        returned.add([Run(id, 1, 1)])
    assert len(returned.runs()) == 2
    assert [returned.pop() for _ in range(RUN_IDS)] == [*range(1, 2 * RUN_IDS, 2)]


def test_ids_that_return_in_any_order_need_few_runs() -> None:
    returned = ReturnedIds()
    ids = [number * 7919 % 10_007 for number in range(10_007)]
    for id in ids:
        returned.add([Run(id, 1, 1)])
    assert len(returned.runs()) == 10_007 // RUN_IDS + 1
    assert [returned.pop() for _ in ids] == sorted(ids)


@given(st.sets(st.tuples(st.integers(0, 60), st.integers(0, 2)), max_size=60), st.integers(1, 70), st.data())
def test_ids_that_leave_together(shapes: set[tuple[int, int]], limit: int, data: st.DataObject) -> None:
    known = dict(shapes)
    returned = ReturnedIds()
    returned.add([Run(id, 1, 1, deliveries) for id, deliveries in known.items()])
    returned.add([Run(61, 3, 0b101)])
    known |= {61: 0, 67: 0}
    while returned:
        lowest = min(known)
        together = 1
        # A run with another step has no neighbours.
        while lowest + together < min(limit, 61) and known.get(lowest + together) == known[lowest]:
            together += 1
        assert returned.together(limit) == (together if lowest < 61 else 1)
        assert returned.deliveries == known[lowest]
        taken = max(1, returned.together(limit) - data.draw(st.integers(0, 3)))
        assert returned.pop(taken) == lowest
        for id in range(lowest, lowest + taken):
            del known[id]
        assert len(returned) == len(known)
        assert returned.octets == sum(run.octets for run in returned.runs())


def test_joined_runs_keep_their_deliveries_and_the_order_of_others() -> None:
    returned = ReturnedIds()
    known: dict[int, int] = {}
    for number in range(3000):
        id = number * 7919 % 3001  # ascending and descending neighbours
        known[id] = number // 100 % 3
        returned.add([Run(id, 1, 1, known[id])])
        if number % 3 == 0:
            lowest = min(known)
            assert (returned.lowest, returned.deliveries) == (lowest, known.pop(lowest))
            returned.pop()
    assert {id: run.deliveries for run in returned.runs() for id in run.ids()} == known
    assert [returned.pop() for _ in range(len(known))] == sorted(known)
    assert returned.octets == 0


@given(st.lists(st.tuples(st.integers(0, 30_000), STEPS, COUNTS), max_size=6))
def test_united_runs_have_the_same_ids(shapes: list[tuple[int, int, int]]) -> None:
    known: set[int] = set()
    runs: list[Run] = []
    for start, step, count in shapes:
        new = set(range(start, start + step * count, step)) - known
        runs += runs_of(new)
        known |= new
    assert sorted(ids_of(united(runs))) == sorted(known)


def test_runs_between_one_another_become_one() -> None:
    assert ids_of(united(Run(first, 1, 0b1001001) for first in (1, 2, 3))) == [*range(1, 10)]
    assert len(united(Run(first, 1, 0b1001001) for first in (1, 2, 3))) == 1


@pytest.mark.parametrize("workers", [1, 20, 300])
def test_a_share_of_the_work_takes_little_however_it_is_confirmed(workers: int) -> None:
    ids, count = Ids(), 100_000
    for start in range(3, 3 + count * workers, 40 * workers):  # as it is dealt out of blocks
        ids.add(range(start, start + 40 * workers, workers))
    assert len(ids) == count
    most = (count // RUN_IDS + 1) * RUN_OCTETS + count // 8
    assert ids.octets <= most
    for id in range(3, 3 + count * workers, 2 * workers):
        assert ids.remove(id)
    assert len(ids) == count // 2
    assert ids.octets <= most


@pytest.mark.parametrize(("step", "together"), [(1, 1), (1, 64), (20, 1), (300, 40)])
def test_ids_that_come_from_the_highest_down_need_few_runs(step: int, together: int) -> None:
    ids, count = Ids(), 30_000
    for start in range(3 + count * step, 3, -step * together):  # as those that return one by one are dealt
        ids.add(range(max(3, start - step * together), start, step))
    assert len(ids) == count
    assert ids_of(ids.runs()) == [*range(3, 3 + count * step, step)]
    assert len(ids.runs()) <= 2 * (count // RUN_IDS + 1)
    assert ids.octets == sum(run.octets for run in ids.runs())


def test_ids_far_above_a_run_are_taken_without_a_bitmap_up_to_them() -> None:
    ids, far = Ids(), 1 << 62  # with a bit for each id between, there would be no memory for it
    ids.add(range(1, 3))
    ids.add(range(far, far + 3))
    assert ids.take_run(Run(far - 1, 1, 0b110)) == [Run(far, 1, 0b11)]
    assert ids.take_run(Run(far + 5, 1, 1)) == []
    assert ids_of(ids.runs()) == [1, 2, far + 2]


@pytest.mark.parametrize("priorities", [2, 6, 100])
def test_ids_that_come_between_those_of_a_run_need_few_runs(priorities: int) -> None:
    ids, count = Ids(), 30_000
    for priority in range(priorities, 0, -1):  # as those of a queue with priorities are dealt
        for id in range(priority, count, priorities):
            ids.add(range(id, id + 1))
    assert len(ids) == count - 1
    assert ids_of(ids.runs()) == [*range(1, count)]
    assert len(ids.runs()) <= 2 * (count // RUN_IDS + 1) + priorities
    assert ids.octets == sum(run.octets for run in ids.runs())


@given(st.integers(0, (1 << 64) - 1), st.lists(st.tuples(st.integers(0, 1 << 40), STEPS, COUNTS), max_size=4))
def test_positions_are_read_as_they_were_stored(cursor: int, shapes: list[tuple[int, int, int]]) -> None:
    ids = {id for start, step, count in shapes for id in range(start, start + step * count, step)}
    position, key = Position(cursor, runs_of(ids)), topic_key(7)
    packed = pack_position(key, position)
    assert unpack_position(key, packed) == position
    assert len(packed) <= 16 + 8 * len(ids)
    assert position.lowest == min(ids, default=cursor)


@given(
    st.integers(0, (1 << 64) - 1),
    st.lists(st.tuples(st.integers(0, 1 << 20), STEPS, COUNTS, st.integers(0, 255)), max_size=6),
)
def test_positions_keep_how_often_messages_were_delivered(
    cursor: int, shapes: list[tuple[int, int, int, int]]
) -> None:
    """Each id once: every shape has ids of its own."""
    runs: list[Run] = []
    for number, (start, step, count, deliveries) in enumerate(shapes):
        begin = start + (1 << 40) * number
        ids = range(begin, begin + step * count, step)
        runs += [Run(run.first, run.step, run.bits, deliveries) for run in runs_of(ids)]
    key = topic_key(7)
    found = unpack_position(key, pack_position(key, Position(cursor, tuple(sorted(runs)))))
    assert found.cursor == cursor
    wanted = {(id, run.deliveries) for run in runs for id in run.ids()}
    assert {(id, run.deliveries) for run in found.undone for id in run.ids()} == wanted
    assert sum(run.bits.bit_count() for run in found.undone) == len(wanted)


OLD_RUNS = (
    "a6fca15e0000000000001234"
    "000000000000000500000000000000010000000000000001000000000000000b"
    "000000000000006400000000000000030000000000000002000000000000003fffffffffffffffff"
    "0000000000000384000000000000000100000000000000010000000000000001"
    "01"
)
WITH_DELIVERIES = (
    "4ee2d7860000000000001234"
    "000000000000006400000000000000030000000000000002000000000000003fffffffffffffffff"
    "000000000000000200000000000000010000000000000000"
    "000000000000000500000000000000010000000000000001000000000000000b"
    "00000000000000ff00000000000000010000000000000000"
    "0000000000000384000000000000000100000000000000010000000000000001"
    "01"
)
RECORDS = {
    "ids, as before messages had numbers of deliveries": (
        Position(9, runs_of((3, 8))),
        "88361f56000000000000000900000000000000030000000000000008",
    ),
    "runs, as before messages had numbers of deliveries": (
        Position(0x1234, (Run(5, 1, 0b1011), Run(100, 3, (1 << 70) - 1), Run(900, 1, 1))),
        OLD_RUNS,
    ),
    "runs with numbers of deliveries": (
        Position(0x1234, (Run(5, 1, 0b1011, 2), Run(100, 3, (1 << 70) - 1), Run(900, 1, 1, 255))),
        WITH_DELIVERIES,
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_of_positions_are_read_in_every_later_version(name: str) -> None:
    position, record = RECORDS[name]
    key = topic_key(7)
    assert pack_position(key, position).hex() == record
    assert unpack_position(key, bytes.fromhex(record)) == position


def test_versions_without_numbers_of_deliveries_find_the_same_ids() -> None:
    """They take every run of 24 octets and its bits as it is, and drop those without ids."""
    position, record = RECORDS["runs with numbers of deliveries"]
    octets, at, found = bytes.fromhex(record)[4:-1], 8, set[int]()
    while at < len(octets):
        first, step, words = struct.unpack_from(">QQQ", octets, at)
        at += 24 + 8 * words
        run = Run(first, step, int.from_bytes(octets[at - 8 * words : at], "big"))
        below = run.below(position.cursor)
        found |= set(below.ids()) if below is not None else set()
    assert found == {id for run in position.undone for id in run.ids() if id < position.cursor}
