"""The expiry of queues: the option x-expires of AMQP deletes a queue that was not used for a time."""

import weakref

import trio

from omq.drivers.alarms import Alarm
from omq.drivers.driver import Driver


class QueueExpiry:
    """The time since the last use of one queue, which is in use as long as it has consumers."""

    def __init__(self, queue: Driver) -> None:
        self._queue = weakref.ref(queue)
        self._expires_ms: int | None = None
        self._used_at = trio.current_time()
        self._alarm: Alarm | None = None

    def change(self, expires_ms: int | None) -> None:
        """Delete the queue after this time of disuse; None for never."""
        self._expires_ms = expires_ms
        self.cancel()
        self._look()

    def used(self) -> None:
        """Note that the queue is used now, or was until now."""
        self._used_at = trio.current_time()
        if self._alarm is None:
            self._look()

    def cancel(self) -> None:
        """Do nothing more until the next call."""
        queue = self._queue()
        if self._alarm is not None and queue is not None:
            queue.resources.alarms.cancel(self._alarm)
            self._alarm = None

    def _due(self) -> float | None:
        """Return the time at which the queue is deleted unless it is used until then; None if it has no
        expiry.
        """
        queue = self._queue()
        if self._expires_ms is None or queue is None or queue.deleted or queue.has_consumers():
            return None
        return self._used_at + self._expires_ms / 1000

    def _is_over(self) -> bool:
        due = self._due()
        return due is not None and due <= trio.current_time()

    def _look(self) -> None:
        """Delete the queue if it is time, or look again when it may be."""
        self._alarm = None
        queue, due = self._queue(), self._due()
        if queue is None or due is None:
            return
        if due <= trio.current_time():
            queue.resources.unused(queue, self._is_over)
        else:
            self._alarm = queue.resources.alarms.at(due, self._look)
