"""Convert blocks to Arrow arrays, where possible without a Python object for each message."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from omq.bulk.headers import Header, headers_of
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import NO_NAMES, routing_key
from omq.protocol.amqp.shortstr import FieldError
from omq_storage import codec, numbers
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.numbers import OFFSETS_LIMIT

LOG_APPEND_TIME = 1
"""The Kafka source's type for timestamps set by the server, as all timestamps of omq are."""

LIST_OF_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""The type of the column `headers`."""

BATCH_OCTETS = 1 << 20
"""The size of the bodies of a record batch with several blocks. Spark takes some 40 µs for each batch in the
Python worker alone, whatever its size.
"""

BATCH_ROWS = 1 << 16
"""The greatest number of messages in a record batch that has several blocks."""

_ID_OCTETS = 8
"""Octets of one offset in Arrow."""

_counts = pa.array([], pa.int64())


class Columns:
    """Makes record batches with the selected columns of one topic."""

    def __init__(self, schema: Any, topic: str) -> None:
        """Create columns. `schema`: the selected columns, as an Arrow schema. `key` and `value` are binary or
        strings; nothing checks that these are UTF-8.
        """
        self._schema = schema
        self._columns = [_column(field.name, field.type, topic) for field in schema]
        self._rows = 0
        self._octets = 0

    def add(self, block: Block, messages: range) -> list[Any]:
        """Add consecutive messages of a block. Return the RecordBatches that are complete now: small blocks
        share one.

        The columns do not reference the block's octets, which may be pages of a store that changes.
        """
        begin, count = messages.start - block.first, len(messages)
        octets = _body_octets(block, begin, count)
        joins = self._octets + octets <= BATCH_OCTETS and self._rows + count <= BATCH_ROWS
        complete = [] if joins else self.take()
        for column in self._columns:
            column.add(block, begin, count)
        self._rows += count
        self._octets += octets
        if self._octets >= BATCH_OCTETS or self._rows >= BATCH_ROWS:
            complete += self.take()
        return complete

    def take(self) -> list[Any]:
        """Return the incomplete RecordBatch, if there are messages for one."""
        if not self._rows:
            return []
        arrays = [column.take() for column in self._columns]
        self._rows = self._octets = 0
        return [pa.RecordBatch.from_arrays(arrays, schema=self._schema)]


class _Column(Protocol):
    """One column of the record batch in progress."""

    def add(self, block: Block, begin: int, count: int) -> None:
        """Add `count` messages of a block from index `begin` on."""

    def take(self) -> Any:
        """Return the array of all added messages, of which there is at least one, and begin the next one."""


def _column(name: str, type_: Any, topic: str) -> _Column:
    match name:
        case "value":
            return _Bodies(type_) if codec.COMPILED else _Joined(partial(_values, type_=type_))
        case "offset":
            return _Offsets()
        case "timestamp":
            return _Joined(_timestamps)
        case "key":
            return _Joined(partial(_keys, type_=type_))
        case "headers":
            return _Joined(partial(_headers, type_=type_))
        case "topic":
            return _Constant(pa.scalar(topic, pa.string()))
        case "partition":
            return _Constant(pa.scalar(0, pa.int32()))
        case "timestampType":
            return _Constant(pa.scalar(LOG_APPEND_TIME, pa.int32()))
        case _:
            raise ValueError(f"there is no column {name!r}")


class _Joined:
    """Makes an array for each block, and joins them."""

    def __init__(self, make: Callable[[Block, int, int], Any]) -> None:
        self._make = make
        self._arrays: list[Any] = []

    def add(self, block: Block, begin: int, count: int) -> None:
        self._arrays.append(self._make(block, begin, count))

    def take(self) -> Any:
        arrays, self._arrays = self._arrays, []
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


class _Constant:
    """The same value for all messages."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self._made = pa.repeat(value, 0)
        self._count = 0

    def add(self, block: Block, begin: int, count: int) -> None:
        self._count += count

    def take(self) -> Any:
        count, self._count = self._count, 0
        if len(self._made) < count:
            self._made = pa.repeat(self._value, count)
        return self._made.slice(0, count)


