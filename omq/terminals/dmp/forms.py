"""Messages as DMP envelopes."""

from collections.abc import Sequence

from omq.drivers.seam import LITTLE_OCTETS, MessageOutline, Octets, Selection
from omq.protocol.amqp.head import PLAIN_HEAD, decode
from omq.protocol.amqp.openamq import may_have_times, narrowed_head
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0.expansion import expanded
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import NUMBER
from omq.terminals.connection.forms import ContiguousMessage
from omq_storage.blocks import FRAME_HEADER

_MESSAGES_AT_ONCE = 256
"""The number of messages whose heads are read before they are framed: a portion may end before the last one.
"""

_LONGEST_WITH_ANY_HEAD = (1 << 32) - (1 << 16)
"""Octets: a body of this size leaves room for a head with a name."""


class FeedForm:
    """The form of a feed: an envelope for each message, with its head or a default one."""

    def __init__(self, head: bytes, *, to_openamq: bool = False) -> None:
        self.framed = 0
        self._head = head
        self._routing_key = decode(head).routing_key
        self._to_openamq = to_openamq

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        parts: list[Octets] = []
        portion = Portion()
        self.framed = 0
        is_any_large = False
        for selection in selections:
            if portion.is_spent:
                break
            if _is_large(selection):
                # Send the octets of the block without a copy: all feeds together hold them in memory once.
                message = selection.ids[0]
                body = selection.block.frame(message)[FRAME_HEADER:]
                parts += (self._opening(selection.block.head(message), len(body), portion), body)
                self.framed += 1
                is_any_large = True
            else:
                octets, count = self._envelopes(selection, portion)
                parts.append(octets)
                self.framed += count
        return parts if is_any_large else [b"".join(parts)]

    def begin(self, message: MessageOutline) -> ContiguousMessage:
        return ContiguousMessage(self._opening(message.head, message.size, Portion()), message.size)

    def _opening(self, head: bytes, size: int, portion: Portion) -> bytes:
        if not head and size > _LONGEST_WITH_ANY_HEAD:
            head = PLAIN_HEAD  # the default head may leave too little room for the longest bodies
        return dmp_writer.opening(size, self._shown(head, portion))

    def _shown(self, head: bytes, portion: Portion) -> bytes:
        """Return the head that the client gets for a stored one."""
        if not head:
            return self._head
        portion.spend_framed(head)
        head = expanded(head, self._routing_key, portion)
        if not self._to_openamq or not may_have_times(head):
            return head
        portion.spend(head)
        return narrowed_head(head)

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count = begin = 0
        for part in parts:
            # An envelope begins at `begin`, or the rest of the part is a body.
            while begin < len(part):
                size = NUMBER.size + NUMBER.unpack_from(part, begin)[0]
                if octets < size:
                    return count, octets
                octets -= size
                begin += size
                count += 1
            begin -= len(part)
        return count, octets

    def _envelopes(self, selection: Selection, portion: Portion) -> tuple[bytes, int]:
        """Return the envelopes of these messages, up to the first one with another head than the one before
        when the portion is spent; and the number of these messages.
        """
        if not selection.block.has_heads:
            return dmp_writer.of_block(selection.block, selection.ids, self._head), len(selection.ids)
        parts: list[bytes] = []
        count = 0
        known: bytes | None = None
        while count < len(selection.ids):
            ids = selection.ids[count : count + _MESSAGES_AT_ONCE]
            shown: list[bytes] = []
            for head in selection.block.heads_from(ids[0], ids[-1] + 1)[:: ids.step]:
                if head != known:
                    if portion.is_spent:
                        break
                    known, translated = head, self._shown(head, portion)
                shown.append(translated)
            if not shown:
                break
            frames = selection.block.slices(ids[0], ids[len(shown) - 1] + 1)[:: ids.step]
            parts.append(dmp_writer.for_feed([frame[FRAME_HEADER:] for frame in frames], shown))
            count += len(shown)
        return b"".join(parts), count


def _is_large(selection: Selection) -> bool:
    return len(selection.ids) == 1 and selection.block.held > LITTLE_OCTETS
