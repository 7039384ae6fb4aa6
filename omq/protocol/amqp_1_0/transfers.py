"""The frames of messages that the server sends: one transfer, or several for a long message.

The module `performatives` could write these, too. Here they are written without it, since most of what a
connection sends is transfers.
Source: AMQP 1.0, part 2, section 2.7.5, "Transfer".
"""

from struct import Struct

from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0 import encoding, serials, stored, translation
from omq.protocol.amqp_1_0.frames import SHORTEST
from omq.protocol.amqp_1_0.stored import BodyFraming
from omq_storage import codec
from omq_storage.blocks import FRAME_HEADER, Block

_FRAME = Struct(">IBBH")
_SIZE = Struct(">I")
_TRANSFER = b"\x00\x53\x14\xc0"
_TRUE, _FALSE = b"\x41", b"\x42"
_ID = Struct(">BI")
_UINT = 0x70

MOST_OVERHEAD = 64
"""The octets of a frame before its payload: never more."""


def head_around(head: bytes, portion: Portion) -> BodyFraming:
    """Return the octets around the body of a message with this stored head, whichever protocol wrote it. The
    head counts in `portion`.
    """
    if not head:
        return stored.PLAIN
    portion.spend_framed(head)
    return stored.around(head) or translation.from_head(head, portion)


class Framing:
    """Writes the frames of one link."""

    __slots__ = ("_continuations", "_handle", "channel", "room")

    def __init__(self, channel: int, handle: int, max_frame: int) -> None:
        self.channel = channel
        self._handle = encoding.uint(handle)
        self.room = max_frame - MOST_OVERHEAD
        """The longest payload of a frame."""
        self._continuations = {
            more: self._list(self._handle + b"\x40\x40\x40\x40" + (_TRUE if more else _FALSE), 6)
            for more in (False, True)
        }

    def run(
        self, block: Block, ids: range, delivery: int, portion: Portion, *, settled: bool
    ) -> tuple[bytes, int]:
        """Return the frames of these messages of a block with delivery-ids from `delivery` on, up to the
        first message that takes several frames, or with another head than the one before when `portion` is
        spent; and the number of these messages.
        """
        if codec.COMPILED:

            def around(head: bytes) -> tuple[int, bytes, bytes] | None:
                if portion.is_spent:
                    return None
                found = head_around(head, portion)
                return found.form, found.before, found.after

            begin, end = block.indexes(ids)
            heads = block.heads
            written = codec.native.transfers(
                block.frames, block.offsets,
                None if heads is None else heads.offsets, None if heads is None else heads.octets,
                begin, end, ids.step, self.channel, self._handle, delivery, block.first + begin,
                settled, self.room, around,
            )  # fmt: skip
            if written is not None:
                return written
        return self.run_plain(block, ids, delivery, portion, settled=settled)

    def run_plain(
        self, block: Block, ids: range, delivery: int, portion: Portion, *, settled: bool
    ) -> tuple[bytes, int]:
        """Do as `run`, in plain Python."""
        parts: list[bytes | memoryview] = []
        translated: bytes | None = None
        for count, message in enumerate(ids):
            body, head = block.frame(message)[FRAME_HEADER:], block.head(message)
            around = stored.around(head) if head else stored.PLAIN
            if around is None:
                if head != translated:
                    if portion.is_spent:
                        return b"".join(parts), count
                    translated, foreign = head, head_around(head, portion)
                around = foreign
            before, after = stored.frame_of(around, len(body))
            size = len(before) + len(body) + len(after)
            if size > self.room:
                return b"".join(parts), count
            id = serials.add(delivery, count)
            parts += (self.opening(id, message, size, settled=settled, more=False), before, body, after)
        return b"".join(parts), len(ids)

    def opening(self, delivery: int, message: int, size: int, *, settled: bool, more: bool) -> bytes:
        """Return the octets before the payload of the first frame of a delivery; `size` is the payload's."""
        tag = b"%d" % message
        fields = b"%s%s\xa0%c%s\x43%s%s" % (
            self._handle, _ID.pack(_UINT, delivery), len(tag), tag,
            _TRUE if settled else _FALSE, _TRUE if more else _FALSE,
        )  # fmt: skip
        return self._frame(self._list(fields, 6), size)

    def continuation(self, size: int, *, more: bool) -> bytes:
        """Return the octets before the payload of a later frame of a delivery."""
        return self._frame(self._continuations[more], size)

    def aborted(self) -> bytes:
        """Return the frame that ends a delivery which is begun, and makes the client forget it."""
        fields = self._handle + b"\x40\x40\x40\x40" + _FALSE + b"\x40\x40\x40" + _TRUE
        return self._frame(self._list(fields, 10), 0)

    def _frame(self, performative: bytes, size: int) -> bytes:
        return _FRAME.pack(SHORTEST + len(performative) + size, 2, 0, self.channel) + performative

    @staticmethod
    def messages_within(frames: bytes | memoryview, octets: int) -> tuple[int, int]:
        """Return the number of whole frames within the first N `octets`, and their octets."""
        if codec.COMPILED:
            found = codec.native.frames_within(frames, octets)
            if found is not None:
                return found
        count = at = 0
        while at + _SIZE.size <= octets and (end := at + _SIZE.unpack_from(frames, at)[0]) <= octets:
            at = end
            count += 1
        return count, at

    @staticmethod
    def _list(fields: bytes, count: int) -> bytes:
        return b"%s%c%c%s" % (_TRANSFER, len(fields) + 1, count, fields)
