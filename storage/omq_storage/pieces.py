"""Reading a large message piece by piece, for a caller that must not hold it whole.

``open_message`` verifies the block of the message once, as a view of the memory map, and computes a checksum
for each MiB of the message body.  ``read_piece`` verifies a later piece against these.  So reading a piece
costs one MiB of checksum computation at most, and the piece is exactly what was verified.

The fragments of a message that is stored in fragments have checksums of their own, and never change.  So all
of them are verified only when nothing is known of the message: then a damaged message is detected before its
first piece is sent.  ``VerifiedBodies`` remembers which bodies were verified or written by this process.
"""

from dataclasses import dataclass
from threading import Lock
from typing import assert_never

from omq_storage.blocks import FRAME_HEADER, Block, Octets
from omq_storage.crc import crc32c
from omq_storage.database import Database
from omq_storage.errors import DamagedBlock
from omq_storage.fragments import FRAGMENT_OCTETS, Fragmented, fragment, fragment_count, pack_fragmented
from omq_storage.lookup import described, infos_from, viewed
from omq_storage.records import BLOCKS, BlockRecord, block_key

_VERIFIED_AT_ONCE = 256
_REMEMBERED = 1 << 14

CHECKED_OCTETS = 1 << 20
"""Octets of a body that share one checksum.  No piece crosses the border between two such parts."""


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """The position of a message, for ``read_piece``."""

    topic: int
    id: int
    time: int
    """When it was taken, in microseconds since the epoch."""
    head: bytes
    """Its head; empty if it has none."""
    size: int
    """Octets of its body."""
    place: "InBlock | Fragmented"


@dataclass(frozen=True, slots=True)
class InBlock:
    """The position of the body within the stored value of a block."""

    checksums: tuple[int, ...]
    """The CRC-32C of each part of CHECKED_OCTETS of the body.  The last part may be shorter; an empty body
    has one part."""
    block: int
    """First message id of its block."""
    at: int
    """Index of the first octet of its body in the stored value of the block."""


def open_message(database: Database, topic: int, message: int) -> LargeMessage | None:
    """Verify a message.  Return None when it is not stored any more.

    Raises DamagedBlock and NewerFormat, as ``lookup.viewed`` does.
    """
    failed: BlockRecord | None = None
    while True:
        with database.reading() as transaction:
            info = next(infos_from(transaction, topic, message), None)
        if info is None or info.first > message:
            return None
        try:
            return _open_in_block(database, topic, message, info)
        except DamagedBlock:
            # Merging may have replaced the block since the lookup. If the index still has the same record,
            # the block is really damaged.
            if info == failed:
                raise
            failed = info


def _open_in_block(database: Database, topic: int, message: int, info: BlockRecord) -> LargeMessage:
    """Verify a message of this block.  Raises DamagedBlock, also when the block is missing."""
    with database.viewing() as get:
        if info.body:
            found = described(topic, info, get(BLOCKS, block_key(topic, info.first)))
            return LargeMessage(topic, message, found.time, found.own_head, found.size, found)
        block, value = viewed(get, topic, info)
        return located(block, len(value), message)


def located(block: Block, octets: int, message: int) -> LargeMessage:
    """Return the data that a reader of pieces needs about a message of a verified block, whose stored value
    has ``octets`` octets.
    """
    body = block.frame(message)[FRAME_HEADER:]
    parts = range(0, max(1, len(body)), CHECKED_OCTETS)
    checksums = [crc32c(body[at : at + CHECKED_OCTETS]) for at in parts]
    behind = len(block.after(message)) + (0 if block.heads is None else len(block.heads.octets))
    return LargeMessage(
        topic=block.topic,
        id=message,
        time=block.message_time(message),
        head=block.head(message),
        size=len(body),
        place=InBlock(tuple(checksums), block.first, octets - behind + FRAME_HEADER),
    )


def read_piece(database: Database, message: LargeMessage, begin: int, octets: int) -> bytes | None:
    """Return a copy of at most ``octets`` octets of the body from index ``begin`` on.

    The piece ends at the latest where its checksummed part ends.  Return None when the block is gone or has
    changed: the caller then opens the message again.  Raises DamagedBlock for a damaged fragment.
    """
    match message.place:
        case InBlock() as place:
            return _piece_of_block(database, message, place, begin, octets)
        case Fragmented() as place:
            return _piece_of_fragments(database, place, begin, octets)
        case _:
            assert_never(message.place)


def _piece_of_fragments(database: Database, message: Fragmented, begin: int, octets: int) -> bytes | None:
    key = block_key(message.topic, message.first)
    end = min(message.size, begin + min(octets, CHECKED_OCTETS))
    first = begin // FRAGMENT_OCTETS
    with database.viewing() as get:
        value = get(BLOCKS, key)
        if value is None or value != pack_fragmented(message):
            return None
        parts = [fragment(get, message, index) for index in range(first, -(-end // FRAGMENT_OCTETS))]
        parts[-1] = parts[-1][: end - (first + len(parts) - 1) * FRAGMENT_OCTETS]
        parts[0] = parts[0][begin - first * FRAGMENT_OCTETS :]
        return b"".join(parts)


def _piece_of_block(
    database: Database, message: LargeMessage, place: InBlock, begin: int, octets: int
) -> bytes | None:
    with database.viewing() as get:
        value = get(BLOCKS, block_key(message.topic, place.block))
        if value is None:
            return None
        within = part_with(message, place, begin)
        return piece_within(place, value[within.start : within.stop], begin, octets)


def part_with(message: LargeMessage, place: InBlock, begin: int) -> range:
    """Return the place in the stored value of the checksummed part that has index ``begin`` of the body."""
    start = begin - begin % CHECKED_OCTETS
    return range(place.at + start, place.at + min(start + CHECKED_OCTETS, message.size))


def piece_within(place: InBlock, part: Octets, begin: int, octets: int) -> bytes | None:
    """Return a copy of at most ``octets`` octets of this part from index ``begin`` of the body on; None if
    the part is not the one that was verified.
    """
    number, skipped = divmod(begin, CHECKED_OCTETS)
    if crc32c(part) != place.checksums[number]:
        return None
    return bytes(part[skipped : skipped + octets])


class VerifiedBodies:
    """The numbers of the bodies in fragments that were verified, or written, last.  Thread-safe."""

    def __init__(self) -> None:
        self._bodies: dict[int, None] = {}
        self._lock = Lock()

    def has(self, body: int) -> bool:
        """Return whether this body is known to be intact."""
        return body in self._bodies

    def add(self, body: int) -> None:
        """Remember a body, and forget the one that was added first if there are too many."""
        with self._lock:
            self._bodies[body] = None
            if len(self._bodies) > _REMEMBERED:
                del self._bodies[next(iter(self._bodies))]

    def discard(self, body: int) -> None:
        """Forget a body: a fragment of it is damaged."""
        with self._lock:
            self._bodies.pop(body, None)


def verify_fragments(database: Database, message: Fragmented) -> None:
    """Verify all fragments of a message, in short transactions.  Raises DamagedBlock."""
    count = fragment_count(message.size)
    for begin in range(0, count, _VERIFIED_AT_ONCE):
        with database.viewing() as get:
            for index in range(begin, min(count, begin + _VERIFIED_AT_ONCE)):
                fragment(get, message, index)
