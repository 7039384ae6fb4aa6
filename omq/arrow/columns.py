"""Convert blocks to Arrow arrays, where possible without a Python object for each message."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from omq.bulk.headers import Header, headers_of
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.shortstr import FieldError
from omq_storage import codec, numbers
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.numbers import OFFSETS_LIMIT

LOG_APPEND_TIME = 1
"""The Kafka source's type for timestamps set by the server, as all timestamps of omq are."""

LIST_OF_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""The type of the column `headers`."""

_ID_OCTETS = 8
"""Octets of one offset in Arrow."""

_counts = pa.array([], pa.int64())


class Columns:
    """Makes record batches with the selected columns of one topic."""

    def __init__(self, schema: Any, topic: str) -> None:
        """Create columns. `schema`: the selected columns, as an Arrow schema."""
        self._schema = schema
        self._topic = topic
        self._constants: dict[str, Any] = {}
        self._make = [self._maker(name) for name in schema.names]

    def batch(self, block: Block, messages: range) -> Any:
        """Convert consecutive messages of a block to a RecordBatch.

        The batch does not reference the block's octets, which may be pages of a store that changes.
        """
        arrays = [make(block, messages.start - block.first, len(messages)) for make in self._make]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _maker(self, name: str) -> Callable[[Block, int, int], Any]:
        match name:
            case "value":
                return _values
            case "offset":
                return _offsets
            case "timestamp":
                return _timestamps
            case "key":
                return _keys
            case "headers":
                type_ = self._schema.field(name).type
                return lambda block, begin, count: _headers(block, begin, count, type_)
            case "topic":
                return self._constant(pa.scalar(self._topic, pa.string()))
            case "partition":
                return self._constant(pa.scalar(0, pa.int32()))
            case "timestampType":
                return self._constant(pa.scalar(LOG_APPEND_TIME, pa.int32()))
            case _:
                raise ValueError(f"there is no column {name!r}")

    @staticmethod
    def _constant(value: Any) -> Callable[[Block, int, int], Any]:
        made = pa.repeat(value, 0)

        def make(_: Block, __: int, count: int) -> Any:
            nonlocal made
            if len(made) < count:
                made = pa.repeat(value, count)
            return made.slice(0, count)

        return make


def _values(block: Block, begin: int, count: int) -> Any:
    made = _copied(block, begin, count) if codec.COMPILED else None
    if made is not None:
        return made
    frames = _strings(block.offsets, block.frames, block.count).slice(begin, count)
    return pc.binary_slice(frames, FRAME_HEADER, OFFSETS_LIMIT)


def _copied(block: Block, begin: int, count: int) -> Any | None:
    """Copy the bodies into memory of their size: `binary_slice` takes memory for the frames first."""
    end = begin + count
    size = numbers.number(block.offsets, end) - numbers.number(block.offsets, begin) - FRAME_HEADER * count
    bodies, bounds = pa.allocate_buffer(size), pa.allocate_buffer(numbers.SIZE * (count + 1))
    if not codec.native.copy_bodies(block.frames, block.offsets, begin, end, bodies, bounds):
        return None
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds, bodies])


def _offsets(block: Block, begin: int, count: int) -> Any:
    first = block.first + begin
    if codec.COMPILED:
        ids = pa.allocate_buffer(_ID_OCTETS * count)
        codec.native.count_up(first, ids)
        return pa.Array.from_buffers(pa.int64(), count, [None, ids])
    return pc.add(_counting(count), pa.scalar(first, pa.int64()))


def _timestamps(block: Block, begin: int, count: int) -> Any:
    time = pa.scalar(block.time, pa.int64())
    if block.deltas is None:
        times = pa.repeat(time, count)
    else:
        deltas = pa.Array.from_buffers(pa.uint32(), block.count, [None, pa.py_buffer(block.deltas)])
        times = pc.add(deltas.slice(begin, count).cast(pa.int64()), time)
    return times.cast(pa.timestamp("us", "UTC"))


def _keys(block: Block, begin: int, count: int) -> Any:
    """Return the routing keys; null for a message without one."""
    if block.heads is None:
        return pa.nulls(count, pa.binary())
    heads = _strings(block.heads.offsets, block.heads.octets, block.count).slice(begin, count)
    # A head begins with the exchange and the key, each a length octet and its content. So comparing two
    # octets of each head shows for most blocks that no message has a key.
    plain = pc.equal(pc.binary_slice(heads, 0, 2), pa.scalar(b"\0\0", pa.binary()))
    nothing = pc.equal(pc.binary_length(heads), 0)
    if pc.all(pc.or_(plain, nothing)).as_py():
        return pa.nulls(count, pa.binary())
    return pa.array([_key(head) for head in heads.to_pylist()], pa.binary())


def _key(head: bytes) -> bytes | None:
    if not head:
        return None
    at = 1 + head[0]
    return head[at + 1 : at + 1 + head[at]] or None


def _headers(block: Block, begin: int, count: int, type_: Any) -> Any:
    if block.heads is None:
        return pa.nulls(count, type_)
    heads = block.heads_from(block.first + begin)[:count]
    return pa.array([_named(head) for head in heads], type_)


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
