"""Convert rows to DMP envelopes: choose the topic of each row and make its head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omq.bulk.errors import BadRow
from omq.bulk.headers import Header, head_of
from omq.model import check_topic
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.producer import numbered_heads
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.dmp import writer as dmp_writer

COLUMNS = ("value", "topic", "key", "headers")
"""The columns that become messages; their names may have any case."""


@dataclass(frozen=True, slots=True)
class Producer:
    """The name of an idempotent producer, and the sequence number of its first row; rows count up."""

    name: bytes
    first: int


@dataclass(frozen=True, slots=True)
class Envelopes:
    """Some rows for one topic."""

    topic: bytes
    octets: bytes
    count: int


class Rows:
    """Turns record batches of one task into envelopes, and numbers the rows."""

    def __init__(self, names: Sequence[str], topic: str | None, producer: Producer) -> None:
        """Prepare for rows with these columns (`names`). `topic`: the topic of all rows; None if a column
        contains it.
        """
        self._places = {name.lower(): place for place, name in enumerate(names)}
        self._topic = None if topic is None else topic.encode()
        self._producer = producer
        self.count = 0
        """The number of rows so far."""

    def envelopes(self, batch: Any) -> Iterator[Envelopes]:
        """Convert the rows of a batch, grouped by topic. Raises BadRow."""
        first = self._producer.first + self.count
        values = self._octets(batch, "value")
        if values.null_count:
            raise BadRow(
                f"The value of row {_null(values) + self.count + 1} is null: a message must have one."
            )
        for topic, rows in self._by_topic(batch):
            chosen = values if rows is None else values.take(rows)
            numbers = (
                range(first, first + len(chosen)) if rows is None else [first + n for n in rows.to_pylist()]
            )
            part = batch if rows is None else batch.take(rows)
            heads = self._heads(part, numbers)
            yield Envelopes(topic, dmp_writer.for_sink(chosen.to_pylist(), heads), len(chosen))
        self.count += batch.num_rows

    def _by_topic(self, batch: Any) -> Iterator[tuple[bytes, Any]]:
        """Yield each topic and the indexes of its rows; None if it has all rows."""
        if self._topic is not None:
            yield self._topic, None
            return
        names = self._octets(batch, "topic")
        if names.null_count:
            raise BadRow(
                f"The topic of row {_null(names) + self.count + 1} is null, and there is no option topic."
            )
        different = pc.unique(names).to_pylist()
        for name in different:
            if (problem := check_topic(name)) is not None:
                raise BadRow(f"A row has the topic {name.decode('utf-8', 'backslashreplace')!r}: {problem}.")
            if len(different) == 1:
                yield name, None
            else:
                yield name, pc.indices_nonzero(pc.equal(names, pa.scalar(name, pa.binary())))

    def _heads(self, batch: Any, numbers: Sequence[int]) -> list[bytes]:
        keys = self._octets(batch, "key")
        headers = self._column(batch, "headers")
        if headers is not None and headers.null_count < len(headers):
            return self._full_heads(keys, headers, numbers)
        has_keys = keys is not None and keys.null_count < len(keys)
        routing_keys = [key or b"" for key in keys.to_pylist()] if has_keys else None
        try:
            return numbered_heads(self._producer.name, numbers, routing_keys)
        except FieldError as error:
            raise BadRow(f"A row cannot be sent: {error}.") from error

    def _full_heads(self, keys: Any, headers: Any, numbers: Sequence[int]) -> list[bytes]:
        found = []
        each_key = [None] * len(headers) if keys is None else keys.to_pylist()
        for key, named, number in zip(each_key, headers.to_pylist(), numbers, strict=True):
            try:
                head = head_of(key or b"", [_header(one) for one in named or ()])
                own = replace(head.properties, app_id=self._producer.name, message_id=b"%d" % number)
                found.append(stored_head.encode(replace(head, properties=own)))
            except (ValueError, FieldError) as error:
                raise BadRow(f"A row cannot be sent: {error}.") from error
        return found

    def _column(self, batch: Any, name: str) -> Any:
        return batch.column(self._places[name]) if name in self._places else None

    def _octets(self, batch: Any, name: str) -> Any:
        """Return a column of strings or octets, as octets; None if the batch lacks it."""
        column = self._column(batch, name)
        return None if column is None else column.cast(pa.binary())


def _header(named: dict[str, Any] | None) -> Header:
    if named is None or named["key"] is None:
        raise ValueError("a header has no key")
    return Header(named["key"], named["value"])


def _null(column: Any) -> int:
    """Return the index of the first null."""
    index: int = pc.index(pc.is_null(column), True).as_py()
    return index
