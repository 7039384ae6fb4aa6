"""Publishes that found no room, on a connection that works on round-robin topics itself.

A connection that only publishes is not read while there is no room for what it publishes: that slows its
client down, and loses nothing. A connection that is also a worker must not be treated so: what makes room may
be its own Received, which comes behind those very Publishes. So its Publishes are held, in their order within
each topic, and the connection is read on. All other commands are done at once, since nothing that they do
depends on the order of messages in a transient round-robin topic; their answers wait for those of the
Publishes before them, as always.

What is held takes memory, so it is bounded. At the bound the connection is not read, as if it only published:
other connections work on the topic, and make room. Where there are none, because all workers wait for room
themselves, this connection among them, waiting would never end. Then what is held is refused, with an Error
that says so. To take it all the same, beyond the share of the topic, would only move that moment: a client
that adds messages faster than it takes them fills any memory. And it can publish again what is refused, but
not what the server drops.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.memory import Memory
from omq.drivers.offer import NoRoom, Offered
from omq.drivers.reasons import DELETED, Failure, Reason, Refused
from omq.drivers.signal import Signal
from omq.drivers.waits import Room
from omq.terminals.connection.liveness import Excuse
from omq.terminals.omq.subscriptions import Subscriptions
from omq_storage.batches import Batch

FREE_OCTETS = 16 << 10
"""What each connection may hold without a share of the memory: about one read."""

MOST_OF_SHARE = 4
"""One connection may hold at most one of so many parts of the share."""

CIRCULAR = Failure(Reason.TOPIC_FULL, "the topic is full, and its workers wait for room themselves")

ENDING = Failure(Reason.TOPIC_FULL, "the topic is full, and the connection ends")


class _Held:
    """Messages of one topic that were read together."""

    __slots__ = ("batch", "confirmation")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.confirmation = Confirmation()


class _Line:
    """What is held for one topic: the first post has a place in the topic's line."""

    __slots__ = ("place", "posts")

    def __init__(self, place: NoRoom) -> None:
        self.place = place
        self.posts: deque[_Held] = deque()


class HeldPublishes:
    """Those of one connection. A task offers them again, from the first that is held until none is."""

    def __init__(
        self,
        memory: Memory,
        session: Session,
        subscriptions: Subscriptions,
        nursery: trio.Nursery,
        excused: Excuse,
    ) -> None:
        """`nursery` is that of the connection. Within `excused` the client need not be heard of."""
        self._share = memory.reading
        self._most = FREE_OCTETS + memory.reading.limit // MOST_OF_SHARE
        self._waits = memory.waits
        self._session = session
        self._subscriptions = subscriptions
        self._nursery = nursery
        self._excused = excused
        self._lines: dict[bytes, _Line] = {}
        self._free: list[tuple[bytes, NoRoom]] = []
        self._signal = Signal()
        self._is_running = False
        self._moved = Signal()
        self._counted = 0  # octets of the share
        self.octets = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def holds(self, topic: bytes) -> bool:
        """Whether messages of this topic are held: those that come later must not pass them."""
        return topic in self._lines

    def may_hold(self, place: NoRoom) -> bool:
        """Whether to hold messages with this place in a line, rather than to wait."""
        return place.room is not None and bool(self._subscriptions.workers())

    def hold(self, topic: bytes, batch: Batch, place: NoRoom | None = None) -> Confirmation:
        """Hold messages, which have this place in the line of their topic, or follow others that are held."""
        line = self._lines.get(topic)
        if line is None:
            assert place is not None, "the first messages that are held have a place"
            line = self._lines[topic] = _Line(place)
            self._wait_at(topic, place)
        held = _Held(batch)
        line.posts.append(held)
        self.octets += batch.octets
        lacking = self.octets - FREE_OCTETS - self._counted
        if lacking > 0 and self.octets <= self._most and self._share.try_take(lacking):
            self._counted += lacking
        if not self._is_running:
            self._is_running = True
            self._nursery.start_soon(self.run)
        return held.confirmation

    # -- offering again ------------------------------------------------------------------------------------

    def _wait_at(self, topic: bytes, place: NoRoom) -> None:
        place.call_when_free(partial(self._is_free, topic, place))

    def _is_free(self, topic: bytes, place: NoRoom) -> None:
        self._free.append((topic, place))
        self._signal.set()

    async def run(self) -> None:
        """Offer again what may find room now, until nothing is held."""
        while self._lines:
            await self._signal.wait()
            free, self._free = self._free, []
            for topic, place in free:
                line = self._lines.get(topic)
                if line is not None and line.place is place:
                    self._go_on(topic, line)
                    await trio.lowlevel.checkpoint()
        self._is_running = False

    def _go_on(self, topic: bytes, line: _Line) -> None:
        """There may be room for the first messages of this topic, and for those behind them."""
        offer: Callable[[], Offered | None] = line.place.again
        while line.posts:
            held = line.posts[0]
            try:
                offered = offer()
            except Refused as refused:
                held.confirmation.settle(refused.failure)
            else:
                if isinstance(offered, NoRoom):
                    line.place = offered
                    self._wait_at(topic, offered)
                    break
                if offered is None:
                    held.confirmation.settle(DELETED)
                else:
                    held.confirmation.settle_as(offered)
            line.posts.popleft()
            self._count_out(held.batch.octets)
            if line.posts:
                offer = partial(self._session.offer, topic, line.posts[0].batch)
        else:
            del self._lines[topic]
        self._moved.set()

    def _count_out(self, octets: int) -> None:
        self.octets -= octets
        over = self._counted - max(0, self.octets - FREE_OCTETS)
        if over > 0:
            self._counted -= over
            self._share.give(over)

    # -- the reader ----------------------------------------------------------------------------------------

    @property
    def is_too_much(self) -> bool:
        """Whether the connection must not be read for now."""
        return self.octets > FREE_OCTETS + self._counted

    async def wait_for_room(self) -> None:
        """Wait until no more is held than may be."""
        while self.is_too_much:
            await self._wait()

    async def wait_for_all(self) -> None:
        """Wait until nothing is held."""
        while self._lines:
            await self._wait()

    async def _wait(self) -> None:
        """Wait until something has changed; but refuse what is held where that would never be."""
        workers = self._subscriptions.workers()
        rooms = self._rooms()
        if self._waits.are_circular(rooms, workers, self._subscriptions.unstarted()):
            self.refuse(CIRCULAR)
        else:
            with self._waits.waiting(workers, rooms), self._excused:
                await self._moved.wait()

    def _rooms(self) -> list[Room]:
        return [line.place.room for line in self._lines.values() if line.place.room is not None]

    def look(self) -> None:
        """See whether waiting is still of any use: by now others may wait too, or have left, or a
        subscription may be open that begins behind an answer. Called then, and about every second.
        """
        if self._lines and self._waits.are_circular(self._rooms(), (), self._subscriptions.unstarted()):
            self.refuse(CIRCULAR)
        self._moved.set()

    # -- the end -------------------------------------------------------------------------------------------

    def refuse(self, failure: Failure) -> None:
        """Refuse all that is held."""
        lines, self._lines = self._lines, {}
        for line in lines.values():
            line.place.leave()
        for line in lines.values():
            for held in line.posts:
                self._count_out(held.batch.octets)
                held.confirmation.settle(failure)
        self._signal.set()
        self._moved.set()
