"""Counts the steps of tasks, and what they change: that shows into which pieces work is divided."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise

import trio


class Steps(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.count = 0
        self._task = task

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self._task


@asynccontextmanager
async def steps() -> AsyncIterator[Steps]:
    """Count the steps of the task within the block."""
    counted = Steps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(counted)
    try:
        yield counted
    finally:
        trio.lowlevel.remove_instrument(counted)


class Values(trio.abc.Instrument):
    """The values that a number has at first, and after each step of all tasks."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self.all = [number()]

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.all.append(self._number())

    def largest_rise(self) -> int:
        """Return the greatest increase in one step; 0 if there is none."""
        return max((after - before for before, after in pairwise(self.all)), default=0)

    def largest_fall(self) -> int:
        """Return the greatest decrease in one step; 0 if there is none."""
        return max((before - after for before, after in pairwise(self.all)), default=0)


@contextmanager
def watched(number: Callable[[], int]) -> Iterator[Values]:
    """Note the values that a number has within the block."""
    values = Values(number)
    trio.lowlevel.add_instrument(values)
    try:
        yield values
    finally:
        trio.lowlevel.remove_instrument(values)
