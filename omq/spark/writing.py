"""Write rows: `df.write.format("omq")` and `df.writeStream.format("omq")`.

Each task sends its rows in portions, and waits for the confirmation of each portion. Rows have sequence
numbers, so that a repeated portion, task or micro-batch stores nothing twice: the query and the partition
name the producer of a row, the micro-batch and the row give its sequence number.
"""

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from omq.bulk.errors import BadOptions, OmqError
from omq.bulk.sinks import send
from omq.spark.envelopes import COLUMNS, Envelopes, Producer, Rows
from omq.spark.frozen_modules import freeze_loaded_modules
from omq.spark.options import TOPIC, WriteOptions

PORTION_OCTETS = 8 << 20
"""About the size of a portion, in octets of envelopes."""

_ROW_BITS = 32
_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that a task has stored."""

    rows: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise BadOptions unless rows of this schema can become messages. Upper and lower case of a column's
    name make no difference, as in Spark by default.
    """
    types: dict[str, DataType] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in types and name in COLUMNS:
            raise BadOptions(
                f"A sink takes only one column {name!r}, in upper or lower case: drop the others."
            )
        types[name] = field.dataType
    if "value" not in types:
        raise BadOptions(f"A sink needs a column 'value'; there are {', '.join(schema.names) or 'none'}.")
    if TOPIC not in types and options.topic is None:
        raise BadOptions("A sink needs a column 'topic', or the option topic.")
    for name in ("value", "key", "topic"):
        if name in types and not isinstance(types[name], (BinaryType, StringType)):
            raise BadOptions(
                f"The column {name!r} must be binary or string, not {types[name].simpleString()}: cast it."
            )
    if "headers" in types and not _is_headers(types["headers"]):
        raise BadOptions(
            "The column 'headers' must be array<struct<key:string,value:binary>>, "
            f"not {types['headers'].simpleString()}."
        )


def _is_headers(given: DataType) -> bool:
    return given.simpleString() == "array<struct<key:string,value:binary>>" and isinstance(given, ArrayType)


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch. Each writer is a separate producer, unless the option `producer` names one."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Create a writer. Raise BadOptions for unsuitable columns."""
        check_columns(schema, options)
        self._options = options
        self._names = schema.names
        self._producer = options.producer or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        name = f"{self._producer}-{_task().partitionId()}"
        return write_rows(self._options, self._names, Producer(name.encode(), 1), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the tasks have stored everything."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: stored messages cannot be withdrawn from a topic."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Create a writer. Raise BadOptions for unsuitable columns."""
        check_columns(schema, options)
        self._options = options
        self._names = schema.names

    def write(self, iterator: Iterator[Any]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise OmqError(
                "Spark did not say which query and micro-batch this is, so rows cannot be numbered."
            )
        name = f"{self._options.producer or query}-{task.partitionId()}"
        producer = Producer(name.encode(), (int(batch) << _ROW_BITS) + 1)
        return write_rows(self._options, self._names, producer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the tasks have stored everything."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: a repeated micro-batch does not store its rows again."""


def write_rows(
    options: WriteOptions, names: list[str], producer: Producer, batches: Iterator[Any]
) -> Written:
    """Send all rows of a task. Raises BadRow, Unreachable and ServerRefused."""
    freeze_loaded_modules()
    rows = Rows(names, options.topic, producer)
    portions = _Portions(options)
    with portions.server:
        for batch in batches:
            for envelopes in rows.envelopes(batch):
                portions.add(envelopes)
        portions.send_all()
    return Written(rows.count)


class _Portions:
    """Collects envelopes by topic, and sends them when their total reaches PORTION_OCTETS."""

    def __init__(self, options: WriteOptions) -> None:
        servers = options.servers
        self._retry_policy = servers.retry_policy
        self.server = servers.open()
        self._waiting: dict[bytes, deque[Envelopes]] = {}
        self._octets = 0

    def add(self, envelopes: Envelopes) -> None:
        self._waiting.setdefault(envelopes.topic, deque()).append(envelopes)
        self._octets += len(envelopes.octets)
        if self._octets >= PORTION_OCTETS:
            self.send_all()

    def send_all(self) -> None:
        for topic, parts in self._waiting.items():
            octets = b"".join(part.octets for part in parts)
            send(self.server, self._retry_policy, topic, octets, sum(part.count for part in parts))
        self._waiting.clear()
        self._octets = 0


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise OmqError("This is no task of Spark.")
    return task
