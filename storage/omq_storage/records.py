"""The small records kept beside the blocks, and how they are stored: checksum first, numbers big-endian."""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from omq_storage.blocks import Block
from omq_storage.errors import DamagedRecord
from omq_storage.runs import Run, runs_of
from omq_storage.sealed import seal, unseal

BLOCKS = b"blocks"
INDEX = b"index"
EXTENTS = b"extents"
POSITIONS = b"positions"

_EXTENT = Struct(">QQQQ")
_CURSOR = Struct(">Q")
_RUN = Struct(">QQQ")
_OF_RUNS = b"\x01"
"""Ends a position that is stored as runs: so its length is none that one stored as ids can have."""
_INFO = Struct(">IQII?")
_KEY = Struct(">IQ")
_TOPIC = Struct(">I")


@dataclass(frozen=True, slots=True)
class TooOld:
    """Which messages are older than they may become, told by their times and, as clocks can be set, by their
    ids. A block is too old when all its messages are, by the one or by the other.
    """

    time: int
    """Microseconds since the epoch: messages with an earlier time,"""
    time_below: int
    """and of those only the ones below this id."""
    below: int
    """All messages below this id."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What is stored of one topic.

    ``last`` stays when everything was deleted; ``first`` is then ``last + 1``.  All are 0 for a topic that
    never had a message.
    """

    first: int = 0
    last: int = 0
    messages: int = 0
    bytes: int = 0
    """Octets of the stored values: frames, offsets, heads and headers."""

    @property
    def next(self) -> int:
        """The id after the last one that was ever stored; 0 when none was."""
        return self.last + 1 if self.messages or self.first > self.last else 0


@dataclass(frozen=True, slots=True)
class Position:
    """How far a round-robin topic was dealt.

    ``cursor`` is the next id to deal; ``undone`` are the ids below it that were dealt but are not done.
    """

    cursor: int
    undone: tuple[Run, ...] = ()

    @property
    def lowest(self) -> int:
        """No message below this id is to be dealt any more."""
        return min((run.lowest for run in self.undone), default=self.cursor)


@dataclass(frozen=True, slots=True)
class BlockInfo:
    """One stored block, without its messages."""

    first: int
    count: int
    time: int
    """Microseconds since the epoch, of the first message."""
    span: int
    """Microseconds from the first message to the last."""
    bytes: int
    """Octets of the stored value."""
    heads: bool = False
    """Whether any of its messages has a head."""

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
    """How much of its room an environment uses, and how much of it is safe from a power failure."""

    map_size: int
    used: int
    """Octets of the map that were ever used; free pages inside are used again before it grows."""
    readers: int
    transaction: int
    """Number of the last transaction that was written."""
    durable: int
    """Number of the last transaction that would survive a power failure."""


def block_info(block: Block, value: bytes) -> BlockInfo:
    """The record of a block that is stored as ``value``."""
    return BlockInfo(block.first, block.count, block.time, block.span, len(value), block.has_heads)


def block_key(topic: int, first: int) -> bytes:
    """The key of a block: topic id and first message id, so that keys sort as the messages do."""
    return _KEY.pack(topic, first)


def topic_key(topic: int) -> bytes:
    """The key of what is kept once for each topic."""
    return _TOPIC.pack(topic)


def key_topic(key: bytes) -> int:
    """The topic id that a key begins with.  Raises DamagedRecord when it has no room for one."""
    if len(key) < _TOPIC.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    topic: int = _TOPIC.unpack_from(key)[0]
    return topic


def key_block(key: bytes) -> tuple[int, int]:
    """The topic id and the first message id of a block's key.  Raises DamagedRecord when it is none."""
    if len(key) != _KEY.size:
        raise DamagedRecord(f"The key {key!r} is damaged.")
    topic, first = _KEY.unpack(key)
    return topic, first


def pack_info(key: bytes, info: BlockInfo) -> bytes:
    """The stored record of the block with this key; its first id is in the key."""
    return seal(INDEX, key, _INFO.pack(info.count, info.time, info.span, info.bytes, info.heads))


def unpack_info(key: bytes, sealed: bytes) -> BlockInfo:
    """The record of a block.  Raises DamagedRecord when it, or its key, is damaged."""
    topic, first = key_block(key)
    record = unseal(INDEX, key, sealed, f"the block from message {first} of topic {topic}")
    return BlockInfo(first, *_INFO.unpack(record))


def pack_extent(key: bytes, extent: Extent) -> bytes:
    """The stored record of the extent of the topic with this key."""
    return seal(EXTENTS, key, _EXTENT.pack(extent.first, extent.last, extent.messages, extent.bytes))


def unpack_extent(key: bytes, sealed: bytes) -> Extent:
    """The extent of a topic.  Raises DamagedRecord when it, or its key, is damaged."""
    record = unseal(EXTENTS, key, sealed, f"what is stored of topic {key_topic(key)}")
    return Extent(*_EXTENT.unpack(record))


def pack_position(key: bytes, position: Position) -> bytes:
    """The stored record of the position of the topic with this key."""
    undone = position.undone
    count = sum(run.bits.bit_count() for run in undone)
    if count * _CURSOR.size <= sum(_RUN.size + 8 * _words(run) for run in undone):
        ids = (position.cursor, *sorted(id for run in undone for id in run.ids()))
        return seal(POSITIONS, key, b"".join(map(_CURSOR.pack, ids)))
    parts = [_CURSOR.pack(position.cursor)]
    for run in undone:
        words = _words(run)
        parts += (_RUN.pack(run.first, run.step, words), run.bits.to_bytes(8 * words, "big"))
    return seal(POSITIONS, key, b"".join((*parts, _OF_RUNS)))


def unpack_position(key: bytes, sealed: bytes) -> Position:
    """The position of a topic.  Raises DamagedRecord when it, or its key, is damaged."""
    record = unseal(POSITIONS, key, sealed, f"the position of topic {key_topic(key)}")
    if len(record) % _CURSOR.size == len(_OF_RUNS):
        return Position(_CURSOR.unpack_from(record)[0], tuple(_unpack_runs(record)))
    cursor, *undone = (number for (number,) in _CURSOR.iter_unpack(record))
    return Position(cursor, runs_of(undone))


def _words(run: Run) -> int:
    return -(-run.bits.bit_length() // 64)


def _unpack_runs(record: bytes) -> Iterator[Run]:
    at = _CURSOR.size
    while at < len(record) - len(_OF_RUNS):
        first, step, words = _RUN.unpack_from(record, at)
        at += _RUN.size + 8 * words
        yield Run(first, step, int.from_bytes(record[at - 8 * words : at], "big"))
