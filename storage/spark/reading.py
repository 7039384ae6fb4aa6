"""What one task of Spark does to read: blocks of one range of a topic, as record batches."""

import logging
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from storage.spark import columns
from storage.spark.access import Gap
from storage.spark.columns import Columns
from storage.spark.errors import BadOptions, DataLoss
from storage.spark.options import INCLUDE_HEADERS, ReadOptions
from storage.spark.ranges import Range

log = logging.getLogger("omq.spark")

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_FIELDS = (
    StructField(columns.KEY, BinaryType()),
    StructField(columns.VALUE, BinaryType()),
    StructField(columns.TOPIC, StringType()),
    StructField(columns.PARTITION, IntegerType()),
    StructField(columns.OFFSET, LongType()),
    StructField(columns.TIMESTAMP, TimestampType()),
    StructField(columns.TIMESTAMP_TYPE, IntegerType()),
)
_HEADERS = StructField(columns.HEADERS, HEADERS_TYPE)


def usual_schema(options: ReadOptions) -> StructType:
    """All columns, as the Kafka source has them."""
    return StructType([*_FIELDS, *((_HEADERS,) if options.include_headers else ())])


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Raises BadOptions unless each column is one of ours, of its type."""
    known = {field.name: field.dataType for field in (*_FIELDS, _HEADERS)}
    for field in schema.fields:
        if field.name not in known:
            raise BadOptions(f"There is no column {field.name!r}; there are {', '.join(known)}.")
        if field.dataType != known[field.name]:
            wanted, given = known[field.name].simpleString(), field.dataType.simpleString()
            raise BadOptions(f"The column {field.name!r} is {wanted}, not {given}: cast it later.")
        if field.name == columns.HEADERS and not options.include_headers:
            raise BadOptions(f"The column {columns.HEADERS!r} needs the option {INCLUDE_HEADERS}.")


class TopicPartition(InputPartition):
    """What one task reads."""

    part: Range

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """The record batches of one partition. It holds a block at a time.

    Raises DataLoss, Unreachable, Refused and storage.errors.StoreError.
    """
    if not isinstance(partition, TopicPartition):
        return  # Spark asks for a partition even where there is none
    part = partition.part
    make = Columns(to_arrow_schema(schema, timezone="UTC"), part.topic.name)
    skipped = 0
    with options.place.open() as access:
        for found in access.fetch(part.topic, part.start, part.end):
            if not isinstance(found, Gap):
                yield make.batch(found, part.start, part.end)
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
