"""Stored blocks to DMP envelopes: many messages at a time, each with the head that it had.

Only one thing in a head is not the message's: which idempotent producer wrote it, and as which of its
sequence. Kept, it would make a server that has seen the message take the copy for a
repetition. So the copies of such messages, and of all where somebody names a producer, are this replay's:
their sequence is the id that they have in the topic they come from.
"""

from dataclasses import dataclass, replace

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp import producer as dmp_producer
from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.dmp import writer as dmp_writer
from omq_storage.blocks import FRAME_HEADER, Block

_ONLY_IDS = b"\x00\x00\x00\x88"
"""Where a head begins that has no names, a message-id and an app-id, and nothing else."""


@dataclass(frozen=True, slots=True)
class Producer:
    """As whom a replay publishes a topic."""

    name: bytes
    """1 to 255 octets."""
    all: bool
    """Whether it numbers all messages, or only those that some producer had numbered."""


def envelopes(block: Block, messages: range, producer: Producer) -> bytes:
    """These messages of a block for a sink. Raises ValueError for messages the block does not have."""
    if block.heads is None and not producer.all:
        return dmp_writer.of_block(block, messages, smallest=0)
    begin, end = block.indexes(messages)
    heads = [head or PLAIN_HEAD for head in block.heads_from(messages.start)[: end - begin]]
    named = [renamed(head, message, producer) for head, message in zip(heads, messages, strict=True)]
    frames = block.slices(messages.start)[: end - begin]
    return dmp_writer.for_sink([bytes(frame[FRAME_HEADER:]) for frame in frames], named)


def renamed(head: bytes, message: int, producer: Producer) -> bytes:
    """The head of a copy: another message-id and app-id, if it gets them, and all else as it is."""
    if not producer.all and dmp_producer.origin(head) is None:
        return head
    if head == PLAIN_HEAD or head.startswith(_ONLY_IDS):
        digits = b"%d" % message
        return b"%b%c%b%c%b" % (_ONLY_IDS, len(digits), digits, len(producer.name), producer.name)
    taken = stored_head.decode(head)
    own = replace(taken.properties, message_id=b"%d" % message, app_id=producer.name)
    return stored_head.encode(replace(taken, properties=own))


def bodies_size(block: Block, messages: range) -> int:
    """Octets of the bodies of these messages, which follow one another."""
    frames = len(block.after(messages.start)) - len(block.after(messages.stop))
    return frames - FRAME_HEADER * len(messages)
