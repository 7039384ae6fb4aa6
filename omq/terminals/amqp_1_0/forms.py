"""Messages as transfers of one link, in one frame or several.

A message for which the window of the client's session is closed stays with its channel. When the window
closes in the middle of a message, or of a piece of a long one, the rest of that waits in the session and
counts as sent. The session sends it when the window opens, and until then none of its links begins another
message or piece. A message that is sent settled is done when its last frame has left the session.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

import msgspec

from omq.drivers.seam import LITTLE_OCTETS, MessageOutline, Octets, Selection
from omq.drivers.stored_reads import READ_OCTETS
from omq.protocol.amqp.portions import Portion
from omq.protocol.amqp_1_0 import annotations, serials, stored
from omq.protocol.amqp_1_0.link import SendingLink
from omq.protocol.amqp_1_0.stored import BodyFraming
from omq.protocol.amqp_1_0.transfers import Framing, head_around
from omq.terminals.connection.forms import AbandonedMessage, selection_at
from omq_storage.blocks import FRAME_HEADER

MIXED = 2
"""The snd-settle-mode of a client that takes settled messages and others."""

MOST_FRAME = 64 << 10
"""The longest frame that the server sends, so that other links have their turns."""


class SentFrames(msgspec.Struct, frozen=True):
    """The number of frames of one message that may leave now, and of those that wait for the window."""

    now: int
    waiting: int


class _Run(msgspec.Struct, frozen=True):
    """Messages of one frame each, which may all leave now."""

    count: int


class _Framed(msgspec.Struct, frozen=True):
    """A message that has a delivery-id."""

    delivery: int
    is_settled: bool
    admitted: int = 0
    """The number of its frames that the window allowed before a part of them left."""


class Transfers:
    """The form of one link."""

    def __init__(self, link: SendingLink, *, annotates: bool = False) -> None:
        """Create the form of a link. `annotates`: its messages have their ids and times."""
        self.link = link
        self._annotates = annotates
        self._session = link.session
        self._window = link.session.outgoing
        most = min(link.session.frame_room(), MOST_FRAME)
        self.framing = Framing(link.session.channel, link.handle, most)
        self.piece = self.framing.room * max(1, LITTLE_OCTETS // self.framing.room)
        """The octets of a piece of a long message: one frame, or several short ones."""
        self._framed: list[_Run | SentFrames] = []
        """The result of the last call of `whole`: one entry for each part that it returned."""
        self._first = 0
        """The delivery-id of the first message of it."""
        self._left: list[range] = []
        self._left_before = 0
        """The number of entries of `_left` that are older than the last call of `whole`."""
        self._begun: _Framed | None = None
        """A message of which `whole` framed more than the socket took."""
        self._waits = False
        """Whether frames of the last message that `whole` framed wait for the window."""
        self.framed = 0

    def whole(self, selections: Sequence[Selection]) -> Sequence[Octets]:
        parts: list[Octets] = []
        portion = Portion()
        self._framed.clear()
        self._left_before = len(self._left)
        self._first = self._session.next_delivery
        self.framed = 0
        self._waits = False
        for selection in selections:
            settled = self.settles(is_settled=selection.is_settled)
            allowed = selection.ids[: self.link.credit]  # the client may have lowered it since the take
            ids, delivery = allowed, self.start(allowed, settled=settled)
            while ids:
                octets, count = self._run(selection, ids, delivery, portion, settled=settled)
                if not count:
                    if parts and portion.is_spent:
                        break
                    one = self._one(selection, ids[0], delivery, portion, settled=settled)
                    if one is None:
                        break
                    octets, count = one, 1
                parts.append(octets)
                ids, delivery = ids[count:], serials.add(delivery, count)
            framed = len(allowed) - len(ids)
            self.framed += framed
            if settled:
                self._left.append(selection.ids[: framed - self._waits])
            if ids:
                self._session.take_back(self.link, len(ids))
            if framed < len(selection.ids) or self._waits:
                break
        return parts

    def settles(self, *, is_settled: bool) -> bool:
        """Return whether messages are settled when they are sent: the client decides, or leaves it open.
        `is_settled`: their producer sent them as settled.
        """
        return self.link.settles or (is_settled and self.link.attach.snd_settle_mode == MIXED)

    def _run(
        self, selection: Selection, ids: range, delivery: int, portion: Portion, *, settled: bool
    ) -> tuple[bytes, int]:
        """Frame messages of one frame each, as far as the window and the portion allow; return the frames and
        the number of messages.
        """
        room = self._window.room
        if selection.deliveries or self._annotates or not self._window.may_transfer:
            return b"", 0  # each message has sections of its own
        octets, count = self.framing.run(selection.block, ids[:room], delivery, portion, settled=settled)
        if count:
            self._window.transferred(count)
            self._framed.append(_Run(count))
        return octets, count

    def _one(
        self, selection: Selection, message: int, delivery: int, portion: Portion, *, settled: bool
    ) -> bytes | None:
        """Frame one message; return the frames that may leave now, or None if the message may not begin."""
        body = selection.block.frame(message)[FRAME_HEADER:]
        time = selection.block.message_time(message)
        around = self.around(selection.block.head(message), selection.deliveries, portion, message, time)
        before, after = stored.frame_of(around, len(body))
        if not self.may_begin(len(before) + len(body) + len(after)):
            return None
        payload = b"".join((before, body, after))
        divided = self.divide(_Framed(delivery, settled), message, payload, 0, len(payload))
        frames = [octets for octets, _ in divided]
        now = self.admit(frames, ends=message if settled else None)
        self._waits = now < len(frames)
        self._framed.append(SentFrames(now, len(frames) - now))
        return b"".join(frames[:now])

    def sent(self, selections: Sequence[Selection], parts: Sequence[Octets], octets: int) -> tuple[int, int]:
        count = left = admitted = 0
        waits = False
        for each, part in zip(self._framed, parts, strict=True):
            if not left and len(part) <= octets:
                octets -= len(part)
                count += each.count if isinstance(each, _Run) else 1
                waits = isinstance(each, SentFrames) and each.waiting > 0
                continue
            match each:
                case _Run(messages):
                    whole, within = (0, 0) if left else self.framing.messages_within(part, octets)
                    octets, count, left = octets - within, count + whole, left + messages - whole
                    self._window.transferred(whole - messages)
                    admitted = admitted or 1
                case SentFrames():
                    left += 1
                    admitted = admitted or each.now
                    self.undo(each)
                case _:
                    assert_never(each)
        self._left[self._left_before :] = [
            selection.ids
            for selection in _first(selections, count - waits)
            if self.settles(is_settled=selection.is_settled)
        ]
        if left and octets:
            selection, _ = selection_at(selections, count)
            settled = self.settles(is_settled=selection.is_settled)
            self._begun = _Framed(serials.add(self._first, count), settled, admitted)
            left -= 1
        self._session.take_back(self.link, left)
        self._framed.clear()
        return count, octets if left or self._begun is not None else 0

    def begin(self, message: MessageOutline) -> "MessageInPieces":
        framed, self._begun = self._begun, None
        around = self.around(message.head, message.deliveries, Portion(), message.message, message.time)
        return MessageInPieces(self, message, around, framed)

    def take_sent(self) -> list[range]:
        """Return the messages that have left since the last call, for a link that settles them itself. The
        connection tells those whose last frames wait for the window (`AmqpConnection.take_ended`).
        """
        left, self._left = self._left, []
        return left

    def around(self, head: bytes, deliveries: int, portion: Portion, message: int, time: int) -> BodyFraming:
        """Return the octets around the body of a message. The work counts in `portion`."""
        around = around_of(head, deliveries, portion)
        if not self._annotates:
            return around
        portion.spend(head)
        return annotations.with_id(around, message, time)

    # -- for messages in pieces, too -----------------------------------------------------------------------

    def start(self, ids: range, *, settled: bool) -> int:
        """Count messages that begin; return the delivery-id of the first one."""
        return self._session.begin(self.link, ids, settled=settled)

    def completed(self, message: int, *, settled: bool) -> None:
        """Note that all of a message in pieces has left."""
        if settled:
            self._left.append(range(message, message + 1))

    def given_up(self, message: int, delivery: int, *, is_done: bool) -> bytes:
        """Return the frame that gives a message up which is begun, if it may leave now. The delivery is
        settled for the client, and if it `is_done`, for the channel, too.
        """
        if not self.link.is_attached:
            return b""  # the detach ends the delivery
        self._session.given_up(delivery)
        if is_done:
            self.completed(message, settled=True)
        aborted = self.framing.aborted()
        return aborted if self.admit([aborted]) else b""

    def may_begin(self, size: int) -> bool:
        """Return whether a message with a payload of this size may begin."""
        return self._window.may_begin(-(-size // self.framing.room))

    def may_go_on(self) -> bool:
        """Return whether the next piece of a message may follow. Frames beyond the window wait."""
        return self.may_begin(READ_OCTETS)

    def take_back(self) -> None:
        """Take back the message that began last: it has not left."""
        self._session.take_back(self.link, 1)

    def divide(
        self, framed: _Framed, message: int, octets: Octets, at: int, total: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the frames of these octets of a message, which are at `at` of its `total` octets. Yield with
        each frame how many of the octets it has.
        """
        room = self.framing.room
        view = memoryview(octets)  # so each octet is copied once
        for begin in range(0, len(view), room):
            payload = view[begin : begin + room]
            more = at + begin + len(payload) < total
            if at + begin:
                opening = self.framing.continuation(len(payload), more=more)
            else:
                opening = self.framing.opening(
                    framed.delivery, message, len(payload), settled=framed.is_settled, more=more
                )
            yield b"".join((opening, payload)), len(payload)

    def admit(self, frames: Sequence[bytes], admitted: int = 0, ends: int | None = None) -> int:
        """Return the number of these frames that may leave now; the others wait for the window. The first
        ones (`admitted`) have left, or may have: what the client says about its window since then does not
        count for them. `ends`: the settled message that ends with the last frame, if one does.
        """
        window = self._window
        now = min(len(frames), max(window.room, admitted))
        window.transferred(now)
        last = len(frames) - now
        for place, frame in enumerate(frames[now:], 1):
            window.wait(self.link, frame, ends if place == last else None)
        return now

    def undo(self, frames: SentFrames) -> None:
        """Undo `admit` for these frames, which have not left."""
        self._window.transferred(-frames.now)
        self._window.forget(self.link, frames.waiting)


