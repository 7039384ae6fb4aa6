"""Publishes without room, on a connection that is itself a worker of round-robin topics.

The server does not read a connection that only publishes while there is no room for its messages: that is
backpressure, and loses nothing. A connection that is also a worker needs more: room may depend on what it
says of the messages that it has, which follows those Publishes on the same connection. So the server holds
its Publishes, in their order within each topic, and continues to read. It executes the rest at once, because
nothing of that depends on the order of messages in a transient round-robin topic. Answers of omq still follow
the answers of earlier commands.

The memory for held messages is bounded. At the bound the server stops reading this connection too, because
workers on other connections make room. If there are none that could, because all workers that have messages
wait for room themselves, this connection among them, and there is no message for others, the wait would never
end. Then the server refuses the held messages with an error. To accept them beyond the share of the topic
would only delay this: a client that adds messages faster than it confirms them uses up any memory. The client
can publish refused messages again.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import trio

from omq.access.session import Session
from omq.drivers.confirmation import Confirmation
from omq.drivers.memory import Memory
from omq.drivers.offer import Offered, PendingOffer
from omq.drivers.reasons import DELETED, Failure, Reason, Refused
from omq.drivers.seam import Subscriber
from omq.drivers.sequences import Origins
from omq.drivers.signal import Signal
from omq.drivers.wait_graph import Room
from omq.terminals.connection.liveness import LivenessPause
from omq_storage.batches import Batch
from omq_storage.heads import octets_of

FREE_OCTETS = 16 << 10
"""The octets that each connection may hold without a share of the memory: about one read."""

MOST_OF_SHARE = 4
"""The number of connections that together may hold all of the share: one holds a quarter at most."""

CIRCULAR = Failure(Reason.TOPIC_FULL, "the topic is full, and its workers wait for room themselves")

ENDING = Failure(Reason.TOPIC_FULL, "the topic is full, and the connection ends")


class WorkerList(Protocol):
    """The subscriptions of one connection."""

    def workers(self) -> Collection[Subscriber]:
        """Return those to round-robin topics."""

    def unstarted(self) -> Collection[Subscriber]:
        """Return those that get no messages yet, because an answer to them waits."""


class HeldMessages:
    """Messages of one topic from one read."""

    __slots__ = ("batch", "confirmation", "heads", "octets", "origins")

    def __init__(self, batch: Batch, heads: Sequence[bytes], origins: Origins) -> None:
        self.batch = batch
        self.heads = heads
        self.origins = origins
        self.octets = batch.octets + octets_of(heads)
        self.confirmation = Confirmation()


class HeldPosts:
    """The held posts of one topic. The first one waits in the queue of the topic."""

    __slots__ = ("failure", "pending", "posts")

    def __init__(self, pending: PendingOffer) -> None:
        self.pending = pending
        self.posts: deque[HeldMessages] = deque()
        self.failure: Failure | None = None
        """The reason why messages of idempotent producers failed: later ones fail, too, as `Driver.offer`
        requires.
        """


class HeldPublishes:
    """The held Publishes of one connection. A task offers them again; it runs while there are any."""

    __slots__ = (
        "_counted",
        "_excused",
        "_free",
        "_is_over",
        "_most",
        "_moved",
        "_nursery",
        "_session",
        "_share",
        "_signal",
        "_subscriptions",
        "_waits",
        "is_too_much",
        "lines",
        "octets",
    )

    def __init__(
        self,
        memory: Memory,
        session: Session,
        subscriptions: WorkerList,
        nursery: trio.Nursery,
        excused: LivenessPause,
    ) -> None:
        """Hold nothing yet. `nursery` is the one of the connection. Within `excused` its silence does not
        count.
        """
        self._share = memory.reading
        self._most = FREE_OCTETS + memory.reading.limit // MOST_OF_SHARE
        self._waits = memory.waits
        self._session = session
        self._subscriptions = subscriptions
        self._nursery = nursery
        self._excused = excused
        self.lines: dict[bytes, HeldPosts] = {}
        """The topics with held messages: later messages must not overtake them."""
        self._free: list[bytes] = []
        """The topics with held messages for which there may be room."""
        # Most connections never hold anything, and have neither of these tasks.
        self._signal: Signal | None = None  # of the task that offers held messages again, while it runs
        self._moved: Signal | None = None  # of the task that waits for room, while it waits
        self._counted = 0  # octets of the share
        self._is_over = False
        self.octets = 0
        self.is_too_much = False
        """Whether the server must stop reading the connection."""

    @property
    def excused(self) -> LivenessPause:
        """The block in which the silence of the client does not count, because it is not read."""
        return self._excused

    @property
    def is_worker(self) -> bool:
        """Whether the connection is a worker of round-robin topics."""
        return bool(self._subscriptions.workers())

    def has(self, topic: bytes) -> bool:
        """Return whether messages of a topic are held."""
        return topic in self.lines

    def may_hold(self, pending: PendingOffer) -> bool:
        """Return whether to hold the messages of this offer, instead of waiting for room."""
        return pending.room is not None and self.is_worker

    async def post(
        self, topic: bytes, batch: Batch, heads: Sequence[bytes], origins: Origins = ()
    ) -> Confirmation | None:
        """Post messages to a topic, or hold them, or wait for room. Return None when there is no such topic.

        Raises Refused.
        """
        if topic in self.lines:
            self._session.check_offer(topic, batch)
            return self.hold(topic, batch, heads=heads, origins=origins)
        offered = self._session.offer(topic, batch, heads, origins)
        if offered is None or isinstance(offered, Confirmation):
            return offered
        if self.may_hold(offered):
            return self.hold(topic, batch, offered, heads, origins)
        with self._excused:
            return await offered.taken()

    def hold(
        self,
        topic: bytes,
        batch: Batch,
        pending: PendingOffer | None = None,
        heads: Sequence[bytes] = (),
        origins: Origins = (),
    ) -> Confirmation:
        """Hold messages, which wait with this offer, or behind messages of the topic that are held. Refuse
        them if the connection ends.
        """
        if self._is_over:
            if pending is not None:
                pending.leave()
            refused = Confirmation()
            refused.settle(ENDING)
            return refused
        if self._signal is None:
            self._signal = Signal()
            self._nursery.start_soon(self._run, self._signal)
        line = self.lines.get(topic)
        if line is None:
            assert pending is not None, "the first messages that are held have an offer"
            line = self.lines[topic] = HeldPosts(pending)
            pending.call_when_free(partial(self._is_free, topic))
        held = HeldMessages(batch, heads, origins)
        line.posts.append(held)
        self.octets += held.octets
        lacking = self.octets - FREE_OCTETS - self._counted
        if lacking > 0 and self.octets <= self._most and self._share.try_take(lacking):
            self._counted += lacking
        self._look_how_much()
        return held.confirmation

    # -- offering again ------------------------------------------------------------------------------------

    def _is_free(self, topic: bytes) -> None:
        self._free.append(topic)
        _set(self._signal)

    async def _run(self, signal: Signal) -> None:
        """Offer messages again when there may be room, until none are held."""
        while self.lines:
            await signal.wait()
            free, self._free = self._free, []
            for topic in free:
                line = self.lines.get(topic)
                if line is not None:
                    self._go_on(topic, line)
                    await trio.lowlevel.checkpoint()
        self._signal = None

    def _go_on(self, topic: bytes, line: HeldPosts) -> None:
        """Offer the first messages of this topic again, and those after them while there is room."""
        offer: Callable[[], Offered | None] = line.pending.again
        while line.posts:
            held = line.posts[0]
            try:
                if held.origins and line.failure is not None:
                    raise Refused.of(line.failure)
                offered = offer()
            except Refused as refused:
                held.confirmation.settle(refused.failure)
            else:
                if isinstance(offered, PendingOffer):
                    line.pending = offered
                    offered.call_when_free(partial(self._is_free, topic))
                    break
                if offered is None:
                    held.confirmation.settle(DELETED)
                else:
                    held.confirmation.settle_as(offered)
            line.posts.popleft()
            self._count_out(held.octets)
            if held.origins:
                line.failure = line.failure or held.confirmation.failure
            if line.posts:
                following = line.posts[0]
                offer = partial(
                    self._session.offer, topic, following.batch, following.heads, following.origins
                )
        else:
            del self.lines[topic]
        _set(self._moved)

    def _count_out(self, octets: int) -> None:
        self.octets -= octets
        over = self._counted - max(0, self.octets - FREE_OCTETS)
        if over > 0:
            self._counted -= over
            self._share.give(over)
        self._look_how_much()

    def _look_how_much(self) -> None:
        self.is_too_much = self.octets > FREE_OCTETS + self._counted

    # -- the reader ----------------------------------------------------------------------------------------

    async def wait_for_room(self) -> None:
        """Wait until the held messages are within the bound."""
        while self.is_too_much:
            await self._wait()

    async def wait_for_all(self) -> None:
        """Wait until no messages are held."""
        while self.lines:
            await self._wait()

    async def _wait(self) -> None:
        """Wait for a change. If there can be none, refuse the held messages instead."""
        workers = self._subscriptions.workers()
        rooms = self._rooms()
        if self._waits.are_circular(rooms, workers, self._subscriptions.unstarted()):
            self.refuse(CIRCULAR)
        else:
            self._moved = Signal()
            with self._waits.waiting(workers, rooms), self._excused:
                await self._moved.wait()

    def _rooms(self) -> list[Room]:
        return [line.pending.room for line in self.lines.values() if line.pending.room is not None]

    def look(self) -> None:
        """Check again whether the wait can end: other workers may have left or wait too by now, or a new
        subscription may wait for its answer behind held messages. Called about every second, and after each
        Subscribe.
        """
        if self.lines and self._waits.are_circular(self._rooms(), (), self._subscriptions.unstarted()):
            self.refuse(CIRCULAR)
        _set(self._moved)

    # -- the end -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Refuse all held messages, and hold no more: the connection ends."""
        self._is_over = True
        self.refuse(ENDING)

    def refuse(self, failure: Failure) -> None:
        """Refuse all held messages."""
        lines, self.lines = self.lines, {}
        for line in lines.values():
            line.pending.leave()
        for line in lines.values():
            for held in line.posts:
                self._count_out(held.octets)
                held.confirmation.settle(failure)
        _set(self._signal)
        _set(self._moved)


def _set(signal: Signal | None) -> None:
    if signal is not None:
        signal.set()
