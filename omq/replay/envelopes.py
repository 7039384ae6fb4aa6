"""Convert stored blocks to DMP envelopes, many messages at a time, with their original heads.

A replay replaces only one part of a head: the name and the sequence number of an idempotent producer. With
these unchanged, a server that has seen the message would take the copy for a repetition. So copies of such
messages, and with `--producer` all copies, carry the replay's producer name, and their id in the source topic
as sequence number.
"""

from dataclasses import dataclass

from omq.protocol.amqp.head import PLAIN_HEAD
from omq.protocol.amqp.producer import origin, renumbered
from omq.protocol.dmp import writer as dmp_writer
from omq_storage.blocks import FRAME_HEADER, Block


@dataclass(frozen=True, slots=True)
class ReplayProducer:
    """The producer of a replayed topic."""

    name: bytes
    """1 to 255 octets."""
    all: bool
    """Whether it numbers all messages, or only those that came from an idempotent producer."""


def envelopes(block: Block, messages: range, producer: ReplayProducer) -> bytes:
    """Encode messages of a block for a sink. Raises ValueError for messages outside of the block."""
    if block.heads is None and not producer.all:
        return dmp_writer.of_block(block, messages, smallest=0)
    begin, end = block.indexes(messages)
    heads = [head or PLAIN_HEAD for head in block.heads_from(messages.start)[: end - begin]]
    named = [renamed(head, message, producer) for head, message in zip(heads, messages, strict=True)]
    frames = block.slices(messages.start)[: end - begin]
    return dmp_writer.for_sink([bytes(frame[FRAME_HEADER:]) for frame in frames], named)


def renamed(head: bytes, message: int, producer: ReplayProducer) -> bytes:
    """Return the head of a copy: with the replay's message-id and app-id if needed, and otherwise
    unchanged.
    """
    if not producer.all and origin(head) is None:
        return head
    return renumbered(head, producer.name, message)


def bodies_size(block: Block, messages: range) -> int:
    """Return the total size of the bodies of consecutive messages, in octets."""
    frames = len(block.after(messages.start)) - len(block.after(messages.stop))
    return frames - FRAME_HEADER * len(messages)
