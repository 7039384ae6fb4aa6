"""One subscriber of a round-robin topic: what was dealt to it, and what of that is not done."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from omq.drivers.channel import Cut, Frames, Gone, Octets, Refused, Subscriber, Taken
from storage.blocks import Block

OUTBOX_OCTETS = 256 << 10
"""How much waits for one plain subscriber: it has room while less does."""

TAKE_OCTETS = 256 << 10


Hand = tuple[Block, range, list[memoryview]]
"""What was dealt at once: some messages of a block, their ids with a common step, and their frames."""


class Dealer(Protocol):
    """What a channel tells its driver."""

    def can_take(self) -> None: ...

    def done(self, message: int, count: int) -> None: ...

    def finishing(self, channel: "RoundRobinChannel") -> None: ...

    def closed(self, channel: "RoundRobinChannel", outstanding: Sequence[int]) -> None: ...


class RoundRobinChannel:
    """Plain at first; with credit from the first `request` on."""

    def __init__(self, dealer: Dealer, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self._dealer = dealer
        self._credit: int | None = None
        self._outbox: deque[Hand] = deque()
        self._taken: list[Hand] = []
        self._held = False
        self._queued = 0
        self._unconfirmed: dict[int, None] = {}
        self._news: deque[Gone] = deque()

    # -- the driver's side ---------------------------------------------------------------------------------

    def room(self, frame_octets: int) -> int:
        """How many messages of about this size it can take now."""
        if self._held:
            return 0
        if self._credit is not None:
            return max(0, self._credit - len(self._unconfirmed))
        left = OUTBOX_OCTETS - self._queued
        return 0 if left <= 0 else max(1, left // frame_octets)

    def deal(self, block: Block, ids: range, frames: list[memoryview]) -> None:
        self._outbox.append((block, ids, frames))
        self._queued += sum(map(len, frames))
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
        for _, ids, _ in (*self._taken, *self._outbox):
            yield from ids

    # -- the terminal's side -------------------------------------------------------------------------------

    def ready(self) -> bool:
        return bool(self._outbox) or bool(self._news)

    async def take(self) -> Taken | None:
        if self._news:
            return self._news.popleft()
        parts: list[Octets] = []
        octets = 0
        while self._outbox and octets < TAKE_OCTETS:
            hand = self._outbox.popleft()
            self._taken.append(hand)
            frames = hand[2]
            part = frames[0] if len(frames) == 1 else b"".join(frames)
            parts.append(part)
            octets += len(part)
        return Frames(tuple(parts), tuple(Cut(*hand) for hand in self._taken)) if parts else None

    def written(self, octets: int) -> None:
        """`octets` of the last take are on the socket: those are done, unless they need a Received."""
        taken, self._taken = self._taken, []
        back: list[Hand] = []
        for block, ids, frames in taken:
            size = sum(map(len, frames))
            complete = len(frames) if octets >= size else _whole_frames(frames, octets)
            octets = max(0, octets - size)
            self._queued -= sum(map(len, frames[:complete]))
            if complete and self._credit is None:
                self._dealer.done(ids[0], complete)
            if complete < len(frames):
                back.append((block, ids[complete:], frames[complete:]))
        self._outbox.extendleft(reversed(back))
        self._dealer.can_take()

    def request(self, credit: int) -> None:
        """From now on at most `credit` messages at a time, each to be confirmed with `received`."""
        if self._credit is None:
            for _, ids, _ in (*self._taken, *self._outbox):
                self._unconfirmed.update(dict.fromkeys(ids))
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


def _whole_frames(frames: Sequence[memoryview], octets: int) -> int:
    """How many of the frames fit in full into the octets."""
    for index, frame in enumerate(frames):
        octets -= len(frame)
        if octets < 0:
            return index
    return len(frames)
