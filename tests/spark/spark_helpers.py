"""Readings of the tests with Spark, and the logs of its processes."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class Log:
    """The log lines of the processes of Spark."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def mark(self) -> None:
        """Set the mark behind the text that was written until now."""
        self._read = self.path.stat().st_size

    def text(self) -> str:
        """Return the text written since the mark."""
        return self.path.read_bytes()[self._read :].decode("utf-8", "replace")


def plan_of(frame: DataFrame, mode: str = "simple") -> str:
    """Return Spark's plan of a query, as `explain` prints it."""
    with redirect_stdout(StringIO()) as printed:
        frame.explain(mode)
    return printed.getvalue()


def reading(spark: SparkSession, **options: object) -> DataFrame:
    """Return a batch read; `omq_servers` and the like stand for `omq.servers`."""
    return spark.read.format("omq").options(**spelled(options)).load()


def spelled(options: Mapping[str, object]) -> dict[str, Any]:
    names = {
        "servers": "omq.servers",
        "numRetries": "fetchOffset.numRetries",
        "retryIntervalMs": "fetchOffset.retryIntervalMs",
    }
    return {names.get(name, name): value for name, value in options.items()}


def rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of all rows, sorted."""
    return sorted(tuple(_plain(value) for value in row) for row in frame.select(*names).collect())


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def offsets(frame: DataFrame) -> list[int]:
    return [row[0] for row in rows(frame, "offset")]
