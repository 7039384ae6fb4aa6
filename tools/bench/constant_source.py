"""A data source that does nothing, to measure Spark's own cost for rows from Python."""

import os
from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from omq.spark.frozen_modules import freeze_loaded_modules

BATCH_OCTETS = 512 << 10
"""The octets of the values of one record batch: as many as in one of a topic published in portions."""


class ConstantSource(DataSource):
    """Rows (offset, value), whose number and size are the options `rows` and `octets`, in `parts` tasks: each
    task repeats one record batch.
    """

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return "offset LONG, value BINARY"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options)


class _Reader(DataSourceReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._rows, self._octets, self._parts = (int(options[name]) for name in ("rows", "octets", "parts"))
        freeze_loaded_modules()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        freeze_loaded_modules()
        part = int(partition.value)
        left = self._rows * (part + 1) // self._parts - self._rows * part // self._parts
        count = max(1, BATCH_OCTETS // self._octets)
        values = [os.urandom(self._octets) for _ in range(count)]
        batch = pa.RecordBatch.from_pydict(
            {"offset": pa.array(range(count), pa.int64()), "value": pa.array(values, pa.binary())}
        )
        while left:
            yield batch.slice(0, min(left, count))
            left -= min(left, count)
