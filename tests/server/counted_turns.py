"""A task that only asks for its turn. How many it gets shows into how many slices other work is divided."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """Run the task within the block, which gets a function that returns the number of turns so far."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        yield lambda: turns
        nursery.cancel_scope.cancel()
