"""Messages from the server: Basic.Deliver, Basic.Get-Ok and Basic.Return with their contents.

Exchange, routing key and properties come from the stored head of a message, octet for octet. Only the headers
that the server itself adds change it: a message id for replays (`x-stream-offset`) and the number of
deliveries (`x-delivery-count`).
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import msgspec

from omq.protocol.amqp import openamq, shortstr
from omq.protocol.amqp.head import names, names_end
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp.properties import HEADERS, flags_of, headers_at
from omq.protocol.amqp_0_9.frames import (
    CONTENT,
    FRAME,
    OVERHEAD,
    FrameType,
    body_frames,
    content,
    frame,
    header_frame,
    method_frame,
)
from omq.protocol.amqp_0_9.methods import BasicGetOk, BasicReturn
from omq.protocol.amqp_1_0.expansion import expanded
from omq.protocol.amqp_1_0.stored import is_head
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.numbers import Octets

STREAM_OFFSET = b"x-stream-offset"
DELIVERY_COUNT = b"x-delivery-count"

_DELIVER = b"\x00\x3c\x00\x3c"
_FLAGS = Struct(">H")
_LENGTH = Struct(">I")
_ENTRY_VALUE = Struct(">cq")
_COUNT_VALUE = Struct(">ci")
_MOST_COUNTED = (1 << 31) - 1
_NUMBER = Struct(">Q")

_LONGEST_CACHED = 512
"""The longest head, in octets, for which the octets of a delivery are kept."""


class ConsumerFraming(msgspec.Struct, frozen=True):
    """The framing of the messages of one consumer."""

    channel: int
    tag: bytes
    frame_max: int
    default_head: bytes
    """The head of messages that were stored without one: exchange "", and the name of the topic as key."""
    is_stream: bool = False
    """Whether each message gets its id as the header `x-stream-offset`."""
    is_openamq: bool = False
    is_quorum: bool = False
    """Whether it is a queue of type `quorum`."""


def properties(head: bytes) -> bytes:
    """Return the property flags and the properties of a stored head."""
    return head[names_end(head) :]


def with_number(octets: bytes, name: bytes, number: int) -> bytes:
    """Append a header of type `l` to property flags and properties.

    If there is one of this name already, as in a message that was published again, this one is the last.
    """
    return _with_entry(octets, name, _ENTRY_VALUE.pack(b"l", number))


def _with_count(consumer: ConsumerFraming, octets: bytes, deliveries: int) -> bytes:
    """Append the header that tells how often a message was delivered before.

    Quorum queues of RabbitMQ have it with type `l`. Other queues of RabbitMQ have none, and some clients of
    these cannot read that type: they get `I`.
    """
    if consumer.is_quorum:
        return with_number(octets, DELIVERY_COUNT, deliveries)
    return _with_entry(octets, DELIVERY_COUNT, _COUNT_VALUE.pack(b"I", min(deliveries, _MOST_COUNTED)))


def _with_entry(octets: bytes, name: bytes, value: bytes) -> bytes:
    entry = shortstr.write(name, "a header") + value
    at, end = _headers(octets)
    table = octets[at + _LENGTH.size : end] + entry
    return b"".join(
        (
            _FLAGS.pack(flags_of(octets) | HEADERS),
            octets[_FLAGS.size : at],
            _LENGTH.pack(len(table)),
            table,
            octets[end:],
        )
    )


def _headers(octets: bytes) -> tuple[int, int]:
    """Return the index at which the headers table of these properties begins, or would begin, and its end."""
    at = headers_at(octets)
    if not flags_of(octets) & HEADERS:
        return at, at
    return at, at + _LENGTH.size + _LENGTH.unpack_from(octets, at)[0]


class _Template(msgspec.Struct, frozen=True):
    """Everything of a delivery that precedes its body frames, and where its numbers are."""

    octets: bytes
    tag_at: int
    size_at: int
    id_at: int
    """The index of the message id in the octets; -1 if it is not there."""

    def filled(self, delivery_tag: int, message: int, size: int) -> bytes:
        """Return the octets with these numbers."""
        octets = bytearray(self.octets)
        _NUMBER.pack_into(octets, self.tag_at, delivery_tag)
        _NUMBER.pack_into(octets, self.size_at, size)
        if self.id_at >= 0:
            _NUMBER.pack_into(octets, self.id_at, message)
        return bytes(octets)


def _shown(consumer: ConsumerFraming, head: bytes, portion: Portion) -> bytes:
    """Return the head that the client gets for a stored one."""
    if not head:
        return consumer.default_head
    return expanded(head, names(consumer.default_head)[1], portion) if is_head(head) else head


def _template(consumer: ConsumerFraming, head: bytes, deliveries: int, portion: Portion) -> _Template:
    head = _shown(consumer, head, portion)
    if consumer.is_openamq and openamq.may_have_times(head):
        portion.spend(head)
    portion.spend_framed(head)
    # Long heads are rarely alike, and would fill the memory.
    made = _cached if len(head) <= _LONGEST_CACHED else _made
    return made(consumer, head, deliveries)


def _made(consumer: ConsumerFraming, head: bytes, deliveries: int) -> _Template:
    at = names_end(head)
    octets = head[at:]
    if consumer.is_stream:
        octets = with_number(octets, STREAM_OFFSET, 0)
    elif deliveries:
        octets = _with_count(consumer, octets, deliveries)
    if consumer.is_openamq:
        octets = openamq.narrowed_properties(octets)
    before = _DELIVER + shortstr.write(consumer.tag, "the consumer tag")
    method = b"%b%b%b%b" % (before, bytes(_NUMBER.size), bytes((deliveries > 0,)), head[:at])
    whole = frame(FrameType.METHOD, consumer.channel, method)
    content_at = len(whole) + FRAME.size
    # The server adds the last of the headers, and its number is the last part of that header.
    id_at = content_at + CONTENT.size + _headers(octets)[1] - _NUMBER.size if consumer.is_stream else -1
    whole += header_frame(consumer.channel, octets, 0)
    return _Template(whole, FRAME.size + len(before), content_at + CONTENT.size - _NUMBER.size, id_at)


_cached = lru_cache(maxsize=1024)(_made)


def opening(
    consumer: ConsumerFraming,
    delivery_tag: int,
    message: int,
    head: bytes,
    size: int,
    portion: Portion,
    deliveries: int = 0,
) -> bytes:
    """Return everything of one delivery that precedes its body frames: the method and the content header. The
    head counts in `portion`.
    """
    return _template(consumer, head, deliveries, portion).filled(delivery_tag, message, size)


def deliveries(
    consumer: ConsumerFraming,
    delivery_tag: int,
    block: Block,
    messages: range,
    portion: Portion,
    deliveries: int = 0,
) -> tuple[bytes, int]:
    """Return the frames of these messages of a block, with delivery tags from `delivery_tag` on, up to the
    first message with another head than the one before when `portion` is spent; and the number of these
    messages.

    `deliveries` is how often each of them was delivered before.
    """
    if codec.COMPILED:

        def template(head: bytes) -> tuple[bytes, int, int, int] | None:
            if portion.is_spent:
                return None
            made = _template(consumer, head, deliveries, portion)
            return made.octets, made.tag_at, made.size_at, made.id_at

        begin, end = block.indexes(messages)
        heads = block.heads
        written = codec.native.deliveries(
            block.frames, block.offsets,
            None if heads is None else heads.offsets, None if heads is None else heads.octets,
            begin, end, messages.step,
            consumer.channel, delivery_tag, consumer.frame_max, block.first + begin, template,
        )  # fmt: skip
        if written is not None:
            return written
    return deliveries_plain(consumer, delivery_tag, block, messages, portion, deliveries)


def deliveries_plain(
    consumer: ConsumerFraming,
    delivery_tag: int,
    block: Block,
    messages: range,
    portion: Portion,
    deliveries: int = 0,
) -> tuple[bytes, int]:
    """Do as `deliveries`, in plain Python."""
    begin, end = block.indexes(messages)
    step = messages.step
    frames = block.slices(block.first + begin)[: end - begin : step]
    heads = block.heads_from(block.first + begin)[: end - begin : step]
    parts: list[Octets] = []
    known: bytes | None = None
    for count, (message, head, octets) in enumerate(zip(messages, heads, frames, strict=True)):
        if head != known:
            if portion.is_spent:
                return b"".join(parts), count
            template, known = _template(consumer, head, deliveries, portion), head
        body = octets[FRAME_HEADER:]
        parts.append(template.filled(delivery_tag + count, message, len(body)))
        parts += body_frames(consumer.channel, body, consumer.frame_max)
    return b"".join(parts), len(frames)


def complete(parts: Sequence[Octets], octets: int) -> tuple[int, int]:
    """Return the number of whole deliveries in the first N `octets` of these parts, and the number of octets
    of the next one. No part ends within the first seven octets of a frame.
    """
    if codec.COMPILED:
        found = codec.native.complete(parts, octets)
        if found is not None:
            return found
    return complete_plain(parts, octets)


def complete_plain(parts: Sequence[Octets], octets: int) -> tuple[int, int]:
    """Do as `complete`, in plain Python."""
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


def get_opening(
    consumer: ConsumerFraming,
    delivery_tag: int,
    message_count: int,
    head: bytes,
    size: int,
    deliveries: int = 0,
) -> bytes:
    """Return everything of a Basic.Get-Ok that precedes its body frames. `consumer` has no tag; its queue has
    `message_count` more messages.
    """
    head = _shown(consumer, head, Portion())
    octets = properties(head)
    if deliveries:
        octets = _with_count(consumer, octets, deliveries)
    if consumer.is_openamq:
        octets = openamq.narrowed_properties(octets)
    method = BasicGetOk(delivery_tag, deliveries > 0, *names(head), message_count)
    return method_frame(consumer.channel, method) + header_frame(consumer.channel, octets, size)


def returned(
    channel: int,
    frame_max: int,
    code: int,
    text: bytes,
    head: bytes,
    body: bytes,
    *,
    to_openamq: bool = False,
) -> Sequence[Octets]:
    """Return the parts of Basic.Return with a message that could not be routed, for example 312
    `NO_ROUTE`.
    """
    octets = properties(head)
    if to_openamq:
        octets = openamq.narrowed_properties(octets)
    return content(channel, BasicReturn(code, text, *names(head)), octets, body, frame_max)
