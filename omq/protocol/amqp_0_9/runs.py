"""Runs of Basic.Publish and of Basic.Ack: the input that clients send most, read many frames at a time.

A function here takes frames from a position on as long as they have the common form, and leaves every other
frame to the connection, which parses it by itself and knows the error. So it never raises.
"""

from functools import lru_cache
from struct import Struct

import msgspec

from omq.protocol.amqp import properties as stored_properties
from omq.protocol.amqp.head import MAX_HEAD
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9.events import PublishRun
from omq.protocol.amqp_0_9.frames import BASIC, CONTENT, FRAME, OVERHEAD, FrameType
from omq_storage import codec
from omq_storage.batches import Bodies, batch

MESSAGES_A_STEP = 512
"""The most messages that one call takes in plain Python."""

COMPILED_MESSAGES_A_STEP = 8 << 10
"""The same with the compiled codec."""

ACKS_A_STEP = 4096
"""The most acknowledgements that one call takes."""

_PUBLISH = b"\x00\x3c\x00\x28"
ACK_IDS = b"\x00\x3c\x00\x50"
_MANDATORY = 1
_METHOD_AT = FRAME.size
_NAMES_AT = _METHOD_AT + len(_PUBLISH) + 2
_END = 0xCE


class RunLimits(msgspec.Struct, frozen=True):
    """The limits of a message that may be part of a run."""

    body: int
    """The most octets of a body."""
    frame: int
    """The most octets of the payload of a frame."""


@lru_cache(maxsize=256)
def _beginning(method: int, properties: int) -> Struct:
    """Return the layout of a message up to its body: the method frame, the header frame around the body's
    size, and the fields of the body frame.
    """
    return Struct(f">{method}s{FRAME.size + 4}sQ{properties + 1}sBHI")


def take_publishes(data: bytes, at: int, channel: int, limits: RunLimits) -> tuple[PublishRun | None, int]:
    """Take whole messages of this channel from `at` on that are alike in exchange, routing key and flags.

    Returns them, or None if there is none in the common form, and the position after them.
    """
    if not codec.COMPILED:
        return take_publishes_plain(data, at, channel, limits)
    taken = codec.native.take_publishes(
        data, at, channel, limits.body, limits.frame, MAX_HEAD, COMPILED_MESSAGES_A_STEP
    )
    if taken is None:
        return None, at
    end, spans, heads, flags, exchange, routing_key, is_mandatory = taken
    return PublishRun(channel, exchange, routing_key, is_mandatory, batch(spans), heads, flags), end


def take_publishes_plain(
    data: bytes, at: int, channel: int, limits: RunLimits
) -> tuple[PublishRun | None, int]:
    """Take messages as `take_publishes` does, in plain Python."""
    method_end = _publish_end(data, at, channel, limits)
    if not method_end:
        return None, at
    method = data[at:method_end]
    names = method[_NAMES_AT:-2]
    bits = method[-2]
    bodies: list[bytes] = []
    heads: list[bytes] = []
    flags = 0
    while len(bodies) < MESSAGES_A_STEP and data.startswith(method, at):
        header_at = at + len(method)
        found = _header(data, header_at, channel, limits)
        if found is None:
            break
        size, properties_at, header_end = found
        properties = data[properties_at : header_end - 1]
        head = names + properties
        if len(head) > MAX_HEAD or size > limits.body:
            break
        end = _body_end(data, header_end, channel, size, limits)
        if not end:
            break
        try:
            if stored_properties.skip(properties, 0, len(properties)) != len(properties):
                break
        except FieldError:
            break
        flags |= stored_properties.flags_of(properties)
        before = len(bodies)
        bodies.append(data[end - 1 - size : end - 1] if size else b"")
        at = end
        # A message that differs from this one only in its body needs no check but that of the sizes.
        shape = _beginning(len(method), len(properties))
        start = data[header_at : header_at + FRAME.size + 4]
        rest = properties + b"\xce"
        last = len(data) - shape.size
        while at <= last and len(bodies) < MESSAGES_A_STEP:
            same, begin, size, behind, kind, number, length = shape.unpack_from(data, at)
            if same != method or begin != start or behind != rest or size != length or size > limits.body:
                break
            body_at = at + shape.size
            end = body_at + size + 1
            if kind != FrameType.BODY or number != channel or end > len(data) or data[end - 1] != _END:
                break
            if not size or size > limits.frame:
                break
            bodies.append(data[body_at : end - 1])
            at = end
        heads += [head] * (len(bodies) - before)
    if not bodies:
        return None, at
    exchange_end = 1 + names[0]
    run = PublishRun(
        channel, names[1:exchange_end], names[exchange_end + 1 :], bool(bits & _MANDATORY), Bodies(bodies),
        heads, flags,
    )  # fmt: skip
    return run, at


