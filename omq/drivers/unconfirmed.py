"""The memory for the ids of unconfirmed round-robin messages."""

from omq.drivers.signal import Signal

FREE_OCTETS = 4 << 10
"""The octets that one subscriber, or one topic, may hold even if the share is used up."""


class Unconfirmed:
    """A count of octets with a limit. At the limit, subscribers that hold much of it get no more messages."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.is_closed = False
        """Whether no subscriber gets messages any more: all of them end, because the server stops."""
        self._waiting: dict[Signal, None] = {}

    @property
    def is_spent(self) -> bool:
        """Whether the limit is reached."""
        return self.used >= self.limit

    def may_grow(self, octets: int) -> bool:
        """Return whether a subscriber that holds `octets` may hold more."""
        return octets <= FREE_OCTETS or self.used < self.limit

    def change(self, more: int) -> None:
        """Add `more` octets; a negative number frees octets."""
        self.used += more
        # Wake the waiting subscribers only when a sixteenth is free. At the first free octet, the share would
        # be used up again at once, and every confirmation would cost a wake-up.
        if self._waiting and self.used <= self.limit - self.limit // 16:
            waiting, self._waiting = self._waiting, {}
            for signal in waiting:
                signal.set()

    def call_when_free(self, signal: Signal) -> None:
        """Set a signal when there is room again, if there is none now."""
        if self.used >= self.limit:
            self._waiting[signal] = None

    def forget(self, signal: Signal) -> None:
        """Cancel `call_when_free`."""
        self._waiting.pop(signal, None)
