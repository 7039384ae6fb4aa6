"""The small records beside the blocks, and their stored form: a checksum, then big-endian numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from omq_storage.blocks import Block
from omq_storage.checksummed import verify, with_checksum
from omq_storage.errors import DamagedRecord
from omq_storage.runs import Run, runs_of

BLOCKS = b"blocks"
INDEX = b"index"
EXTENTS = b"extents"
POSITIONS = b"positions"

_EXTENT = Struct(">QQQQ")
_CURSOR = Struct(">Q")
_RUN = Struct(">QQQ")
_OF_RUNS = b"\x01"
"""Ends a position that is stored as runs.  One stored as ids has a multiple of 8 octets, so the lengths
differ."""
_INFO = Struct(">IQII?")
_LARGE_INFO = Struct(">QQQ?")
"""The record of a message in fragments.  The lengths differ."""
_KEY = Struct(">IQ")
_TOPIC = Struct(">I")


@dataclass(frozen=True, slots=True)
class TooOld:
    """The messages that exceed the age limit of retention.

    A message is too old if its time is before ``time`` and its id is below ``time_below``, or if its id is
    below ``below``.  The ids are needed because the clock of the machine may be set back or forth.  A block
    is too old if all its messages are, by the same of the two conditions.
    """

    time: int
    """Microseconds since the epoch."""
    time_below: int
    below: int


@dataclass(frozen=True, slots=True)
class Extent:
    """First and last id, number and octets of the stored messages of one topic.

    When all messages were deleted, ``last`` stays and ``first`` is ``last + 1``.  All four are 0 for a topic
    that never had a message.
    """

    first: int = 0
    last: int = 0
    messages: int = 0
    bytes: int = 0
    """Octets of the stored values: frames, offsets, heads and headers."""

    @property
    def next(self) -> int:
        """The id after the last message that was ever stored; 0 if none was."""
        return self.last + 1 if self.messages or self.first > self.last else 0

    def oldest(self, next_id: int) -> int:
        """Return the id of the first stored message; ``next_id``, that of the next one, if there is none."""
        return self.first if self.messages else next_id

    def extended(self, first: int, last: int, octets: int) -> "Extent":
        """Return the extent after a block with messages ``first`` to ``last`` is appended."""
        return Extent(
            first=self.first if self.messages else first,
            last=last,
            messages=self.messages + last - first + 1,
            bytes=self.bytes + octets,
        )

    def without_oldest(self, info: "BlockRecord") -> "Extent":
        """Return the extent after this block, the oldest, is deleted.

        The sums are estimates where an index record is damaged and its numbers had to be guessed; they never
        go below 0.
        """
        messages, octets = max(0, self.messages - info.count), max(0, self.bytes - info.bytes)
        return Extent(info.next, self.last, messages, octets)

    def emptied(self) -> "Extent":
        """Return the extent after all blocks are deleted."""
        return Extent(self.last + 1, self.last, 0, 0)


def missing_ids(extent: Extent, lost: range, position: int, following: int) -> tuple[range, bool]:
    """Return the ids from ``position`` on that have no message for one reason, and whether they were lost.

    ``following``: the id of the next message that is stored.  ``lost``: the ids that the catalogue knows to
    be lost.  Ids that were not lost had messages that were deleted.
    """
    if extent.messages and position >= extent.first:
        return range(position, following), True
    if position in lost:
        return range(position, min(following, lost.stop)), True
    return range(position, lost.start if position < lost.start < following else following), False


@dataclass(frozen=True, slots=True)
class Position:
    """The messages of a round-robin topic that are confirmed.

    ``cursor`` is the next id to give to a worker.  ``undone`` are the ids below it that are not confirmed.
    """

    cursor: int
    undone: tuple[Run, ...] = ()

    @property
    def lowest(self) -> int:
        """All messages below this id are confirmed."""
        return min((run.lowest for run in self.undone), default=self.cursor)


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """The index record of a stored block."""

    first: int
    count: int
    time: int
    """Microseconds since the epoch, of the first message."""
    span: int
    """Microseconds from the first message to the last."""
    bytes: int
    """Octets of the stored values."""
    heads: bool = False
    """Whether any of its messages has a head."""
    body: int = 0
    """The number of the body of one message in fragments, see ``omq_storage.fragments``; otherwise 0."""

    @property
    def last(self) -> int:
        """Id of the last message."""
        return self.first + self.count - 1

    @property
    def next(self) -> int:
        """Id after that of the last message."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Usage:
    """The used part of an environment's map, and its durable transactions."""

    map_size: int
    """Limit of the data file in octets."""
    used: int
    """Octets of the map up to the last page that was ever written.  LMDB reuses free pages before this grows.
    """
    readers: int
    """Slots of LMDB's reader table that are taken."""
    transaction: int
    """Number of the last transaction that was committed."""
    durable: int
    """Number of the last transaction that would survive a power failure."""


