"""The deliveries that a session has sent, and that its peer has not settled.

A session sends runs of messages, and its peer settles runs of delivery-ids. So it remembers runs. Their
deliveries are no more than the peer's credit allowed, however it settles them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

import msgspec

from omq.protocol.amqp_1_0 import serials

RUNS_A_LOOK = 256
"""The number of runs that are looked at together for those of links that are over."""

RUNS_A_STEP = 512
"""The greatest number of runs that are settled or freed in one step, of some tenths of a millisecond."""

L = TypeVar("L")


class Sent(msgspec.Struct, Generic[L], frozen=True):
    """Consecutive deliveries of one link, and the messages that they carry."""

    link: L
    ids: range
    """The ids of the messages."""


def in_order(parts: Iterable[list[Sent[L]]]) -> Iterator[list[Sent[L]]]:
    """Yield the runs of all parts, those with lower ids of messages first, behind an empty list for each part
    that is read. A queue assigns messages that return while others still return, so their order counts.
    """
    heap: list[tuple[int, int, Sent[L]]] = []
    numbers = count()
    for part in parts:
        for run in part:
            heappush(heap, (run.ids.start, next(numbers), run))
        yield []
    while heap:
        yield [heappop(heap)[2] for _ in range(min(RUNS_A_STEP, len(heap)))]


class UnsettledDeliveries(Generic[L]):
    """The unsettled deliveries of a session, in the order in which they were sent.

    They are kept by how many deliveries the session has sent before them, a number that never begins again.
    """

    def __init__(self, first: int) -> None:
        self._next_id = first
        self._next = 0
        self._places: list[int] = []
        self._runs: list[Sent[L]] = []
        self._dropped: set[L] = set()
        """Links that are over, whose deliveries may still be here. They count as settled."""
        self._leaving: set[L] = set()
        """Links without deliveries among the runs that were looked at, up to the place `_looked`."""
        self._looked = 0

    def __len__(self) -> int:
        """Return the number of unsettled deliveries."""
        return sum(len(run.ids) for run in self._runs if run.link not in self._dropped)

    @property
    def next_id(self) -> int:
        """The delivery-id of the next delivery."""
        return self._next_id

    def add(self, link: L, ids: range, *, settled: bool) -> int:
        """Count deliveries that are sent now; remember them unless they are settled. Return the first id."""
        first = self._next_id
        if self._dropped:
            self._look()
        if not settled and ids:
            self._places.append(self._next)
            self._runs.append(Sent(link, ids))
        self._next += len(ids)
        self._next_id = serials.add(first, len(ids))
        return first

    def take_back(self, count: int) -> None:
        """Forget the last deliveries: they were not sent, and their ids are used again."""
        self._next -= count
        self._next_id = serials.add(self._next_id, -count)
        while self._places and self._places[-1] + len(self._runs[-1].ids) > self._next:
            place, run = self._places.pop(), self._runs.pop()
            if place < self._next:
                self._places.append(place)
                self._runs.append(Sent(run.link, run.ids[: self._next - place]))

    def settle(self, first: int, last: int) -> list[Sent[L]]:
        """Forget the deliveries with the ids from `first` to `last`, and return them.

        Ids that were settled before, or never sent, are ignored: a peer may settle what crosses our own
        settlement.
        """
        found = self._settle(first, last)
        if self._dropped:
            found = [run for run in found if run.link not in self._dropped]
            self._look()
        return found

    def _settle(self, first: int, last: int) -> list[Sent[L]]:
        begin = self._next + serials.difference(first, self._next_id)
        end = self._next + serials.difference(last, self._next_id) + 1
        if begin >= end or not self._places:
            return []
        at = max(bisect_right(self._places, begin) - 1, 0)
        if self._places[at] == begin and begin + len(self._runs[at].ids) == end:
            del self._places[at]
            return [self._runs.pop(at)]  # settled as it was sent, as where messages come one by one
        return self._take(begin, end, at, bisect_left(self._places, end, lo=at))

    def settle_in_parts(self, first: int, last: int) -> Iterator[list[Sent[L]]]:
        """Do as `settle`, with at most RUNS_A_STEP runs at a time: each delivery may be a run of its own."""
        begin = self._next + serials.difference(first, self._next_id)
        end = min(self._next + serials.difference(last, self._next_id) + 1, self._next)
        while begin < end and self._places:
            at = max(bisect_right(self._places, begin) - 1, 0)
            stop = min(bisect_left(self._places, end, lo=at), at + RUNS_A_STEP)
            after = self._places[stop] if stop < len(self._places) else end
            found = self._take(begin, end, at, stop)
            begin = after
            if self._dropped:
                found = [run for run in found if run.link not in self._dropped]
                self._look()
            if found:
                yield found

    def _take(self, begin: int, end: int, at: int, stop: int) -> list[Sent[L]]:
        """Remove the deliveries from the place `begin` on, up to `end`, from the runs `at` to `stop`."""
        found = self._runs[at:stop]
        kept: list[tuple[int, Sent[L]]] = []
        if found:  # there may be thousands, of which only the first and the last one can be settled in part
            first_place, last_place = self._places[at], self._places[stop - 1]
            head, tail = found[0].ids[: max(begin - first_place, 0)], found[-1].ids[end - last_place :]
            if head:
                kept.append((first_place, Sent(found[0].link, head)))
            if tail:
                kept.append((end, Sent(found[-1].link, tail)))
                found[-1] = Sent(found[-1].link, found[-1].ids[: end - last_place])
            if head:
                found[0] = Sent(found[0].link, found[0].ids[begin - first_place :])
                if not found[0].ids:
                    del found[0]
        self._places[at:stop] = [place for place, _ in kept]
        self._runs[at:stop] = [run for _, run in kept]
        return found

    def clear(self) -> Iterator[None]:
        """Forget all deliveries, in steps: the session is over, and each delivery may be a run of its own."""
        self._dropped.clear()
        self._leaving.clear()
        while self._runs:
            del self._places[-RUNS_A_STEP:], self._runs[-RUNS_A_STEP:]
            if self._runs:
                yield

    def drop(self, link: L) -> None:
        """Forget the deliveries of a link that is over. They are removed little by little: thousands of links
        may be over one after another, and each look at all deliveries would take long.
        """
        if not self._runs:
            return
        if not self._dropped:
            self._leaving, self._looked = {link}, 0
        self._dropped.add(link)
        self._look()

    def _look(self) -> None:
        """Remove deliveries of links that are over from the next runs."""
        begin = bisect_left(self._places, self._looked)
        places, runs = self._places[begin : begin + RUNS_A_LOOK], self._runs[begin : begin + RUNS_A_LOOK]
        if begin + len(runs) < len(self._runs):
            self._looked = places[-1] + 1
        else:
            self._looked = -1
        kept = [index for index, run in enumerate(runs) if run.link not in self._dropped]
        if len(kept) < len(runs):
            self._places[begin : begin + len(runs)] = [places[index] for index in kept]
            self._runs[begin : begin + len(runs)] = [runs[index] for index in kept]
        if self._looked < 0:  # begin again, for the links that came meanwhile
            self._dropped -= self._leaving
            self._leaving, self._looked = self._dropped.copy(), 0
