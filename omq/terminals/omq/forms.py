"""Messages as Message frames, the form in which blocks are stored."""

from collections.abc import Sequence

from omq.drivers.seam import Cut, Octets
from omq.protocol.omq.frames import MESSAGE_HEADER, MESSAGE_OVERHEAD, FrameType


class Frames:
    """Message frames: the blocks' own octets."""

    def parts(self, cuts: Sequence[Cut]) -> list[Octets]:
        return [cut.frames() for cut in cuts]

    def opening(self, topic: int, message: int, head: bytes, size: int) -> bytes:
        return MESSAGE_HEADER.pack(MESSAGE_OVERHEAD + size, FrameType.MESSAGE, message, topic)

    def sent(self, cuts: Sequence[Cut], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count = 0
        for cut, part in zip(cuts, parts, strict=True):
            if octets < len(part):
                whole, octets = cut.sent(octets)
                return count + whole, octets
            octets -= len(part)
            count += len(cut.ids)
        return count, 0
