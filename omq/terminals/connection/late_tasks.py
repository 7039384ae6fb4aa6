"""Starts tasks of a connection that may be just over."""

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

TaskArguments = TypeVarTuple("TaskArguments")


def start_unless_over(
    nursery: trio.Nursery,
    function: Callable[[*TaskArguments], Awaitable[object]],
    *arguments: *TaskArguments,
) -> bool:
    """Start a task of a connection. Return False if the connection is over, so that nobody waits for it.

    A nursery ends with its last task. The task that has opened it goes on in the next round of the scheduler,
    and until then others still find the connection, for example a server that stops.
    """
    try:
        nursery.start_soon(function, *arguments)
    except RuntimeError:  # Trio has no other sign of a nursery that has ended
        return False
    return True
