"""Messages as Message frames: a stored block already has them in this form."""

from collections.abc import Sequence

from omq.drivers.seam import MessageOutline, Octets, Selection
from omq.protocol.omq.frames import MESSAGE_HEADER, MESSAGE_OVERHEAD, FrameType
from omq.terminals.connection.forms import ContiguousMessage


class Frames:
    """The form of an omq connection. Frames are sent as the octets of their block, without a copy."""

    __slots__ = ("framed",)

    def __init__(self) -> None:
        self.framed = 0

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        self.framed = sum([len(selection.ids) for selection in selections])
        return [selection.frames() for selection in selections]

    def begin(self, message: MessageOutline) -> ContiguousMessage:
        octets = MESSAGE_OVERHEAD + message.size
        opening = MESSAGE_HEADER.pack(octets, FrameType.MESSAGE, message.message, message.topic)
        return ContiguousMessage(opening, message.size)

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count = 0
        for selection, part in zip(selections, parts, strict=True):
            if octets < len(part):
                whole, octets = selection.sent(octets)
                return count + whole, octets
            octets -= len(part)
            count += len(selection.ids)
        return count, 0
