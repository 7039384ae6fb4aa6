"""The expiry of messages of a queue: by the time to live of the queue, and by the property expiration."""

import time
from functools import lru_cache

from omq.protocol.amqp import head as heads
from omq.protocol.amqp import properties
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented

EXPIRATION = 0x0100
"""The property flag of expiration."""

PRIORITY = 0x0800
"""The property flag of priority."""


def now() -> int:
    """Return the time in microseconds since the epoch: the times of messages are of the same clock."""
    return time.time_ns() // 1000


@lru_cache(256)
def expiration_ms(head: bytes) -> int | None:
    """Return the property expiration in milliseconds; None for a message that has none."""
    # Without its headers: those of a message that died in many queues are long.
    text = properties.strings(head, heads.names_end(head)).get("expiration") if head else None
    return int(text) if text is not None and text.isdigit() else None


def flags(block: Block | Fragmented) -> int:
    """Return the property flags that any message of the block has."""
    return 0 if block.heads is None else block.heads.property_flags()


def expiry(block: Block | Fragmented, message: int, ttl: int | None) -> int | None:
    """Return the time at which a message of a queue with this time to live expires, in microseconds; None for
    never.
    """
    own = expiration_ms(block.head(message))
    if own is not None:
        ttl = own * 1000 if ttl is None else min(ttl, own * 1000)
    return None if ttl is None else block.message_time(message) + ttl
