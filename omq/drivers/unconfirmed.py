"""What is kept of work that was dealt and is not confirmed: which ids, as a share of the memory."""

from omq.drivers.signal import Signal

FREE_OCTETS = 4 << 10
"""What one subscriber, or one topic, may hold of it even when the share is spent."""


class Unconfirmed:
    """A count of octets with a limit at which no more is dealt to subscribers that hold much of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Signal, None] = {}

    def may_grow(self, octets: int) -> bool:
        """Whether somebody who holds so many octets may hold more."""
        return octets <= FREE_OCTETS or self.used < self.limit

    def change(self, more: int) -> None:
        """So many octets more are held, or less."""
        self.used += more
        # Not at the first octet below the limit: it would be spent again at once, for a wake-up each time.
        if self._waiting and self.used <= self.limit - self.limit // 16:
            waiting, self._waiting = self._waiting, {}
            for signal in waiting:
                signal.set()

    def call_when_free(self, signal: Signal) -> None:
        """Set a signal when something is free again, if nothing is now."""
        if self.used >= self.limit:
            self._waiting[signal] = None

    def forget(self, signal: Signal) -> None:
        """Do not set it any more."""
        self._waiting.pop(signal, None)
