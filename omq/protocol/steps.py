"""Work in steps: a generator that pauses wherever other connections may have their turn, and returns its
result.

However much a client sends, other connections wait for at most one step.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Yields None at each pause, and returns or raises the result of the work."""


def finished(steps: Steps[T]) -> T:
    """Run the work without pauses, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
