"""A node without a queue: it passes a message from its producer to a consumer, and the outcome back.

Routers deliver in the same way. The node stores nothing, grants its producers the credit of its consumers,
and reports the outcome of each message to its producer. A node is no topic. It has no task, and exists while
a link is attached to it.

The node holds a message from its offer until its outcome. A message waits for a consumer only if its producer
used credit that a consumer withdrew at the same time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from omq.drivers.direct_memory import DirectMemory
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import (
    RELEASED,
    Accepted,
    CreditKind,
    EndReason,
    Granted,
    Messages,
    Modified,
    Outcome,
    Rejected,
    Released,
    RemainderHolder,
    Selection,
    Taken,
)
from omq.drivers.shared_window import SharedWindow
from omq.drivers.statistics import ChannelStatistics, NodeStatistics, Traffic
from omq_storage.batches import Batch
from omq_storage.blocks import FRAME_HEADER, Block

TAKE_OCTETS = 256 << 10
"""The octets that one take returns; then the connection's other links have their turn."""

NO_CONSUMER_CREDIT = 10
"""The credit of a producer while there is no consumer. Its messages are released at once."""

IN_DOUBT = Modified(delivery_failed=True)
"""The outcome of a message whose consumer ended before it stated one."""

_TOPIC = 2**31 - 1
"""The id in the frames of the messages. No client of another protocol sees them."""


Done = Callable[[Outcome, bytes], None]
"""Takes the outcome of a message, and its octets as the consumer sent them; none if it sent no outcome."""


class NodeProducer(Protocol):
    """A link that sends to a node."""

    def credited(self) -> None:
        """Send more: there is more room than `DirectNode.room` said last."""

    def node_ended(self) -> None:
        """End the link: its node is gone with the link that made it."""


class NodeConsumer(Protocol):
    """A link that a node sends to: a `Subscriber` whose channel is never replaced, because a node has no
    types.
    """

    def wake(self) -> None:
        """Wake the consumer: there is something to take."""

    def ended(self, end: EndReason) -> None:
        """End the link: its node has ended, and the channel with it."""


class _Message(msgspec.Struct, eq=False):
    id: int
    block: Block
    held: int
    """The octets of memory that it takes."""
    done: Done
    is_settled: bool
    """Whether its producer sent it as settled, and gets no outcome."""
    tried: "set[DirectChannel]" = msgspec.field(default_factory=set)
    """The consumers that released it."""
    outcome: Outcome = RELEASED
    """The outcome for the producer if no other consumer accepts it: that of the last of those consumers."""
    told: bytes = b""


class DirectTraffic(msgspec.Struct):
    """Counters of a node (`omq.drivers.statistics.Traffic`)."""

    messages_in: int = 0
    octets_in: int = 0
    messages_out: int = 0
    octets_out: int = 0
    undelivered: int = 0
    stalls: int = 0


class DirectTotals(msgspec.Struct):
    """Counters of all nodes of a server, so far."""

    undelivered: int = 0
    """Messages that no consumer took, or for which there was no memory."""
    stalls: int = 0
    """The number of times that a producer, of a node or of a topic, had used up its credit and got none."""


