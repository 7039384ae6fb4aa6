"""One consumer of a node without a queue (`omq.drivers.direct`): the messages that it has, and its credit."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.seam import (
    MOST_SELECTIONS,
    RELEASED,
    TAKE_OCTETS,
    CreditKind,
    EndReason,
    Granted,
    Outcome,
    Outlet,
    RemainderHolder,
    Selection,
    Taken,
    TakenMessages,
)
from omq.drivers.shared_window import SharedWindow
from omq.drivers.statistics import ChannelStatistics, Traffic
from omq_storage.blocks import Block

TellOutcome = Callable[[Outcome, bytes], None]
"""Takes the outcome of a message, and its octets as the consumer sent them; none if it sent no outcome."""


class NodeConsumer(Protocol):
    """A link that a node sends to: a `Subscriber` whose channel is never replaced, because a node has no
    types.
    """

    def wake(self) -> None:
        """Wake the consumer: there is something to take."""

    def ended(self, end: EndReason) -> None:
        """End the link: its node has ended, and the channel with it."""


class DirectMessage(msgspec.Struct):
    """A message that a node holds until its outcome."""

    id: int
    block: Block
    held: int
    """The octets of memory that it takes."""
    done: TellOutcome
    is_settled: bool
    """Whether its producer sent it as settled, and gets no outcome."""
    tried: "set[DirectChannel]" = msgspec.field(default_factory=set)
    """The consumers that released it."""
    outcome: Outcome = RELEASED
    """The outcome for the producer if no other consumer accepts it: that of the last of those consumers."""
    told: bytes = b""


class ConsumedNode(Protocol):
    """The node of a consumer."""

    @property
    def traffic(self) -> Traffic:
        """The counters of the node."""

    def changed(self, channel: "DirectChannel") -> bool:
        """Note that the room of a consumer may have changed. Return whether it has room again."""

    def freed(self, channel: "DirectChannel") -> None:
        """Give messages to a consumer that may have credit again."""

    def give_back(self, messages: Sequence[DirectMessage]) -> None:
        """Give messages that the consumer was not sent to others, in this order."""

    def delays_drain(self, channel: "DirectChannel") -> bool:
        """Return whether messages that wait have still to be given to consumers. Then call `look_drained` of
        this one when they are.
        """

    def settled(
        self, channel: "DirectChannel", message: DirectMessage, outcome: Outcome, told: bytes
    ) -> None:
        """Settle a message with the outcome of its consumer."""

    def keep_outcome(self, message: DirectMessage, told: bytes) -> bytes:
        """Let a message keep what its consumer told, or no octets if there is no memory for a long outcome.
        Return what it keeps.
        """

    def retired(self, channel: "DirectChannel") -> None:
        """Give nothing more to a consumer that will be closed soon."""

    def closed(
        self, channel: "DirectChannel", unsent: list[DirectMessage], sent: list[DirectMessage]
    ) -> None:
        """Remove a consumer that has ended."""


class DirectChannel:
    """One consumer of a node (`omq.drivers.seam.Channel`)."""

    competes = True
    settles = True
    flow = None
    after = 0
    rest = RemainderHolder.COUNTED

    def __init__(self, node: ConsumedNode, subscriber: NodeConsumer) -> None:
        self.subscriber = subscriber
        self.traffic: Traffic = node.traffic
        self.counted = 0
        """The room of the consumer as its node has counted it."""
        self._node = node
        self._credit = 0
        self._queued: deque[DirectMessage] = deque()
        self._taken: deque[DirectMessage] = deque()
        self._sent: dict[int, DirectMessage] = {}
        self._early: dict[int, tuple[Outcome, bytes]] = {}
        """Outcomes of messages that are taken and not written yet."""
        self._is_closed = False
        self._drained: Callable[[int], None] | None = None
        self._is_held = False
        self._is_suspended = False
        self.is_cancelled = False

    # -- the node's side -----------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of messages that the consumer still takes now."""
        if self._is_held or self.is_cancelled:
            return 0
        return self._credit - len(self._queued) - len(self._taken)

    def deal(self, message: DirectMessage) -> None:
        """Give it a message."""
        self._queued.append(message)
        self.subscriber.wake()

    # -- the terminal's side: see Channel ------------------------------------------------------------------

    def attach(self, outlet: Outlet) -> None:
        pass  # its node does not push

    def ready(self) -> bool:
        return bool(self._queued) and not self._is_held

    async def take(self) -> Taken | None:
        selections = self.take_at_once(max(TAKE_OCTETS, self._queued[0].held)) if self._queued else ()
        return TakenMessages(tuple(selections)) if selections else None

    def take_at_once(self, octets: int, most: int = MOST_SELECTIONS) -> Sequence[Selection]:
        """Take messages as `take` does, without waiting and not more than N `octets` of memory, and M of them
        (`most`).
        """
        selections: list[Selection] = []
        while self._queued and self._queued[0].held <= octets and len(selections) < most:
            message = self._queued.popleft()
            self._taken.append(message)
            octets -= message.held
            ids = range(message.id, message.id + 1)
            selections.append(Selection(message.block, ids, is_settled=message.is_settled))
        return selections

    def begun_at_once(self, count: int, begun: int) -> None:
        self.written(count + 1)

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
        self._node.changed(self)
        self.traffic.messages_out += count
        kept = 1 if begun is not None else 0
        while len(self._taken) > kept:
            self._queued.appendleft(self._taken.pop())
        if self._drained is not None:
            self.look_drained()

    def grant(self, n: int, kind: CreditKind) -> None:
        if kind is not CreditKind.COUNT:
            raise ValueError("a direct node has no windows")
        self._credit = max(n, 0)
        self._drained = None
        keeps = max(self._credit - len(self._taken), 0)
        if len(self._queued) <= keeps:
            self._node.freed(self)
            return
        queued = list(self._queued)
        self._queued = deque(queued[:keeps])
        self._node.changed(self)
        self._node.give_back(queued[keeps:])

    def share(self, window: SharedWindow | None) -> None:
        """Ignore the window: see `grant`."""

    def follow(self, order: DeliveryOrder | None) -> None:
        """Ignore the order: a node keeps no messages that could pass each other."""

    def wait_for(self, message: int) -> None:
        """Ignore the message: a node keeps none for later."""

    def granted(self) -> Granted:
        return Granted(count=self._credit)

    def drain(self, drained: Callable[[int], None], most: int | None = None) -> None:
        if most is not None:
            self.grant(most, CreditKind.COUNT)
        self._drained = drained
        self.look_drained()

    def look_drained(self) -> None:
        """End the drain that the consumer wants, if there is nothing more to send to it now."""
        drained = self._drained
        if drained is None or self._queued or self._taken or self._is_closed:
            return
        if not self._node.delays_drain(self):
            self._drained = None
            left, self._credit = self._credit, 0
            self._node.changed(self)
            drained(left)

    def settle(self, ids: range, outcome: Outcome) -> int:
        return self.settle_as(ids, outcome, b"")

    def settle_as(self, ids: range, outcome: Outcome, told: bytes) -> int:
        """Settle messages as `settle` does; `told` is the outcome as the consumer wrote it, for the
        producer.
        """
        count = 0
        taken: dict[int, DirectMessage] | None = None
        for id in ids:
            message = self._sent.pop(id, None)
            if message is not None:
                count += 1
                self._node.settled(self, message, outcome, told)
                continue
            if taken is None:
                taken = {each.id: each for each in self._taken}
            if (message := taken.get(id)) is not None:
                # It has left with some of the taken messages; the sender has not reported that yet.
                count += 1
                self._early[id] = outcome, self._node.keep_outcome(message, told)
        return count

    def retire(self) -> None:
        self.is_cancelled = True
        self._node.retired(self)

    def cancel(self) -> None:
        self.is_cancelled = True
        self._give_back()

    def hold(self) -> None:
        self._is_held = True
        self._give_back()

    def suspend(self) -> None:
        self._is_held = self._is_suspended = True
        self._node.changed(self)

    def give_back(self) -> bool:
        if self._is_suspended:
            self._is_suspended = False
            self._give_back()
        return False

    def release(self) -> None:
        self._is_held = self._is_suspended = False
        self._node.freed(self)
        self.look_drained()  # others may have got the messages that waited for it

    def finish(self) -> None:
        self.cancel()

    def _give_back(self) -> None:
        """Return the messages that are not taken to the node, for its other consumers."""
        queued, self._queued = self._queued, deque()
        self._node.changed(self)
        self._node.give_back(queued)

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

    def _waiting(self) -> Iterator[DirectMessage]:
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
