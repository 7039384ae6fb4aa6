"""Pings and signs of life (omq text, Pings and Acks; docs/PROTOCOL.md, "Pings and silence")."""

import time
from enum import Enum

LOOK_SECONDS = 1.0


def look_seconds(ping_seconds: float) -> float:
    """How often to look at the clock for pings so far apart."""
    return min(LOOK_SECONDS, ping_seconds / 4)


class Tick(Enum):
    """What a look at the clock says."""

    NOTHING = "nothing"
    PING = "ping"
    """A ping is due: `is_ping_due` until it can be sent."""
    DEAD = "dead"
    """Too many pings stayed unanswered, the last of them for a whole interval."""


class Excuse:
    """Within this block the server does not read the connection, so the client need not be heard of."""

    __slots__ = ("is_active",)

    def __init__(self) -> None:
        self.is_active = False

    def __enter__(self) -> None:
        self.is_active = True

    def __exit__(self, *_: object) -> None:
        self.is_active = False


class Liveness:
    """When to ping, and when a client that answers nothing is given up.

    Every command is a sign of life. Time in which the server did not read the connection, because publishers
    had to wait, is not the client's silence; time in which the client did not read is. Times are of one
    monotonic clock, in seconds.
    """

    def __init__(self, ping_seconds: float, missed_pings: int) -> None:
        # A ping must not come later than promised, so it is sent at the last look before.
        self._interval = ping_seconds - look_seconds(ping_seconds)
        self._missed = missed_pings
        self._last: float | None = None
        self.is_ping_due = False
        self.signs = 0
        """Count every command here."""
        self._seen = 0  # how many of them, at the last look
        self._unanswered = 0
        self.excused = Excuse()
        self._sent: int | None = None

    def tick(self, now: float) -> Tick:
        """Look at the clock. The first ping is due an interval after the first look."""
        if self._last is None:
            self._last = now
        if self.signs != self._seen:
            self._seen = self.signs
            self._unanswered = 0
        if now - self._last < self._interval:
            return Tick.NOTHING
        if not self.excused.is_active:
            if 0 < self._missed <= self._unanswered:
                return Tick.DEAD
            self._unanswered += 1
        self._last = now
        self.is_ping_due = True
        return Tick.PING

    def is_stuck(self, now: float, sent: int, *, waiting: bool = False) -> bool:
        """For a client that has closed its sending side: whether it took nothing for as long as pings would
        have given it. `sent` counts the octets it took so far; while it is `waiting` it is given none.
        """
        if waiting or sent != self._sent or self._last is None:
            self._sent = sent
            self._last = now
        return self._missed > 0 and now - self._last >= self._interval * (self._missed + 1)

    def ping(self) -> int:
        """What the Ping carries that is sent now: seconds since the epoch, within 32 bits."""
        self.is_ping_due = False
        return int(time.time()) & 0xFFFFFFFF
