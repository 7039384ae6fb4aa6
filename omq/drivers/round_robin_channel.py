"""One subscriber of a round-robin topic: what was dealt to it, and what of that is not done."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from omq.drivers.channel import Cut, Gone, Messages, Refused, Subscriber, Taken
from storage.blocks import Block

OUTBOX_OCTETS = 256 << 10
"""How much waits to be written to one subscriber: it has room while less does."""

TAKE_OCTETS = 256 << 10
"""How much one take gives at once: then the connection's other subscriptions have their turn."""

MOST_CUTS = 512
"""How many cuts one take gives at the most: single messages, where few have room at a time."""


class Dealer(Protocol):
    """What a channel tells its driver."""

    def can_take(self) -> None: ...

    def done(self, message: int, count: int) -> None: ...

    def finishing(self, channel: "RoundRobinChannel") -> None: ...

    def closed(self, channel: "RoundRobinChannel", outstanding: Sequence[int]) -> None: ...


class RoundRobinChannel:
    """Plain at first; with credit from the first `request` on."""

    can_take_again = False  # what was dealt to it has no other owner

    def __init__(self, dealer: Dealer, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self._dealer = dealer
        self._credit: int | None = None
        self._outbox: deque[Cut] = deque()
        self._taken: list[Cut] = []
        self._held = False
        self._queued = 0  # octets in the outbox and taken, by the mean of each block
        self._unconfirmed: dict[int, None] = {}
        self._news: deque[Gone] = deque()

    # -- the driver's side ---------------------------------------------------------------------------------

    def room(self, frame_octets: int) -> int:
        """How many messages of about this size it can take now."""
        if self._held:
            return 0
        if self._credit is not None:
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
            self._unconfirmed.update(dict.fromkeys(ids))
        self.subscriber.wake()

    def tell(self, gone: Gone) -> None:
        self._news.append(gone)
        self.subscriber.wake()

    def outstanding(self) -> Iterator[int]:
        """The ids that were dealt to it and are not done."""
        if self._credit is not None:
            yield from self._unconfirmed
            return
        for cut in (*self._taken, *self._outbox):
            yield from cut.ids

    # -- the terminal's side -------------------------------------------------------------------------------

    def ready(self) -> bool:
        return bool(self._outbox) or bool(self._news)

    async def take(self) -> Taken | None:
        if self._news:
            return self._news.popleft()
        octets = 0
        while self._outbox and octets < TAKE_OCTETS and len(self._taken) < MOST_CUTS:
            cut = self._outbox.popleft()
            self._taken.append(cut)
            octets += len(cut.ids) * mean_octets(cut.block)
        return Messages(tuple(self._taken)) if self._taken else None

    def written(self, count: int) -> None:
        """`count` messages of the last take are on the socket: they are done, unless they need a Received."""
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
        self._outbox.extendleft(reversed(back))
        self._dealer.can_take()

    def request(self, credit: int) -> None:
        """From now on at most `credit` messages at a time, each to be confirmed with `received`."""
        if self._credit is None:
            for cut in (*self._taken, *self._outbox):
                self._unconfirmed.update(dict.fromkeys(cut.ids))
        self._credit = credit
        self._dealer.can_take()

    def received(self, message: int) -> None:
        """The subscriber is done with a message. Raises Refused for one that is not outstanding here."""
        if self._credit is None:
            raise Refused("only a subscriber that sent a Request confirms messages")
        if message not in self._unconfirmed:
            raise Refused(f"message {message} is not waiting to be confirmed here")
        del self._unconfirmed[message]
        self._dealer.done(message, 1)
        self._dealer.can_take()

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._dealer.can_take()

    def finish(self) -> None:
        self._dealer.finishing(self)

    def close(self) -> None:
        self._dealer.closed(self, list(self.outstanding()))
        self._outbox.clear()
        self._taken.clear()
        self._unconfirmed.clear()


def mean_octets(block: Block) -> int:
    """What a message of the block takes on the wire, on average: near enough to share out room by."""
    return block.size // block.count
