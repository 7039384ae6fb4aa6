"""Sends the messages of the channels of one connection. A client that stops reading holds almost no memory.

A client is stalled when it has not accepted the sent octets, or 64 KiB of a long send, within a second. Then
the connection gives back everything but the message that is begun: unsent messages return to their channel,
and all channels of the connection are held (`omq.terminals.connection.channel_holds`), so that their
undelivered messages go to other subscribers.

The rest of the message that is begun must follow (`omq.terminals.connection.remainders`), because a frame
cannot be withdrawn. If it cannot be had, AMQP 1.0 tells the client that the message is given up; the other
protocols have no words for it, and the connection ends.

A terminal may let others have their turns between the pieces of a message
(`omq.terminals.connection.paused`). If the message is in memory, the channel learns that it is begun when the
client stalls, or the rest must wait for long.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import trio

from omq.drivers.problems import for_clients
from omq.drivers.seam import (
    LITTLE_OCTETS,
    SLOW_SECONDS,
    Channel,
    MessageTruncated,
    Octets,
    Piece,
    Selection,
    TakenMessages,
    Unavailable,
)
from omq.drivers.stalled import HeldReader, Stalled
from omq.terminals.connection.abrupt_end import AbruptEnd
from omq.terminals.connection.channel_holds import ChannelHolds, ChannelOwner
from omq.terminals.connection.forms import Form, MessageInPieces, selections_behind
from omq.terminals.connection.paused import PausedMessages
from omq.terminals.connection.remainders import (
    GivenAgain,
    InHand,
    InTurns,
    Left,
    Unfinished,
    before_long,
    begin_after,
    begin_long,
    left_of,
    may_pause,
)
from omq.terminals.connection.transport import Transport, rest_after
from omq_storage.blocks import Block
from omq_storage.errors import StoreError

LEAST_TAKEN_OCTETS = 64 << 10
"""The octets of a long send that a client takes within SLOW_SECONDS, or else it is stalled."""


class Forwarder:
    """Sends on one connection. One task at a time uses it, except for `look`."""

    __slots__ = (
        "_end",
        "_give_back",
        "_holds",
        "_nursery",
        "_owner",
        "_paused_messages",
        "_scope",
        "_stalled",
        "_stalled_at",
        "_transport",
        "_waits_from",
        "_waits_since",
        "delivered",
        "is_stalled",
    )

    def __init__(self, transport: Transport, stalled: Stalled, scope: trio.CancelScope) -> None:
        """Create a forwarder. `scope` is the connection: it is cancelled if the message that is begun cannot
        be completed.
        """
        self._transport = transport
        self._stalled = stalled
        self._scope = scope
        self._waits_since: float | None = None
        self._waits_from: int | None = None  # what the transport had sent then, in a patient send
        self._owner: ChannelOwner | None = None
        self._nursery: trio.Nursery | None = None
        self._give_back: Callable[[], bool] | None = None
        # Most connections never need one of these three.
        self._end: AbruptEnd | None = None
        self._paused_messages: PausedMessages | None = None
        self._holds: ChannelHolds | None = None
        self.is_stalled = False
        """Whether the client is stalled."""
        self._stalled_at = 0.0
        self.delivered = 0
        """The number of messages that have left."""

    def attach(self, owner: ChannelOwner, nursery: trio.Nursery, give_back: Callable[[], bool]) -> None:
        """Begin to send for a connection, which owns channels. `nursery` has its tasks. `give_back` is that
        of its backlog.
        """
        self._owner = owner
        self._nursery = nursery
        self._give_back = give_back

    def detach(self) -> None:
        """End, because the connection is over."""
        self._owner = self._nursery = self._give_back = None
        if self._paused_messages is not None:
            self._paused_messages.close()

    @property
    def paused(self) -> PausedMessages:
        """The messages that have begun to leave, and wait for the turn of their next piece."""
        if self._paused_messages is None:
            self._paused_messages = PausedMessages(self._stalled, self._scope, self._abrupt_end.cut_off)
        return self._paused_messages

    @property
    def _abrupt_end(self) -> AbruptEnd:
        # Not a method of this object: two objects that refer to each other wait for the garbage collector.
        if self._end is None:
            self._end = AbruptEnd(self._transport, self._stalled, self._scope)
        return self._end

    @property
    def torn(self) -> str | None:
        """The reason why the connection was ended in the middle of a message, if it was."""
        return None if self._end is None else self._end.reason

    @property
    def is_sending(self) -> bool:
        """Whether it waits for the client to accept octets."""
        return self._waits_since is not None

    async def send(self, parts: Sequence[Octets]) -> None:
        """Send octets that are no messages. Raises trio.BrokenResourceError."""
        await self._push(parts)
        if self.is_stalled:
            self._recover()

    async def wait_taken(self) -> None:
        """Wait until the client has accepted some of the sent octets. Raises trio.BrokenResourceError."""
        self._waits_since, self._waits_from = trio.current_time(), None
        try:
            await self._transport.wait_taken()
        finally:
            self._waits_since = None

    async def forward(
        self, topic: bytes, channel: Channel, form: Form, is_wanted: Callable[[], bool]
    ) -> Unavailable | None:
        """Send the messages that the channel of this topic has ready, if they are still wanted after they
        were taken; or return the news that messages are gone.

        Raises omq_storage.errors.StoreError between two messages, or after one that was given up, and
        trio.BrokenResourceError.
        """
        sent = await self.forward_piece(topic, channel, form, is_wanted)
        while isinstance(sent, Unfinished):
            sent = await self.go_on(topic, channel, sent)
        return sent

    async def forward_piece(
        self,
        topic: bytes,
        channel: Channel,
        form: Form,
        is_wanted: Callable[[], bool],
        piece: int | None = None,
    ) -> Unavailable | Unfinished | None:
        """Do as `forward`, but return in the middle of a message that is sent in pieces, after a piece that
        the client has taken: `go_on` sends the next one, after those of others. With the octets of a `piece`,
        long messages in memory are sent in pieces, too, and the pieces of a channel in smaller ones.

        Raises what `forward` does.
        """
        taken = await channel.take()
        if taken is None:
            return None
        if isinstance(taken, Unavailable):
            return taken if is_wanted() else None
        if not is_wanted():
            channel.written(0)  # so it does not count as delivered
            return None
        before = self._transport.sent
        left: Left | Unavailable | None
        try:
            if isinstance(taken, TakenMessages):
                left = await self._send_taken(channel, form, taken, is_wanted, piece)
            else:
                left = await self._send_piece(channel, form.begin(taken), taken, piece)
            del taken  # nothing of it is held while the client is stalled, except what is left
            left = await self._unless_stalled(topic, channel, left)
        finally:
            channel.traffic.octets_out += self._transport.sent - before
        return self._paused(topic, channel, left)

    async def go_on(
        self, topic: bytes, channel: Channel, unfinished: Unfinished, piece: int | None = None
    ) -> Unavailable | Unfinished | None:
        """Send the next piece of a message, or return the news that it is gone. `piece` as in
        `forward_piece`.

        Raises what `forward` does.
        """
        self.paused.go_on(unfinished)
        before = self._transport.sent
        try:
            left = await self._go_on(topic, channel, unfinished.left, piece)
            left = await self._unless_stalled(topic, channel, left)
        finally:
            channel.traffic.octets_out += self._transport.sent - before
        return self._paused(topic, channel, left)

    async def _unless_stalled(
        self, topic: bytes, channel: Channel, left: Left | Unavailable | None
    ) -> Left | Unavailable | None:
        """Continue a send at once if it cannot pause, or if the client is stalled: then its other sources
        could not send, either.
        """
        while isinstance(left, Left) and (self.is_stalled or not may_pause(left)):
            left = await self._go_on(topic, channel, left)
        return left

    def _paused(
        self, topic: bytes, channel: Channel, left: Left | Unavailable | None
    ) -> Unavailable | Unfinished | None:
        if isinstance(left, Left):
            unfinished = Unfinished(left)
            self.paused.add(topic, channel, unfinished)
            return unfinished
        if self.is_stalled:
            self._recover()
        return left

    @property
    def stalled_seconds(self) -> float | None:
        """The seconds since which the client has been stalled; None when it is not."""
        return trio.current_time() - self._stalled_at if self.is_stalled else None

    def opened(self, channel: Channel) -> None:
        """Hold another channel of the connection, too, if the client is stalled."""
        if self.is_stalled:
            channel.hold()

    # -- stalls --------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Check about once a second whether the client is stalled: whether it has accepted neither all octets
        of the send, nor LEAST_TAKEN_OCTETS of a long one, within SLOW_SECONDS.
        """
        if self._waits_since is not None and now - self._waits_since >= SLOW_SECONDS:
            sent = self._transport.sent
            if self._waits_from is None or sent - self._waits_from < LEAST_TAKEN_OCTETS:
                self._stall()
            else:
                self._waits_since, self._waits_from = now, sent
        if self._paused_messages is not None:
            self._paused_messages.look(now)

    def _stall(self) -> None:
        if not self.is_stalled:
            self.is_stalled = True
            self._stalled_at = trio.current_time()
            self._hold_channels()
            if self._paused_messages is not None:
                self._paused_messages.leave_all()

    def _recover(self) -> None:
        self.is_stalled = False
        self._hold_channels()

    def _hold_channels(self) -> None:
        """Hold the channels of the connection while the client is stalled, and release them then."""
        if self._owner is not None and self._nursery is not None and self._give_back is not None:
            if self._holds is None:
                self._holds = ChannelHolds()
            self._holds.change(self._owner, self._nursery, self._give_back, held=self.is_stalled)

    # -- sending -------------------------------------------------------------------------------------------

    def _offer(self, parts: Sequence[Octets]) -> Sequence[Octets] | None:
        """Send the octets that the socket accepts now; return the rest, or None if everything has left."""
        rest = rest_after(parts, self._transport.try_send(parts))
        return rest if rest or self._transport.pending else None

    async def _send_rest(self, rest: Sequence[Octets], *, patient: bool) -> bool:
        """Send the rest; if not `patient`, return False after SLOW_SECONDS, as the transport does."""
        self._waits_since = trio.current_time()
        self._waits_from = self._transport.sent if patient else None
        try:
            if not patient:
                return await self._transport.send_unless_stalled(rest)
            await self._transport.send(*rest)
            return True
        finally:
            self._waits_since = None

    async def _push(self, parts: Sequence[Octets]) -> None:
        rest = self._offer(parts)
        if rest is not None:
            await self._send_rest(rest, patient=True)

    async def _send_taken(
        self,
        channel: Channel,
        form: Form,
        messages: TakenMessages,
        is_wanted: Callable[[], bool],
        piece: int | None,
    ) -> Left | None:
        """Send the messages before the first long one, or the first piece of that."""
        if piece is not None:
            selections = before_long(messages.selections)
            if not selections:
                return await self._send_turn(channel, begin_long(form, messages.selections[0], piece))
            messages = TakenMessages(selections)
        return await self._send_messages(channel, form, messages, is_wanted)

    async def _send_messages(
        self, channel: Channel, form: Form, messages: TakenMessages, is_wanted: Callable[[], bool]
    ) -> Left | None:
        """Send the messages that were taken, as long as they are wanted. If a message has left only in part,
        return its rest, which must be sent before anything else.
        """
        selections: Sequence[Selection] = messages.selections
        earlier = 0  # messages that have left before these
        while True:
            parts = form.whole(selections)
            before = self._transport.sent
            try:
                rest = self._offer(parts)
                is_sent = rest is None or await self._send_rest(rest, patient=messages.is_little)
            except BaseException:  # cancelled, too: what left must count, and the rest be given again
                count, _ = form.sent(selections, parts, self._transport.sent - before)
                self.delivered += count
                channel.written(earlier + count)
                raise
            if not is_sent:
                break
            count = form.framed
            self.delivered += count
            earlier += count
            selections = selections_behind(selections, count)
            if not (selections and count):
                channel.written(earlier)
                return None
            try:
                await trio.lowlevel.checkpoint()
            except BaseException:
                channel.written(earlier)
                raise
            if not is_wanted():
                channel.written(earlier)
                return None
        self._stall()
        count, octets = form.sent(selections, parts, self._transport.sent - before)
        self.delivered += count
        if not octets:
            channel.written(earlier + count)
            return GivenAgain(None)
        block, begun, body = begin_after(form, selections, count, octets)
        channel.written(earlier + count, begun.body)
        return left_of(channel, begun, block, body)

    async def _send_piece(
        self, channel: Channel, begun: MessageInPieces, piece: Piece, most: int | None
    ) -> Left | None:
        """Send the first octets of a piece, at most N (`most`)."""
        octets = piece.octets
        return await self._send_turn(
            channel, InTurns(begun, octets, piece.begin, len(octets) if most is None else most, None)
        )

    async def _send_turn(self, channel: Channel, part: InTurns) -> Left | None:
        """Send the octets of one turn."""
        begun, octets = part.begun, part.unsent()
        some = octets[: part.most]
        parts = begun.framed(some)
        is_patient = part.block is None and len(part.octets) <= LITTLE_OCTETS
        before = self._transport.sent
        goes_on = False
        is_sent = False
        try:
            rest = self._offer(parts)
            is_sent = rest is None or await self._send_rest(rest, patient=is_patient)
        finally:
            begun.sent(self._transport.sent - before)
            if begun.is_done:
                self.delivered += 1
                channel.written(1)
            else:
                goes_on = is_sent and begun.is_begun and len(some) < len(octets)
                if not goes_on:
                    channel.written(0, begun.body if begun.is_begun else None)
        if not is_sent:
            self._stall()
        if begun.is_done:
            return None
        if goes_on:
            return part
        if not begun.is_begun:
            return None if is_sent else GivenAgain(None)
        return GivenAgain(begun) if part.block is None else left_of(channel, begun, part.block, part.unsent())

    async def _go_on(
        self, topic: bytes, channel: Channel, left: Left, most: int | None = None
    ) -> Left | Unavailable | None:
        """Send the rest; return the part that has not left then, or the news that it cannot be had."""
        match left:
            case GivenAgain(begun):
                if begun is None:
                    await self._transport.wait_taken()
                    return None
                piece = await self._next_piece(topic, channel, begun)
                if isinstance(piece, Unavailable):
                    return piece
                return await self._send_piece(channel, begun, piece, most)
            case InHand(begun, body, share):
                if share is None:
                    await self._send_in_hand(begun, body)
                else:
                    await self._send_held(topic, begun, body, share)
                self.delivered += 1
                channel.written(1)
                return None
            case InTurns():
                return await self._send_turn(channel, left)
            case _:
                assert_never(left)

    async def _next_piece(
        self, topic: bytes, channel: Channel, begun: MessageInPieces
    ) -> Piece | Unavailable:
        """Return the next piece of the message that is begun. If it cannot be had, give the message up:
        return the news that it is gone, or raise what the store does. Or end the connection.
        """
        try:
            taken = await channel.take()
            if isinstance(taken, Piece):
                return taken
            why = "the topic was deleted"
        except MessageTruncated as torn:
            why = str(torn)
        except StoreError as problem:
            await self._give_up(topic, begun, for_clients(problem).text, is_done=False)
            raise
        message = await self._give_up(topic, begun, why, is_done=True)
        channel.written(1)
        return Unavailable(message, message, why)

    async def _give_up(self, topic: bytes, begun: MessageInPieces, why: str, *, is_done: bool) -> int:
        """Give up the rest of a message, and return its id. If the protocol cannot, end the connection."""
        given_up = begun.given_up(is_done=is_done)
        if given_up is None:
            await self.break_off(topic, why)
            raise AssertionError("the connection has ended")
        await self._push([given_up.octets])
        if self.is_stalled and not is_done:
            self._recover()
        return given_up.message

    async def break_off(self, topic: bytes, why: str) -> None:
        """End the connection in the middle of a frame that cannot be completed: this task is cancelled."""
        self._abrupt_end.cut_off(topic, why)
        await trio.sleep_forever()

    async def _send_held(self, topic: bytes, begun: MessageInPieces, body: Octets, block: Block) -> None:
        with self._stalled.holding(
            block.topic, block.first, block.held, partial(self._abrupt_end.cut_off, topic), self._scope
        ) as holder:
            await self._send_in_hand(begun, body, holder)

    async def _send_in_hand(
        self, begun: MessageInPieces, body: Octets, holder: HeldReader | None = None
    ) -> None:
        """Send the rest of a message a little at a time, with turns for other connections."""
        for start in range(0, max(len(body), 1), LITTLE_OCTETS):
            if start:
                await trio.lowlevel.checkpoint()
            parts = begun.framed(body[start : start + LITTLE_OCTETS])
            await self._push(parts)
            begun.sent(sum(map(len, parts)))
            if holder is not None:
                holder.moved()
