"""A queue: a round-robin topic with what AMQP asks of a queue. Every round-robin topic is one.

A topic that a Declare command makes has the default options; then nothing here does anything.
"""

from collections.abc import Iterable
from functools import partial

from omq.drivers.driver import Opening
from omq.drivers.pieces import Pieces
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import Channel, Subscriber
from omq_storage.runs import Run


class QueueDriver(RoundRobinDriver):
    """One queue."""

    def __init__(self, opening: Opening) -> None:
        super().__init__(opening)
        self.options = opening.options
        self._getters: set[RoundRobinChannel] = set()

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

    # -- channels ------------------------------------------------------------------------------------------

    def subscriber_count(self) -> int:
        return super().subscriber_count() - len(self._getters)

    def closed(self, channel: RoundRobinChannel, outstanding: Iterable[Run]) -> None:
        """See `RoundRobinDriver.closed`."""
        super().closed(channel, outstanding)
        self._getters.discard(channel)

    def _left(self, channel: Channel) -> None:
        if channel not in self._getters:  # which is no consumer
            super()._left(channel)
