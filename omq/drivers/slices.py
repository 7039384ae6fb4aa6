"""Long work on the Trio thread, in slices, so that the connections do not wait for it."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

import trio

T = TypeVar("T")

SLICE_SECONDS = 0.0003
"""The number of seconds of work before other tasks may run: with one more step, this stays below a
millisecond.
"""


class Slices:
    """The slices of one piece of work."""

    __slots__ = ("_seconds", "_until", "turns")

    def __init__(self, seconds: float | None = None) -> None:
        """Begin the first slice. `seconds`: by default SLICE_SECONDS; less for work that is done every second
        and delays the messages of all clients.
        """
        self.turns = 0
        """The number of times that other tasks had their turn."""
        self._seconds = SLICE_SECONDS if seconds is None else seconds
        self._until = time.perf_counter() + self._seconds

    @property
    def is_over(self) -> bool:
        """Whether other tasks should run now."""
        return time.perf_counter() >= self._until

    async def step(self) -> None:
        """Let other tasks run if the slice is over. Call it between short steps."""
        if self.is_over:
            await trio.lowlevel.checkpoint()
            self.turns += 1
            self._until = time.perf_counter() + self._seconds


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
