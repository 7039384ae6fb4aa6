"""Messages of a topic that are done, until the topic has settled them: a few at a time.

There may be a hundred thousand, each of which costs a microsecond or more.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from omq.drivers.unsettled import number_of, ranges
from omq_storage.runs import Run, united

SETTLED_RUNS = 256
"""The greatest number of runs that are united at a time."""

SETTLED_RANGES = 16
"""The greatest number of ranges that are settled at a time: this takes a few tenths of a millisecond."""


class Settling:
    """Runs of messages that are done."""

    def __init__(self) -> None:
        self.messages = 0
        """The number of messages that are done, and not settled yet."""
        self._runs: list[Run] = []
        self._ranges: Iterator[range] | None = None  # of runs that were taken out

    def __bool__(self) -> bool:
        return self._ranges is not None or bool(self._runs)

    def add(self, runs: Iterable[Run]) -> None:
        """Add messages that are done. No message is added twice."""
        known = len(self._runs)
        self._runs += runs
        self.messages += number_of(self._runs[known:])

    def take(self) -> list[range]:
        """Remove and return the next few."""
        if self._ranges is None:
            self._ranges = chain.from_iterable(map(ranges, united(self._take_runs())))
        taken = list(islice(self._ranges, SETTLED_RANGES))
        if len(taken) < SETTLED_RANGES:
            self._ranges = None
        self.messages -= sum(map(len, taken))
        return taken

    def drop(self) -> None:
        """Remove some, for a topic that was deleted."""
        self._ranges = None
        self._take_runs()

    def _take_runs(self) -> list[Run]:
        taken = self._runs[-SETTLED_RUNS:]
        del self._runs[-SETTLED_RUNS:]
        return taken
