"""Counts the steps of tasks, and what they change: that shows into which pieces work is divided."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from types import FrameType

import pytest
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


class Looks(trio.abc.Instrument):
    """Collects the results of a function after each step of all tasks."""

    def __init__(self, look: Callable[[], object]) -> None:
        self.seen: set[object] = set()
        self._look = look

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.seen.add(self._look())


@contextmanager
def looked_at(look: Callable[[], object]) -> Iterator[set[object]]:
    """Return the results that a function has after the steps within the block."""
    looks = Looks(look)
    trio.lowlevel.add_instrument(looks)
    try:
        yield looks.seen
    finally:
        trio.lowlevel.remove_instrument(looks)


class Calls(trio.abc.Instrument):
    """Counts the calls of functions in each step of other tasks: their work, however fast the machine is."""

    def __init__(self) -> None:
        self._own = trio.lowlevel.current_task()
        self.total = 0
        self.longest = 0
        self._before = 0

    def count(self, frame: FrameType, event: str, argument: object) -> None:
        self.total += event in ("call", "c_call")

    def clock(self) -> float:
        """Return a time in seconds that only calls let pass: a microsecond each."""
        return self.total / 1e6

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = self.total

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._own:
            self.longest = max(self.longest, self.total - self._before)


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls within the block. A slice ends after 300 of them, with the work that it is in."""
    calls = Calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", calls.clock)
        trio.lowlevel.add_instrument(calls)
        sys.setprofile(calls.count)
        try:
            yield calls
        finally:
            sys.setprofile(None)
            trio.lowlevel.remove_instrument(calls)
