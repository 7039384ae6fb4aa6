"""Long work on the Trio thread, in slices, so that the connections do not wait for it."""

import time
from collections.abc import Iterable

import trio

SLICE_SECONDS = 0.0003
"""The number of seconds of work before other tasks may run: with one more step, this stays below a
millisecond.
"""


class Slices:
    """The slices of one piece of work."""

    def __init__(self) -> None:
        self.turns = 0
        """The number of times that other tasks had their turn."""
        self._until = time.perf_counter() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether other tasks should run now."""
        return time.perf_counter() >= self._until

    async def step(self) -> None:
        """Let other tasks run if the slice is over. Call it between short steps."""
        if self.is_over:
            await trio.lowlevel.checkpoint()
            self.turns += 1
            self._until = time.perf_counter() + SLICE_SECONDS


async def in_slices(steps: Iterable[object]) -> None:
    """Go through the steps of one piece of work."""
    slices = Slices()
    for _ in steps:
        await slices.step()
