"""A queue: a round-robin topic with the properties of a queue of AMQP. Every round-robin topic is one.

A topic that a Declare command makes has the default options; then nothing here does anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from time import monotonic

import trio

from omq.drivers.browsing import BrowsingChannel
from omq.drivers.competing import FREE_OCTETS
from omq.drivers.consumers import Consumers
from omq.drivers.dealt_times import DealtTimes
from omq.drivers.driver import InitialState
from omq.drivers.limited import LimitedDriver, Measured
from omq.drivers.queue_expiry import QueueExpiry
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Refused
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Channel, EndReason, Subscriber
from omq.drivers.slices import Slices
from omq.model import Replay
from omq_storage.batches import Batch
from omq_storage.blocks import Block
from omq_storage.runs import Run


class QueueDriver(LimitedDriver):
    """One queue."""

    def __init__(self, opening: InitialState) -> None:
        self._dealt = DealtTimes()
        super().__init__(opening)
        self._getters: set[RoundRobinChannel] = set()
        self._dealt.note(self._cursor, monotonic())
        self._consumers = Consumers(single_active=self.options.single_active)
        self._disuse = QueueExpiry(self)
        self.change(self.options)

    def change(self, options: QueueOptions, measured: Measured | None = None) -> None:
        """See `LimitedDriver.change`."""
        super().change(options, measured)
        self._disuse.change(options.expires_ms)

    async def oldest_ms(self, slices: Slices) -> int | None:
        """Return the milliseconds since the oldest unacknowledged message was first assigned to a consumer,
        since the start of the server at most; None if there is none.
        """
        lowest = await self._lowest_outstanding(slices)
        if lowest is None:
            return None
        self._dealt.forget_below(lowest)
        since = self._dealt.since(lowest)
        return 0 if since is None else round(1000 * (monotonic() - since))

    def uploads_from(self, fragment_octets: int) -> int | None:
        # The limits, the dead letters and the priorities of a queue work with whole messages in memory.
        options = self.options
        is_plain = options.dead_letter_exchange is None and options.max_priority is None
        return super().uploads_from(fragment_octets) if is_plain and not self._has_limits() else None

    def used(self) -> None:
        """Note that a client declared the queue, or asked it for a message."""
        self._disuse.used()

    def pass_on(self, batch: Batch, heads: Sequence[bytes]) -> bool:
        """See `Driver.pass_on`. A transient queue does it where it has one consumer, and no other message."""
        channels = self._channels
        if len(channels) != 1 or self.writer is not None or self.options.max_priority is not None:
            return False
        if self.is_replaced:
            return False  # `offer` refuses it
        if self._is_undealt() or self.publisher_queue.is_wanted or self.spills_next or self.deleted:
            return False
        if self._sizes is not None or batch.octets > FREE_OCTETS or not self.has_ids(1):
            return False
        if self.options.single_active and self._must_wait():
            return False
        channel = next(iter(channels))
        if not channel.may_pass_on():
            return False
        try:
            block = batch.encode(self.topic.id, self.next_id, self.now(), heads)
        except Exception as problem:  # a defect fails this message, and not the connection from which it came
            raise Refused.of(self.log_failure(problem)) from problem
        if not channel.pass_on(block):
            return False
        self._used = True
        self.next_id = self._cursor = block.next
        self._count_in(block)
        return True

    def _advance(self, cursor: int) -> None:
        super()._advance(cursor)
        self._dealt.note(cursor, monotonic())

    # -- messages on demand --------------------------------------------------------------------------------

    def open_getter(self, subscriber: Subscriber) -> RoundRobinChannel:
        """Return a channel that gets messages by `deal_one` only, and is no consumer."""
        getter = self._channel(subscriber)
        self._getters.add(getter)
        self._finishing.add(getter)
        self._cancelled.add(getter)
        return getter

    async def deal_one(self, getter: RoundRobinChannel) -> bool:
        """Assign the oldest message that is ready to a getter, whatever its credit. Return False if there is
        none. Raises omq_storage.errors.StoreError.
        """
        self.used()
        while not self.deleted and self.ready:
            if self._aside:
                self._take_from_aside()
            if self._returned:
                is_dealt = await self._deal_returned(getter)
            else:
                is_dealt = await self._deal_next(getter)
            if is_dealt:
                if self.is_perishable:
                    self._signal.set()  # another message is at the head
                return True
            await trio.lowlevel.checkpoint()  # there may be many that are expired
        return False

    def end(self) -> Iterator[None]:
        """See `Driver.end`."""
        yield from super().end()
        yield from self.end_browsers()
        self._disuse.cancel()

    # -- browsers ------------------------------------------------------------------------------------------

    def browse(self, subscriber: Subscriber) -> BrowsingChannel:
        """Return a channel that gives copies of the messages of the queue, and is no consumer."""
        channel = BrowsingChannel(self, subscriber, self.resources.memory.replayed)
        self._browsers[channel] = None
        return channel

    def browser_left(self, channel: BrowsingChannel) -> None:
        """Forget a browser that was closed."""
        self._browsers.pop(channel, None)

    def end_browsers(self) -> Iterator[None]:
        """End all browsers, in steps: the queue was deleted, or another one takes its place."""
        while self._browsers:
            channel = next(iter(self._browsers))
            channel.close()
            channel.subscriber.ended(EndReason.DELETED)
            yield

    async def copied(self, message: int, largest: int) -> Block | None:
        """Return the block with a message for a browser; None if it is not kept any more, or is expired.

        Raises DamagedBlock, LargeBlock if it must be read, and has more than N octets (`largest`), and
        StoreError.
        """
        block = await self._block_of(message, largest)
        return None if block is None or (self.is_perishable and self._is_expired(block, message)) else block

    # -- channels ------------------------------------------------------------------------------------------

    def _open(self, subscriber: Subscriber, replay: Replay, priority: int) -> RoundRobinChannel:
        channel = super()._open(subscriber, replay, priority)
        self._consumers.add(channel, priority)
        return channel

    def finishing(self, channel: RoundRobinChannel) -> None:
        """See `RoundRobinDriver.finishing`."""
        super().finishing(channel)
        if self._consumers.remove(channel):
            self._signal.set()

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """See `RoundRobinDriver.may_have`."""
        return self._consumers.may_have(channel) and not self._must_wait() and super().may_have(channel)

    def _must_wait(self) -> bool:
        """Return whether the next single active consumer must wait: it gets the messages of the one that
        ends, and of those that end with it, before all others.
        """
        return self.options.single_active and bool(self._retirement.channels)

    def _ask(self, most: int) -> list[RoundRobinChannel]:
        if not self._consumers.is_single:
            return self._takers.able(most)
        active = self._consumers.active
        if active is None or active not in self._channels or self._must_wait() or self._takers.is_closed:
            return []
        return [active] if active.room(1) else []

    def _has_unasked(self) -> bool:
        return not self._consumers.is_single and super()._has_unasked()

    def _are_all(self, able: list[RoundRobinChannel]) -> bool:
        return self._consumers.is_single or super()._are_all(able)

    def _each_able(self) -> Iterator[RoundRobinChannel]:
        return iter(self._ask(1)) if self._consumers.is_single else super()._each_able()

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """See `RoundRobinDriver.closed`."""
        if self._consumers.remove(channel):
            self._signal.set()
        super().closed(channel, outstanding)
        self._getters.discard(channel)

    def _left(self, channel: Channel) -> None:
        if channel not in self._getters:  # which is no consumer
            self.used()
            super()._left(channel)
