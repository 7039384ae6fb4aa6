"""Sets of delivered messages as runs of ids, with the number of earlier deliveries of each."""

from collections.abc import Iterable, Iterator
from typing import assert_never

from omq.drivers.seam import MOST_DELIVERIES, Accepted, Modified, Outcome, Rejected, Released
from omq.drivers.unconfirmed import Unconfirmed
from omq_storage.runs import Ids, Run


class DeliveredIds:
    """Message ids. Nearly all of them were never delivered before: they lie in one set, and the others in one
    set for each number of deliveries.
    """

    __slots__ = ("_again", "_first")

    def __init__(self) -> None:
        self._first = Ids()
        self._again: dict[int, Ids] = {}

    def __len__(self) -> int:
        if not self._again:
            return len(self._first)
        return len(self._first) + sum(map(len, self._again.values()))

    def __contains__(self, id: int) -> bool:
        return id in self._first or any(id in ids for ids in self._again.values())

    @property
    def octets(self) -> int:
        """The memory that they take, in octets."""
        if not self._again:
            return self._first.octets
        return self._first.octets + sum(ids.octets for ids in self._again.values())

    def runs(self) -> list[Run]:
        """Return all of them. Those that were delivered equally often are in order."""
        runs = list(self._first.runs())
        for deliveries, ids in self._again.items():
            runs += _of(deliveries, ids.runs())
        return runs

    def add(self, ids: range, deliveries: int = 0) -> None:
        """Add ids that are not in the set; the step of the range is at least 1."""
        if not deliveries:
            self._first.add(ids)
            return
        again = self._again.get(deliveries)
        if again is None:
            again = self._again[deliveries] = Ids()
        again.add(ids)

    def add_all(self, parts: Iterable[tuple[range, int]]) -> None:
        """Do as `add` for each of these. Ranges that go on with the step of those before are added together:
        messages that were assigned one by one, to each of several subscribers in turn, may be thousands.
        """
        together, times = range(0), 0
        for ids, deliveries in parts:
            if ids.start == together.stop and deliveries == times and ids.step == together.step == 1:
                together = range(together.start, ids.stop)
                continue
            if together and deliveries == times:
                step = together.step if len(together) > 1 else ids.start - together.start
                if step > 0 and ids.start == together[-1] + step and (len(ids) == 1 or ids.step == step):
                    together = range(together.start, ids[-1] + step, step)
                    continue
            if together:
                self.add(together, times)
            together, times = ids, deliveries
        if together:
            self.add(together, times)

    def take(self, ids: range) -> list[Run]:
        """Remove these ids, and return those that the set had."""
        if len(ids) == 1 and self._first.remove(ids.start):
            return [Run(ids.start, 1, 1)]
        taken = self._first.take(ids)
        if self._again:
            for deliveries, again in list(self._again.items()):
                taken += _of(deliveries, again.take(ids))
                if not again:
                    del self._again[deliveries]
        return taken

    def divided(self, runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
        """Return the messages with these ids, and the others."""
        others = self.copy()
        found: list[Run] = []
        for run in runs:
            found += others._first.take_run(run)
            for deliveries, ids in others._again.items():
                found += _of(deliveries, ids.take_run(run))
        return found, others.runs()

    def copy(self) -> "DeliveredIds":
        """Return a set of the same messages."""
        copied = DeliveredIds()
        copied._first = self._first.copy()
        copied._again = {deliveries: ids.copy() for deliveries, ids in self._again.items()}
        return copied

    def clear(self) -> None:
        """Remove all ids."""
        self._first.clear()
        self._again.clear()


class Unsettled(DeliveredIds):
    """Messages of one channel; their octets count in the memory that all channels share."""

    __slots__ = ("_counted", "_share")

    def __init__(self, share: Unconfirmed) -> None:
        super().__init__()
        self._share = share
        self._counted = 0

    def may_grow(self) -> bool:
        """Return whether the shared memory has room for more."""
        return self._share.may_grow(self._counted)

    def add(self, ids: range, deliveries: int = 0) -> None:
        """Add ids that are not in the set; the step of the range is at least 1."""
        if deliveries:
            super().add(ids, deliveries)
        else:
            self._first.add(ids)
        self._count()

    def take(self, ids: range) -> list[Run]:
        """Remove these ids, and return those that the set had."""
        taken = super().take(ids)
        self._count()
        return taken

    def take_first(self, id: int) -> bool:
        """Take one id out if its message was never delivered before; whether it was among these."""
        if not self._first.remove(id):
            return False
        if self._first.octets != self._counted:
            self._count()
        return True

    def clear(self) -> None:
        """Remove all ids."""
        super().clear()
        self._count()

    def _count(self) -> None:
        octets = self.octets if self._again else self._first.octets
        if octets != self._counted:
            self._share.change(octets - self._counted)
            self._counted = octets


def number_of(runs: Iterable[Run]) -> int:
    """Return the number of messages of these runs."""
    return sum(run.bits.bit_count() for run in runs)


def delivered(runs: Iterable[Run]) -> list[Run]:
    """Return the same messages, each of which was delivered once more."""
    return [run._replace(deliveries=min(run.deliveries + 1, MOST_DELIVERIES)) for run in runs]


def again(run: Run, outcome: Outcome) -> list[Run]:
    """Return the messages with this outcome that must be assigned again."""
    match outcome:
        case Accepted() | Rejected():
            return []
        case Modified(delivery_failed=True):
            return delivered([run])
        case Released() | Modified():
            return [run]
        case _:
            assert_never(outcome)


def ranges(run: Run) -> Iterator[range]:
    """Return the ids of a run as ranges with its step: as one, where no id is missing within it."""
    first, step, bits, _ = run
    while bits:
        missing = (bits & -bits).bit_length() - 1
        first += missing * step
        bits >>= missing
        count = (bits + 1 & ~bits).bit_length() - 1
        yield range(first, first + count * step, step)
        first += count * step
        bits >>= count


def _of(deliveries: int, runs: Iterable[Run]) -> list[Run]:
    return [run._replace(deliveries=deliveries) for run in runs]
