"""Deletes the oldest blocks of a topic, a bounded number in one transaction."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from omq_storage.database import Writing
from omq_storage.extents import extent_of, put_extent
from omq_storage.fragments import put_loose
from omq_storage.lookup import infos_from
from omq_storage.producers import forget_producers
from omq_storage.records import (
    BLOCKS,
    EXTENTS,
    INDEX,
    POSITIONS,
    BlockRecord,
    Extent,
    TooOld,
    block_key,
    topic_key,
)

# Limits of one transaction, so that no other writer of the level waits long for it.
_BLOCKS_DELETED = 256
_OCTETS_DELETED = 64 << 20
_PRODUCERS_FORGOTTEN = 4096

Kept = Callable[[BlockRecord, Extent], bool]
"""Tells whether to keep the oldest block, with all that follow: gets its index record and the extent at that
moment.
"""


def within(max_bytes: int | None, too_old: TooOld | None, keep_from: int | None) -> Kept:
    """Return a function that keeps the messages within limits; see ``Environment.retain``."""

    def kept(info: BlockRecord, extent: Extent) -> bool:
        if keep_from is not None and info.next > keep_from:
            return True
        too_many = max_bytes is not None and extent.bytes > max_bytes and info.last != extent.last
        return not (too_many or (too_old is not None and _is_too_old(info, too_old)))

    return kept


def delete_oldest(
    transaction: Writing, topic: int, kept: Kept, divisor: int, *, forget: bool = False
) -> tuple[Extent, bool]:
    """Delete the oldest blocks up to the first that is ``kept``, and return the new extent.

    Deletes at most 256 blocks and 64 MiB, both divided by ``divisor``, but at least one block.  The second
    result is whether this limit ended the deletion.

    ``forget``: when no block is left, delete the extent and the position too.
    """
    extent = extent_of(transaction, topic)
    deleted: list[BlockRecord] = []
    following: BlockRecord | None = None
    octets = 0
    is_at_limit = False
    for info in infos_from(transaction, topic, 0):
        is_full = len(deleted) >= _BLOCKS_DELETED // divisor
        is_full |= not info.body and octets + info.bytes > _OCTETS_DELETED // divisor
        is_at_limit = is_full and bool(deleted)
        if is_at_limit or kept(info, extent):
            following = info
            break
        deleted.append(info)
        octets += 0 if info.body else info.bytes
        extent = extent.without_oldest(info)
    for info in deleted:
        key = block_key(topic, info.first)
        transaction.delete(INDEX, key)
        transaction.delete(BLOCKS, key)
        if info.body:
            put_loose(transaction, topic, info.body)
    if following is not None:
        extent = replace(extent, first=following.first)
    elif deleted:
        extent = extent.emptied()
    more = following is not None and is_at_limit
    if forget and following is None:
        transaction.delete(EXTENTS, topic_key(topic))
        transaction.delete(POSITIONS, topic_key(topic))
    elif deleted:
        put_extent(transaction, topic, extent)
    return extent, more


def drop_some(transaction: Writing, topics: Sequence[int], divisor: int) -> list[int]:
    """Delete everything that these topics have, within the limits of one transaction, which they share.
    Return the topics of which there may be more.
    """
    divisor *= max(1, len(topics))
    # Producers first and the extent last: while the extent exists, a restart knows that the deletion of the
    # topic is not complete.
    return [
        topic
        for topic in topics
        if forget_producers(transaction, topic, max(1, _PRODUCERS_FORGOTTEN // divisor))
        or delete_oldest(transaction, topic, _none_kept, divisor, forget=True)[1]
    ]


def _none_kept(info: BlockRecord, extent: Extent) -> bool:
    return False


def _is_too_old(info: BlockRecord, too_old: TooOld) -> bool:
    by_time = info.next <= too_old.time_below and info.time + info.span < too_old.time
    return by_time or info.next <= too_old.below
