"""The frames of AMQP 1.0, from and to octets.

A frame is `u32 size | u8 data offset | u8 type | u16 channel | extended header | performative | payload`; the
size counts all of it, and the data offset is where the performative begins, in units of four octets.
Source: AMQP 1.0, part 2, section 2.3, "Framing".
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

import msgspec

from omq.protocol.amqp_1_0.conditions import Condition, ConnectionProblem

SHORTEST = 8
"""The octets of a frame without a performative: a heartbeat."""

SMALLEST_MAX = 512
"""The longest frame that every peer accepts, before and after the open (section 2.7.1, max-frame-size)."""

HEADER_LENGTH = 8
"""The octets of a protocol header, which stands before the frames."""

_HEAD = Struct(">IBBH")


class FrameType(IntEnum):
    """The type of a frame."""

    AMQP = 0
    SASL = 1


class RawFrame(msgspec.Struct, frozen=True):
    """A frame whose performative is at `octets[begin]` and ends, with the payload, at `end`."""

    type: FrameType
    channel: int
    octets: bytes
    begin: int
    end: int
    start: int
    """The index of the first octet of the frame."""

    @property
    def is_heartbeat(self) -> bool:
        """Whether the frame has no performative."""
        return self.begin == self.end


class FrameReader:
    """Cuts the input of a connection into protocol headers and frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0
        """The index at which the next frame begins, while frames are read."""
        self.max_frame = SMALLEST_MAX
        """The longest frame that the peer may send now."""

    @property
    def pending(self) -> int:
        """The octets of an incomplete frame."""
        return len(self._buffer)

    def add(self, octets: bytes) -> None:
        """Take octets of the connection, in any portions."""
        self._buffer = self._buffer + octets if self._buffer else octets

    def header(self) -> bytes | None:
        """Return the next eight octets as a protocol header; None until they are there."""
        if len(self._buffer) < HEADER_LENGTH:
            return None
        header, self._buffer = self._buffer[:HEADER_LENGTH], self._buffer[HEADER_LENGTH:]
        return header

    def frames(self) -> Iterator[RawFrame]:
        """Yield the complete frames. The caller may stop after any of them, and call this again later.

        Raises `ConnectionProblem` for a size or data offset that cannot be, and an unknown type.
        """
        buffer, at = self._buffer, 0
        self._at = 0
        try:
            while len(buffer) - at >= SHORTEST:
                size, offset, kind, channel = _HEAD.unpack_from(buffer, at)
                self._check(size, offset, kind)
                if len(buffer) - at < size:
                    break
                self._at = at + size
                yield RawFrame(_TYPES[kind], channel, buffer, at + 4 * offset, self._at, at)
                at = self._at
        finally:
            # Also if the caller stops at a frame: that frame is done, and the octets after it stay.
            self._buffer = buffer[self._at :]

    def taken(self, end: int) -> None:
        """Note that the caller has taken the frames up to this position in the octets of the last frame."""
        self._at = end

    def _check(self, size: int, offset: int, kind: int) -> None:
        if size > self.max_frame:
            raise ConnectionProblem(
                Condition.FRAMING_ERROR, f"a frame has at most {self.max_frame} octets here, not {size}"
            )
        if not 2 * 4 <= 4 * offset <= size:
            raise ConnectionProblem(
                Condition.FRAMING_ERROR, f"the data offset of a frame of {size} octets cannot be {4 * offset}"
            )
        if kind not in _TYPES:
            raise ConnectionProblem(Condition.FRAMING_ERROR, f"there is no frame of type {kind}")


_TYPES = {int(kind): kind for kind in FrameType}

HEARTBEAT = _HEAD.pack(SHORTEST, 2, FrameType.AMQP, 0)
"""A frame without a performative (section 2.4.5, "Idle Timeout Of A Connection")."""


def write(channel: int, *parts: bytes, kind: FrameType = FrameType.AMQP) -> bytes:
    """Encode a frame of a performative and its payload."""
    size = SHORTEST
    for part in parts:
        size += len(part)
    return b"".join((_HEAD.pack(size, 2, kind, channel), *parts))
