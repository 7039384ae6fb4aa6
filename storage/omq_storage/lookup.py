"""Finding blocks in an environment: for the server that writes it, and for other processes that read it.

The key of a block is its topic and its first message id, so the block that contains a message is the last one
whose key is not above the message.  The index has one short record for each block, under the same key.

A damaged index record must not hide the block after it.  So a lookup never raises for one: it takes the
numbers from the block itself, or, if the block is damaged too, from the key of the next one.  The caller then
learns of the damage when it reads the block, and with the right range of ids.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from omq_storage.blocks import Block, Octets, body_octets_at_most, body_octets_in, unpack
from omq_storage.database import Cursor, Reading, View
from omq_storage.errors import DamagedBlock, DamagedRecord, NewerFormat
from omq_storage.extents import extent_of
from omq_storage.fragments import MAGIC, Fragmented, assembled, info_of, unpack_fragmented
from omq_storage.records import (
    BLOCKS,
    INDEX,
    BlockRecord,
    block_info,
    block_key,
    key_block,
    topic_key,
    unpack_info,
)

_BLOCKS_LISTED = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VerifiedBlock:
    """A verified block, and the stored value that it is a view of."""

    block: Block
    value: bytes


class LargeBlock(Exception):
    """The stored value of the requested block is larger than the caller's limit; nothing was read."""

    def __init__(self, octets: int, message: Fragmented | None = None) -> None:
        """Refuse to read a block. ``octets``: size of the stored value. ``message``: the message, if it is
        stored in fragments; it can be read in pieces only.
        """
        super().__init__(f"a block of {octets} octets")
        self.octets = octets
        self.message = message


def infos_from(transaction: Reading, topic: int, first: int) -> Iterator[BlockRecord]:
    """Yield the index records of a topic in order.

    The first one is that of the block that contains message ``first``, or else of the next block.
    """
    cursor = transaction.cursor(INDEX)
    if not _seek(transaction, cursor, topic, first):
        return
    beginning = topic_key(topic)
    for key, stored in cursor:
        if not key.startswith(beginning):
            return
        info = _info_at(transaction, key, stored)
        if info is not None:
            yield info


def read_stored(
    reading: AbstractContextManager[Reading],
    topic: int,
    first: int,
    max_bytes: int,
    max_blocks: int,
    largest: int | None = None,
) -> list[VerifiedBlock]:
    """Return the blocks from message ``first`` on, as ``Environment.read`` describes.

    ``reading`` is used once and left as soon as the values are copied.  Raises LargeBlock when the first
    stored value has more than ``largest`` octets or is a message in fragments, and DamagedBlock and
    NewerFormat for the first block.
    """
    found: list[tuple[BlockRecord, bytes | None]] = []
    size = 0
    with reading as transaction:
        for info in infos_from(transaction, topic, first):
            size += info.bytes
            if info.body:
                if found:
                    break
                raise LargeBlock(size, described(topic, info, transaction.get(BLOCKS, _key(topic, info))))
            if largest is not None and not found and size > largest:
                raise LargeBlock(size)
            if found and (size > max_bytes or len(found) >= max_blocks):
                break
            found.append((info, transaction.get(BLOCKS, _key(topic, info))))
    # Verification comes after the transaction: an open read transaction keeps LMDB from reusing pages, so it
    # should last no longer than the copying.
    blocks: list[VerifiedBlock] = []
    for info, value in found:
        try:
            blocks.append(verified(topic, info, value))
        except (DamagedBlock, NewerFormat):
            if not blocks:
                raise
            break  # the next call begins with this block and raises
    return blocks


def use_stored(
    reading: Callable[[], AbstractContextManager[Reading]],
    viewing: Callable[[], AbstractContextManager[View]],
    topic: int,
    messages: range,
    use: Callable[[Block, range], T],
) -> Iterator[tuple[range, T]]:
    """Call ``use`` for each block that has some of these messages, and yield ids and results in order.

    ``use`` gets a verified block and the range of its message ids that were requested; no id comes twice.
    The block is a view of the memory map, so the result must not refer to it.  Each call runs in a
    transaction of its own, which has ended when the result is yielded.

    A message in fragments becomes a block in memory.

    Raises DamagedBlock and NewerFormat for a block when its turn comes, and fragments.TooLargeToHold for a
    message that is too large for a block.
    """
    position = messages.start
    failed: BlockRecord | None = None
    while position < messages.stop:
        with reading() as transaction:
            listed = list(islice(infos_from(transaction, topic, position), _BLOCKS_LISTED))
        if not listed:
            return
        for info in listed:
            # The block may begin before `position`: since the last listing, merging may have joined blocks
            # that were already used with the ones after them.
            wanted = range(max(position, info.first), min(messages.stop, info.next))
            if not wanted:
                return
            try:
                with viewing() as get:
                    result = use(_whole(get, topic, info), wanted)
            except DamagedBlock:
                # The block may be gone because it was merged into another since the listing. So list again;
                # if the index still has the same record, the block is really damaged.
                if info == failed:
                    raise
                failed = info
                break
            yield wanted, result
            position = wanted.stop


