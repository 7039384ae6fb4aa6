"""Broadcast: every subscriber gets every message; each is a cursor over the topic's log (design, 1)."""

from collections.abc import Iterable
from itertools import pairwise
from typing import assert_never

import trio

from omq.drivers.channel import Cut, Gone, Messages, Refused, Subscriber, Taken
from omq.drivers.driver import READ_OCTETS, Driver, Opening
from omq.protocol.types import Delivery, FromBeginning, FromCurrent, FromMessage, Replay
from storage.blocks import FRAME_HEADER, Block, encode
from storage.errors import DamagedBlock

TAKE_OCTETS = 256 << 10
"""What a live channel gives at once: then the connection's other subscriptions have their turn."""

LITTLE_OCTETS = 64 << 10
"""What a channel gives from the store at once when the memory for that is spent."""

TRIM_BLOCKS = 64
"""How many small blocks a tail gathers before it is looked through for those that everybody has had."""

STALL_SECONDS = 0.25
"""How long publishers wait for the fastest subscriber before they take it for stalled."""


class BroadcastDriver(Driver):
    delivery = Delivery.BROADCAST

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self._channels: dict[BroadcastChannel, None] = {}
        self._moved = trio.lowlevel.ParkingLot()
        self._stalled_at: int | None = None

    def open(self, subscriber: Subscriber, replay: Replay) -> "BroadcastChannel":
        """Raises Refused when the topic cannot be replayed from there."""
        channel = BroadcastChannel(self, subscriber, self._start(replay))
        self._channels[channel] = None
        return channel

    def _start(self, replay: Replay) -> int:
        match replay:
            case FromCurrent():
                return self.next_id
            case FromBeginning():
                self._refuse_transient()
                return self.extent.first if self.extent.messages else self.next_id
            case FromMessage(first):
                self._refuse_transient()
                if first < 1:
                    raise Refused("message ids begin with 1")
                if first > self.next_id:
                    raise Refused(f"there is no message {first} yet, the next one is {self.next_id}")
                return first
            case _:
                assert_never(replay)

    def _refuse_transient(self) -> None:
        if not self.is_persistent:
            raise Refused("a transient topic cannot be replayed")

    def subscribers(self) -> Iterable[tuple["BroadcastChannel", Subscriber]]:
        return ((channel, channel.subscriber) for channel in self._channels)

    def has_taker(self) -> bool:
        """Somebody who follows what comes: at its end, or no further behind than memory reaches."""
        return any(
            not channel.is_held and (channel.position >= self.next_id or self.tail.covers(channel.position))
            for channel in self._channels
        )

    def closed(self, channel: "BroadcastChannel") -> None:
        self._channels.pop(channel, None)
        self.moved()

    def moved(self) -> None:
        """A channel went on: publishers that wait for the fastest look again."""
        self._moved.unpark_all()

    def _keep(self, block: Block) -> None:
        if not self._channels:
            # Nobody can come to want it from memory: a later subscriber starts after it, or in the store.
            self.tail.clear()
            return
        if (
            self.tail.octets >= min(TAKE_OCTETS, self.resources.memory.tails.share())
            or len(self.tail) >= TRIM_BLOCKS
        ):
            self._forget_taken()
        self.tail.append(block)
        for channel in self._channels:
            channel.subscriber.wake()

    def _most(self) -> int:
        return self.resources.memory.tails.share()

    def taken(self) -> None:
        """A channel has taken blocks. When the memory of all tails is half full, those that nobody wants any
        more go at once: a little of it in each of many topics would push out what others still wait for.
        """
        tails = self.resources.memory.tails
        if tails.used > tails.limit // 2:
            self._forget_taken()
        self.moved()

    def _forget_taken(self) -> None:
        self.tail.forget_below(min(channel.position for channel in self._channels))

    async def _pace(self) -> None:
        """Hold a publisher back while even the fastest subscriber is far behind.

        So a subscriber that keeps up with the others loses nothing, and one that is slower than they are,
        or reads nothing at all, slows nobody: the fastest sets the pace, and one that stands still sets none.
        """
        while self._fastest_lag() > self.resources.memory.tails.share():
            fastest = self._fastest()
            if fastest == self._stalled_at:
                return
            with trio.move_on_after(STALL_SECONDS):
                while self._fastest() == fastest:
                    await self._moved.park()
            if self._fastest() == fastest:
                self._stalled_at = fastest

    def _fastest(self) -> int:
        return max((channel.position for channel in self._channels), default=self.next_id)

    def _fastest_lag(self) -> int:
        if self.tail.octets <= self.resources.memory.tails.share():
            return 0
        return self.tail.octets_after(self._fastest(), self.tail.octets)


