"""One channel of a connection: its consumers, its unacknowledged messages, and its publishes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import trio

from omq.access.getter import Getter
from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.feed import LeasedFeed
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.seam import Outcome
from omq.drivers.shared_window import SharedWindow
from omq.drivers.slices import Slices
from omq.protocol.amqp_0_9.frames import method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.terminals.amqp_0_9.confirms import Confirms
from omq.terminals.amqp_0_9.consumers import Consumer
from omq.terminals.amqp_0_9.contents import Contents
from omq.terminals.amqp_0_9.forms import Tags
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.posts import LOOKED_IN_TURN, ChannelPost
from omq.terminals.amqp_0_9.transactions import Transaction
from omq.terminals.amqp_0_9.unacknowledged import Returning, Settled, UnknownTag


@dataclass(frozen=True, slots=True)
class Plain:
    """A channel without confirms."""


Mode = Plain | Confirms | Transaction
"""The mode in which a channel publishes. Confirm.Select and Tx.Select change it once."""


class AmqpChannel:
    """One open channel."""

    def __init__(self, number: int, contents: Contents, changed: Callable[["AmqpChannel"], None]) -> None:
        """Create an open channel. `changed` is called when `confirmed` or `failure` may have changed."""
        self.number = number
        self.contents = contents
        self.tags = Tags()
        self.consumers: dict[bytes, Consumer] = {}
        """The consumers by their tags. Use `add` and `remove`."""
        self._of_queue: dict[int, dict[Consumer, None]] = {}
        """The consumers of each queue, by its id."""
        # These two deques are made with the first item: an empty one takes 700 octets.
        self.cancelled: deque[Consumer] | None = None
        """Consumers that may have unacknowledged messages; the one that was looked at last is the last."""
        self.fed: dict[bytes, LeasedFeed] = {}
        """The feeds of consumers whose messages go by a feed, by the tags of the consumers."""
        self.getters: dict[tuple[bytes, bool], Getter] = {}
        """The getters by the names of their queues, and by whether messages are not acknowledged."""
        self.last_queue: bytes | None = None
        """The queue that was declared last."""
        self.reply_queue: bytes | None = None
        """The queue of the consumer of direct replies."""
        self.prefetch = 0
        """The greatest number of unacknowledged messages of each consumer; 0 for no limit."""
        self.shared: SharedWindow | None = None
        """The limit for all consumers together, if there is one."""
        self.is_flowing = True
        self.mode: Mode = Plain()
        self._changed = changed
        self._unsettled: deque[ChannelPost] | None = None
        self.failure: Failure | None = None
        """The reason why something that was published without confirms could not be stored."""
        self.is_over = False
        """Whether it is closed. The sender may close it while a method of it is executed."""

    def answer(self, outbox: Outbox, method: Method, then: Callable[[], None] | None = None) -> None:
        """Send an answer, unless the channel is over: nothing follows Channel.Close."""
        if not self.is_over:
            outbox.add(method_frame(self.number, method), channel=self.number, then=then)

    # -- consumers -----------------------------------------------------------------------------------------

    @property
    def is_consuming(self) -> bool:
        """Whether it has consumers, or messages that are not acknowledged."""
        return bool(self.consumers or self.fed or self.tags.unacknowledged)

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Several of one queue get its messages in order."""
        self.consumers[consumer.tag] = consumer
        together = self._of_queue.setdefault(consumer.topic.id, {})
        together[consumer] = None
        if len(together) == 1:
            return
        first = next(iter(together))
        if first.order is None:
            first.follow(DeliveryOrder())
        consumer.follow(first.order)

    def remove(self, tag: bytes) -> Consumer | None:
        """Remove and return the consumer with this tag; None if there is none."""
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return None
        together = self._of_queue[consumer.topic.id]
        del together[consumer]
        if not together:
            del self._of_queue[consumer.topic.id]
        elif len(together) == 1:
            next(iter(together)).follow(None)
        return consumer

    def queue_named(self, name: bytes) -> bytes:
        """Return the name of a queue; an empty one means the last queue that was declared on the channel.

        Raises Refused.
        """
        if name:
            return name
        if self.last_queue is None:
            raise Refused(Reason.NOT_FOUND, "no queue was declared on this channel")
        return self.last_queue

    # -- publishing: see omq.terminals.amqp_0_9.publishing.Publisher ---------------------------------------

    @property
    def tells_outcomes(self) -> bool:
        return not isinstance(self.mode, Plain)

    def refused(self, failure: Failure) -> None:
        if not self.is_over:
            self.failure = failure
            self._changed(self)

    def published(self, posted: ChannelPost) -> None:
        match self.mode:
            case Confirms():
                self.mode.add(posted)
            case Transaction():
                self.mode.posted.append(posted)
            case Plain():
                if self._unsettled is None:
                    self._unsettled = deque()
                self._unsettled.append(posted)

    def look(self) -> None:
        if not self.is_over:
            before = self.failure
            looked = self._look(LOOKED_IN_TURN)
            if looked >= LOOKED_IN_TURN or self.failure is not before or isinstance(self.mode, Confirms):
                self._changed(self)

    def tell_settled(self, outbox: Outbox) -> None:
        # Clients get the confirms and the returned messages in the order in which they published.
        if isinstance(self.mode, Confirms) and not (self.is_over or outbox.is_held(self.number)):
            confirmed, _ = self.mode.collect(LOOKED_IN_TURN)
            if confirmed:
                outbox.add(confirmed, channel=self.number)

    def _look(self, most: int) -> int:
        """Forget the posts at the beginning that are settled, and note a failure. Return the number of their
        parts: about as many as `most`.
        """
        looked = 0
        while looked < most and self._unsettled:
            posted = self._unsettled[0]
            looked += max(1, posted.look(most - looked))
            if not posted.is_known:
                break
            self._unsettled.popleft()
            # A queue that may not be longer refuses messages, and only confirms tell so.
            if failures := posted.failures():
                told = (each for each in failures.values() if each.reason is not Reason.OVERFLOW)
                self.failure = next(told, self.failure)
        return looked

    async def settled(self) -> None:
        """Wait until everything that was published on it is in its queues, or refused."""
        waiting = deque(self._unsettled or ())
        if isinstance(self.mode, Confirms):
            waiting += self.mode.waiting()
        looked = 0
        while waiting:
            looked += 1
            if not looked % LOOKED_IN_TURN:
                await trio.lowlevel.checkpoint()
            await waiting.popleft().settled()

    def confirmed(self, most: int) -> tuple[bytes, int]:
        """Return the acknowledgements of the published messages that are settled, and the number of their
        parts: about as many as `most`.
        """
        if isinstance(self.mode, Confirms):
            return self.mode.collect(most)
        if self.is_over:
            return b"", 0
        before = self.failure
        looked = self._look(most)
        if self.failure is not before:
            self._changed(self)
        return b"", looked

    @property
    def unconfirmed(self) -> int:
        """The number of messages that were published on it and are not settled."""
        waiting = sum(posted.count for posted in self._unsettled or ())
        return waiting + (self.mode.unconfirmed if isinstance(self.mode, Confirms) else 0)

    # -- messages out --------------------------------------------------------------------------------------

    async def settle(self, portions: Iterable[Sequence[Settled]], outcome: Outcome) -> None:
        """Settle messages, or note it for the commit of the transaction, in turn with other connections.
        Raises UnknownTag, as the portions do.
        """
        slices = Slices()
        try:
            for taken in portions:
                await self._settle(taken, outcome, slices)
                if self.is_over:
                    return
        except UnknownTag as unknown:
            await self._settle(unknown.taken, outcome, slices)
            raise

    async def give_back(self, portions: Iterable[Sequence[Settled]], outcome: Outcome) -> None:
        """Do as `settle` for messages that return to their queues. Raises UnknownTag, as the portions do
        before the first one.
        """
        if isinstance(self.mode, Transaction):
            await self.settle(portions, outcome)
        else:
            await self._give_back(portions, outcome)

    async def recover(self, outcome: Outcome) -> None:
        """Return all messages, in turn with other connections. That is no part of a transaction, and spares
        those that were acknowledged in it.
        """
        await self._give_back(self.tags.unacknowledged.take_until(0), outcome)

    async def _give_back(self, portions: Iterable[Sequence[Settled]], outcome: Outcome) -> None:
        returning = Returning()
        slices = Slices()
        for taken in portions:
            for each in taken:
                returning.add(each)
            await slices.step()
            if self.is_over:
                return
        while returning and not self.is_over:
            returning.take().settle(outcome)
            await slices.step()

    async def _settle(self, taken: Sequence[Settled], outcome: Outcome, slices: Slices) -> None:
        if isinstance(self.mode, Transaction):
            self.mode.settled += [(each, outcome) for each in taken]
            await slices.step()
            return
        await self._settle_now(taken, outcome, slices)

    async def _settle_now(self, taken: Sequence[Settled], outcome: Outcome, slices: Slices) -> None:
        for each in taken:
            each.settle(outcome)
            if slices.is_over:
                await slices.step()
                if self.is_over:  # its consumers were closed meanwhile, and all messages returned
                    return

    async def flow(self, active: bool) -> None:
        """Let consumers get messages, or not, in turn with other connections."""
        self.is_flowing = active
        slices = Slices()
        for consumer in list(self.consumers.values()):
            consumer.pause(not active)
            await slices.step()
            if self.is_over:
                return

    def end(self, *, at_once: bool) -> None:
        """End the channel, `at_once` if the connection ends. Its unacknowledged messages return to the queues
        when its consumers are closed (`omq.terminals.connection.endings.EndedPart`).
        """
        self.is_over = self.contents.is_over = True
        self.contents.is_abandoned = at_once

    def ending(self) -> Iterator[Consumer | Getter]:
        """Yield its consumers and getters, which must be closed."""
        ending: list[Consumer | Getter] = [
            *self.consumers.values(),
            *(self.cancelled or ()),
            *self.getters.values(),
        ]
        self.consumers.clear()
        self.cancelled = None
        self.getters.clear()
        yield from ending

    def free(self) -> Iterator[None]:
        """Free the rest of its memory, in steps."""
        while self._unsettled:
            self._unsettled.popleft()
            yield
        if isinstance(self.mode, Transaction):
            for _ in self.mode.roll_back():
                yield
        while self._of_queue:
            _, together = self._of_queue.popitem()
            while together:
                together.popitem()
                yield
        yield from self.tags.unacknowledged.free()
