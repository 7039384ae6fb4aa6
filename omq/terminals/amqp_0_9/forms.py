"""Messages as Basic.Deliver or Basic.Get-Ok, with their content headers and body frames."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import assert_never

from omq.drivers.seam import LITTLE_OCTETS, Channel, MessageOutline, Octets, Selection
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_0_9.delivery import ConsumerFraming, complete, deliveries, opening
from omq.protocol.amqp_0_9.frames import END, FRAME, OVERHEAD, FrameType, body_frames
from omq.terminals.amqp_0_9.unacknowledged import Unacknowledged
from omq_storage.blocks import FRAME_HEADER


class Tags:
    """The delivery tags of one channel."""

    __slots__ = ("next", "unacknowledged")

    def __init__(self) -> None:
        self.next = 1
        self.unacknowledged = Unacknowledged()

    def take(self, count: int) -> int:
        """Take `count` new tags and return the first."""
        tag = self.next
        self.next += count
        return tag


class ConsumerForm:
    """The form of one consumer: it frames messages, and numbers them with the tags of its channel.

    Messages that are framed and then not sent get new tags when they are framed again.
    """

    def __init__(self, consumer: ConsumerFraming, tags: Tags, *, no_ack: bool) -> None:
        self.framed = 0
        self._consumer = consumer
        self._tags = tags
        self._no_ack = no_ack
        self._first = 0
        """The tag of the first message that `whole` framed last."""
        self._begun: int | None = None
        """The tag of a message of which `whole` framed more than the socket took."""
        self.source: Channel | None = None
        """The channel that delivers the messages."""

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        parts: list[Octets] = []
        portion = Portion()
        self._first = self._tags.next
        self.framed = 0
        for selection in selections:
            if parts and portion.is_spent:
                break
            tag, count = self._tags.next, 1
            if len(selection.ids) == 1 and selection.block.held > LITTLE_OCTETS:
                # Send the octets of the block without a copy: all consumers together hold them once.
                message = selection.ids[0]
                body = memoryview(selection.block.frame(message))[FRAME_HEADER:]
                head = selection.block.head(message)
                parts.append(
                    opening(self._consumer, tag, message, head, len(body), portion, selection.deliveries)
                )
                parts += body_frames(self._consumer.channel, body, self._consumer.frame_max)
            else:
                octets, count = deliveries(
                    self._consumer, tag, selection.block, selection.ids, portion, selection.deliveries
                )
                parts.append(octets)
            self._tags.next = tag + count
            if not self._no_ack:
                self._remember(tag, selection.ids[:count])
            self.framed += count
        return parts

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count, begun = complete(parts, octets)
        kept = self._first + count
        if begun:
            self._begun = kept
            kept += 1
        if not self._no_ack:
            self._tags.unacknowledged.drop(kept, sum(len(selection.ids) for selection in selections))
        return count, begun

    def begin(self, message: MessageOutline) -> "MessageInPieces":
        begun, self._begun = self._begun, None
        tag = self._tags.take(1) if begun is None else begun
        id, size = message.message, message.size
        octets = opening(self._consumer, tag, id, message.head, size, Portion(), message.deliveries)
        must_remember = begun is None and not self._no_ack
        remember = (lambda: self._remember(tag, range(id, id + 1))) if must_remember else None
        return MessageInPieces(self._consumer, octets, size, remember)

    def _remember(self, tag: int, ids: range) -> None:
        assert self.source is not None, "a consumer has its channel before it has messages"
        self._tags.unacknowledged.add(tag, ids, self.source)


class _Role(Enum):
    """The role of a part of a message that leaves in pieces."""

    OWED = "the rest of something that is begun and is no body: the opening, a frame header, a frame end"
    HEADER = "a frame header"
    BODY = "a part of the body"
    END = "a frame end"


class MessageInPieces:
    """One message that leaves in pieces. Each piece has body frames of its own, so other frames may follow
    one that left as a whole.
    """

    def __init__(
        self, consumer: ConsumerFraming, opening: bytes, size: int, when_begun: Callable[[], None] | None
    ) -> None:
        """Create a message of `size` octets of which nothing has left. `when_begun` is called when the first
        octet has left.
        """
        self._consumer = consumer
        self._size = size
        self._when_begun = when_begun
        self._owed: Octets = opening
        self._in_frame = 0
        """The number of octets of the body that the begun frame still lacks."""
        self._left = 0
        """The number of octets of the body that have left."""
        self._parts: list[tuple[_Role, Octets]] = []
        self.is_begun = False

    @property
    def body(self) -> int:
        # The last octet is given again until the end of its frame has left.
        return self._left if self.is_done or self._left < self._size else max(0, self._left - 1)

    @property
    def is_done(self) -> bool:
        return not self._owed and self._left == self._size

    def framed(self, octets: Octets) -> Sequence[Octets]:
        octets = memoryview(octets)[self._left - self.body :]
        parts = self._parts = [(_Role.OWED, self._owed)] if self._owed else []
        if self._in_frame:
            piece, octets = octets[: self._in_frame], octets[self._in_frame :]
            parts.append((_Role.BODY, piece))
            if len(piece) == self._in_frame:
                parts.append((_Role.END, END))
        most = self._consumer.frame_max - OVERHEAD
        for begin in range(0, len(octets), most):
            piece = octets[begin : begin + most]
            header = FRAME.pack(FrameType.BODY, self._consumer.channel, len(piece))
            parts += ((_Role.HEADER, header), (_Role.BODY, piece), (_Role.END, END))
        return [part for _, part in parts]

    def sent(self, octets: int) -> None:
        if octets and not self.is_begun:
            self.is_begun = True
            if self._when_begun is not None:
                self._when_begun()
        for role, part in self._parts:
            if not octets:
                break
            gone = min(octets, len(part))
            octets -= gone
            match role:
                case _Role.OWED | _Role.END:
                    self._owed = part[gone:]
                case _Role.HEADER:
                    self._in_frame = FRAME.unpack(part)[2]
                    self._owed = part[gone:]
                case _Role.BODY:
                    self._left += gone
                    self._in_frame -= gone
                    if not self._in_frame:
                        self._owed = END  # unless it leaves next
                case _:
                    assert_never(role)
        self._parts = []

    def given_up(self, *, is_done: bool) -> None:
        return None