class _Offsets:
    """The message ids."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, block: Block, begin: int, count: int) -> None:
        first = block.first + begin
        if self._ranges and sum(self._ranges[-1]) == first:
            before, so_far = self._ranges.pop()
            self._ranges.append((before, so_far + count))
        else:
            self._ranges.append((first, count))

    def take(self) -> Any:
        ranges, self._ranges = self._ranges, []
        arrays = [_ids(first, count) for first, count in ranges]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _ids(first: int, count: int) -> Any:
    if codec.COMPILED:
        ids = pa.allocate_buffer(_ID_OCTETS * count)
        codec.native.count_up(first, ids)
        return pa.Array.from_buffers(pa.int64(), count, [None, ids])
    return pc.add(_counting(count), pa.scalar(first, pa.int64()))


class _Bodies:
    """Copies bodies directly into the memory of their array, with the compiled codec."""

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._octets = self._bounds = pa.py_buffer(b"")
        self._rows = 0
        self._size = 0

    def add(self, block: Block, begin: int, count: int) -> None:
        size = _body_octets(block, begin, count)
        if not self._rows:
            # The memory of a batch is taken at its first block. `Columns` begins a new batch where a block
            # does not fit any more.
            self._octets = pa.allocate_buffer(max(size, BATCH_OCTETS), resizable=True)
            self._bounds = pa.allocate_buffer(numbers.SIZE * (max(count, BATCH_ROWS) + 1), resizable=True)
        first, last = numbers.SIZE * self._rows, numbers.SIZE * (self._rows + count + 1)
        octets = memoryview(self._octets)[self._size : self._size + size]
        bounds = memoryview(self._bounds)[first:last]
        copied = codec.native.copy_bodies(
            block.frames, block.offsets, begin, begin + count, octets, bounds, self._size
        )
        assert copied, "the reader has checked the offsets of the block"
        self._rows += count
        self._size += size

    def take(self) -> Any:
        self._octets.resize(self._size)
        self._bounds.resize(numbers.SIZE * (self._rows + 1))
        made = pa.Array.from_buffers(self._type, self._rows, [None, self._bounds, self._octets])
        self._octets = self._bounds = pa.py_buffer(b"")
        self._rows = self._size = 0
        return made


def _body_octets(block: Block, begin: int, count: int) -> int:
    end = numbers.number(block.offsets, begin + count)
    return end - numbers.number(block.offsets, begin) - FRAME_HEADER * count


def _values(block: Block, begin: int, count: int, type_: Any) -> Any:
    frames = _strings(block.offsets, block.frames, block.count).slice(begin, count)
    return pc.binary_slice(frames, FRAME_HEADER, OFFSETS_LIMIT).view(type_)


def _timestamps(block: Block, begin: int, count: int) -> Any:
    time = pa.scalar(block.time, pa.int64())
    if block.deltas is None:
        times = pa.repeat(time, count)
    else:
        deltas = pa.Array.from_buffers(pa.uint32(), block.count, [None, pa.py_buffer(block.deltas)])
        times = pc.add(deltas.slice(begin, count).cast(pa.int64()), time)
    return times.cast(pa.timestamp("us", "UTC"))


def _keys(block: Block, begin: int, count: int, type_: Any) -> Any:
    """Return the routing keys; null for a message without one."""
    if block.heads is None:
        return pa.nulls(count, type_)
    heads = _strings(block.heads.offsets, block.heads.octets, block.count).slice(begin, count)
    # Comparing two octets of each head shows for most blocks that no message has a key.
    plain = pc.equal(pc.binary_slice(heads, 0, len(NO_NAMES)), pa.scalar(NO_NAMES, pa.binary()))
    nothing = pc.equal(pc.binary_length(heads), 0)
    if pc.all(pc.or_(plain, nothing)).as_py():
        return pa.nulls(count, type_)
    keys = [(routing_key(head) or None) if head else None for head in heads.to_pylist()]
    return pa.array(keys, pa.binary()).view(type_)


def _headers(block: Block, begin: int, count: int, type_: Any) -> Any:
    if block.heads is None:
        return pa.nulls(count, type_)
    heads = _strings(block.heads.offsets, block.heads.octets, block.count).slice(begin, count)
    # Consecutive messages often have equal heads, so parse equal ones only once.
    encoded = heads.dictionary_encode()
    different = [_named(head) for head in encoded.dictionary.to_pylist()]
    return pa.array(different, type_).take(encoded.indices)


def _named(head: bytes) -> list[dict[str, Any]] | None:
    found = _all_headers(head)
    return [{"key": header.key, "value": header.value} for header in found] or None


def _all_headers(head: bytes) -> list[Header]:
    try:
        return headers_of(stored_head.decode(head)) if head else []
    except FieldError:
        return []  # a store written by another program may contain any octets here


def _strings(offsets: Any, octets: Any, count: int) -> Any:
    """Make an Arrow array from octets and offsets without copying. Arrow does not check offsets; the block's
    reader has checked them.
    """
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(octets)])


def _counting(count: int) -> Any:
    """Return an array of 0 to `count` - 1."""
    global _counts
    if len(_counts) < count:
        _counts = pa.array(range(max(count, 1 << 13)), pa.int64())
    return _counts.slice(0, count)
