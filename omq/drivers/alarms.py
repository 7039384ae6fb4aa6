"""Calls that are due at a time to come: one task makes them for all topics."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf

import trio

from omq.drivers.signal import Signal


class Alarms:
    """`run` is its task."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()  # so that calls at the same time are made in their order, and not compared
        self._is_earlier = Signal()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Make this call at a time of Trio's clock."""
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
