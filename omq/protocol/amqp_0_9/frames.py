"""The frames of AMQP 0-9-1: `u8 type | u16 channel | u32 size | payload | 0xCE` (section 4.2.3)."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct

from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.layouts import Method


class FrameType(IntEnum):
    """The types of frames."""

    METHOD = 1
    HEADER = 2
    BODY = 3
    HEARTBEAT = 8


FRAME = Struct(">BHI")
"""The fields before the payload: type, channel, and the octets of the payload."""

END = b"\xce"
"""The octet after the payload."""

OVERHEAD = FRAME.size + len(END)
"""The octets of a frame besides its payload. Frame-max counts them."""

LEAST_FRAME_MAX = 4096
"""Every peer must accept frames of this size (AMQP 0-9-1, section 4.2.3, frame-min-size)."""

BASIC = 60
"""The class of messages."""

CONTENT = Struct(">HHQ")
"""The fields before the properties in a header frame: class, weight, and the octets of the body."""

_ACK = Struct(">BHIHHQBB")
_ACK_OCTETS = _ACK.size - OVERHEAD

HEARTBEAT = FRAME.pack(FrameType.HEARTBEAT, 0, 0) + END
"""The one heartbeat frame."""


def frame(kind: FrameType, channel: int, payload: bytes) -> bytes:
    """Make one frame."""
    return b"%b%b\xce" % (FRAME.pack(kind, channel, len(payload)), payload)


def method_frame(channel: int, method: Method) -> bytes:
    """Make the frame of a method. Raises `FieldError` as `methods.encode` does."""
    return frame(FrameType.METHOD, channel, methods.encode(method))


def ack_frame(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Make the frame of Basic.Ack, as `method_frame` does, in less time: a client may wait for each one."""
    return _ACK.pack(1, channel, _ACK_OCTETS, 60, 80, delivery_tag, multiple, 0xCE)


def header_frame(channel: int, properties: bytes, size: int) -> bytes:
    """Make the header frame of a message: its property flags and properties, and the size of its body.

    A header cannot be divided, so the frame is longer than frame-max if the properties are.
    """
    return frame(FrameType.HEADER, channel, CONTENT.pack(BASIC, 0, size) + properties)


def body_frames(channel: int, body: bytes | memoryview, frame_max: int) -> Iterator[bytes | memoryview]:
    """Yield the parts of the body frames of a body or of a piece of one; nothing if it is empty."""
    most = frame_max - OVERHEAD
    for begin in range(0, len(body), most):
        piece = body[begin : begin + most]
        yield FRAME.pack(FrameType.BODY, channel, len(piece))
        yield piece
        yield END


def content(
    channel: int, method: Method, properties: bytes, body: bytes, frame_max: int
) -> Sequence[bytes | memoryview]:
    """Make the frames of a method that carries a message. The body is not copied."""
    opening = method_frame(channel, method) + header_frame(channel, properties, len(body))
    return opening, *body_frames(channel, memoryview(body), frame_max)
