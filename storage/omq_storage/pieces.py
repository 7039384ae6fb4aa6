"""Large messages, read a piece at a time, for whoever must not hold one whole.

A message is looked at as a whole once, where it lies in the map: its block is verified, and a checksum of
each MiB of its body is remembered.  A piece that is read later is checked against these.  So it costs no more
than its own MiB, and it can be nothing else than what was verified.
"""

from dataclasses import dataclass

from crc32c import crc32c

from omq_storage.blocks import FRAME_HEADER
from omq_storage.database import Database
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import infos_from, viewed
from omq_storage.records import BLOCKS, BlockInfo, block_key

CHECKED_OCTETS = 1 << 20
"""So much of a body has one checksum; no piece reaches from one such part into the next."""


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """What is remembered of a message so that it can be read piece by piece."""

    topic: int
    id: int
    head: bytes
    """What it carries beside its body, empty without any."""
    size: int
    """Octets of its body."""
    checksums: tuple[int, ...]
    """CRC-32C of each CHECKED_OCTETS of its body.  The last part may be shorter; an empty body has one."""
    block: int
    """First message id of the block that it was found in."""
    at: int
    """Where its body begins in the stored value of that block."""


def look_at(database: Database, topic: int, message: int) -> LargeMessage | None:
    """A stored message; None when it is not stored any more.

    Raises DamagedBlock and NewerFormat, as ``lookup.viewed`` does.
    """
    failed: BlockInfo | None = None
    while True:
        with database.reading() as transaction:
            info = next(infos_from(transaction, topic, message), None)
        if info is None or info.first > message:
            return None
        try:
            return _look_into(database, topic, message, info)
        except DamagedBlock:
            if info == failed:
                raise
            failed = info  # it may have been merged into another one since


def _look_into(database: Database, topic: int, message: int, info: BlockInfo) -> LargeMessage:
    """A message of this block.  Raises DamagedBlock, too when the block is not there."""
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
    """Octets of its body from ``begin`` on: at most so many, and none beyond the part with the same checksum.

    None when its block is not there any more, or is not what it was: then it is to be looked at anew.
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
