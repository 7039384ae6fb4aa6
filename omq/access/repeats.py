"""Log lines that strangers can cause: a few are written, and the others counted."""

import logging

import trio

from omq.access.subjects import subject

LINES = 5
SECONDS = 10.0


class Repeats:
    """At most LINES lines in SECONDS, and how many more there were; one line only while that goes on."""

    def __init__(self, log: logging.Logger, level: int, what: str) -> None:
        """`what` is what there were more of, in the plural: "attempts that failed"."""
        self._log = log
        self._level = level
        self._what = what
        self._until = -1.0
        self._written = 0
        self._more = 0
        self._flooded = False

    def add(
        self,
        line: str,
        *,
        peer: str | None = None,
        client: str | None = None,
        topic: bytes | None = None,
    ) -> None:
        """Write a line, or count it. `peer`, `client` and `topic` are fields of the line for programs."""
        self.look()
        now = trio.current_time()
        if now >= self._until:
            goes_on = self._flooded and now < self._until + SECONDS
            self._written = LINES - 1 if goes_on else 0
            self._until = now + SECONDS
            self._flooded = False
        if self._written < LINES:
            self._written += 1
            extra = subject(peer=peer, client=client, topic=topic)
            self._log.log(self._level, "%s", line, extra=extra)
        else:
            self._more += 1
            self._flooded = True

    def look(self) -> None:
        """Say how many more there were, when it is time."""
        if self._more and trio.current_time() >= self._until:
            self._log.log(self._level, "%d more %s", self._more, self._what)
            self._more = 0
