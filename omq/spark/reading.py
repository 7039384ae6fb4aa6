"""The reading task: reads the blocks of one range of a topic as record batches."""

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from omq.bulk.access import Gap
from omq.bulk.errors import DataLoss
from omq.bulk.ranges import Range
from omq.spark.kept import keep_what_is_loaded
from omq.spark.options import ReadOptions

log = logging.getLogger("omq.spark")


class TopicPartition(InputPartition):
    """The range that one task reads."""

    part: Range

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """Yield the record batches of one partition, one block at a time.

    Raises DataLoss, Unreachable, ServerRefused and omq_storage.errors.StoreError.
    """
    # Import late: only tasks make columns, and the planning processes need not load Arrow.
    from pyspark.sql.pandas.types import to_arrow_schema

    from omq.spark.columns import Columns

    if not isinstance(partition, TopicPartition):
        return  # Spark reads one partition even if the plan has none
    part = partition.part
    columns = Columns(to_arrow_schema(schema, timezone="UTC"), part.topic.name)
    keep_what_is_loaded()
    skipped = 0
    with options.place.open() as access:
        for found in access.fetch(part.topic, part.start, part.end, columns.batch):
            if not isinstance(found, Gap):
                yield found
                continue
            span = f"messages {found.first} to {found.last}"
            lost = f"Topic {part.topic.name!r}: {span} are gone: {found.reason}"
            if options.fail_on_data_loss and not found.is_hole:
                raise DataLoss(f"{lost}. With failOnDataLoss=false they would be skipped.")
            log.warning("%s", lost)
            if not found.is_hole:
                skipped += len(found)
    if skipped:
        log.warning("Topic %r: %d messages skipped in all", part.topic.name, skipped)
