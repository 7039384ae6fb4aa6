"""A measure of time that hardly passes while the server is not scheduled.

No client had a chance to take anything during a pause of the whole process, so the pause tells nothing of the
clients.
"""

from math import inf

MOST_COUNTED = 0.1
"""The greatest number of seconds between two checks that count."""


class ScheduledTime:
    """The time that has passed, in steps of at most MOST_COUNTED seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._passed_to = inf

    def pass_to(self, now: float) -> None:
        """Count the time since the last call."""
        self.seconds += min(max(now - self._passed_to, 0.0), MOST_COUNTED)
        self._passed_to = now
