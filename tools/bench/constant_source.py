"""A data source that does nothing, to measure Spark's own cost for rows from Python."""

import base64
import os
from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from omq.spark.frozen_modules import freeze_loaded_modules

BATCH_OCTETS = 512 << 10
"""The octets of the values of one record batch: as many as in one of a topic published in portions."""


class ConstantSource(DataSource):
    """Rows (offset, value) of letters, whose number and size are the options `rows` and `octets`, in `parts`
    tasks: each task repeats one record batch. `value` is binary, or a string if the schema of a read says so.
    """

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return "offset LONG, value BINARY"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options, schema)


class _Reader(DataSourceReader):
    def __init__(self, options: MutableMapping[str, str], schema: StructType) -> None:
        self._schema = schema
        self._rows, self._octets, self._parts = (int(options[name]) for name in ("rows", "octets", "parts"))
        freeze_loaded_modules()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        freeze_loaded_modules()
        part = int(partition.value)
        left = self._rows * (part + 1) // self._parts - self._rows * part // self._parts
        count = max(1, BATCH_OCTETS // self._octets)
        values = [base64.b64encode(os.urandom(self._octets))[: self._octets].decode() for _ in range(count)]
        columns = {"offset": list(range(count)), "value": values}
        batch = pa.RecordBatch.from_pydict(columns, to_arrow_schema(self._schema))
        while left:
            yield batch.slice(0, min(left, count))
            left -= min(left, count)
