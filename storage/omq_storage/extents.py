"""The extents of topics in one environment."""

from omq_storage.database import Reading, Writing
from omq_storage.records import EXTENTS, Extent, pack_extent, topic_key, unpack_extent


def extent_of(transaction: Reading, topic: int) -> Extent:
    """Return the extent of a topic; one with zeros if the topic never had a message.

    Raises DamagedRecord.
    """
    key = topic_key(topic)
    stored = transaction.get(EXTENTS, key)
    return Extent() if stored is None else unpack_extent(key, stored)


def put_extent(transaction: Writing, topic: int, extent: Extent) -> None:
    """Store the extent of a topic."""
    key = topic_key(topic)
    transaction.put(EXTENTS, key, pack_extent(key, extent))
