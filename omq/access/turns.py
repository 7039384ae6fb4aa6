"""A lock whose waiting tasks belong to groups: the waiting group with the lowest rank gets it next."""

from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


class Turns:
    """A lock for one task at a time. When it is free, the waiting group with the lowest rank gets it; among
    equal ranks the group that has waited longest, and within a group the task that has waited longest.

    The rank of a group is read when the group begins to wait, and after each of its turns.
    """

    def __init__(self, rank: Callable[[bytes], float]) -> None:
        self._rank = rank
        self._holder: bytes | None = None
        self._waiting: dict[bytes, dict[trio.lowlevel.Task, None]] = {}
        """The waiting tasks of each group, in the order in which they came."""
        self._places: dict[bytes, tuple[float, int]] = {}
        """The position of each of these groups in `_order`, which does not contain the group that has the
        lock.
        """
        self._order: list[tuple[float, int, bytes]] = []
        """Sorted. A list and not a heap, because a group may leave from the middle."""
        self._arrivals = 0

    @property
    def in_use(self) -> bool:
        """Whether a task has the lock. While tasks wait, another one has it."""
        return self._holder is not None

    @asynccontextmanager
    async def turn(self, group: bytes) -> AsyncIterator[None]:
        """Wait for the lock, and hold it within the block."""
        await self._take(group)
        try:
            yield
        finally:
            self._release()

    async def _take(self, group: bytes) -> None:
        if self._holder is None:
            self._holder = group
            return
        if group not in self._waiting:
            self._waiting[group] = {}
            if group != self._holder:
                self._enqueue(group)
        task = trio.lowlevel.current_task()
        self._waiting[group][task] = None

        def leave(_: object) -> trio.lowlevel.Abort:
            self._remove(group, task)
            return trio.lowlevel.Abort.SUCCEEDED

        # Trio calls `leave` at the moment of a cancellation, but not for a task that already has the lock.
        await trio.lowlevel.wait_task_rescheduled(leave)

    def _release(self) -> None:
        last, self._holder = self._holder, None
        if last in self._waiting:
            self._enqueue(last)
        if not self._order:
            return
        _, _, self._holder = self._order.pop(0)
        del self._places[self._holder]
        task = next(iter(self._waiting[self._holder]))
        self._remove(self._holder, task)
        trio.lowlevel.reschedule(task)

    def _remove(self, group: bytes, task: trio.lowlevel.Task) -> None:
        tasks = self._waiting[group]
        del tasks[task]
        if not tasks:
            del self._waiting[group]
            if (place := self._places.pop(group, None)) is not None:
                del self._order[bisect_left(self._order, place, key=_place)]

    def _enqueue(self, group: bytes) -> None:
        self._arrivals += 1
        self._places[group] = place = self._rank(group), self._arrivals
        insort(self._order, (*place, group), key=_place)


def _place(entry: tuple[float, int, bytes]) -> tuple[float, int]:
    return entry[:2]
