"""The publishers that wait for room in the backlogs of subscribers: see `omq.drivers.backlog`.

With a hundred publishers and one busy subscriber, each read of a publisher may end in such a wait. A time
limit for each wait would take a seventh of the server's time then. So one alarm looks after all of them: they
wait in the order in which they began, and it looks at those that have waited for `stall_seconds`.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

import trio

from omq.drivers.alarms import Alarms
from omq.drivers.backlog import Backlog

MOST_LOOKED = 128
"""The greatest number of publishers at which the alarm looks in one step."""


class BackloggedConnection(Protocol):
    """A connection with a backlog."""

    backlog: Backlog
    stalled_at: int | None

    @property
    def sent(self) -> int:
        """As in `omq.drivers.seam.Outlet`."""


class _Wait:
    """One publisher that waits until one of these connections has room."""

    __slots__ = ("_before", "_filled", "event", "is_over", "since")

    def __init__(self, filled: Sequence[BackloggedConnection]) -> None:
        self._filled = filled
        self.event = trio.Event()
        self.is_over = False
        """Whether none of the connections moves any more."""
        self._note()

    def _note(self) -> None:
        self.since = trio.current_time()
        """The time since which the connections are watched."""
        self._before = [outlet.sent for outlet in self._filled]

    def look(self) -> None:
        """Mark the connections that have not moved since the last look as stalled. End the wait if that is
        true of all.
        """
        self.is_over = True
        for outlet, sent in zip(self._filled, self._before, strict=True):
            if outlet.sent == sent:
                outlet.stalled_at = sent
            else:
                self.is_over = False
        if self.is_over:
            self.event.set()
        else:
            self._note()


class WaitingPublishers:
    """The publishers of a server that wait for room in backlogs."""

    def __init__(self, alarms: Alarms, stall_seconds: float) -> None:
        """Create it. `stall_seconds`: a connection that takes nothing for N seconds counts as stalled."""
        self._alarms = alarms
        self._stall_seconds = stall_seconds
        self._waits: dict[_Wait, None] = {}
        """The publishers whose wait is not over, in the order of the times since which they are watched."""
        self._is_watching = False
        """Whether the alarm is set: as long as publishers wait, and for a moment longer."""

    async def room(self, outlets: Iterable[BackloggedConnection]) -> None:
        """Wait until one of these connections has room in its backlog, or none of them moves any more."""
        filled = tuple(outlets)
        again = False
        # One may have got room since the pass ended; and when there was room, others may have been faster.
        while all(outlet.backlog.is_full() for outlet in filled):
            if not await self._turn(filled, again=again):
                return
            again = True

    async def _turn(self, filled: Sequence[BackloggedConnection], *, again: bool) -> bool:
        """Wait until there may be room. Return False when none of these connections moves any more."""
        wait = _Wait(filled)
        self._waits[wait] = None
        if not self._is_watching:
            self._watch(wait)
        for outlet in filled:
            outlet.backlog.wait(wait.event, again=again)
        try:
            await wait.event.wait()
            return not wait.is_over
        finally:
            self._waits.pop(wait, None)
            for outlet in filled:
                outlet.backlog.leave(wait.event)

    def _watch(self, first: _Wait) -> None:
        self._is_watching = True
        self._alarms.at(first.since + self._stall_seconds, self._look)

    def _look(self) -> None:
        """Look at the publishers that have waited for long enough, some in each step."""
        self._is_watching = False
        now = trio.current_time()
        for wait in list(islice(self._waits, MOST_LOOKED)):
            if wait.since + self._stall_seconds > now:
                break
            del self._waits[wait]
            wait.look()
            if not wait.is_over:
                self._waits[wait] = None
        if first := next(iter(self._waits), None):
            self._watch(first)
