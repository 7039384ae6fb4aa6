"""Stores blocks of any topics in one transaction."""

from collections.abc import Mapping, Sequence

from omq_storage.blocks import Block, pack
from omq_storage.database import Writing
from omq_storage.errors import StoreError
from omq_storage.extents import extent_of, put_extent
from omq_storage.fragments import Fragmented, info_of, pack_fragmented, take_loose
from omq_storage.producers import keep_sequences
from omq_storage.records import BLOCKS, INDEX, Extent, block_info, block_key, pack_info


def packed(block: Block | Fragmented) -> bytes:
    """Return the stored value of a block."""
    return pack_fragmented(block) if isinstance(block, Fragmented) else pack(block)


def append_blocks(
    transaction: Writing,
    blocks: Sequence[Block | Fragmented],
    values: Sequence[bytes],
    sequences: Mapping[int, Mapping[bytes, int]],
) -> dict[int, Extent]:
    """Store blocks with these values in a transaction, see ``Environment.append``."""
    extents: dict[int, Extent] = {}
    newest = transaction.cursor(INDEX)
    highest = newest.key() if newest.last() else b""
    for block, value in zip(blocks, values, strict=True):
        topic = block.topic
        extent = extents[topic] if topic in extents else extent_of(transaction, topic)
        if block.first < extent.next:
            raise StoreError(f"Message {block.first} of topic {topic} cannot be stored after {extent.last}.")
        key = block_key(topic, block.first)
        if isinstance(block, Fragmented):
            take_loose(transaction, block)
            info = info_of(block)
        else:
            info = block_info(block, value)
        at_end = key > highest
        transaction.put(BLOCKS, key, value, at_end=at_end)
        transaction.put(INDEX, key, pack_info(key, info), at_end=at_end)
        highest = max(highest, key)
        extents[topic] = extent.extended(info.first, info.last, info.bytes)
    for topic, extent in extents.items():
        put_extent(transaction, topic, extent)
    for topic, last in sequences.items():
        keep_sequences(transaction, topic, last)
    return extents