def block_info(block: Block, value: bytes) -> BlockRecord:
    """Return the index record of a block whose stored value is ``value``."""
    return BlockRecord(block.first, block.count, block.time, block.span, len(value), block.has_heads)


def block_key(topic: int, first: int) -> bytes:
    """Return the key of a block: topic id and first message id, so that keys sort in the order of
    messages.
    """
    return _KEY.pack(topic, first)


def topic_key(topic: int) -> bytes:
    """Return the key of a record that exists once for each topic."""
    return _TOPIC.pack(topic)


def key_topic(key: bytes) -> int:
    """Return the topic id at the start of a key.  Raises DamagedRecord when the key is too short."""
    if len(key) < _TOPIC.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    topic: int = _TOPIC.unpack_from(key)[0]
    return topic


def key_block(key: bytes) -> tuple[int, int]:
    """Return the topic id and the first message id of a block's key.  Raises DamagedRecord for another
    length.
    """
    if len(key) != _KEY.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    topic, first = _KEY.unpack(key)
    return topic, first


def pack_info(key: bytes, info: BlockRecord) -> bytes:
    """Return the stored value of an index record.  The first message id is in the key only."""
    if info.body:
        return with_checksum(INDEX, key, _LARGE_INFO.pack(info.body, info.time, info.bytes, info.heads))
    return with_checksum(INDEX, key, _INFO.pack(info.count, info.time, info.span, info.bytes, info.heads))


def unpack_info(key: bytes, stored: bytes) -> BlockRecord:
    """Return an index record.  Raises DamagedRecord when it, or its key, is damaged."""
    topic, first = key_block(key)
    record = verify(INDEX, key, stored, f"the block from message {first} of topic {topic}")
    if len(record) == _LARGE_INFO.size:
        body, time, octets, heads = _LARGE_INFO.unpack(record)
        return BlockRecord(first, 1, time, 0, octets, heads, body)
    return BlockRecord(first, *_INFO.unpack(record))


def pack_extent(key: bytes, extent: Extent) -> bytes:
    """Return the stored value of the extent of the topic with this key."""
    return with_checksum(EXTENTS, key, _EXTENT.pack(extent.first, extent.last, extent.messages, extent.bytes))


def unpack_extent(key: bytes, stored: bytes) -> Extent:
    """Return the extent of a topic.  Raises DamagedRecord when it, or its key, is damaged."""
    record = verify(EXTENTS, key, stored, f"what is stored of topic {key_topic(key)}")
    return Extent(*_EXTENT.unpack(record))


def pack_position(key: bytes, position: Position) -> bytes:
    """Return the stored value of the position of the topic with this key.

    The ids that are not confirmed are stored one by one or as runs, whichever is shorter.  If any of the
    messages was delivered before, they are stored as runs: first those of messages that were never delivered.
    Then follow, for each number of deliveries, a run without ids that has this number as its first id, and
    the runs with that number.  Versions that know no numbers of deliveries ignore a run without ids.
    """
    undone = sorted(position.undone, key=lambda run: run.deliveries)
    count = sum(run.bits.bit_count() for run in undone)
    is_new = not undone or not undone[-1].deliveries
    if is_new and count * _CURSOR.size <= sum(_RUN.size + 8 * _words(run) for run in undone):
        ids = (position.cursor, *sorted(id for run in undone for id in run.ids()))
        return with_checksum(POSITIONS, key, b"".join(map(_CURSOR.pack, ids)))
    parts = [_CURSOR.pack(position.cursor)]
    deliveries = 0
    for run in undone:
        if run.deliveries != deliveries:
            deliveries = run.deliveries
            parts.append(_RUN.pack(deliveries, 1, 0))
        words = _words(run)
        parts += (_RUN.pack(run.first, run.step, words), run.bits.to_bytes(8 * words, "big"))
    return with_checksum(POSITIONS, key, b"".join((*parts, _OF_RUNS)))


def unpack_position(key: bytes, stored: bytes) -> Position:
    """Return the position of a topic.  Raises DamagedRecord when it, or its key, is damaged."""
    record = verify(POSITIONS, key, stored, f"the position of topic {key_topic(key)}")
    if len(record) % _CURSOR.size == len(_OF_RUNS):
        return Position(_CURSOR.unpack_from(record)[0], tuple(sorted(_unpack_runs(record))))
    cursor, *undone = (number for (number,) in _CURSOR.iter_unpack(record))
    return Position(cursor, runs_of(undone))


def _words(run: Run) -> int:
    return -(-run.bits.bit_length() // 64)


def _unpack_runs(record: bytes) -> Iterator[Run]:
    at = _CURSOR.size
    deliveries = 0
    while at < len(record) - len(_OF_RUNS):
        first, step, words = _RUN.unpack_from(record, at)
        at += _RUN.size + 8 * words
        if words:
            yield Run(first, step, int.from_bytes(record[at - 8 * words : at], "big"), deliveries)
        else:
            deliveries = first
