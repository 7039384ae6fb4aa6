"""One subscriber of a round-robin topic: what was dealt to it, and what of that is not done."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from omq.drivers.pieces import Pieces
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import (
    SLOW_SECONDS,
    Cut,
    Gone,
    Messages,
    Piece,
    Rest,
    Subscriber,
    Taken,
    Torn,
)
from omq.drivers.statistics import ChannelStatistics, Traffic
from omq.drivers.unconfirmed import Unconfirmed
from omq_storage.blocks import Block
from omq_storage.runs import Ids, Run

OUTBOX_OCTETS = 256 << 10
"""How much waits to be written to one subscriber: it has room while less does."""

TAKE_OCTETS = 256 << 10
"""How much one take gives at once: then the connection's other subscriptions have their turn."""

MOST_CUTS = 512
"""How many cuts one take gives at the most: single messages, where few have room at a time."""


class Dealer(Protocol):
    """What a channel tells its driver."""

    traffic: Traffic

    def can_take(self) -> None: ...

    def done(self, message: int, count: int) -> None: ...

    def returned(self, messages: Sequence[Run]) -> None: ...

    def finishing(self, channel: "RoundRobinChannel") -> None: ...

    def closed(self, channel: "RoundRobinChannel", outstanding: Sequence[Run]) -> None: ...


@dataclass(frozen=True, slots=True)
class Large:
    """A message that was dealt, and stays in the store until it is sent."""

    message: int
    octets: int

    @property
    def ids(self) -> range:
        return range(self.message, self.message + 1)


@dataclass(slots=True)
class Begun:
    """The message that is sent by itself: a part of it is, or is about to be, on the socket."""

    message: int
    octets: int
    pieces: Pieces | None
    slow: bool
    taken_at: float = 0.0
    received: bool = False
    """Whether its subscriber is done with it, before the last of it is known to be on the socket."""


