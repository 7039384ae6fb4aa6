"""Work in steps: a generator that pauses wherever others may have their turn, and returns what it made.

However long the octets are that a client sends, nobody else is to wait for more than one step.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Each pause is a None. What is returned, or raised, is what the work comes to."""


def finished(steps: Steps[T]) -> T:
    """What the work comes to, done without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
