"""Run long work of one connection in steps, in turn with other tasks."""

from typing import TypeVar

import trio

from omq.protocol.steps import Steps

T = TypeVar("T")

RUNS_IN_TURN = 32
"""The number of runs of published messages after which the other connections have their turn, while the
topics are found: some 30 microseconds each.
"""

EVENTS_IN_TURN = 64
"""The number of events of one connection after which the other connections have their turn."""


async def in_turns(steps: Steps[T]) -> T:
    """Run the work and return its result. At each of its pauses let other tasks run."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        await trio.lowlevel.checkpoint()
