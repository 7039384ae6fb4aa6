"""Counts the steps of a task: how many show into how many pieces its work is divided."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
