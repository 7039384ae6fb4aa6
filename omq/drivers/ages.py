"""How old the messages of a topic are, also when somebody sets the clock.

Every stored message has the time at which it came, by the wall clock: that is for replays, and for people.
That clock can be set, forth by a year and back again, and nothing may be deleted for that. So messages that
came since the server was started are as old as a clock says that nobody sets (Trio's). Of those that were
there before there is nothing but their times; what these are compared with goes on from the start by that
same clock, and never beyond the wall clock. They too have been there since the start at the least.
"""

import time
from collections import deque

import trio

from omq_storage.records import TooOld

MARKS = 64
"""How exactly ages are known: to this part of the age that is asked for."""


class Ages:
    """For one topic."""

    def __init__(self, next_id: int, seconds: float) -> None:
        """At the server's start. `next_id` is the topic's; `seconds` is the age that will be asked for."""
        self._seconds = seconds
        self._first = next_id
        self._began = trio.current_time()
        self._wall = _wall()
        # When all messages below an id were there, the oldest first. The first may be older than asked for.
        self._marks: deque[tuple[float, int]] = deque([(self._began, next_id)])

    def mark(self, next_id: int) -> None:
        """All messages below this id are there now."""
        now = trio.current_time()
        if now - self._marks[-1][0] >= self._seconds / MARKS:
            self._marks.append((now, next_id))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._seconds:
            self._marks.popleft()

    def too_old(self) -> TooOld:
        """Which messages are older than was asked for, as of the last mark."""
        now = trio.current_time()
        when, below = self._marks[0]
        wall = min(_wall(), self._wall + _microseconds(now - self._began))
        return TooOld(
            time=wall - _microseconds(self._seconds),
            time_below=self._first,
            below=below if when <= now - self._seconds else 0,
        )


def _wall() -> int:
    """Microseconds since the epoch, by the clock that can be set."""
    return time.time_ns() // 1000


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
