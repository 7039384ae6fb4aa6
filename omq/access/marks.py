"""A bounded memory of when something happened last."""

import math

import trio

MOST = 10_000
SECONDS = 600.0


class Marks:
    """Things that were marked, each with the time of its last mark; the MOST latest of the last SECONDS."""

    def __init__(self) -> None:
        self._times: dict[bytes, float] = {}  # the oldest first

    def __contains__(self, thing: bytes) -> bool:
        return thing in self._times

    def time(self, thing: bytes) -> float:
        """When it was marked last; minus infinity if that is not known."""
        return self._times.get(thing, -math.inf)

    def mark(self, thing: bytes) -> None:
        """Mark it now."""
        self._times.pop(thing, None)
        self._times[thing] = trio.current_time()
        if len(self._times) > MOST:
            del self._times[next(iter(self._times))]

    def forget(self) -> None:
        """Forget what was marked long ago. To be called now and then."""
        long_ago = trio.current_time() - SECONDS
        while self._times and self._times[oldest := next(iter(self._times))] <= long_ago:
            del self._times[oldest]
