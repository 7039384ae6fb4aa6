"""Sets of message ids that need little memory: runs of ids, each with a step and a bitmap.

A worker of a round-robin topic gets ids with a common step: with twenty workers, each one gets every
twentieth id.  So a run needs one or two bits for each id, in whatever order its ids are removed.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import gcd
from typing import NamedTuple

RUN_IDS = 1 << 12
"""The greatest number of bits of a run.  Python copies the bitmap at each change: 512 octets at most."""

RUN_OCTETS = 256
"""The memory of a run besides its bitmap, in octets."""

_SPARE_BITS = 8 * RUN_OCTETS
"""The number of unused bits that cost as much memory as a further run."""


_CHUNK_BITS = (1 << RUN_IDS) - 1


class Run(NamedTuple):
    """The ids `first + i * step` for which bit `i` is set.  At least one bit is set."""

    first: int
    step: int
    bits: int
    deliveries: int = 0
    """The number of times that the messages with these ids were delivered before."""

    @property
    def lowest(self) -> int:
        """The lowest of its ids."""
        return self.first + self.step * _lowest_bit(self.bits)

    @property
    def last(self) -> int:
        """The highest of its ids."""
        return self.first + self.step * (self.bits.bit_length() - 1)

    @property
    def octets(self) -> int:
        """The memory that the run takes, in octets."""
        return RUN_OCTETS + self.bits.bit_length() // 8

    def ids(self) -> Iterator[int]:
        """Yield the ids in order."""
        first, step, bits, _ = self
        while bits:
            skipped = _lowest_bit(bits)
            first += skipped * step
            yield first
            bits >>= skipped + 1
            first += step

    def below(self, limit: int) -> "Run | None":
        """Return the ids below a limit; None if there are none."""
        bits = self.bits & ((1 << max(0, -((self.first - limit) // self.step))) - 1)
        return self._replace(bits=bits) if bits else None


class Ids:
    """A set of ids. Ids may be removed in any order. It needs least memory if they are added from one
    end to the other.
    """

    __slots__ = ("_bits", "_count", "_firsts", "_steps", "octets")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        # One entry for each run, in order. Runs do not overlap.
        self._firsts: list[int] = []
        self._steps: list[int] = []
        self._bits: list[int] = []
        self._count = 0
        self.octets = 0
        """The memory that the set takes, in octets."""
        for id in ids:
            self.add(range(id, id + 1))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: int) -> bool:
        index = bisect_right(self._firsts, id) - 1
        if index < 0:
            return False
        place, beside = divmod(id - self._firsts[index], self._steps[index])
        return not beside and bool(self._bits[index] >> place & 1)

    def runs(self) -> tuple[Run, ...]:
        """Return all ids as runs, in order."""
        return tuple(map(Run, self._firsts, self._steps, self._bits))

    def add(self, ids: range) -> None:
        """Add ids that are not in the set; the step of the range is at least 1."""
        if self._firsts and ids[0] <= self._run(-1).last:
            for id in ids:
                self._insert(id)
            return
        self._count += len(ids)
        for start in range(0, len(ids), RUN_IDS):
            part = ids[start : start + RUN_IDS]
            longer = _extended(self._run(-1), part) if self._firsts else None
            if longer is None:
                self._put(len(self._firsts), Run(part.start, part.step, (1 << len(part)) - 1))
            else:
                self._set(-1, longer)

    def remove(self, id: int) -> bool:
        """Remove an id. Return whether the set had it."""
        index = bisect_right(self._firsts, id) - 1
        if index < 0:
            return False
        place, beside = divmod(id - self._firsts[index], self._steps[index])
        before = self._bits[index]
        if beside or not before >> place & 1:
            return False
        self._count -= 1
        bits = before ^ 1 << place
        if not bits:
            self._delete(index)
            return True
        self._bits[index] = bits
        if bits.bit_length() != before.bit_length():
            self.octets -= before.bit_length() // 8 - bits.bit_length() // 8
        return True

    def take(self, ids: range) -> list[Run]:
        """Remove these ids, and return those that the set had."""
        taken: list[Run] = []
        while ids:
            index = bisect_right(self._firsts, ids[0]) - 1
            # The part of the ids before the next run.
            beyond = self._firsts[index + 1] if index + 1 < len(self._firsts) else ids[-1] + 1
            count = -((ids[0] - beyond) // ids.step)
            part, ids = ids[:count], ids[count:]
            if index >= 0:
                taken += self._take(index, part)
        return taken

    def _take(self, index: int, ids: range) -> list[Run]:
        """Do as `take` for one run; no id is below its first."""
        run = self._run(index)
        ids = ids[: max(0, (run.last - ids[0]) // ids.step + 1)]
        offset = ids.start - run.first
        if not ids:
            return []
        if offset % run.step or (len(ids) > 1 and ids.step % run.step):
            return [Run(id, 1, 1) for id in ids if self.remove(id)]
        bits = run.bits & _pattern(ids, run.step) << offset // run.step
        if not bits:
            return []
        self._count -= bits.bit_count()
        if rest := run.bits ^ bits:
            self._set(index, Run(run.first, run.step, rest))
        else:
            self._delete(index)
        return [Run(run.first, run.step, bits)]

    def take_run(self, run: Run) -> list[Run]:
        """Remove the ids of a run, and return those that the set had."""
        first, step, bits, _ = run
        last = run.last
        taken: list[Run] = []
        index = max(0, bisect_right(self._firsts, first) - 1)
        while index < len(self._firsts) and self._firsts[index] <= last:
            own = self._run(index)
            if own.last < first:  # maybe far below: do not shift the bitmap from there
                index += 1
                continue
            if own.step != step and own.bits != 1:
                return taken + [Run(id, 1, 1) for id in run.ids() if self.remove(id)]
            index += 1
            place, beside = divmod(own.first - first, step)
            common = 0 if beside else own.bits & (bits >> place if place >= 0 else bits << -place)
            if not common:
                continue
            taken.append(Run(own.first, step, common))
            self._count -= common.bit_count()
            if rest := own.bits ^ common:
                self._set(index - 1, Run(own.first, step, rest))
            else:
                index -= 1
                self._delete(index)
        return taken

    def copy(self) -> "Ids":
        """Return a set of the same ids."""
        copied = Ids()
        copied._firsts, copied._steps, copied._bits = self._firsts[:], self._steps[:], self._bits[:]
        copied._count, copied.octets = self._count, self.octets
        return copied

    def clear(self) -> None:
        """Remove all ids."""
        self._firsts.clear()
        self._steps.clear()
        self._bits.clear()
        self._count = self.octets = 0

    def _run(self, index: int) -> Run:
        return Run(self._firsts[index], self._steps[index], self._bits[index])

    def _put(self, index: int, run: Run) -> None:
        self._firsts.insert(index, run.first)
        self._steps.insert(index, run.step)
        self._bits.insert(index, run.bits)
        self.octets += run.octets

    def _set(self, index: int, run: Run) -> None:
        """Replace the run at an index by one with the same first id."""
        self.octets += run.octets - self._run(index).octets
        self._steps[index] = run.step
        self._bits[index] = run.bits

    def _delete(self, index: int) -> None:
        self.octets -= self._run(index).octets
        del self._firsts[index], self._steps[index], self._bits[index]

    def _insert(self, id: int) -> None:
        """Add an id that is below the highest one."""
        self._count += 1
        index = bisect_right(self._firsts, id) - 1
        if index >= 0:
            run = self._run(index)
            longer = _extended(run, range(id, id + 1))
            if longer is not None:
                self._set(index, longer)
                return
            if run.last > id:
                # The id lies between two ids of a run with another step.
                self._put_between(index, run, id)
                return
        # The next run begins with it, if it may: ids come from the highest down, too.
        index += 1
        begun = _begun(id, self._run(index)) if index < len(self._firsts) else None
        if begun is None:
            self._put(index, Run(id, 1, 1))
        else:
            self._delete(index)
            self._put(index, begun)

    def _put_between(self, index: int, run: Run, id: int) -> None:
        """Add an id between two ids of a run whose step does not reach it.

        The ids around it get the common step, as far as one run may reach: the next id that comes between
        them then finds its place there. Messages with lower priorities come so, between others with a step.
        """
        common = gcd(id - run.first, run.step)
        count = max(1, RUN_IDS * common // run.step)
        place = (id - run.first) // run.step
        start = place - place % count
        if count == 1:  # too far from each other
            start, count = place + 1, 0
            around = Run(id, 1, 1)
        else:
            bits = _spread(run.bits >> start & ((1 << count) - 1), run.step // common)
            first = run.first + start * run.step
            around = Run(first, common, bits | 1 << (id - first) // common)
        below = run.bits & ((1 << start) - 1)
        above = run.bits >> start + count
        if above:
            self._put(index + 1, Run(run.first + (start + count) * run.step, run.step, above))
        self._put(index + 1, around)
        if below:
            self._set(index, run._replace(bits=below))
        else:
            self._delete(index)


class ReturnedIds:
    """A priority queue of ids: the lowest id leaves first.

    A client may return ids one by one in any order. So those with step 1 lie in chunks of RUN_IDS neighbours,
    as one run for each number of deliveries, and need little memory whatever their order is.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, list[Run]] = {}
        """Runs with step 1 by the numbers of their chunks. Bit 0 of each is set, as in `_others`."""
        self._order: list[int] = []
        """A heap of the numbers of the chunks."""
        self._others: list[Run] = []
        """A heap of runs with other steps, which may overlap."""
        self._count = 0
        self.octets = 0
        """The memory that the queue takes, in octets."""

    def __len__(self) -> int:
        return self._count

    @property
    def lowest(self) -> int:
        """The lowest id. The queue must not be empty."""
        return self._first().first

    @property
    def deliveries(self) -> int:
        """The number of times that the message with the lowest id was delivered before. The queue must not be
        empty.
        """
        return self._first().deliveries

    def together(self, limit: int) -> int:
        """Return the number of ids below a limit that leave next, without a gap, and were delivered equally
        often. The queue must not be empty.
        """
        first, step, bits, _ = self._first()
        count = _lowest_bit(bits + 1) if step == 1 else 1
        return max(1, min(count, limit - first))

    def _first(self) -> Run:
        """Return the run with the lowest id."""
        if not self._order:
            return self._others[0]
        runs = self._chunks[self._order[0]]
        run = runs[0] if len(runs) == 1 else min(runs)
        return min(run, self._others[0]) if self._others else run

    def add(self, runs: Iterable[Run]) -> None:
        """Add ids that are not in the queue."""
        for run in runs:
            self._count += run.bits.bit_count()
            if run.step == 1:
                self._add_near(run)
                continue
            other = trimmed(run)
            if other.bits == 1:
                self._add_near(other._replace(step=1))
            else:
                self.octets += other.octets
                heapq.heappush(self._others, other)

    def _add_near(self, run: Run) -> None:
        """Add ids with step 1 to their chunks."""
        for chunk, bits in chunked(run.first, run.bits):
            runs = self._chunks.get(chunk)
            if runs is None:
                runs = self._chunks[chunk] = []
                heapq.heappush(self._order, chunk)
            new = trimmed(Run(chunk * RUN_IDS, 1, bits, run.deliveries))
            for index, old in enumerate(runs):
                if old.deliveries == new.deliveries:
                    self.octets -= old.octets
                    runs[index] = new = _both(old, new)
                    break
            else:
                runs.append(new)
            self.octets += new.octets

    def pop(self, count: int = 1) -> int:
        """Remove the lowest N (`count`) ids, which leave ``together``, and return the first.  The queue must
        not be empty.
        """
        first, step, bits, deliveries = run = self._first()
        self._count -= count
        self.octets -= run.octets
        bits >>= count
        rest = trimmed(Run(first + count * step, step, bits, deliveries)) if bits else None
        if rest is not None:
            self.octets += rest.octets
        if step != 1:
            if rest is None:
                heapq.heappop(self._others)
            else:
                heapq.heapreplace(self._others, rest)
            return first
        runs = self._chunks[self._order[0]]
        if rest is not None:
            runs[runs.index(run)] = rest
        elif len(runs) > 1:
            runs.remove(run)
        else:
            del self._chunks[heapq.heappop(self._order)]
        return first

    def runs(self) -> Sequence[Run]:
        """Return all ids as runs, in no particular order."""
        return [*chain.from_iterable(self._chunks.values()), *self._others]

    def clear(self) -> None:
        """Remove all ids."""
        self._chunks.clear()
        self._order.clear()
        self._others.clear()
        self._count = self.octets = 0


