"""The frames of messages that the server sends: one transfer, or several for a long message.

The module `performatives` could write these, too. Here they are written without it, since most of what a
connection sends is transfers.
Source: AMQP 1.0, part 2, section 2.7.5, "Transfer".
"""

from struct import Struct

from omq.protocol.amqp_1_0 import types
from omq.protocol.amqp_1_0.frames import SHORTEST

_FRAME = Struct(">IBBH")
_TRANSFER = b"\x00\x53\x14\xc0"
_TRUE, _FALSE = b"\x41", b"\x42"
_ID = Struct(">BI")
_UINT = 0x70

MOST_OVERHEAD = 64
"""The octets of a frame before its payload: never more."""


class Framing:
    """Writes the frames of one link."""

    __slots__ = ("_channel", "_continuations", "_handle", "room")

    def __init__(self, channel: int, handle: int, max_frame: int) -> None:
        self._channel = channel
        self._handle = types.uint(handle)
        self.room = max_frame - MOST_OVERHEAD
        """The longest payload of a frame."""
        self._continuations = {
            more: self._list(self._handle + b"\x40\x40\x40\x40" + (_TRUE if more else _FALSE), 6)
            for more in (False, True)
        }

    def opening(self, delivery: int, message: int, size: int, *, settled: bool, more: bool) -> bytes:
        """Return what stands before the payload of the first frame of a delivery; `size` is the payload's."""
        tag = b"%d" % message
        fields = b"%s%s\xa0%c%s\x43%s%s" % (
            self._handle, _ID.pack(_UINT, delivery), len(tag), tag,
            _TRUE if settled else _FALSE, _TRUE if more else _FALSE,
        )  # fmt: skip
        return self._frame(self._list(fields, 6), size)

    def continuation(self, size: int, *, more: bool) -> bytes:
        """Return what stands before the payload of a later frame of a delivery."""
        return self._frame(self._continuations[more], size)

    def _frame(self, performative: bytes, size: int) -> bytes:
        return _FRAME.pack(SHORTEST + len(performative) + size, 2, 0, self._channel) + performative

    @staticmethod
    def _list(fields: bytes, count: int) -> bytes:
        return b"%s%c%c%s" % (_TRANSFER, len(fields) + 1, count, fields)
