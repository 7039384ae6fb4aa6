"""A queue: a round-robin topic with what AMQP asks of a queue. Every round-robin topic is one.

A topic that a Declare command makes has the default options; then nothing here does anything.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from omq.drivers.consumers import Consumers
from omq.drivers.dead_letters import DeadLetters, Death
from omq.drivers.driver import Opening
from omq.drivers.pieces import Pieces
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Channel, Gone, Subscriber
from omq.drivers.unsettled import number_of, ranges
from omq.model import Replay
from omq_storage.blocks import Block
from omq_storage.environment import Position
from omq_storage.errors import DamagedBlock
from omq_storage.runs import Run


class QueueDriver(RoundRobinDriver):
    """One queue."""

    def __init__(self, opening: Opening) -> None:
        self.options = opening.options
        self._dead: DeadLetters | None = None
        super().__init__(opening)
        self._getters: set[RoundRobinChannel] = set()
        self._consumers = Consumers(single_active=self.options.single_active)

    @property
    def ready(self) -> int:
        """The number of messages that are stored and not assigned to a consumer."""
        return self._undealt + len(self._returned) + len(self._aside)

    def used(self) -> None:
        """A client declared the queue, or asked it for a message."""

    # -- messages on demand --------------------------------------------------------------------------------

    def open_getter(self, subscriber: Subscriber) -> RoundRobinChannel:
        """Return a channel that gets messages by `deal_one` only, and is no consumer."""
        pieces = partial(Pieces, self) if self.is_persistent else None
        getter = RoundRobinChannel(self, subscriber, self.resources.memory.unconfirmed, pieces)
        self._getters.add(getter)
        self._finishing.add(getter)
        self._cancelled.add(getter)
        return getter

    async def deal_one(self, getter: RoundRobinChannel) -> bool:
        """Assign the oldest message that is ready to a getter, whatever its credit. Return False if there is
        none. Raises omq_storage.errors.StoreError.
        """
        while not self.deleted and self.ready:
            if self._aside:
                self._take_from_aside()
            if self._returned:
                is_dealt = await self._deal_returned(self._returned.lowest, getter)
            else:
                is_dealt = await self._deal_next(getter)
            if is_dealt:
                return True
        return False

    def purge(self) -> int:
        """Delete the messages that are ready. Return how many there were."""
        count = self.ready
        runs = [*self._returned.runs(), *self._aside.runs()]
        self._returned.clear()
        self._aside.clear()
        self._count()
        if runs:
            self.settled(runs)
        self._pass_over(self.next_id)
        return count

    def _pass_over(self, cursor: int) -> None:
        """The messages from the cursor to this id are done without having been assigned."""
        passed = range(self._cursor, cursor)
        self._dealing = None
        self._read_ahead.clear()
        self._move_cursor(cursor)
        self.tail.forget_below(cursor)
        if passed and not self.is_persistent:
            self.free(self._holdings.settled(passed))

    # -- dead letters --------------------------------------------------------------------------------------

    def rejected(self, messages: Sequence[Run]) -> None:
        """See `RoundRobinDriver.rejected`. They become dead letters if there is an exchange for them."""
        if self.options.dead_letter_exchange is None:
            super().rejected(messages)
            return
        self.rejections += number_of(messages)
        self._dispose(Death.REJECTED, messages)

    def returned(self, messages: Iterable[Run]) -> None:
        """See `RoundRobinDriver.returned`. Messages that were returned too often are dead letters."""
        limit = self.options.delivery_limit
        if limit is not None and not self.deleted:
            runs = list(messages)
            messages = [run for run in runs if run.deliveries <= limit]
            if len(messages) < len(runs):
                self._dispose(Death.DELIVERY_LIMIT, [run for run in runs if run.deliveries > limit])
        super().returned(messages)

    def _dispose(self, death: Death, messages: Sequence[Run]) -> None:
        """These messages are done without having been accepted."""
        if self.options.dead_letter_exchange is None:
            self.settled(messages)
            return
        for ids in chain.from_iterable(map(ranges, messages)):
            for channel in self._choosy:
                channel.forget(ids)
        if self._dead is None:
            self._dead = DeadLetters(self, self.resources.dead_letters)
        self._dead.add(death, messages)

    async def block_of(self, message: int) -> Block | None:
        """Return the block with a dead letter, or None if it is not kept any more. Raises StoreError."""
        if not self.is_persistent:
            return self._holdings.find(message)
        if self.tail.covers(message):
            return self.tail.from_position(message, 1)[0]
        try:
            stored = await self.read(message, 1)
        except DamagedBlock as damaged:
            self._report(Gone(message, message, f"the store is damaged there ({damaged.why})"))
            return None
        found = stored[0].block if stored else None
        return found if found is not None and found.first <= message else None

    def buried(self, messages: Sequence[Run]) -> None:
        """These messages are in their new queues, and done."""
        self.settled(messages)
        self._note_move()

    def position(self) -> Position:
        """See `RoundRobinDriver.position`. Dead letters are not done until they are in their new queues."""
        position = super().position()
        if not self._dead:
            return position
        return replace(position, undone=tuple(sorted([*position.undone, *self._dead.runs()])))

    def _unsettled(self) -> int:
        return super()._unsettled() + (0 if self._dead is None else len(self._dead))

    def end(self) -> None:
        """See `Driver.end`."""
        super().end()
        if self._dead is not None:
            self._dead.clear()

    # -- channels ------------------------------------------------------------------------------------------

    def open(
        self, subscriber: Subscriber, replay: Replay, *, exclusive: bool = False, priority: int = 0
    ) -> Channel:
        """Open a channel for a consumer, as `Driver.open` does. Raises Refused.

        A consumer gets messages only while none with a higher priority has room for them.
        """
        channel = super().open(subscriber, replay, exclusive=exclusive)
        assert isinstance(channel, RoundRobinChannel)
        self._consumers.add(channel, priority)
        return channel

    def shares(self, channel: RoundRobinChannel) -> None:
        """See `RoundRobinDriver.shares`."""
        self._consumers.shares(channel)

    def finishing(self, channel: RoundRobinChannel) -> None:
        """See `RoundRobinDriver.finishing`."""
        super().finishing(channel)
        if self._consumers.remove(channel):
            self._signal.set()

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """See `RoundRobinDriver.may_have`."""
        return self._consumers.may_have(channel) and super().may_have(channel)

    def has_taker(self) -> bool:
        """See `Driver.has_taker`."""
        return super().has_taker() if self._consumers.is_plain else bool(self._able())

    def _able(self) -> list[RoundRobinChannel]:
        able = super()._able()
        return able if self._consumers.is_plain else self._consumers.preferred(able)

    def _takers(self, message: int) -> list[RoundRobinChannel]:
        takers = super()._takers(message)
        return takers if self._consumers.is_plain else self._consumers.preferred(takers)

    def subscriber_count(self) -> int:
        return super().subscriber_count() - len(self._getters)

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """See `RoundRobinDriver.closed`."""
        if self._consumers.remove(channel):
            self._signal.set()
        super().closed(channel, outstanding)
        self._getters.discard(channel)

    def _left(self, channel: Channel) -> None:
        if channel not in self._getters:  # which is no consumer
            super()._left(channel)