class DirectNode:
    """One node. `forget` is called when nothing is attached to it any more."""

    def __init__(
        self, name: bytes, memory: DirectMemory, totals: DirectTotals, forget: Callable[["DirectNode"], None]
    ) -> None:
        """Create a node without links, where `memory` counts the octets of the messages that it holds."""
        self.name = name
        self.traffic = DirectTraffic()
        self._memory = memory
        self._totals = totals
        self._forget = forget
        self._channels: deque[DirectChannel] = deque()
        """In the order in which they get messages: the next one first."""
        self._producers: dict[NodeProducer, None] = {}
        self._wanting: dict[NodeProducer, int] = {}
        """The producers that need more credit, and the number of messages that each was last told to send."""
        self._least_told = 0
        """The least of these numbers, or less."""
        self._waiting: deque[_Message] = deque()
        self._next = 1
        self._room: int | None = None
        self._has_ended = False

    # -- producers -----------------------------------------------------------------------------------------

    def attach(self, producer: NodeProducer) -> None:
        """Add a producer."""
        self._producers[producer] = None

    def detach(self, producer: NodeProducer) -> None:
        """Remove a producer."""
        self._producers.pop(producer, None)
        self._wanting.pop(producer, None)
        self._look_used()

    def room(self, producer: NodeProducer, most: int) -> int:
        """Return for how many messages the consumers have credit now, at most `most`. If it is less, call
        `NodeProducer.credited` of this producer when there is more.
        """
        room = self._room_now()
        if room < most:
            self._wanting[producer] = room
            self._least_told = min(self._least_told, room)
        else:
            self._wanting.pop(producer, None)
        return min(room, most)

    def look(self) -> None:
        """Wake the producers that need more credit, if there is more now than they were told.

        A consumer may state its credit often, so a producer is not woken while its room is the same.
        """
        room = self._room_now()
        if not self._wanting or room <= self._least_told:
            return
        woken = [producer for producer, told in self._wanting.items() if told < room]
        for producer in woken:
            del self._wanting[producer]
        self._least_told = room  # the others were told at least this room
        for producer in woken:
            producer.credited()

    def _room_now(self) -> int:
        if not self._channels:
            return NO_CONSUMER_CREDIT
        if self._memory.is_short:
            self._memory.wait(self)
            return 0
        if self._room is None:
            self._room = max(0, sum(channel.room() for channel in self._channels) - len(self._waiting))
        return self._room

    def changed(self) -> None:
        """Discard the stored credit of the consumers, because it has changed."""
        self._room = None

    def offer(self, one: Batch, head: bytes, done: Done, *, settled: bool = False) -> None:
        """Give the message of a batch to a consumer. `done` is called once, with its outcome, now or later.
        A message that the producer sent as `settled` is passed on as settled, and done when it is written.

        Raises Refused when there is no memory for it.
        """
        block = one.encode(_TOPIC, self._next, time.time_ns() // 1000, (head,) if head else ())
        held = block.held
        if not self._memory.take(held):
            self._count_undelivered()
            raise Refused(Reason.NO_ROOM, "the server has no memory for more direct messages")
        message = _Message(self._next, block, held, done, settled)
        self._next += 1
        self.traffic.messages_in += 1
        self.traffic.octets_in += one.octets - FRAME_HEADER
        self.place(message)

    def place(self, message: _Message, *, first: bool = False) -> bool:
        """Give a message to a consumer that has not released it. If none of these has credit, add it to the
        waiting messages (in front of them if it is the `first`), and return False. If there is no such
        consumer, report the outcome to the producer.
        """
        channels = self._channels
        may_wait = False
        for _ in range(len(channels)):
            channel = channels[0]
            channels.rotate(-1)
            if channel not in message.tried and not channel.is_cancelled:
                if channel.room() > 0:
                    channel.deal(message)
                    self.changed()
                    return True
                may_wait = True
        if may_wait:
            if first:
                self._waiting.appendleft(message)
            else:
                self._waiting.append(message)
            self.changed()
            return False
        self._count_undelivered()
        self._finish(message, message.outcome, message.told)
        return True

    def count_stall(self) -> None:
        """Count that a producer has used up its credit, and got none."""
        self._totals.stalls += 1
        self.traffic.stalls += 1

    def _count_undelivered(self) -> None:
        self._totals.undelivered += 1
        self.traffic.undelivered += 1

    def _finish(self, message: _Message, outcome: Outcome, told: bytes = b"") -> None:
        self._memory.give(message.held)
        message.done(outcome, told)

    # -- consumers -----------------------------------------------------------------------------------------

    def open(self, subscriber: NodeConsumer) -> "DirectChannel":
        """Add a consumer, which has no credit yet."""
        channel = DirectChannel(self, subscriber)
        self._channels.append(channel)
        self.changed()
        return channel

    def freed(self) -> None:
        """Give messages to a consumer that has credit again: first those that wait, and then those of the
        producers.
        """
        self.changed()
        kept: list[_Message] = []
        while self._waiting:
            message = self._waiting.popleft()
            if self.place(message, first=True):
                continue
            if not message.tried:
                break  # no consumer has credit, so the others wait, too
            kept.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(kept))
        self.look()

    def settled(self, channel: "DirectChannel", message: _Message, outcome: Outcome, told: bytes) -> None:
        """Settle a message with the outcome of its consumer: finish it, or give it to another consumer."""
        match outcome:
            case Accepted() | Rejected():
                self._finish(message, outcome, told)
            case Released() | Modified():
                message.tried.add(channel)
                message.outcome, message.told = outcome, told
                self.place(message)

    def closed(self, channel: "DirectChannel", unsent: list[_Message], sent: list[_Message]) -> None:
        """Remove a consumer that has ended: give its unsent messages to others, and finish the sent ones as
        in doubt.
        """
        if channel in self._channels:
            self._channels.remove(channel)
        for message in unsent:
            self.place(message)
        for message in sent:
            self._finish(message, IN_DOUBT)
        # Messages that waited for credit of this consumer wait for others now, or finish if there are none.
        waiting, self._waiting = self._waiting, deque()
        for message in waiting:
            self.place(message)
        self.freed()
        self._look_used()

    def statistics(self) -> NodeStatistics:
        """Return a snapshot of the node."""
        traffic = self.traffic
        return NodeStatistics(
            name=self.name,
            producers=len(self._producers),
            consumers=len(self._channels),
            credit=sum(channel.room() for channel in self._channels),
            waiting=len(self._waiting),
            messages_in=traffic.messages_in,
            octets_in=traffic.octets_in,
            messages_out=traffic.messages_out,
            octets_out=traffic.octets_out,
            undelivered=traffic.undelivered,
            stalls=traffic.stalls,
        )

    # -- its end -------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the node, with everything that is attached to it: the link that made it is gone."""
        self._has_ended = True
        for channel in list(self._channels):
            channel.subscriber.ended(EndReason.DELETED)
            channel.close()
        producers, self._producers = self._producers, {}
        self._wanting.clear()
        for producer in producers:
            producer.node_ended()
        self._forget(self)

    def _look_used(self) -> None:
        if not self._has_ended and not self._channels and not self._producers:
            self._forget(self)


