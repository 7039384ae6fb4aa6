"""Long work of one connection, in turn with everybody else's."""

from typing import TypeVar

import trio

from omq.protocol.steps import Steps

T = TypeVar("T")


async def in_turns(steps: Steps[T]) -> T:
    """What the work comes to; at each of its pauses the others have their turn."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await trio.lowlevel.checkpoint()
