"""The heartbeats of a connection (AMQP 0-9-1, section 4.2.7): when one is due, and when a client is gone."""

import math

SILENT_INTERVALS = 3
"""The intervals of silence after which a client counts as gone. RabbitMQ uses the same number."""


class Heartbeats:
    """The heartbeats of one connection. All times are in seconds of the same monotonic clock."""

    def __init__(self) -> None:
        self._interval = 0.0
        self.due = math.inf
        """The time at which to send the next one."""
        self._received = 0
        self._heard = 0.0

    def begin(self, interval: int, now: float, received: int) -> None:
        """Begin heartbeats at the interval that the client chose; 0 is for none. See `is_gone` for
        `received`.
        """
        self._interval = interval
        self._received = received
        self._heard = now
        self.due = now + interval / 2 if interval else math.inf

    def take(self, now: float) -> bool:
        """Return whether a heartbeat must be sent now. It is sent twice in an interval."""
        if now < self.due:
            return False
        self.due = now + self._interval / 2
        return True

    def is_gone(self, now: float, received: int, *, excused: bool) -> bool:
        """Return whether the client was silent for too long. `received` counts the octets that came from it;
        while the connection is `excused`, the server does not read it.
        """
        if not self._interval:
            return False
        if received != self._received or excused:
            self._received = received
            self._heard = now
        return now - self._heard >= SILENT_INTERVALS * self._interval
