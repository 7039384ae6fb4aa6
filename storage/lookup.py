"""How blocks are found in an environment: for the server that writes it, and for readers beside it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from storage.blocks import Block, unpack
from storage.database import Cursor, Reading
from storage.errors import DamagedBlock, NewerFormat
from storage.records import BlockInfo, Extent, block_key, key_topic, topic_key, unpack_extent, unpack_info

BLOCKS = b"blocks"
INDEX = b"index"
EXTENTS = b"extents"


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A verified block, and the stored value that it is a view of."""

    block: Block
    value: bytes


def extent_of(transaction: Reading, topic: int) -> Extent:
    """What is stored of a topic.  Raises StoreError when the record of it is damaged."""
    key = topic_key(topic)
    sealed = transaction.get(EXTENTS, key)
    return Extent() if sealed is None else unpack_extent(key, sealed)


def infos_from(transaction: Reading, topic: int, first: int) -> Iterator[BlockInfo]:
    """The records of the block that contains message ``first``, or else the next one, and of all after it."""
    cursor = transaction.cursor(INDEX)
    if not _seek(cursor, topic, first):
        return
    for key, sealed in cursor:
        if key_topic(key) != topic:
            return
        yield unpack_info(key, sealed)


def read_stored(
    reading: AbstractContextManager[Reading], topic: int, first: int, max_bytes: int, max_blocks: int
) -> list[StoredBlock]:
    """The block that contains message ``first``, or else the next after it, and those that follow; see
    ``Environment.read``.  Leaves the transaction as soon as everything is copied.
    """
    found: list[tuple[BlockInfo, bytes | None]] = []
    size = 0
    with reading as transaction:
        for info in infos_from(transaction, topic, first):
            size += info.bytes
            if found and (size > max_bytes or len(found) >= max_blocks):
                break
            found.append((info, transaction.get(BLOCKS, block_key(topic, info.first))))
    # Verified outside of the transaction, so that it does not hold room for longer than copying takes.
    blocks: list[StoredBlock] = []
    for info, value in found:
        try:
            blocks.append(verified(topic, info, value))
        except (DamagedBlock, NewerFormat):
            if not blocks:
                raise
            break  # the next call begins with this block, and raises
    return blocks


def verified(topic: int, info: BlockInfo, value: bytes | None) -> StoredBlock:
    """The block of a stored value.  Raises DamagedBlock, with the ids the index knows, and NewerFormat."""
    if value is None:
        raise DamagedBlock(topic, info.first, info.last, "its messages are missing")
    try:
        block = unpack(topic, info.first, value)
    except DamagedBlock as damage:
        raise DamagedBlock(topic, info.first, info.last, damage.why) from damage
    if block.count != info.count:
        raise DamagedBlock(topic, info.first, info.last, f"it has {block.count} messages")
    return StoredBlock(block, value)


def _seek(cursor: Cursor, topic: int, first: int) -> bool:
    """Moves to the block that contains message ``first``, or else the next of any topic, if there is one."""
    start = block_key(topic, first)
    found = cursor.set_range(start)
    if found and cursor.key() == start:
        return True
    before = cursor.prev() if found else cursor.last()
    if before and key_topic(cursor.key()) == topic and unpack_info(*cursor.item()).next > first:
        return True
    return cursor.set_range(start)
