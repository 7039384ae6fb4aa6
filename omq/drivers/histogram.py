"""Histograms of durations."""

from bisect import bisect_left

from msgspec import Struct

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets, in seconds; the last bucket has none."""


class Distribution(Struct, frozen=True):
    """A snapshot of a histogram."""

    counts: tuple[int, ...]
    """The number of times within each of BOUNDS and above the bound before it; then the number of times
    above all bounds.
    """
    seconds: float
    """The sum of all times."""


class Histogram:
    """Counts times. Both the counts and the sum only grow."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a time."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds

    def snapshot(self) -> Distribution:
        """Return the counts now."""
        return Distribution(tuple(self._counts), self._seconds)
