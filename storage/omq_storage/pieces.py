"""Reading a large message piece by piece, for a caller that must not hold it whole.

``open_message`` verifies the block of the message once, as a view of the memory map, and computes a checksum
for each MiB of the message body.  ``read_piece`` verifies a later piece against these.  So reading a piece
costs one MiB of checksum computation at most, and the piece is exactly what was verified.
"""

from dataclasses import dataclass

from crc32c import crc32c

from omq_storage.blocks import FRAME_HEADER
from omq_storage.database import Database
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import infos_from, viewed
from omq_storage.records import BLOCKS, BlockInfo, block_key

CHECKED_OCTETS = 1 << 20
"""Octets of a body that share one checksum.  No piece crosses the border between two such parts."""


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """What ``read_piece`` must know about a message."""

    topic: int
    id: int
    head: bytes
    """Its head; empty if it has none."""
    size: int
    """Octets of its body."""
    checksums: tuple[int, ...]
    """The CRC-32C of each part of CHECKED_OCTETS of its body.  The last part may be shorter; an empty body
    has
    one part."""
    block: int
    """First message id of its block."""
    at: int
    """Index of the first octet of its body in the stored value of the block."""


def open_message(database: Database, topic: int, message: int) -> LargeMessage | None:
    """Verify a message.  Return None when it is not stored any more.

    Raises DamagedBlock and NewerFormat, as ``lookup.viewed`` does.
    """
    failed: BlockInfo | None = None
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


def _open_in_block(database: Database, topic: int, message: int, info: BlockInfo) -> LargeMessage:
    """Verify a message of this block.  Raises DamagedBlock, also when the block is missing."""
    with database.viewing() as get:
        block, value = viewed(get, topic, info)
        body = block.frame(message)[FRAME_HEADER:]
        parts = range(0, max(1, len(body)), CHECKED_OCTETS)
        checksums = [crc32c(body[at : at + CHECKED_OCTETS]) for at in parts]
        behind = len(block.after(message)) + (0 if block.heads is None else len(block.heads.octets))
        return LargeMessage(
            topic=topic,
            id=message,
            head=block.head(message),
            size=len(body),
            checksums=tuple(checksums),
            block=info.first,
            at=len(value) - behind + FRAME_HEADER,
        )


def read_piece(database: Database, message: LargeMessage, begin: int, octets: int) -> bytes | None:
    """Return a copy of at most ``octets`` octets of the body from index ``begin`` on.

    The piece ends at the latest where its checksummed part ends.  Return None when the block is gone or has
    changed: the caller then opens the message again.
    """
    number = begin // CHECKED_OCTETS
    start = number * CHECKED_OCTETS
    end = min(start + CHECKED_OCTETS, message.size)
    with database.viewing() as get:
        value = get(BLOCKS, block_key(message.topic, message.block))
        if value is None:
            return None
        part = value[message.at + start : message.at + end]
        if len(part) != end - start or crc32c(part) != message.checksums[number]:
            return None
        return bytes(part[begin - start : begin - start + octets])
