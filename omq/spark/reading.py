"""The reading task: reads the blocks of ranges of topics as record batches."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from omq.bulk.access import AHEAD
from omq.bulk.ranges import Range
from omq.spark.frozen_modules import freeze_loaded_modules
from omq.spark.options import ReadOptions


class TopicPartition(InputPartition):
    """The ranges that one task reads, one after the other."""

    parts: tuple[Range, ...]

    def __init__(self, parts: tuple[Range, ...]) -> None:
        super().__init__(parts)
        self.parts = parts


def read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """Yield the record batches of one partition.

    Raises DataLoss, Unreachable, ServerRefused and omq_storage.errors.StoreError.
    """
    # Import late: only tasks make columns, and the planning processes need not load Arrow.
    from pyspark.sql.pandas.types import to_arrow_schema

    from omq.arrow.batches import batches_from

    if not isinstance(partition, TopicPartition):
        return  # Spark reads one partition even if the plan has none
    freeze_loaded_modules()
    columns = to_arrow_schema(schema, timezone="UTC")
    with options.place.open() as access:
        for number, part in enumerate(partition.parts, 1):
            yield from batches_from(
                access,
                part,
                columns,
                fail_on_data_loss=options.fail_on_data_loss,
                hint="With failOnDataLoss=false they would be skipped.",
                ahead=partition.parts[number : number + AHEAD],
            )