def _publish_end(data: bytes, at: int, channel: int, limits: RunLimits) -> int:
    """Return the end of a whole Basic.Publish in the common form at `at`; 0 if there is none."""
    end = _frame_end(data, at, FrameType.METHOD, channel, limits)
    if not end or not data.startswith(_PUBLISH, at + _METHOD_AT):
        return 0
    names_at, bits_at = at + _NAMES_AT, end - 2
    if names_at >= bits_at:
        return 0
    key_at = names_at + 1 + data[names_at]
    # Only the flag `mandatory` is left: immediate has an error, and others no meaning.
    return (
        end
        if key_at < bits_at and key_at + 1 + data[key_at] == bits_at and data[bits_at] <= _MANDATORY
        else 0
    )


def _header(data: bytes, at: int, channel: int, limits: RunLimits) -> tuple[int, int, int] | None:
    """Return the size of the body, where the properties begin, and the end of a whole header frame at `at`;
    None if there is none.
    """
    end = _frame_end(data, at, FrameType.HEADER, channel, limits)
    properties_at = at + FRAME.size + CONTENT.size
    if not end or end - 1 < properties_at:
        return None
    class_id, weight, size = CONTENT.unpack_from(data, at + FRAME.size)
    return (size, properties_at, end) if class_id == BASIC and not weight else None


def _body_end(data: bytes, at: int, channel: int, size: int, limits: RunLimits) -> int:
    """Return the end of the body at `at` if it is in one frame, or empty and in none; else 0."""
    if not size:
        return at
    end = at + OVERHEAD + size
    if size > limits.frame or end > len(data) or data[end - 1] != _END:
        return 0
    return end if FRAME.unpack_from(data, at) == (FrameType.BODY, channel, size) else 0


def _frame_end(data: bytes, at: int, kind: FrameType, channel: int, limits: RunLimits) -> int:
    """Return the end of a whole frame of this type and channel at `at`; 0 if there is none."""
    if len(data) - at < OVERHEAD:
        return 0
    found, number, size = FRAME.unpack_from(data, at)
    end: int = at + OVERHEAD + size
    if found != kind or number != channel or size > limits.frame or end > len(data) or data[end - 1] != _END:
        return 0
    return end


_ACK_FRAME = Struct(">7s4sQBB")


def take_acks(data: bytes, at: int, channel: int) -> tuple[list[tuple[int, int]], int]:
    """Take whole Basic.Ack of this channel from `at` on; return the ranges of an `AckRun`, which may be none,
    and the position after them.
    """
    if codec.COMPILED:
        return codec.native.take_acks(data, at, channel, ACKS_A_STEP)
    return take_acks_plain(data, at, channel)


def take_acks_plain(data: bytes, at: int, channel: int) -> tuple[list[tuple[int, int]], int]:
    """Take acknowledgements as `take_acks` does, in plain Python."""
    ranges: list[tuple[int, int]] = []
    beginning = FRAME.pack(FrameType.METHOD, channel, _ACK_FRAME.size - OVERHEAD)
    last_start = len(data) - _ACK_FRAME.size
    stop = min(last_start, at + (ACKS_A_STEP - 1) * _ACK_FRAME.size)
    while at <= stop:
        start, ids, tag, bits, end = _ACK_FRAME.unpack_from(data, at)
        if start != beginning or ids != ACK_IDS or end != _END or bits > 1 or not (tag or bits):
            break
        if bits:
            ranges.append((0, tag))
        elif ranges and ranges[-1][0] and ranges[-1][1] + 1 == tag:
            ranges[-1] = (ranges[-1][0], tag)
        else:
            ranges.append((tag, tag))
        at += _ACK_FRAME.size
    return ranges, at
