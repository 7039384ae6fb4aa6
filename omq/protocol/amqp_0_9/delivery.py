"""Messages from the server: Basic.Deliver, Basic.Get-Ok and Basic.Return with their contents.

Exchange, routing key and properties come from the stored head of a message, octet for octet. Only the headers
that the server itself adds change it: a message id for replays (`x-stream-offset`) and the number of
deliveries (`x-delivery-count`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct

from omq.protocol.amqp import shortstr
from omq.protocol.amqp_0_9 import openamq
from omq.protocol.amqp_0_9.frames import (
    BASIC,
    CONTENT,
    END,
    FRAME,
    OVERHEAD,
    FrameType,
    body_frames,
    content,
)
from omq.protocol.amqp_0_9.methods import BasicGetOk, BasicReturn
from omq_storage.blocks import FRAME_HEADER, Block

Octets = bytes | memoryview

STREAM_OFFSET = b"x-stream-offset"
DELIVERY_COUNT = b"x-delivery-count"

_DELIVER = b"\x00\x3c\x00\x3c"
_HEADERS = 0x2000
_BEFORE_HEADERS = (0x8000, 0x4000)
_FLAGS = Struct(">H")
_LENGTH = Struct(">I")
_ENTRY_VALUE = Struct(">cq")
_TAG = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Consumer:
    """How the messages of one consumer are framed."""

    channel: int
    tag: bytes
    frame_max: int
    default_head: bytes
    """The head of messages that were stored without one: exchange "", and the name of the topic as key."""
    is_stream: bool = False
    """Whether each message gets its id as the header `x-stream-offset`."""
    is_openamq: bool = False


def names_end(head: bytes) -> int:
    """Where the property flags of a stored head begin."""
    key_at = 1 + head[0]
    return key_at + 1 + head[key_at]


def names(head: bytes) -> tuple[bytes, bytes]:
    """The exchange and the routing key of a stored head."""
    key_at = 1 + head[0]
    return head[1:key_at], head[key_at + 1 : names_end(head)]


def properties(head: bytes) -> bytes:
    """The property flags and the properties of a stored head."""
    return head[names_end(head) :]


def with_number(octets: bytes, name: bytes, number: int) -> bytes:
    """Append a header of type `l` to property flags and properties.

    If there is one of this name already, as in a message that was published again, this one is the last.
    """
    entry = shortstr.write(name, "a header") + _ENTRY_VALUE.pack(b"l", number)
    (flags,) = _FLAGS.unpack_from(octets)
    at = _FLAGS.size
    for flag in _BEFORE_HEADERS:
        if flags & flag:
            at += 1 + octets[at]
    if not flags & _HEADERS:
        table = _LENGTH.pack(len(entry)) + entry
        return _FLAGS.pack(flags | _HEADERS) + octets[_FLAGS.size : at] + table + octets[at:]
    (length,) = _LENGTH.unpack_from(octets, at)
    end = at + _LENGTH.size + length
    return b"".join(
        (octets[:at], _LENGTH.pack(length + len(entry)), octets[at + _LENGTH.size : end], entry, octets[end:])
    )


@lru_cache(maxsize=256)
def _around(
    channel: int, consumer_tag: bytes, redelivered: bool, exchange_and_key: bytes, octets: bytes
) -> tuple[bytes, bytes, bytes]:
    """What stands before the delivery tag, between it and the size of the body, and after that."""
    named = _DELIVER + shortstr.write(consumer_tag, "the consumer tag")
    after = bytes((redelivered,)) + exchange_and_key
    size = len(named) + _TAG.size + len(after)
    return (
        FRAME.pack(FrameType.METHOD, channel, size) + named,
        b"".join(
            (
                after,
                END,
                FRAME.pack(FrameType.HEADER, channel, CONTENT.size + len(octets)),
                CONTENT.pack(BASIC, 0, 0)[: -_TAG.size],
            )
        ),
        octets + END,
    )


def opening(
    consumer: Consumer, delivery_tag: int, message: int, head: bytes, size: int, deliveries: int = 0
) -> bytes:
    """Everything of one delivery that precedes its body frames: the method and the content header."""
    head = head or consumer.default_head
    at = names_end(head)
    octets = head[at:]
    if consumer.is_stream:
        octets = with_number(octets, STREAM_OFFSET, message)
    elif deliveries:
        octets = with_number(octets, DELIVERY_COUNT, deliveries)
    if consumer.is_openamq:
        octets = openamq.narrowed_properties(octets)
    before, between, after = _around(consumer.channel, consumer.tag, deliveries > 0, head[:at], octets)
    return b"".join((before, _TAG.pack(delivery_tag), between, _TAG.pack(size), after))


def deliveries(
    consumer: Consumer, delivery_tag: int, block: Block, messages: range, deliveries: int = 0
) -> bytes:
    """The frames of these messages of a block, with delivery tags from `delivery_tag` on.

    `deliveries` is how often each of them was delivered before.
    """
    return deliveries_plain(consumer, delivery_tag, block, messages, deliveries)


def deliveries_plain(
    consumer: Consumer, delivery_tag: int, block: Block, messages: range, deliveries: int = 0
) -> bytes:
    """`deliveries` in plain Python."""
    begin, end = block.indexes(messages)
    step = messages.step
    frames = block.slices(block.first + begin)[: end - begin : step]
    heads = block.heads_from(block.first + begin)[: end - begin : step]
    parts: list[Octets] = []
    for tag, message, head, frame in zip(
        range(delivery_tag, delivery_tag + len(frames)), messages, heads, frames, strict=True
    ):
        body = frame[FRAME_HEADER:]
        parts.append(opening(consumer, tag, message, head, len(body), deliveries))
        parts += body_frames(consumer.channel, body, consumer.frame_max)
    return b"".join(parts)


def complete(parts: Sequence[Octets], octets: int) -> tuple[int, int]:
    """How many whole deliveries the first `octets` octets of these parts have, and how many octets of the
    next one. No part ends within the first seven octets of a frame.
    """
    count = -1  # a delivery is complete where the next one begins
    begun_at = total = position = 0
    for part in parts:
        while position < len(part):
            kind, _, size = FRAME.unpack_from(part, position)
            if kind == FrameType.METHOD:
                if total > octets:
                    return count, octets - begun_at
                count += 1
                begun_at = total
            total += OVERHEAD + size
            position += OVERHEAD + size
        position -= len(part)
    if total <= octets:
        return count + 1, octets - total
    return max(count, 0), octets - begun_at


def get_ok(
    consumer: Consumer, delivery_tag: int, message_count: int, head: bytes, body: bytes, deliveries: int = 0
) -> bytes:
    """Basic.Get-Ok with its message. `consumer` has no tag; its queue has `message_count` more messages."""
    head = head or consumer.default_head
    octets = properties(head)
    if deliveries:
        octets = with_number(octets, DELIVERY_COUNT, deliveries)
    if consumer.is_openamq:
        octets = openamq.narrowed_properties(octets)
    method = BasicGetOk(delivery_tag, deliveries > 0, *names(head), message_count)
    return content(consumer.channel, method, octets, body, consumer.frame_max)


def returned(
    channel: int,
    frame_max: int,
    code: int,
    text: bytes,
    head: bytes,
    body: bytes,
    *,
    to_openamq: bool = False,
) -> bytes:
    """Basic.Return with a message that could not be routed, for example 312 `NO_ROUTE`."""
    octets = properties(head)
    if to_openamq:
        octets = openamq.narrowed_properties(octets)
    return content(channel, BasicReturn(code, text, *names(head)), octets, body, frame_max)
