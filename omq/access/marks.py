"""Remember when something last happened, for a bounded number of things."""

import math

import trio

MOST = 10_000
SECONDS = 600.0


class Marks:
    """Things with the time of their last mark: the latest MOST of those marked in the last SECONDS."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}  # the oldest first

    def __contains__(self, thing: bytes) -> bool:
        return thing in self._times

    def time(self, thing: bytes) -> float:
        """Return when it was last marked; minus infinity if that is not known."""
        return self._times.get(thing, -math.inf)

    def mark(self, thing: bytes) -> None:
        """Mark it now."""
        self._times.pop(thing, None)
        self._times[thing] = trio.current_time()
        if len(self._times) > MOST:
            del self._times[next(iter(self._times))]

    def clear(self) -> None:
        """Forget everything."""
        self._times.clear()

    def forget(self) -> None:
        """Forget what was last marked more than SECONDS ago. Call it regularly."""
        long_ago = trio.current_time() - SECONDS
        while self._times and self._times[oldest := next(iter(self._times))] <= long_ago:
            del self._times[oldest]
