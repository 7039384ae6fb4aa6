"""How blocks are found in an environment: for the server that writes it, and for readers beside it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from omq_storage.blocks import Block, Octets, unpack
from omq_storage.database import Cursor, Reading, View
from omq_storage.errors import DamagedBlock, DamagedRecord, NewerFormat
from omq_storage.records import (
    BLOCKS,
    EXTENTS,
    INDEX,
    BlockInfo,
    Extent,
    block_info,
    block_key,
    key_block,
    topic_key,
    unpack_extent,
    unpack_info,
)

_LISTED_AT_ONCE = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A verified block, and the stored value that it is a view of."""

    block: Block
    value: bytes


class LargeBlock(Exception):
    """The block that was to be read is larger than the reader wants; nothing of it was read."""

    def __init__(self, octets: int) -> None:
        """``octets``: how large its stored value is."""
        super().__init__(f"a block of {octets} octets")
        self.octets = octets


def extent_of(transaction: Reading, topic: int) -> Extent:
    """What is stored of a topic.  Raises StoreError when the record of it is damaged."""
    key = topic_key(topic)
    sealed = transaction.get(EXTENTS, key)
    return Extent() if sealed is None else unpack_extent(key, sealed)


def infos_from(transaction: Reading, topic: int, first: int) -> Iterator[BlockInfo]:
    """The records of the block that contains message ``first``, or else the next one, and of all after it."""
    cursor = transaction.cursor(INDEX)
    if not _seek(transaction, cursor, topic, first):
        return
    beginning = topic_key(topic)
    for key, sealed in cursor:
        if not key.startswith(beginning):
            return
        info = _info_at(transaction, key, sealed)
        if info is not None:
            yield info


def read_stored(
    reading: AbstractContextManager[Reading],
    topic: int,
    first: int,
    max_bytes: int,
    max_blocks: int,
    largest: int | None = None,
) -> list[StoredBlock]:
    """The block that contains message ``first``, or else the next after it, and those that follow; see
    ``Environment.read``.  Leaves the transaction as soon as everything is copied.

    Raises LargeBlock when the first of them has more than ``largest`` octets.
    """
    found: list[tuple[BlockInfo, bytes | None]] = []
    size = 0
    with reading as transaction:
        for info in infos_from(transaction, topic, first):
            size += info.bytes
            if largest is not None and not found and size > largest:
                raise LargeBlock(size)
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


def use_stored(
    reading: Callable[[], AbstractContextManager[Reading]],
    viewing: Callable[[], AbstractContextManager[View]],
    topic: int,
    messages: range,
    use: Callable[[Block, range], T],
) -> Iterator[tuple[range, T]]:
    """What ``use`` makes of these messages, block by block, and of which: it is given each block, verified,
    and the ids of those of its messages that are meant.  They come in order, and none twice.

    The blocks lie in the map, so what is made must keep nothing of them.  Each is used in a transaction of
    its own, which has ended when the result comes.

    Raises DamagedBlock and NewerFormat for a block when its turn comes.
    """
    position = messages.start
    failed: BlockInfo | None = None
    while position < messages.stop:
        with reading() as transaction:
            listed = list(islice(infos_from(transaction, topic, position), _LISTED_AT_ONCE))
        if not listed:
            return
        for info in listed:
            # It may begin before: meanwhile what was read of it before may have been merged into it.
            meant = range(max(position, info.first), min(messages.stop, info.next))
            if not meant:
                return
            try:
                with viewing() as get:
                    made = use(viewed(get, topic, info)[0], meant)
            except DamagedBlock:
                if info == failed:
                    raise
                failed = info  # it may have been merged into another one since it was listed
                break
            yield meant, made
            position = meant.stop


def verified(topic: int, info: BlockInfo, value: bytes | None) -> StoredBlock:
    """The block of a stored value.  Raises DamagedBlock, with the ids the index knows, and NewerFormat."""
    if value is None:
        raise _missing(topic, info)
    return StoredBlock(_verified(topic, info, value), value)


def viewed(get: View, topic: int, info: BlockInfo) -> tuple[Block, memoryview]:
    """The block where it lies in the map, verified, and its stored value.  Raises what ``verified`` does."""
    value = get(BLOCKS, block_key(topic, info.first))
    if value is None:
        raise _missing(topic, info)
    return _verified(topic, info, value), value


def _missing(topic: int, info: BlockInfo) -> DamagedBlock:
    return DamagedBlock(topic, info.first, info.last, "its messages are missing")


def _verified(topic: int, info: BlockInfo, value: Octets) -> Block:
    try:
        block = unpack(topic, info.first, value)
    except DamagedBlock as damage:
        raise DamagedBlock(topic, info.first, info.last, damage.why) from damage
    if block.count != info.count:
        raise DamagedBlock(topic, info.first, info.last, f"it has {block.count} messages")
    return block


def _seek(transaction: Reading, cursor: Cursor, topic: int, first: int) -> bool:
    """Moves to the block that contains message ``first``, or else the next of any topic, if there is one."""
    start = block_key(topic, first)
    found = cursor.set_range(start)
    if found and cursor.key() == start:
        return True
    before = cursor.prev() if found else cursor.last()
    if before and cursor.key().startswith(topic_key(topic)):
        info = _info_at(transaction, *cursor.item())
        if info is not None and info.next > first:
            return True
    return cursor.set_range(start)


def _info_at(transaction: Reading, key: bytes, sealed: bytes) -> BlockInfo | None:
    """The record of a block.  Where it is damaged, what the block itself says, or else the ids up to the next
    block, which ``verified`` then finds damaged.  None for a key that is none.
    """
    try:
        return unpack_info(key, sealed)
    except DamagedRecord:
        pass
    try:
        topic, first = key_block(key)
    except DamagedRecord:
        return None
    value = transaction.get(BLOCKS, key)
    if value is not None:
        try:
            return block_info(unpack(topic, first, value), value)
        except (DamagedBlock, NewerFormat):
            pass
    cursor = transaction.cursor(INDEX)
    end = first + 1
    if cursor.set_range(key + b"\0") and cursor.key().startswith(topic_key(topic)):
        try:
            end = key_block(cursor.key())[1]
        except DamagedRecord:
            pass
    else:
        end = max(end, extent_of(transaction, topic).next)
    return BlockInfo(first, end - first, 0, 0, 0)
