"""Long work on the Trio thread, in slices, so that the connections do not wait for it."""

import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

import trio

T = TypeVar("T")

SLICE_SECONDS = 0.0003
"""The number of seconds of work before other tasks may run: with one more step, this stays below a
millisecond.
"""


_end: ContextVar[float] = ContextVar("slice_end", default=0.0)
"""The end of the last slice that the task has begun."""


class Slices:
    """The slices of one piece of work. It goes on with a slice that the task has begun already: so work
    within other work makes no step longer.
    """

    def __init__(self) -> None:
        self.turns = 0
        """The number of times that other tasks had their turn."""
        now = time.perf_counter()
        self._until = _end.get()
        if not now < self._until <= now + SLICE_SECONDS:
            self._begin(now)

    def _begin(self, now: float) -> None:
        self._until = now + SLICE_SECONDS
        _end.set(self._until)

    @property
    def is_over(self) -> bool:
        """Whether other tasks should run now."""
        return time.perf_counter() >= self._until

    async def step(self) -> None:
        """Let other tasks run if the slice is over. Call it between short steps."""
        if self.is_over:
            await self.pause()

    async def pause(self) -> None:
        """Let other tasks run, and begin a slice."""
        await trio.lowlevel.checkpoint()
        self.turns += 1
        self._begin(time.perf_counter())


async def in_slices(steps: Iterable[object]) -> None:
    """Go through the steps of one piece of work."""
    slices = Slices()
    for _ in steps:
        await slices.step()


def let_go(things: list[T]) -> Iterator[T]:
    """Yield the things of a list that nobody else uses, and hold none of them after its turn.

    Work in slices takes a while. Thousands of connections that end meanwhile would be freed together, in one
    step, with the list that holds them.
    """
    things.reverse()
    while things:
        yield things.pop()
