"""Problems that may come many times a second, told in the log one at a time."""

import logging
import math

import trio

from omq.access.subjects import subject

COMPLAIN_SECONDS = 5.0
"""How often the same kind of problem is logged at the most."""


class Complaints:
    """One kind of problem; those that are not logged are counted."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` was tried and failed, as the log is to call it."""
        self._log = log
        self._what = what
        self._count = 0
        self._next = -math.inf

    def add(self, problem: object, *, topic: bytes | None = None) -> None:
        """It happened again. `topic`, where one is concerned, is a field of the line for programs."""
        self._count += 1
        if trio.current_time() >= self._next:
            times = "" if self._count == 1 else f" ({self._count} times)"
            self._log.error("%s%s: %s", self._what, times, problem, extra=subject(topic=topic))
            self._count = 0
            self._next = trio.current_time() + COMPLAIN_SECONDS
