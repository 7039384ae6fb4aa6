"""Messages of a topic that are done, until the topic has settled them: a few at a time.

There may be a hundred thousand, each of which costs a microsecond or more where it is looked at by itself.
"""

from collections import deque
from collections.abc import Iterable
from itertools import islice

from omq.drivers.unsettled import number_of, ranges
from omq_storage.runs import Run, united

SETTLED_RUNS = 256
"""The greatest number of runs that are united at a time."""

SETTLED_AT_ONCE = 16
"""The greatest number of runs, or of ranges of them, that are settled at a time: this takes a few tenths of a
millisecond.
"""


class Settling:
    """Runs of messages that are done."""

    def __init__(self) -> None:
        self.messages = 0
        """The number of messages that are done, and not settled yet."""
        self._runs: list[Run] = []
        self._united: deque[Run] = deque()
        """Some that were taken from these, as fewer runs where possible."""

    def __bool__(self) -> bool:
        return bool(self._united) or bool(self._runs)

    def add(self, runs: Iterable[Run]) -> None:
        """Add messages that are done. No message is added twice."""
        known = len(self._runs)
        self._runs += runs
        self.messages += number_of(self._runs[known:])

    def take(self, by_range: bool) -> list[Run]:
        """Remove and return the next few; if `by_range`, so few that each of their ranges can be
        looked at.
        """
        if not self._united:
            self._united.extend(united(self._take_runs()))
        taken: list[Run] = []
        left = SETTLED_AT_ONCE
        while self._united and left > 0:
            run = self._united.popleft()
            if by_range:
                run, used = self._first_ranges(run, left)
                left -= used
            else:
                left -= 1
            taken.append(run)
        self.messages -= number_of(taken)
        return taken

    def _first_ranges(self, run: Run, most: int) -> tuple[Run, int]:
        """Return the first ranges of a run as a run, and their number. Put the others back."""
        found = list(islice(ranges(run), most + 1))
        if len(found) <= most:
            return run, len(found)
        places = (found[most].start - run.first) // run.step
        self._united.appendleft(Run(found[most].start, run.step, run.bits >> places))
        return run._replace(bits=run.bits & ((1 << places) - 1)), most

    def drop(self) -> None:
        """Remove some, for a topic that was deleted."""
        self._united.clear()
        self._take_runs()

    def _take_runs(self) -> list[Run]:
        taken = self._runs[-SETTLED_RUNS:]
        del self._runs[-SETTLED_RUNS:]
        return taken
