"""Filters on topic, offset and timestamp that narrow the range of a read (docs/SPARK.md, "Read")."""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from omq.bulk.times import microseconds

_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType", "value")


@dataclass(slots=True)
class ReadBounds:
    """The bounds of a read. No row outside of them can match the filters."""

    first: int = 1
    end: int = 1 << 63
    """Exclusive."""
    since: int | None = None
    """The first time, in microseconds since the epoch; None for no bound."""
    until: int | None = None
    """The end time, exclusive; None for no bound."""
    names: list[Callable[[str], bool]] = field(default_factory=list)

    def wants(self, topic: str) -> bool:
        """Return whether rows of this topic can match."""
        return all(is_wanted(topic) for is_wanted in self.names)

    def take(self, filter: Filter) -> bool:
        """Narrow the bounds by a filter. Return whether they implement it completely, so that Spark need not
        apply it again.
        """
        match filter:
            case IsNotNull((name,)):
                return name in _NEVER_NULL
            case EqualTo(("topic",), str(wanted)) | EqualNullSafe(("topic",), str(wanted)):
                self.names.append(lambda name: name == wanted)
            case In(("topic",), values):
                several = set(values)
                self.names.append(lambda name: name in several)
            case StringStartsWith(("topic",), str(part)):
                self.names.append(lambda name: name.startswith(part))
            case StringEndsWith(("topic",), str(part)):
                self.names.append(lambda name: name.endswith(part))
            case StringContains(("topic",), str(part)):
                self.names.append(lambda name: part in name)
            case EqualTo(("offset",), int(value)) | EqualNullSafe(("offset",), int(value)):
                self._offsets(value, value + 1)
            case GreaterThan(("offset",), int(value)):
                self._offsets(value + 1, self.end)
            case GreaterThanOrEqual(("offset",), int(value)):
                self._offsets(value, self.end)
            case LessThan(("offset",), int(value)):
                self._offsets(self.first, value)
            case LessThanOrEqual(("offset",), int(value)):
                self._offsets(self.first, value + 1)
            case In(("offset",), values) if values and all(isinstance(value, int) for value in values):
                self._offsets(min(values), max(values) + 1)
                return False
            case _:
                # Spark applies filters on times again, since this does not implement all of its rules for
                # times.
                self._take_time(filter)
                return False
        return True

    def _offsets(self, first: int, end: int) -> None:
        self.first = max(self.first, first)
        self.end = min(self.end, end)

    def _take_time(self, filter: Filter) -> None:
        match filter:
            case GreaterThan(("timestamp",), datetime.datetime() as value):
                self._times(microseconds(value) + 1, None)
            case GreaterThanOrEqual(("timestamp",), datetime.datetime() as value):
                self._times(microseconds(value), None)
            case LessThan(("timestamp",), datetime.datetime() as value):
                self._times(None, microseconds(value))
            case LessThanOrEqual(("timestamp",), datetime.datetime() as value):
                self._times(None, microseconds(value) + 1)
            case EqualTo(("timestamp",), datetime.datetime() as value):
                self._times(microseconds(value), microseconds(value) + 1)
            case _:
                pass

    def _times(self, since: int | None, until: int | None) -> None:
        if since is not None:
            self.since = since if self.since is None else max(self.since, since)
        if until is not None:
            self.until = until if self.until is None else min(self.until, until)


def take_all(bounds: ReadBounds, filters: Iterable[Filter]) -> list[Filter]:
    """Narrow bounds by filters. Return the filters that Spark must apply itself."""
    return [filter for filter in filters if not bounds.take(filter)]