class RoundRobinChannel:
    """Plain at first; with credit from the first `request` on."""

    def __init__(
        self,
        dealer: Dealer,
        subscriber: Subscriber,
        share: Unconfirmed,
        pieces: Callable[[int], Pieces] | None = None,
    ) -> None:
        """`pieces` reads a message from the store; None for a topic that has its messages in memory until
        they are done.
        """
        self.subscriber = subscriber
        self.rest = Rest.COUNTED if pieces is None else Rest.GIVEN_AGAIN
        self.traffic = dealer.traffic
        self._dealer = dealer
        self._share = share
        self._pieces = pieces
        self._credit: int | None = None
        self._outbox: deque[Cut | Large] = deque()
        self._taken: list[Cut] = []
        self._begun: Begun | None = None
        self._held = False
        self._queued = 0  # octets in the outbox, taken and begun, by the mean of each block
        self._unconfirmed = Ids()
        self._counted = 0  # octets of the share that they hold
        self._news: deque[Gone] = deque()

    # -- the driver's side ---------------------------------------------------------------------------------

    def room(self, frame_octets: int) -> int:
        """How many messages of about this size it can take now."""
        if self._held:
            return 0
        if self._credit is not None:
            if not self._share.may_grow(self._counted):
                return 0
            return max(0, min(self._credit - len(self._unconfirmed), self._room_in_outbox(frame_octets)))
        return self._room_in_outbox(frame_octets)

    def _room_in_outbox(self, frame_octets: int) -> int:
        left = OUTBOX_OCTETS - self._queued
        return 0 if left <= 0 else max(1, left // frame_octets)

    def deal(self, block: Block, ids: range) -> None:
        """Messages of a block, with a common step."""
        self._outbox.append(Cut(block, ids))
        self._queued += len(ids) * mean_octets(block)
        if self._credit is not None:
            self._unconfirmed.add(ids)
            self._count()
        self.subscriber.wake()

    def deal_large(self, block: Block, message: int) -> None:
        """A message of a block that is not to be held in memory until it is sent."""
        self._outbox.append(Large(message, mean_octets(block)))
        self._queued += mean_octets(block)
        if self._credit is not None:
            self._unconfirmed.add(range(message, message + 1))
            self._count()
        self.subscriber.wake()

    def tell(self, gone: Gone) -> None:
        self._news.append(gone)
        self.subscriber.wake()

    def outstanding(self) -> Sequence[Run]:
        """The ids that were dealt to it and are not done."""
        return (self._unsent() if self._credit is None else self._unconfirmed).runs()

    def outstanding_count(self) -> int:
        """How many messages were dealt to it and are not done."""
        if self._credit is not None:
            return len(self._unconfirmed)
        return self._unsent_count()

    def _unsent_count(self) -> int:
        unsent = sum(len(cut.ids) for cut in (*self._taken, *self._outbox))
        return unsent + (self._begun is not None)

    def _unsent(self) -> Ids:
        unsent = Ids()
        if self._begun is not None:
            unsent.add(range(self._begun.message, self._begun.message + 1))
        for cut in (*self._taken, *self._outbox):
            unsent.add(cut.ids)
        return unsent

    def _count(self) -> None:
        """Count in the share what is held of it now."""
        if self._unconfirmed.octets != self._counted:
            more = self._unconfirmed.octets - self._counted
            self._counted += more
            self._share.change(more)

    # -- the terminal's side -------------------------------------------------------------------------------

    def ready(self) -> bool:
        return bool(self._outbox) or bool(self._news)

    async def take(self) -> Taken | None:
        if self._begun is not None:
            return await self._piece(self._begun)
        if self._news:
            return self._news.popleft()
        octets = 0
        while self._outbox and octets < TAKE_OCTETS and len(self._taken) < MOST_CUTS:
            cut = self._outbox[0]
            if isinstance(cut, Large):
                if self._taken:
                    break
                return await self._take_large(cut)
            self._outbox.popleft()
            self._taken.append(cut)
            octets += len(cut.ids) * mean_octets(cut.block)
        return Messages(tuple(self._taken)) if self._taken else None

    async def _take_large(self, large: Large) -> Piece | Gone:
        assert self._pieces is not None
        self._outbox.popleft()
        begun = Begun(large.message, large.octets, self._pieces(large.message), slow=False)
        self._begun = begun
        try:
            return await self._piece(begun)
        except Torn as torn:
            self._unconfirmed.remove(begun.message)
            self._count()
            self._end(begun)
            return Gone(begun.message, begun.message, str(torn))

    async def _piece(self, begun: Begun) -> Piece:
        """Raises Torn."""
        assert begun.pieces is not None
        piece = await begun.pieces.take(slow=begun.slow)
        begun.taken_at = trio.current_time()
        return piece

    def written(self, count: int, begun: int | None = None) -> None:
        """`count` messages of the last take are on the socket: they are done, unless they need a Received."""
        if self._begun is not None:
            self._written_of(self._begun, count, begun)
            return
        self.traffic.messages_out += count
        taken, self._taken = self._taken, []
        back: list[Cut] = []
        for cut in taken:
            whole = min(count, len(cut.ids))
            count -= whole
            if whole:
                self._queued -= whole * mean_octets(cut.block)
                if self._credit is None:
                    self._dealer.done(cut.ids[0], whole)
            if whole < len(cut.ids):
                back.append(Cut(cut.block, cut.ids[whole:]))
        if begun is not None and back:  # else it was closed meanwhile
            first, *back = back
            message = first.ids[0]
            pieces = None if self._pieces is None else self._pieces(message)
            if pieces is not None:
                pieces.begin = begun
            self._begun = Begun(message, mean_octets(first.block), pieces, slow=True)
            if len(first.ids) > 1:
                back.insert(0, Cut(first.block, first.ids[1:]))
        self._outbox.extendleft(reversed(back))
        self._leave_if_held()
        self._dealer.can_take()

    def _written_of(self, begun: Begun, count: int, octets: int | None) -> None:
        """As `written`, for the message that is sent by itself."""
        if begun.pieces is not None:
            begun.pieces.give_back()
            begun.slow = trio.current_time() - begun.taken_at >= SLOW_SECONDS
            begun.pieces.begin = octets or 0
        if count:
            self.traffic.messages_out += 1
            self._end(begun)
            self._dealer.can_take()
        elif octets is None:
            self._begun = None
            self._outbox.appendleft(Large(begun.message, begun.octets))
            self._leave_if_held()

    def _end(self, begun: Begun) -> None:
        """It is sent."""
        self._begun = None
        self._queued -= begun.octets
        if self._credit is None or begun.received:
            self._dealer.done(begun.message, 1)

    def request(self, credit: int) -> None:
        """From now on at most `credit` messages at a time, each to be confirmed with `received`."""
        if self._credit is None:
            self._unconfirmed = self._unsent()
            self._count()
        self._credit = credit
        self._dealer.can_take()

    def received(self, message: int) -> None:
        """The subscriber is done with a message. Raises Refused for one that is not outstanding here."""
        if self._credit is None:
            raise Refused(Reason.INVALID, "only a subscriber that sent a Request confirms messages")
        if not self._unconfirmed.remove(message):
            raise Refused(Reason.INVALID, f"message {message} is not waiting to be confirmed here")
        self._count()
        if self._begun is not None and self._begun.message == message:
            self._begun.received = True
        else:
            self._dealer.done(message, 1)
        self._dealer.can_take()

    def hold(self) -> None:
        """What it was dealt and is not taken goes to others; so does what is given back while it is held."""
        self._held = True
        self._leave_if_held()

    def _leave_if_held(self) -> None:
        if not self._held:
            return
        unsent = Ids()
        returned: list[Run] = []
        while self._outbox:
            cut = self._outbox.popleft()
            octets = cut.octets if isinstance(cut, Large) else mean_octets(cut.block)
            self._queued -= len(cut.ids) * octets
            if self._credit is None:
                unsent.add(cut.ids)
            else:  # without those it has confirmed unseen
                returned += self._unconfirmed.take(cut.ids)
        returned += unsent.runs()
        self._count()
        if returned:
            self._dealer.returned(returned)

    def release(self) -> None:
        self._held = False
        self._dealer.can_take()

    def finish(self) -> None:
        self._dealer.finishing(self)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            position=None,
            behind=self._unsent_count(),
            credit=self._credit,
            unsettled=self.outstanding_count(),
            octets=self._queued,
            is_held=self._held,
        )

    def close(self) -> None:
        self.rest = Rest.HELD
        self._dealer.closed(self, self.outstanding())
        begun, self._begun = self._begun, None
        if begun is not None and begun.pieces is not None:
            begun.pieces.give_back()
        if begun is not None and begun.received:
            self._dealer.done(begun.message, 1)
        self._outbox.clear()
        self._taken.clear()
        self._unconfirmed.clear()
        self._count()


def mean_octets(block: Block) -> int:
    """What a message of the block takes on the wire, on average: near enough to share out room by."""
    return block.size // block.count