def _both(run: Run, other: Run) -> Run:
    """Return one run with the ids of two runs with step 1."""
    first = min(run.first, other.first)
    bits = run.bits << run.first - first | other.bits << other.first - first
    return Run(first, 1, bits, run.deliveries)


def joined(run: Run, later: Run) -> Run | None:
    """Return one run with the ids of both, if both have step 1 and all ids of the second one are higher.

    Return None if they do not, or if that would leave many bits unused.
    """
    first, step, bits, deliveries = run
    begin, later_step, later_bits, later_deliveries = later
    if step != 1 or later_step != 1 or deliveries != later_deliveries:
        return None
    place = begin - first
    if not 0 <= place - bits.bit_length() <= _SPARE_BITS or place + later_bits.bit_length() > RUN_IDS:
        return None
    return Run(first, 1, bits | later_bits << place, deliveries)


def united(runs: Iterable[Run]) -> list[Run]:
    """Return the ids of these runs, which have no id in common, as fewer runs if possible. Their numbers of
    deliveries are lost.
    """
    chunks: dict[int, int] = {}
    united = []
    for run in runs:
        if run.step != 1:
            united.append(run)
            continue
        for chunk, bits in chunked(run.first, run.bits):
            chunks[chunk] = chunks.get(chunk, 0) | bits
    united += [Run(chunk * RUN_IDS, 1, bits) for chunk, bits in sorted(chunks.items())]
    return united