class DirectChannel:
    """One consumer of a node (`omq.drivers.seam.Channel`)."""

    competes = True
    settles = True
    flow = None
    rest = RemainderHolder.COUNTED

    def __init__(self, node: DirectNode, subscriber: NodeConsumer) -> None:
        self.subscriber = subscriber
        self.traffic: Traffic = node.traffic
        self._node = node
        self._credit = 0
        self._queued: deque[_Message] = deque()
        self._taken: deque[_Message] = deque()
        self._sent: dict[int, _Message] = {}
        self._early: dict[int, tuple[Outcome, bytes]] = {}
        """Outcomes of messages that are taken and not written yet."""
        self._is_closed = False
        self._drained: Callable[[int], None] | None = None
        self._is_held = False
        self.is_cancelled = False

    # -- the node's side -----------------------------------------------------------------------------------

    def room(self) -> int:
        """Return how many more messages the consumer takes now."""
        if self._is_held or self.is_cancelled:
            return 0
        return self._credit - len(self._queued) - len(self._taken)

    def deal(self, message: _Message) -> None:
        """Give it a message."""
        self._queued.append(message)
        self.subscriber.wake()

    # -- the terminal's side: see Channel ------------------------------------------------------------------

    def ready(self) -> bool:
        return bool(self._queued) and not self._is_held

    async def take(self) -> Taken | None:
        selections = self.take_at_once(max(TAKE_OCTETS, self._queued[0].held)) if self._queued else ()
        return Messages(tuple(selections)) if selections else None

    def take_at_once(self, octets: int) -> Sequence[Selection]:
        """Take messages as `take` does, without waiting and not more than N `octets` of memory."""
        selections: list[Selection] = []
        while self._queued and self._queued[0].held <= octets:
            message = self._queued.popleft()
            self._taken.append(message)
            octets -= message.held
            ids = range(message.id, message.id + 1)
            selections.append(Selection(message.block, ids, is_settled=message.is_settled))
        return selections

    def written(self, count: int, begun: int | None = None) -> None:
        if self._is_closed:
            return
        for _ in range(count):
            message = self._taken.popleft()
            early = self._early.pop(message.id, None)
            if early is None:
                self._sent[message.id] = message
            else:
                self._node.settled(self, message, *early)
        self._credit -= count
        self._node.changed()
        self.traffic.messages_out += count
        kept = 1 if begun is not None else 0
        while len(self._taken) > kept:
            self._queued.appendleft(self._taken.pop())
        if self._drained is not None:
            self._look_drained()

    def grant(self, n: int, kind: CreditKind) -> None:
        if kind is not CreditKind.COUNT:
            raise ValueError("a direct node has no windows")
        self._credit = max(n, 0)
        self._drained = None
        back: list[_Message] = []
        while self._queued and len(self._queued) + len(self._taken) > self._credit:
            back.append(self._queued.pop())
        for message in back:
            self._node.place(message, first=True)
        self._node.freed()

    def share(self, window: SharedWindow | None) -> None:
        """Ignore the window: see `grant`."""

    def wait_for(self, message: int) -> None:
        """Ignore the message: a node keeps none for later."""

    def granted(self) -> Granted:
        return Granted(count=self._credit)

    def drain(self, drained: Callable[[int], None]) -> None:
        self._drained = drained
        self._look_drained()

    def _look_drained(self) -> None:
        drained = self._drained
        if drained is not None and not self._queued and not self._taken:
            self._drained = None
            left, self._credit = self._credit, 0
            drained(left)

    def settle(self, ids: range, outcome: Outcome) -> int:
        return self.settle_as(ids, outcome, b"")

    def settle_as(self, ids: range, outcome: Outcome, told: bytes) -> int:
        """Settle messages as `settle` does; `told` is what the consumer said, for the producer."""
        count = 0
        for id in ids:
            message = self._sent.pop(id, None)
            if message is not None:
                count += 1
                self._node.settled(self, message, outcome, told)
            elif any(taken.id == id for taken in self._taken):
                # It has left with a part of what was taken; the sender has not said so yet.
                count += 1
                self._early[id] = outcome, told
        return count

    def cancel(self) -> None:
        self.is_cancelled = True
        self._give_back()

    def hold(self) -> None:
        self._is_held = True
        self._give_back()

    def release(self) -> None:
        self._is_held = False
        self._node.freed()

    def finish(self) -> None:
        self.cancel()

    def _give_back(self) -> None:
        """Let others have what is not taken."""
        queued, self._queued = self._queued, deque()
        self._node.changed()
        for message in reversed(queued):
            self._node.place(message, first=True)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            position=None,
            behind=len(self._queued) + len(self._taken),
            credit=None,
            unsettled=len(self._queued) + len(self._taken) + len(self._sent),
            octets=sum(message.held for message in self._waiting()),
            is_held=self._is_held,
            count=self._credit,
        )

    def _waiting(self) -> Iterator[_Message]:
        yield from self._queued
        yield from self._taken

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        unsent = [*self._queued]
        sent = [*self._sent.values(), *self._taken]
        self._queued.clear()
        self._taken.clear()
        self._sent.clear()
        self.is_cancelled = True
        self._node.closed(self, unsent, sent)