class BroadcastChannel:
    """A cursor: `position` is the id of the next message its subscriber gets."""

    __slots__ = ("_end", "_replayed", "driver", "is_held", "position", "subscriber")

    def __init__(self, driver: BroadcastDriver, subscriber: Subscriber, position: int) -> None:
        self.driver = driver
        self.subscriber = subscriber
        self.position = position
        self.is_held = False
        self._end: int | None = None
        self._replayed = 0  # octets held of the memory for what is read from stores

    def ready(self) -> bool:
        end = self.driver.next_id
        if self._end is not None:
            end = min(end, self._end)
        return self.position < end

    async def take(self) -> Taken | None:
        """From the tail where it reaches back far enough, else from the store, else the news of a gap."""
        if not self.ready():
            return None
        driver = self.driver
        if driver.tail.covers(self.position):
            return self._forward(driver.tail.from_position(self.position, TAKE_OCTETS))
        if not driver.is_persistent:
            oldest = driver.tail.first
            return self._skip(driver.next_id if oldest is None else oldest, "the subscriber was too slow")
        if not self._replayed and driver.resources.memory.replayed.try_take(READ_OCTETS):
            self._replayed = READ_OCTETS
        # What is below this id now is either stored or lost: the store is written before the id moves on.
        known = driver.next_id
        try:
            blocks = await driver.read(self.position, self._replayed or 1)
        except DamagedBlock as damaged:
            last = damaged.first if damaged.last is None else damaged.last
            return self._skip(min(last + 1, known), f"the store is damaged there ({damaged.why})")
        if not blocks or blocks[0].first > self.position:
            kept = blocks[0].first if blocks else known
            if driver.extent.messages and self.position >= driver.extent.first:
                return self._skip(kept, "they were lost before they were durable")
            return self._skip(kept, "they are no longer kept")
        if not self._replayed:
            # Memory is short: send a little, and keep nothing of the rest meanwhile.
            return self._forward([_beginning(blocks[0], self.position)])
        return self._forward(_unbroken(blocks))

    def _forward(self, blocks: list[Block]) -> Messages:
        end = self.driver.next_id if self._end is None else self._end
        shares = (range(max(self.position, block.first), min(block.next, end)) for block in blocks)
        cuts = tuple(Cut(block, ids) for block, ids in zip(blocks, shares, strict=True) if ids)
        self.position = cuts[-1].ids.stop
        self.driver.taken()
        return Messages(cuts)

    def _skip(self, position: int, reason: str) -> Gone:
        gone = Gone(self.position, position - 1, reason)
        self.position = position
        self.driver.moved()
        return gone

    def written(self, count: int) -> None:
        """The cursor moved when the blocks were taken; now their memory is free."""
        self._give_back()

    def _give_back(self) -> None:
        self.driver.resources.memory.replayed.give(self._replayed)
        self._replayed = 0

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def finish(self) -> None:
        self._end = self.driver.next_id

    def close(self) -> None:
        self._give_back()
        self.driver.closed(self)


def _beginning(block: Block, position: int) -> Block:
    """The messages of a block from `position` on, about LITTLE_OCTETS of them, in octets of their own."""
    bodies: list[bytes] = []
    octets = 0
    for frame in block.slices(position):
        bodies.append(bytes(frame[FRAME_HEADER:]))
        octets += len(frame)
        if octets >= LITTLE_OCTETS:
            break
    heads = block.heads_from(position)[: len(bodies)] if block.has_heads else ()
    return encode(block.topic, position, bodies, block.time, heads)


def _unbroken(blocks: list[Block]) -> list[Block]:
    """The blocks up to the first gap of ids: what lies behind it is taken next, after the news of the gap."""
    for index, (block, following) in enumerate(pairwise(blocks), 1):
        if block.next != following.first:
            return blocks[:index]
    return blocks