def chunked(first: int, bits: int) -> Iterator[tuple[int, int]]:
    """Yield the ids ``first + i`` for which bit ``i`` is set in chunks: the number of each, and its bitmap.

    Bit 0 of a chunk is the id ``RUN_IDS`` times its number.
    """
    chunk, place = divmod(first, RUN_IDS)
    bits <<= place
    while bits:
        if part := bits & _CHUNK_BITS:
            yield chunk, part
        bits >>= RUN_IDS
        chunk += 1


def runs_in(ids: range) -> Iterator[Run]:
    """Yield the ids of a range as runs with its step."""
    for start in range(0, len(ids), RUN_IDS):
        part = ids[start : start + RUN_IDS]
        yield Run(part.start, part.step, _CHUNK_BITS >> RUN_IDS - len(part))


def runs_of(ids: Iterable[int]) -> tuple[Run, ...]:
    """Return these ids as runs; they may come in any order."""
    return Ids(sorted(set(ids))).runs()


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def trimmed(run: Run) -> Run:
    """Return the same ids as a run with bit 0 set."""
    skipped = _lowest_bit(run.bits)
    return run._replace(first=run.first + skipped * run.step, bits=run.bits >> skipped) if skipped else run


def _extended(run: Run, ids: range) -> Run | None:
    """Return the run extended by these ids, none of which is below its first.

    Return None if that would leave many bits unused.
    """
    first, step, bits, _ = run
    width = bits.bit_length()
    # The largest step that reaches all ids of both.
    common = gcd(ids.start - first, step if width > 1 else 0, ids.step if len(ids) > 1 else 0)
    wider = (max(ids[-1], run.last) - first) // common + 1
    if wider > RUN_IDS or wider - width > _SPARE_BITS + len(ids):
        return None
    if width > 1 and step != common:
        bits = _spread(bits, step // common)
    return Run(first, common, bits | _pattern(ids, common) << (ids.start - first) // common)


def _begun(id: int, run: Run) -> Run | None:
    """Return the run with an id before its first one. Return None as `_extended` does."""
    first, step, bits, _ = run
    width = bits.bit_length()
    common = gcd(first - id, step if width > 1 else 0)
    wider = (run.last - id) // common + 1
    if wider > RUN_IDS or wider - width > _SPARE_BITS + 1:
        return None
    if width > 1 and step != common:
        bits = _spread(bits, step // common)
    return Run(id, common, bits << (first - id) // common | 1)


def _pattern(ids: range, step: int) -> int:
    """Return a bitmap with a bit set for each of these ids, bit 0 for the first, and one bit for each
    step.
    """
    return _spread((1 << len(ids)) - 1, ids.step // step) if len(ids) > 1 else 1


def _spread(bits: int, distance: int) -> int:
    """Return the bits moved apart: bit `i` becomes bit `i * distance`."""
    return bits if distance == 1 else int(("0" * (distance - 1)).join(format(bits, "b")), 2)
