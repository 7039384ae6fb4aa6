"""Pings to clients, and the disconnection of silent ones (docs/PROTOCOL.md, "Pings and silence")."""

import time
from enum import Enum

LOOK_SECONDS = 1.0


def look_seconds(ping_seconds: float) -> float:
    """Return the seconds between two checks of the clock if a ping is due every `ping_seconds`."""
    return min(LOOK_SECONDS, ping_seconds / 4)


class LivenessCheck(Enum):
    """The result of a check of the clock."""

    NOTHING = "nothing"
    PING = "ping"
    """A ping is due: `is_ping_due` is set until it is sent."""
    DEAD = "dead"
    """Too many pings are unanswered, the last of them for a whole interval."""


class LivenessPause:
    """A block in which the silence of the client does not count, because the server does not read it."""

    __slots__ = ("_depth",)

    def __init__(self) -> None:
        self._depth = 0

    @property
    def is_active(self) -> bool:
        """Whether the block runs; it may be nested."""
        return self._depth > 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1


class Liveness:
    """The pings of one connection, and whether its client answers.

    Every command is a sign of life. While the server does not read the connection, because publishers must
    wait, the client is not silent; while the client does not read, it is. Times are in seconds, of one
    monotonic clock.
    """

    __slots__ = (
        "_interval",
        "_last",
        "_missed",
        "_seen",
        "_sent",
        "_unanswered",
        "excused",
        "is_ping_due",
        "signs",
    )

    def __init__(self, ping_seconds: float, missed_pings: int) -> None:
        # A ping must not be later than promised, so it is sent at the last check before that.
        self._interval = ping_seconds - look_seconds(ping_seconds)
        self._missed = missed_pings
        self._last: float | None = None
        self.is_ping_due = False
        self.signs = 0
        """The terminal counts every command here."""
        self._seen = 0  # the count at the last check
        self._unanswered = 0
        self.excused = LivenessPause()
        self._sent: int | None = None

    def tick(self, now: float) -> LivenessCheck:
        """Check the clock. The first ping is due an interval after the first check."""
        if self._last is None:
            self._last = now
        if self.signs != self._seen:
            self._seen = self.signs
            self._unanswered = 0
        if now - self._last < self._interval:
            return LivenessCheck.NOTHING
        if not self.excused.is_active:
            if 0 < self._missed <= self._unanswered:
                return LivenessCheck.DEAD
            self._unanswered += 1
        self._last = now
        self.is_ping_due = True
        return LivenessCheck.PING

    def is_stuck(self, now: float, sent: int, *, waiting: bool = False) -> bool:
        """Return whether a client that has closed its sending side has taken nothing for as long as
        unanswered pings would have been tolerated. `sent` counts the octets that it has taken. Set `waiting`
        while nothing is sent to it.
        """
        if waiting or sent != self._sent or self._last is None:
            self._sent = sent
            self._last = now
        return self._missed > 0 and now - self._last >= self._interval * (self._missed + 1)

    def ping(self) -> int:
        """Return the value of the Ping that is sent now: seconds since the epoch, in 32 bits."""
        self.is_ping_due = False
        return int(time.time()) & 0xFFFFFFFF