def sizes_of(
    viewing: AbstractContextManager[View], topic: int, infos: Iterable[BlockRecord]
) -> list[tuple[range, int]]:
    """Return the ids of each of these blocks, and the octets of the bodies of its messages.

    The index has them for blocks without heads and times of single messages; the others say them at their
    beginning. A block that is damaged, or was merged into another one meanwhile, is estimated.
    """
    sizes: list[tuple[range, int]] = []
    with viewing as get:
        for info in infos:
            octets = None
            if (info.heads or info.span) and not info.body:
                octets = body_octets_in(info.count, get(BLOCKS, _key(topic, info)))
            most = body_octets_at_most(info.count, info.bytes)
            sizes.append((range(info.first, info.next), most if octets is None else min(octets, most)))
    return sizes


def verified(topic: int, info: BlockRecord, value: bytes | None) -> VerifiedBlock:
    """Return the block of a stored value.

    Raises DamagedBlock, with the ids of the index, and NewerFormat.
    """
    if value is None:
        raise _missing(topic, info)
    return VerifiedBlock(_verified(topic, info, value), value)


def viewed(get: View, topic: int, info: BlockRecord) -> tuple[Block, memoryview]:
    """Return a verified block as a view of the map, and its stored value.

    Raises what ``verified`` raises.
    """
    value = get(BLOCKS, _key(topic, info))
    if value is None:
        raise _missing(topic, info)
    return _verified(topic, info, value), value


def described(topic: int, info: BlockRecord, value: Octets | None) -> Fragmented:
    """Return the message in fragments that this stored value describes.  Raises DamagedBlock."""
    if value is None:
        raise _missing(topic, info)
    message = unpack_fragmented(_key(topic, info), value)
    if message.body != info.body:
        raise DamagedBlock(topic, info.first, info.last, "its description is of another body")
    return message


def _whole(get: View, topic: int, info: BlockRecord) -> Block:
    """Return a verified block, also of a message in fragments.

    Raises what ``verified`` raises, and TooLargeToHold.
    """
    if info.body:
        return assembled(get, described(topic, info, get(BLOCKS, _key(topic, info))))
    return viewed(get, topic, info)[0]


def _key(topic: int, info: BlockRecord) -> bytes:
    return block_key(topic, info.first)


def _missing(topic: int, info: BlockRecord) -> DamagedBlock:
    return DamagedBlock(topic, info.first, info.last, "its messages are missing")


def _verified(topic: int, info: BlockRecord, value: Octets) -> Block:
    try:
        block = unpack(topic, info.first, value)
    except DamagedBlock as damage:
        raise DamagedBlock(topic, info.first, info.last, damage.why) from damage
    if block.count != info.count:
        raise DamagedBlock(topic, info.first, info.last, f"it has {block.count} messages")
    return block


def _seek(transaction: Reading, cursor: Cursor, topic: int, first: int) -> bool:
    """Move to the block that contains message ``first``, or else to the next block of any topic.

    Return False if there is none.
    """
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


def _info_at(transaction: Reading, key: bytes, stored: bytes) -> BlockRecord | None:
    """Return the index record under this key, or one made from the block if the record is damaged.

    If the block is damaged too, the returned record has all ids up to the next block, so that ``verified``
    raises DamagedBlock with a range that covers the loss.  Return None if the key has the wrong length.
    """
    try:
        return unpack_info(key, stored)
    except DamagedRecord:
        pass
    try:
        topic, first = key_block(key)
    except DamagedRecord:
        return None
    value = transaction.get(BLOCKS, key)
    if value is not None:
        try:
            if value.startswith(MAGIC):
                return info_of(unpack_fragmented(key, value))
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
    return BlockRecord(first, end - first, 0, 0, 0)
