"""Make the heads of a sink's messages; with a producer's name each message gets a sequence number.

See docs/PROTOCOL.md, "Idempotent producers".
"""

from dataclasses import replace

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import shortstr
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.producer import numbered_heads
from omq.protocol.amqp.properties import Properties

LARGEST_NUMBER = 2**64 - 1


NO_PROPERTIES = Properties()


class SinkHeads:
    """Makes the heads of messages. With a producer, `next` is the sequence number of the next message."""

    def __init__(self, producer: bytes | None, first: int) -> None:
        """Create heads that number messages from `first` on. Raise ValueError for an invalid producer name or
        first number.
        """
        if producer is not None and not producer:
            raise ValueError("a producer has a name")
        if not 0 <= first <= LARGEST_NUMBER:
            raise ValueError(f"{first} is no number for a message: 0 to {LARGEST_NUMBER} are")
        if producer is not None:
            shortstr.write(producer, "the producer's name")
        self._producer = producer
        self.next = first

    def following(self, count: int, head: Head | None) -> list[bytes]:
        """Make the heads of the next `count` messages, with the values of `head`; empty if all heads are
        empty.

        Raises ValueError for a head that cannot be encoded, and for one with properties that the producer
        sets.
        """
        if self._producer is None:
            return [] if head is None else [stored_head.encode(head)] * count
        numbers = range(self.next, self.next + count)
        if numbers.stop > LARGEST_NUMBER + 1:
            raise ValueError("the producer's numbers are used up")
        return numbered_heads(self._producer, numbers) if head is None else self._beside(head, numbers)

    def sent(self, count: int) -> None:
        """Advance the sequence number: `count` messages were queued."""
        if self._producer is not None:
            self.next += count

    def _beside(self, head: Head, numbers: range) -> list[bytes]:
        properties = replace(head.properties, app_id=self._producer)
        if head.properties.message_id is not None or head.properties.app_id is not None:
            raise ValueError("a sink with a producer sets message-id and app-id itself")
        return [
            stored_head.encode(replace(head, properties=replace(properties, message_id=b"%d" % number)))
            for number in numbers
        ]


def head_of(exchange: bytes, routing_key: bytes, properties: Properties | None) -> Head | None:
    """Return the head with these values; None if it is empty."""
    if not exchange and not routing_key and (properties is None or properties == NO_PROPERTIES):
        return None
    return Head(exchange, routing_key, NO_PROPERTIES if properties is None else properties)
