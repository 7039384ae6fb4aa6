"""Timers: one task makes the calls that are due, for all topics."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

import trio

from omq.drivers.signal import Signal
from omq.drivers.slices import Slices

_MOST_CANCELLED = 1000
"""The number of cancelled calls that stay until they are due. More stay if they are at most half of all
calls.
"""


class Alarm:
    """A timed call."""

    __slots__ = ("call", "time")

    def __init__(self, time: float, call: Callable[[], None]) -> None:
        self.time = time
        self.call: Callable[[], None] | None = call
        """None when it was made or cancelled."""


class Alarms:
    """A queue of timed calls. `run` is its task."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Alarm]] = []
        self._cancelled = 0  # calls cancelled since cancelled ones were last removed
        self._numbers = count()  # orders calls with the same time, which cannot be compared themselves
        self._is_earlier = Signal()

    def at(self, time: float, call: Callable[[], None]) -> Alarm:
        """Schedule this call for a time of Trio's clock."""
        is_earlier = not self._due or time < self._due[0][0]
        alarm = Alarm(time, call)
        heappush(self._due, (time, next(self._numbers), alarm))
        if is_earlier:
            self._is_earlier.set()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Do not make this call, and hold nothing that it refers to."""
        if alarm.call is None:
            return
        alarm.call = None
        self._cancelled += 1
        if self._cancelled > _MOST_CANCELLED and self._cancelled > len(self._due) // 2:
            self._due = [due for due in self._due if due[2].call is not None]
            heapify(self._due)
            self._cancelled = 0

    async def run(self) -> None:
        """Make each call when it is due, until cancelled. Many that are due together are made in slices."""
        slices = Slices()
        while True:
            if self._make_call():
                await slices.step()
                continue
            with trio.move_on_at(self._due[0][0] if self._due else inf):
                await self._is_earlier.wait()
            slices = Slices()

    def _make_call(self) -> bool:
        """Make a call that is due; return False if there is none. `run` itself would hold the last one while
        it waits.
        """
        if not self._due or self._due[0][0] > trio.current_time():
            return False
        alarm = heappop(self._due)[2]
        call, alarm.call = alarm.call, None
        if call is not None:
            call()
        return True
