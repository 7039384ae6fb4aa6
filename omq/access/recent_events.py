"""Remember when something last happened, for a bounded number of keys."""

import math

import trio

MOST = 10_000
SECONDS = 600.0


class RecentEvents:
    """Keys with the time of their last event: the latest MOST of those with an event in the last SECONDS."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}  # the oldest first

    def __contains__(self, key: bytes) -> bool:
        return key in self._times

    def time(self, key: bytes) -> float:
        """Return the time of its last event; minus infinity if that is not known."""
        return self._times.get(key, -math.inf)

    def record(self, key: bytes) -> None:
        """Record an event now."""
        self._times.pop(key, None)
        self._times[key] = trio.current_time()
        if len(self._times) > MOST:
            del self._times[next(iter(self._times))]

    def clear(self) -> None:
        """Forget everything."""
        self._times.clear()

    def forget(self) -> None:
        """Forget the keys whose last event was more than SECONDS ago. Call it regularly."""
        long_ago = trio.current_time() - SECONDS
        while self._times and self._times[oldest := next(iter(self._times))] <= long_ago:
            del self._times[oldest]
