"""Sends what channels give, on one connection, so that one that stops reading holds next to nothing.

A client that has not taken within a second what was sent to it is stalled. Then what was not sent goes back
to the channel, and so does what its other channels were dealt. Only the message that is begun remains. Where
the channel can give the rest of it again, a piece at a time, nothing of it is held; where not, the rest is
held within a bound (see omq.drivers.stalled).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

import trio

from omq.drivers.problems import for_clients
from omq.drivers.seam import LITTLE_OCTETS, Channel, Cut, Gone, Messages, Octets, Piece, Rest, Torn
from omq.drivers.stalled import Stalled
from omq.logs import quoted
from omq.terminals.connection.forms import Form
from omq.terminals.connection.transport import Transport
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.errors import StoreError


@dataclass(frozen=True, slots=True)
class _Wait:
    """The client is to take something first; no message is begun."""


@dataclass(frozen=True, slots=True)
class _Again:
    """The channel gives the rest of the message that is begun."""

    opening: bytes
    """What is missing of its opening."""


@dataclass(frozen=True, slots=True)
class _Little:
    """The rest of the message that is begun, in octets of its own."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class _Held:
    """The rest of the message that is begun, as it lies in its block."""

    block: Block
    opening: bytes
    body: Octets
    counted: bool
    """Whether its topic counts it as long as it is not done."""


_Left = _Wait | _Again | _Little | _Held


