"""Messages as Message frames: a stored block already has them in this form."""

from collections.abc import Sequence

from omq.drivers.seam import Cut, Octets
from omq.protocol.omq.frames import MESSAGE_HEADER, MESSAGE_OVERHEAD, FrameType
from omq.terminals.connection.forms import ContiguousMessage


class Frames:
    """The form of an omq connection. Frames are sent as the octets of their block, without a copy."""

    __slots__ = ("framed",)

    def __init__(self) -> None:
        self.framed = 0

    def whole(self, cuts: Sequence[Cut]) -> Sequence[Octets]:
        self.framed = sum([len(cut.ids) for cut in cuts])
        return [cut.frames() for cut in cuts]

    def begin(self, topic: int, message: int, head: bytes, size: int, deliveries: int) -> ContiguousMessage:
        return ContiguousMessage(
            MESSAGE_HEADER.pack(MESSAGE_OVERHEAD + size, FrameType.MESSAGE, message, topic), size
        )

    def sent(self, cuts: Sequence[Cut], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count = 0
        for cut, part in zip(cuts, parts, strict=True):
            if octets < len(part):
                whole, octets = cut.sent(octets)
                return count + whole, octets
            octets -= len(part)
            count += len(cut.ids)
        return count, 0