class MessageInPieces:
    """One message that leaves in pieces.

    The rest of a frame that is begun is held here. Frames that are not begun are made again.
    """

    def __init__(
        self,
        form: Transfers,
        message: MessageOutline,
        around: BodyFraming,
        framed: _Framed | None,
    ) -> None:
        """Create a message in pieces. `framed` has its delivery-id, if a part of it has been framed
        before.
        """
        self._form = form
        self._is_settled = message.is_settled
        self._message = message.message
        size = message.size
        self._before, self._after = stored.frame_of(around, size)
        self._size = size
        self._framed = framed
        self._admitted = 0 if framed is None else framed.admitted
        self._total = len(self._before) + size + len(self._after)
        self._at = 0
        """The number of octets of the message that have left, are held in `_owed`, or wait for the window."""
        self._owed = b""
        """The rest of the frame that is begun."""
        self._frames: list[tuple[bytes, int]] = []
        """The frames that `framed` returned last, without `_owed`, each with its number of octets of the
        message.
        """
        self._waiting: list[tuple[bytes, int]] = []
        self.is_begun = False

    @property
    def is_done(self) -> bool:
        return not self._owed and self._at == self._total

    @property
    def _body(self) -> int:
        return min(max(self._at - len(self._before), 0), self._size)

    @property
    def body(self) -> int:
        # The last octet is given again until everything after it has left.
        return self._body if self.is_done or self._body < self._size else max(0, self._size - 1)

    def framed(self, octets: Octets) -> Sequence[Octets]:
        form = self._form
        if self._framed is None:
            # The client may have lowered the credit since the take.
            if not form.link.credit or not form.may_begin(self._total):
                return ()
            settled = form.settles(is_settled=self._is_settled)
            delivery = form.start(range(self._message, self._message + 1), settled=settled)
            self._framed = _Framed(delivery, settled)
        body = memoryview(octets)[self._body - self.body :]
        before, after = self._before[self._at :], b""
        if self._body + len(body) == self._size:
            after = self._after[max(self._at - len(self._before) - self._size, 0) :]
        payload: Octets = b"".join((before, body, after)) if before or after else body
        frames = list(form.divide(self._framed, self._message, payload, self._at, self._total))
        admitted, self._admitted = self._admitted, 0
        ends = self._at + sum(count for _, count in frames) == self._total and self._framed.is_settled
        now = form.admit([octets for octets, _ in frames], admitted, self._message if ends else None)
        self._frames, self._waiting = frames[:now], frames[now:]
        return [*([self._owed] if self._owed else ()), *(octets for octets, _ in self._frames)]

    def sent(self, octets: int) -> None:
        self.is_begun = self.is_begun or octets > 0
        gone = min(octets, len(self._owed))
        self._owed, octets = self._owed[gone:], octets - gone
        left = 0
        if not self._owed:
            for frame, count in self._frames:
                if not octets and frame:
                    break
                gone = min(octets, len(frame))
                self._owed, octets = frame[gone:], octets - gone
                self._at += count
                left += 1
                if self._owed:
                    break
        if left == len(self._frames) and not self._owed:
            # All frames that could leave have left: those that wait for the window are the session's now.
            self._at += sum(count for _, count in self._waiting)
            self.is_begun = self.is_begun or bool(self._waiting)
            waits = bool(self._waiting)
        else:
            self._form.undo(SentFrames(len(self._frames) - left, len(self._waiting)))
            waits = False
        self._frames, self._waiting = [], []
        if self._framed is not None and self.is_done and not waits:
            self._form.completed(self._message, settled=self._framed.is_settled)
        if not self.is_begun and self._framed is not None:
            self._form.take_back()
            self._framed = None

    def given_up(self, *, is_done: bool) -> AbandonedMessage:
        owed, self._owed = self._owed, b""
        if self._framed is None:
            return AbandonedMessage(self._message, owed)
        aborted = self._form.given_up(self._message, self._framed.delivery, is_done=is_done)
        return AbandonedMessage(self._message, owed + aborted)


def around_of(head: bytes, deliveries: int, portion: Portion) -> BodyFraming:
    """Return the octets around a body that was delivered N times before. The work counts in `portion`."""
    around = head_around(head, portion)
    if not deliveries:
        return around
    portion.spend(head)
    return stored.redelivered(around, deliveries)


def _first(selections: Sequence[Selection], count: int) -> Iterator[Selection]:
    """Yield the selections of the first `count` messages."""
    for selection in selections:
        if count <= 0:
            return
        yield msgspec.structs.replace(selection, ids=selection.ids[:count])
        count -= len(selection.ids)
