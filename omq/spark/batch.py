"""Batch reads: `spark.read.format("omq")`."""

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from omq.bulk.access import Access, StoredTopic
from omq.bulk.errors import BadOptions, DataLoss
from omq.bulk.places import PerTopic
from omq.bulk.ranges import Range, choose, cut, first_since, offsets, pack
from omq.spark import reading
from omq.spark.filters import ReadBounds, take_all
from omq.spark.options import ENDS, STARTS, ReadOptions
from omq.spark.reading import TopicPartition
from omq.spark.schema import check_schema


class BatchReader(DataSourceReader):
    """A batch read: the driver plans its partitions, and tasks read them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Create a reader. Raise BadOptions for a schema with unknown columns or types."""
        check_schema(schema, options)
        self._options = options
        self._schema = schema
        self._bounds = ReadBounds()
        # If filter pushdown is off, Spark rejects a reader that overrides `pushFilters`, which it detects by
        # the `__func__` of the method. So expose the function of the base class there, as if nothing were
        # overridden; Spark calls the object itself only when filter pushdown is on.
        self.pushFilters = _TakesFilters(self._bounds)  # type: ignore[method-assign]  # see above

    def partitions(self) -> Sequence[InputPartition]:
        with self._options.place.open() as access:
            ranges = list(self._ranges(access))
            limits = self._options.min_partitions, self._options.max_records
            parts = cut(access, ranges, *limits)
        return [TopicPartition(task) for task in pack(parts, *limits)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return reading.read(self._options, self._schema, partition)

    def _ranges(self, access: Access) -> Iterator[Range]:
        options = self._options
        topics = choose(access, options.choice)
        starts = offsets(access, topics, options.start, begins=True)
        ends = offsets(access, topics, options.end, begins=False)
        for name, topic in topics.items():
            start, end = starts[name], ends[name]
            for option, explicit, offset in (
                (STARTS[0], options.start, start),
                (ENDS[0], options.end, end),
            ):
                if isinstance(explicit, PerTopic) and offset > topic.next and options.fail_on_data_loss:
                    raise DataLoss(
                        f"Topic {name!r}: {option} is {offset}, but its next message is {topic.next}. "
                        "With failOnDataLoss=false it is read as far as it goes."
                    )
            start, end = min(start, topic.next), min(end, topic.next)
            if start > end and (isinstance(options.start, PerTopic) or isinstance(options.end, PerTopic)):
                raise BadOptions(f"Topic {name!r}: it would begin at {start} and end before, at {end}.")
            yield self._narrowed(access, Range(topic, start, end))

    def _narrowed(self, access: Access, part: Range) -> Range:
        """Narrow a range by the pushed filters."""
        bounds = self._bounds
        topic: StoredTopic = part.topic
        if not bounds.wants(topic.name):
            return Range(topic, part.start, part.start)
        start, end = max(part.start, bounds.first), min(part.end, bounds.end)
        # Messages deleted from the front have no time to look up, and must still be reported as lost.
        if bounds.since is not None and start >= topic.first:
            start = max(start, first_since(access, topic, bounds.since, begins=True))
        if bounds.until is not None:
            end = min(end, first_since(access, topic, bounds.until, begins=False))
        return Range(topic, start, end)


class _TakesFilters:
    """A `pushFilters` that Spark does not recognise as an override."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, bounds: ReadBounds) -> None:
        self._bounds = bounds

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        return take_all(self._bounds, filters)