class Forwarder:
    """The sending side of one connection."""

    def __init__(
        self,
        transport: Transport,
        form: Form,
        stalled: Stalled,
        channels: Callable[[], Iterable[Channel]],
        end: Callable[[str], None],
    ) -> None:
        """`channels` are those of the connection now; `end` ends it at once, in the middle of a message,
        and takes the reason.
        """
        self._transport = transport
        self._form = form
        self._stalled = stalled
        self._channels = channels
        self._end = end
        self.is_stalled = False
        """Whether its channels are held: one that is opened now has to be, too."""
        self._stalled_at = 0.0
        self._turn = 0  # odd while something is being sent
        self._looked_at = 0

    async def send(self, *parts: Octets) -> None:
        """Send what is no message. Raises trio.BrokenResourceError."""
        self._turn += 1
        try:
            await self._transport.send_together(parts)
        finally:
            self._over()

    async def forward(self, topic: bytes, channel: Channel, is_wanted: Callable[[], bool]) -> Gone | None:
        """Send what a channel of this topic has at once, unless it is not wanted any more when it is taken;
        or give the news that something is gone.

        Raises omq_storage.errors.StoreError between two messages, and trio.BrokenResourceError.
        """
        taken = await channel.take()
        if taken is None or not is_wanted():
            return None
        if isinstance(taken, Gone):
            return taken
        self._turn += 1
        before = self._transport.sent
        try:
            left = await self._send(channel, taken)
            del taken  # nothing is held of it while the client is stalled, but for what is left
            while left is not None:
                left = await self._go_on(topic, channel, left)
        finally:
            channel.traffic.octets_out += self._transport.sent - before
            self._over()
        return None

    @property
    def is_sending(self) -> bool:
        """Whether something is being sent."""
        return bool(self._turn % 2)

    @property
    def stalled_seconds(self) -> float | None:
        """For how long the client has been stalled; None when it is not."""
        return trio.current_time() - self._stalled_at if self.is_stalled else None

    def stop(self) -> None:
        """The connection is over: nothing points back at it."""
        self._channels = tuple
        self._end = _nothing

    def look(self) -> None:
        """Called about every second: whether something is being sent for so long."""
        if self._turn % 2 and self._turn == self._looked_at:
            self._stall()
        self._looked_at = self._turn

    def _stall(self) -> None:
        if not self.is_stalled:
            self.is_stalled = True
            self._stalled_at = trio.current_time()
        for channel in self._channels():
            channel.hold()

    def _over(self) -> None:
        self._turn += 1
        if self.is_stalled:
            self.is_stalled = False
            for channel in self._channels():
                channel.release()

    async def _send(self, channel: Channel, taken: Messages | Piece) -> _Left | None:
        """Send what was taken; what is to follow first, where that is not everything."""
        match taken:
            case Messages(cuts):
                return await self._send_messages(channel, cuts, little=taken.is_little)
            case Piece():
                return await self._send_piece(channel, taken)
            case _:
                assert_never(taken)

    async def _send_messages(self, channel: Channel, cuts: Sequence[Cut], *, little: bool) -> _Left | None:
        parts = self._form.parts(cuts)
        before = self._transport.sent
        stalled = False
        try:
            if little:
                await self._transport.send_together(parts)
            else:
                stalled = not await self._transport.send_unless_stalled(parts)
        finally:
            count, octets = self._form.sent(cuts, parts, self._transport.sent - before)
            if not stalled or not octets:
                channel.written(count)
        if not stalled:
            return None
        self._stall()
        if not octets:
            return _Wait()
        block, message = _at(cuts, count)
        body = block.frame(message)[FRAME_HEADER:]
        opening = self._form.opening(block.topic, message, block.head(message), len(body))
        begin = max(0, octets - len(opening))
        opening, body = opening[octets:], body[begin:]
        channel.written(count, begin)
        if len(body) <= LITTLE_OCTETS:
            return _Little(opening + body)
        match channel.rest:
            case Rest.GIVEN_AGAIN:
                return _Again(opening)
            case Rest.COUNTED:
                return _Held(block, opening, body, counted=True)
            case Rest.HELD:
                return _Held(block, opening, body, counted=False)
            case other:
                assert_never(other)

    async def _send_piece(self, channel: Channel, piece: Piece) -> _Left | None:
        opening = b""
        if not piece.begin:
            opening = self._form.opening(piece.topic, piece.message, piece.head, piece.size)
        before = self._transport.sent
        stalled = False
        try:
            if len(piece.octets) <= LITTLE_OCTETS:
                await self._transport.send_together((opening, piece.octets))
            else:
                stalled = not await self._transport.send_unless_stalled((opening, piece.octets))
        finally:
            octets = self._transport.sent - before
            end = piece.begin + max(0, octets - len(opening))
            if end == piece.size:
                channel.written(1)
            else:
                channel.written(0, end if end or octets else None)
        if stalled:
            self._stall()
        if end == piece.size:
            return None
        return _Again(opening[octets:]) if end or octets else _Wait()

    async def _go_on(self, topic: bytes, channel: Channel, left: _Left) -> _Left | None:
        """Send what is to follow; what is left then."""
        match left:
            case _Wait():
                await self._transport.wait_writable()
            case _Again(opening):
                if opening:
                    await self._transport.send(opening)
                return await self._send_piece(channel, await self._rest(topic, channel))
            case _Little(octets):
                await self._transport.send(octets)
                channel.written(1)
            case _Held(block, opening, body, counted):
                await self._transport.send(opening)
                if counted:
                    await self._transport.send(body)
                else:
                    await self._send_held(topic, block, body)
                channel.written(1)
            case _:
                assert_never(left)
        return None

    async def _rest(self, topic: bytes, channel: Channel) -> Piece:
        """The next piece of the message that is begun. When it cannot be had, the connection ends."""
        try:
            taken = await channel.take()
            if isinstance(taken, Piece):
                return taken
            why = "the topic was deleted"
        except Torn as torn:
            why = str(torn)
        except StoreError as problem:
            why = for_clients(problem).text
        self._cut_off(topic, why)
        await trio.sleep_forever()
        raise AssertionError("the connection has ended")

    async def _send_held(self, topic: bytes, block: Block, body: Octets) -> None:
        with self._stalled.holding(
            block.topic, block.first, block.held, lambda why: self._cut_off(topic, why)
        ) as holder:
            for start in range(0, len(body), LITTLE_OCTETS):
                await self._transport.send(body[start : start + LITTLE_OCTETS])
                holder.moved()

    def _cut_off(self, topic: bytes, why: str) -> None:
        peer = self._transport.peer()
        line = f"{peer}: {quoted(topic)}: closed in the middle of a message: {why}"
        self._stalled.tell(line, peer=peer, topic=topic)
        self._end(why)


def _nothing(why: str) -> None:
    """Is to be ended any more."""


def _at(cuts: Sequence[Cut], index: int) -> tuple[Block, int]:
    """The message at this index among all of these, and its block."""
    for cut in cuts:
        if index < len(cut.ids):
            return cut.block, cut.ids[index]
        index -= len(cut.ids)
    raise IndexError(index)
