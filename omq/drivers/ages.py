"""The age of the messages of a topic, also when the machine's clock is set.

Every stored message has the wall clock time of its arrival, for replays. An operator may set the wall clock
forth by a year and back again, and retention must not delete messages because of that. So:

- The age of messages that arrived since the start of the server is measured with Trio's clock, which cannot
  be set.
- Older messages have only their wall clock times. These are compared with the wall clock time of the start,
  advanced by Trio's clock, and never with a time beyond the current wall clock.
"""

import math
import time
from collections import deque

import trio

from omq_storage.records import TooOld

MARKS = 64
"""The resolution: ages are known to one part in MARKS of the configured age."""


class Ages:
    """The ages of one topic."""

    def __init__(self, next_id: int, seconds: float) -> None:
        """Begin at the server's start. `next_id`: the topic's next id. `seconds`: the age limit."""
        self._seconds = seconds
        self._first = next_id
        self._began = trio.current_time()
        self._wall = _wall()
        # Pairs (time, id): at that time all messages below the id had arrived. The oldest pair comes first.
        self._marks: deque[tuple[float, int]] = deque([(self._began, next_id)])
        # The time of the last look at the topic, and the id below which messages were too old then.
        self._looked = -math.inf
        self._looked_below = 0

    def change(self, seconds: float) -> None:
        """Change the age limit. With a higher one, some messages may be kept longer than it, by as much as
        the limit was before.
        """
        self._seconds = seconds
        self._looked, self._looked_below = -math.inf, 0

    def mark(self, next_id: int) -> None:
        """Record that all messages below this id have arrived now."""
        now = trio.current_time()
        if now - self._marks[-1][0] >= self._seconds / MARKS:
            self._marks.append((now, next_id))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._seconds:
            self._marks.popleft()

    def is_due(self, first: int) -> bool:
        """Return whether a message from `first` on, that of the oldest one, may have become too old since
        `looked`. Without a look at the store, which takes a thread: most topics of thousands have none.
        """
        if first < self._below != self._looked_below:
            return True
        # The times of messages from before the start are in the store only.
        return first < self._first and trio.current_time() - self._looked >= self._seconds / MARKS

    def looked(self, too_old: TooOld) -> None:
        """Note that the messages that were too old are deleted, as far as whole blocks were."""
        self._looked, self._looked_below = trio.current_time(), too_old.below

    @property
    def _below(self) -> int:
        """The id below which all messages that arrived since the start are too old; 0 if none is."""
        when, below = self._marks[0]
        return below if when <= trio.current_time() - self._seconds else 0

    def too_old(self) -> TooOld:
        """Return the messages that exceed the age limit, as of the last mark."""
        now = trio.current_time()
        wall = min(_wall(), self._wall + _microseconds(now - self._began))
        return TooOld(
            time=wall - _microseconds(self._seconds),
            time_below=self._first,
            below=self._below,
        )


def _wall() -> int:
    """Return the wall clock time in microseconds since the epoch."""
    return time.time_ns() // 1000


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
