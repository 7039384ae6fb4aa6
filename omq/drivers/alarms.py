"""Timers: one task makes the calls that are due, for all topics."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import trio

from omq.drivers.signal import Signal


class Alarms:
    """A queue of timed calls. `run` is its task."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()  # orders calls with the same time, which cannot be compared themselves
        self._is_earlier = Signal()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Schedule this call for a time of Trio's clock."""
        is_earlier = not self._due or time < self._due[0][0]
        heappush(self._due, (time, next(self._numbers), call))
        if is_earlier:
            self._is_earlier.set()

    async def run(self) -> None:
        """Make each call when it is due, until cancelled."""
        while True:
            while self._due and self._due[0][0] <= trio.current_time():
                heappop(self._due)[2]()
            with trio.move_on_at(self._due[0][0] if self._due else inf):
                await self._is_earlier.wait()
