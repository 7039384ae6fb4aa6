"""The heartbeats of an AMQP connection (AMQP 0-9-1, section 4.2.7; AMQP 1.0, section 2.4.5).

They say when to send one, and when a client is gone.
"""

import math


class Heartbeats:
    """The heartbeats of one connection. All times are in seconds of the same monotonic clock."""

    __slots__ = ("_heard", "_interval", "_received", "_silent_seconds", "due")

    def __init__(self) -> None:
        self._interval = math.inf
        self._silent_seconds = math.inf
        self.due = math.inf
        """The time at which to send the next one."""
        self._received = 0
        self._heard = 0.0

    def begin(self, interval: float, silent_seconds: float, now: float, received: int) -> None:
        """Begin to send one every `interval` seconds. The client is gone when it was silent for
        `silent_seconds`. See `is_gone` for `received`.
        """
        self._interval = interval
        self._silent_seconds = silent_seconds
        self._received = received
        self._heard = now
        self.due = now + interval

    def take(self, now: float) -> bool:
        """Return whether a heartbeat must be sent now."""
        if now < self.due:
            return False
        self.due = now + self._interval
        return True

    def is_gone(self, now: float, received: int, *, excused: bool) -> bool:
        """Return whether the client was silent for too long. `received` counts the octets that came from it;
        while the connection is `excused`, the server does not read it.
        """
        if received != self._received or excused:
            self._received = received
            self._heard = now
        return now - self._heard >= self._silent_seconds
