"""Functions that run in the processes of Spark's tasks; nothing here may import a module that only tests
have.
"""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from omq.spark import OmqDataSource

NOBODY = 65534


def killing(process: int, done: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapPartitions` that passes everything on, and kills a process when the first row
    of all has come.
    """

    def passing(rows: Iterator[Any]) -> Iterator[Any]:
        for row in rows:
            if not done.exists():
                done.touch()
                os.kill(process, signal.SIGKILL)
            yield row

    return passing


class Restricted(OmqDataSource):
    """The source, with nobody's rights while it plans."""

    @classmethod
    def name(cls) -> str:
        return "restricted"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _WithoutUserName(super().reader(schema))


class _WithoutUserName(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Any:
        if os.geteuid() != 0:
            return self._reader.partitions()
        os.seteuid(NOBODY)
        try:
            return self._reader.partitions()
        finally:
            os.seteuid(0)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)


class Light(OmqDataSource):
    """The source, but for planning and reading that leave much for garbage collection to look at."""

    @classmethod
    def name(cls) -> str:
        return "light"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Light(super().reader(schema))


class _Light(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Any:
        self._check()
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in self._reader.read(partition):
            self._check()
            yield batch

    @staticmethod
    def _check() -> None:
        looked_at, kept = len(gc.get_objects()), gc.get_freeze_count()
        if looked_at > kept:
            raise AssertionError(f"{looked_at} objects are looked at after each task, {kept} are not")
