"""A node without a queue: it passes a message from its producer to a consumer, and the outcome back.

Routers deliver in the same way. The node stores nothing, grants its producers the credit of its consumers,
and reports the outcome of each message to its producer. A node is no topic. It has no task, and exists while
a link is attached to it.

The node holds a message from its offer until its outcome. A message waits for a consumer only if its producer
used credit that a consumer withdrew at the same time.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from omq.drivers.direct_channel import DirectChannel, DirectMessage, NodeConsumer, TellOutcome
from omq.drivers.direct_memory import SHORT_OUTCOME, DirectMemory
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import Accepted, EndReason, Modified, Outcome, Rejected, Released
from omq.drivers.slices import let_go
from omq.drivers.statistics import NodeStatistics
from omq_storage.batches import Batch
from omq_storage.blocks import FRAME_HEADER

NO_CONSUMER_CREDIT = 10
"""The credit of a producer while there is no consumer. Its messages are released at once."""

SHORT_CREDIT = 10
"""The greatest credit of a producer while the memory for messages is short, and its node holds little."""

IN_DOUBT = Modified(delivery_failed=True)
"""The outcome of a message whose consumer ended before it stated one."""

_TOPIC = 2**31 - 1
"""The id in the frames of the messages. No client of another protocol sees them."""

WOKEN_AT_ONCE = 64
"""The greatest number of producers that are woken in one step. An errand wakes more."""

WOKEN_IN_STEP = 16
"""The number of producers that one step of such an errand wakes."""

DONE_IN_STEP = 16
"""The number of messages that one step gives to consumers, or finishes."""

STEPS_AT_ONCE = 4
"""The number of these steps that are done at once. An errand does more."""


class NodeProducer(Protocol):
    """A link that sends to a node."""

    def credited(self) -> None:
        """Send more: there is more room than `DirectNode.room` said last."""

    def node_ended(self) -> None:
        """End the link: its node is gone with the link that made it."""


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
    """One node. `begin` does long work soon, in steps. `forget` is called when nothing is attached to it any
    more.
    """

    def __init__(
        self,
        name: bytes,
        memory: DirectMemory,
        totals: DirectTotals,
        begin: Callable[[Iterator[None]], None],
        forget: Callable[["DirectNode"], None],
    ) -> None:
        """Create a node without links, where `memory` counts the octets of the messages that it holds."""
        self.name = name
        self.held = 0
        self.traffic = DirectTraffic()
        self._memory = memory
        self._totals = totals
        self._begin = begin
        self._forget = forget
        # Thousands of them may leave together.
        self._channels: OrderedDict[DirectChannel, None] = OrderedDict()
        self._turns: OrderedDict[DirectChannel, None] = OrderedDict()
        """The channels with room, in the order in which they get messages: the next one first."""
        self._credit = 0
        """The sum of the room of all of them."""
        self._retired: dict[DirectChannel, None] = {}
        """The channels that get nothing more, and are not closed."""
        self._producers: dict[NodeProducer, None] = {}
        self._wanting: dict[NodeProducer, int] = {}
        """The producers that need more credit, and the number of messages that each was last told to send."""
        self._least_told = 0
        """The least of these numbers, or less."""
        self._unwoken: dict[NodeProducer, int] = {}
        """The producers that an errand wakes if there is more room than they were told, with the number of
        messages that each was last told to send.
        """
        self._is_waking = False
        self._waiting: deque[DirectMessage] = deque()
        self._passed: deque[DirectMessage] = deque()
        """Messages before `_waiting` that go on waiting, while these are given to consumers in steps."""
        self._doubtful: deque[DirectMessage] = deque()
        """Messages that a consumer had and did not settle before it ended."""
        self._must_give = False
        """Whether a consumer may have got credit since the waiting messages were looked at."""
        self._must_look_at_all = False
        """Whether there may be messages among them for which no consumer is left."""
        self._is_giving = False
        """Whether `_give_waiting` is not done. Then new messages wait behind the others."""
        self._draining: dict[DirectChannel, None] = {}
        """Consumers that drain their credit when that is done."""
        self._next = 1
        self._has_ended = False
        self._is_over = False

    # -- producers -----------------------------------------------------------------------------------------

    def attach(self, producer: NodeProducer) -> None:
        """Add a producer."""
        self._producers[producer] = None

    def detach(self, producer: NodeProducer) -> None:
        """Remove a producer."""
        self._producers.pop(producer, None)
        self._wanting.pop(producer, None)
        self._unwoken.pop(producer, None)
        self._look_used()

    def room(self, producer: NodeProducer, most: int) -> int:
        """Return the number of messages for which the consumers have credit now, at most `most`. If it is
        less, call `NodeProducer.credited` of this producer when there is more.
        """
        room = self._room_now()
        if self._unwoken:
            self._unwoken.pop(producer, None)
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
        if self._has_ended or not self._wanting or (room := self._room_now()) <= self._least_told:
            return
        if len(self._wanting) > WOKEN_AT_ONCE:
            self._wake_soon(room)
            return
        woken = [producer for producer, told in self._wanting.items() if told < room]
        for producer in woken:
            del self._wanting[producer]
        self._least_told = room  # the others were told at least this room
        for producer in woken:
            producer.credited()

    def _wake_soon(self, room: int) -> None:
        """Let an errand tell the producers that were told less than this room."""
        if self._unwoken:
            self._unwoken.update(self._wanting)
        else:
            self._unwoken = self._wanting
        self._wanting = {}
        self._least_told = room
        if not self._is_waking:
            self._is_waking = True
            self._begin(self._wake_crowd())

    def _wake_crowd(self) -> Iterator[None]:
        """Wake the producers in `_unwoken` that were told less than the room, some in each step."""
        try:
            while self._unwoken:
                room = self._room_now()
                for producer, told in list(islice(self._unwoken.items(), WOKEN_IN_STEP)):
                    del self._unwoken[producer]
                    if told < room:
                        producer.credited()
                    else:
                        self._wanting[producer] = told
                        self._least_told = min(self._least_told, told)
                yield
        finally:
            self._is_waking = False

    def _room_now(self) -> int:
        if not self._channels:
            return NO_CONSUMER_CREDIT
        room = max(0, self._credit - len(self._waiting) - len(self._passed))
        if self._memory.is_short:
            self._memory.wait(self)
            return 0 if self._memory.is_short_for(self) else min(room, SHORT_CREDIT)
        return room

    def changed(self, channel: DirectChannel) -> bool:
        """Note that the room of a consumer may have changed. One that has room again is the last in turn:
        return whether it is one.
        """
        room = 0 if self._is_over else channel.room()
        before, channel.counted = channel.counted, room
        self._credit += room - before
        if room <= 0:
            if before > 0:
                self._turns.pop(channel, None)
        elif before <= 0:
            self._turns[channel] = None
            return True
        return False

    def offer(self, one: Batch, head: bytes, done: TellOutcome, *, settled: bool = False) -> None:
        """Give the message of a batch to a consumer. `done` is called once, with its outcome, now or later.
        A message that the producer sent as `settled` is passed on as settled, and done when it is written.

        Raises Refused when there is no memory for it.
        """
        block = one.encode(_TOPIC, self._next, time.time_ns() // 1000, (head,) if head else ())
        held = block.held
        if not self._memory.take(self, held):
            self._count_undelivered()
            raise Refused(Reason.NO_ROOM, "the server has no memory for more direct messages")
        message = DirectMessage(self._next, block, held, done, settled)
        self._next += 1
        self.traffic.messages_in += 1
        self.traffic.octets_in += one.octets - FRAME_HEADER
        if self._is_giving or not self._place(message):
            self._waiting.append(message)

    def _place(self, message: DirectMessage) -> bool:
        """Give a message to a consumer that has not released it. If none of these has credit, return False:
        the message must wait. If there is no such consumer, report the outcome to the producer.
        """
        tried = message.tried
        for channel in self._turns:
            if channel not in tried:
                self._turns.move_to_end(channel)
                channel.deal(message)
                self.changed(channel)
                return True
        if any(channel not in tried and not channel.is_cancelled for channel in self._channels):
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

    def _finish(self, message: DirectMessage, outcome: Outcome, told: bytes = b"") -> None:
        self._memory.give(self, message.held)
        message.done(outcome, told)

    # -- consumers -----------------------------------------------------------------------------------------

    def open(self, subscriber: NodeConsumer) -> DirectChannel:
        """Add a consumer, which has no credit yet."""
        channel = DirectChannel(self, subscriber)
        self._channels[channel] = None
        return channel

    def freed(self, channel: DirectChannel) -> None:
        """Give messages to a consumer that may have credit again: first those that wait, and then those of
        the producers.
        """
        if self.changed(channel) and self._waiting:
            self._give_soon()
        else:
            self.look()

    def give_back(self, messages: Sequence[DirectMessage]) -> None:
        """Give messages that a consumer has and was not sent to others, in this order: they are older than
        those that wait.
        """
        if messages:
            self._wait_first(messages)

    def _wait_first(self, messages: Sequence[DirectMessage]) -> None:
        self._waiting.extendleft(reversed(messages))
        self._must_look_at_all = True
        self._give_soon()

    def delays_drain(self, channel: DirectChannel) -> bool:
        """Return whether messages that wait have still to be given to consumers. Then call `look_drained` of
        this one when they are.
        """
        if self._is_giving:
            self._draining[channel] = None
        return self._is_giving

    def _give_soon(self) -> None:
        """Give waiting messages to consumers, and finish those in doubt: some now, and the others soon. There
        may be tens of thousands.
        """
        self._must_give = True
        if self._is_giving:
            return
        self._is_giving = True
        steps = self._give_waiting()
        for number, _ in enumerate(steps, 1):
            if number == STEPS_AT_ONCE:
                self._begin(steps)
                return

    def _give_waiting(self) -> Iterator[None]:
        """Do the work of `_give_soon`, in steps. Another one may have begun, and does the rest of it, too."""
        count = 0
        try:
            while self._must_give:
                while self._doubtful:
                    self._finish(self._doubtful.popleft(), IN_DOUBT)
                    count += 1
                    if not count % DONE_IN_STEP:
                        yield
                self._must_give = False
                looks_at_all, self._must_look_at_all = self._must_look_at_all, False
                self._end_passing()
                while self._waiting:
                    message = self._waiting.popleft()
                    if not self._place(message):
                        self._passed.append(message)
                        if not (message.tried or looks_at_all):
                            break  # no consumer has credit, so the others wait, too
                    count += 1
                    if not count % DONE_IN_STEP:
                        yield
                self._end_passing()
        finally:
            self._is_giving = False
        draining, self._draining = self._draining, {}
        for channel in draining:
            channel.look_drained()
        self.look()

    def _give_all(self) -> Iterator[None]:
        """Do all of that work, in steps: nothing gets credit any more."""
        self._must_give = self._must_look_at_all = True
        return self._give_waiting()

    def _end_passing(self) -> None:
        self._waiting.extendleft(reversed(self._passed))
        self._passed.clear()

    def settled(self, channel: DirectChannel, message: DirectMessage, outcome: Outcome, told: bytes) -> None:
        """Settle a message with the outcome of its consumer: finish it, or give it to another consumer."""
        match outcome:
            case Accepted() | Rejected():
                self._finish(message, outcome, told)
            case Released() | Modified():
                message.tried.add(channel)
                message.outcome = outcome
                self.keep_outcome(message, told)
                if not self._place(message):
                    self._waiting.append(message)

    def keep_outcome(self, message: DirectMessage, told: bytes) -> bytes:
        """Let a message keep what its consumer told, or no octets if there is no memory for a long outcome.
        Return what it keeps.
        """
        if len(told) > SHORT_OUTCOME and told is not message.told:
            if self._memory.take(self, len(told)):
                message.held += len(told)
            else:
                told = b""
        message.told = told
        return told

    def retired(self, channel: DirectChannel) -> None:
        """Give nothing more to a consumer that will be closed soon, as others at the same time."""
        if channel in self._channels:
            del self._channels[channel]
            self._retired[channel] = None
        self.changed(channel)

    def closed(self, channel: DirectChannel, unsent: list[DirectMessage], sent: list[DirectMessage]) -> None:
        """Remove a consumer that has ended: give its unsent messages to others, and finish the sent ones as
        in doubt.
        """
        if channel in self._retired:
            del self._retired[channel]
        elif channel in self._channels:
            del self._channels[channel]
        self.changed(channel)
        self._doubtful.extend(sent)
        # Messages that waited for credit of this consumer wait for others now, or finish if there are none:
        # behind those that it had, which are older.
        self._wait_first(unsent)
        self._look_used()

    def statistics(self) -> NodeStatistics:
        """Return a snapshot of the node."""
        traffic = self.traffic
        return NodeStatistics(
            name=self.name,
            producers=len(self._producers),
            consumers=len(self._channels) + len(self._retired),
            credit=self._credit,
            waiting=len(self._waiting) + len(self._passed),
            messages_in=traffic.messages_in,
            octets_in=traffic.octets_in,
            messages_out=traffic.messages_out,
            octets_out=traffic.octets_out,
            undelivered=traffic.undelivered,
            stalls=traffic.stalls,
        )

    # -- its end -------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Grant producers no more credit, because `end` follows soon: there may be thousands."""
        self._has_ended = True
        self._wanting.clear()
        self._unwoken.clear()

    def stop(self) -> Iterator[None]:
        """Finish all messages, in steps, because the server stops: those that no consumer was sent are
        released. Consumers get nothing more from the first step on.
        """
        self._is_over = True
        self._turns.clear()
        self._wanting.clear()
        self._unwoken.clear()
        channels = [*self._channels, *self._retired]
        for channel in channels:  # first, so that what one had does not wait for the others to be closed
            channel.retire()
            yield
        for channel in let_go(channels):
            channel.close()
            yield
        yield from self._give_all()

    def end(self) -> Iterator[None]:
        """End everything that is attached to the node, in steps: the link that made it is gone. Its consumers
        get nothing more from the first step on.
        """
        self.retire()
        self._is_over = True
        self._forget(self)
        self._retired.update(dict.fromkeys(self._channels))
        self._channels.clear()
        self._turns.clear()
        channels = deque(self._retired)
        while channels:  # so that each is freed as it is closed: thousands at once would take long
            channel = channels.popleft()
            if channel in self._retired:
                channel.subscriber.ended(EndReason.DELETED)
                channel.close()
                yield
        yield from self._give_all()
        producers = deque(self._producers)
        while producers:
            producer = producers.popleft()
            if producer in self._producers:
                del self._producers[producer]
                producer.node_ended()
                yield

    def _look_used(self) -> None:
        if not (self._has_ended or self._channels or self._retired or self._producers):
            self._forget(self)
