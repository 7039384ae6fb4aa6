"""A round-robin topic whose messages can die: they become dead letters if it has an exchange for them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from omq.drivers.dead_letters import DeadLetters, Death
from omq.drivers.driver import InitialState
from omq.drivers.seam import Unavailable
from omq.drivers.spooled_work import SpooledWorkDriver
from omq.drivers.unsettled import number_of, ranges
from omq.gap_reasons import damage, too_large
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock
from omq_storage.fragments import Fragmented
from omq_storage.lookup import LargeBlock
from omq_storage.runs import Ids, Run, runs_in


class DeadLetteringDriver(SpooledWorkDriver):
    """One topic, with the options of a queue."""

    def __init__(self, opening: InitialState) -> None:
        self.options = opening.options
        self._dead: DeadLetters | None = None
        super().__init__(opening)
        self._drop_exceeding()

    def _drop_exceeding(self) -> None:
        """Dispose of the messages in the saved position that were delivered too often. Their consumers had
        them when the server ended, or they were dead letters on their way.
        """
        runs = self._returned.runs()
        limit = self.options.delivery_limit
        if limit is None or all(run.deliveries <= limit for run in runs):
            return
        self._returned.clear()
        self._return(self._within_limit(runs))

    @property
    def unacknowledged(self) -> int:
        """The number of messages that are assigned to consumers and not settled."""
        return super()._unsettled()

    def rejected(self, messages: Sequence[Run]) -> None:
        """See `RoundRobinDriver.rejected`. They become dead letters if there is an exchange for them."""
        if self.options.dead_letter_exchange is None:
            super().rejected(messages)
            return
        self.rejections += number_of(messages)
        self._dispose(Death.REJECTED, messages)

    def _within_limit(self, messages: Iterable[Run]) -> Iterable[Run]:
        """Return those of these messages that were not delivered too often. The other ones die."""
        limit = self.options.delivery_limit
        if limit is None or self.deleted:
            return messages
        runs = list(messages)
        kept = [run for run in runs if run.deliveries <= limit]
        if len(kept) < len(runs):
            self._dispose(Death.DELIVERY_LIMIT, [run for run in runs if run.deliveries > limit])
        return kept

    def _pass_over(self, cursor: int, death: Death | None = None) -> None:
        """Dispose of the messages from the cursor up to but without the new one, which were not assigned.
        They become dead letters, or are deleted.
        """
        passed = range(self._cursor, cursor)
        if not passed:
            return
        self._move_cursor(cursor)
        if self._dealing is not None and self._dealing.next <= cursor:
            self._dealing = None
        self.tail.forget_below(cursor)
        if death is None or self.options.dead_letter_exchange is None:
            for run in runs_in(passed):
                self._settle(run)
            self._release()
            return
        ids = Ids()
        ids.add(passed)
        self._dispose(death, ids.runs())

    def _dispose(self, death: Death, messages: Sequence[Run]) -> None:
        """Dispose of messages that are done without having been accepted: send them to the dead-letter
        exchange if the queue has one, otherwise delete them.
        """
        if self.options.dead_letter_exchange is None:
            self.settled(messages)
            return
        if self._selective:
            for ids in chain.from_iterable(map(ranges, messages)):
                for channel in self._selective:
                    channel.forget(ids)
        if self._dead is None:
            self._dead = DeadLetters(self, self.resources.dead_letters)
        self._dead.add(death, messages)

    async def block_of(self, message: int) -> Block | None:
        """Return the block with a dead letter, or None if it is not kept any more. Raises StoreError."""
        try:
            return await self._block_of(message)
        except DamagedBlock as damaged:
            self._report(Unavailable(message, message, damage(damaged)))
            return None
        except LargeBlock as large:  # from before the queue had a dead letter exchange
            self._report(Unavailable(message, message, too_large(large.octets, "a dead letter")))
            return None

    async def peek(self, message: int) -> Block | None:
        """Return the block with a message, or None if it is not kept any more, damaged, or too large to be
        held. Raises StoreError.
        """
        try:
            return await self._block_of(message)
        except (DamagedBlock, LargeBlock):
            return None

    async def _block_of(self, message: int, largest: int | None = None) -> Block | None:
        """Return the block with this message, or None if it is gone. Raise DamagedBlock, LargeBlock and
        StoreError. `largest`: the octets of the largest block that is read.
        """
        if not self.is_persistent:
            held = self._holdings.find(message)
            if isinstance(held, Fragmented):
                raise LargeBlock(held.stored_octets, held)
            if held is not None or self._spill is None:
                return held
        if self.tail.covers(message):
            return self.tail.from_position(message, 1)[0]
        stored = await self.read(message, 1, largest)
        found = stored[0].block if stored else None
        return found if found is not None and found.first <= message else None

    def dead_lettered(self, messages: Sequence[Run]) -> None:
        """Settle messages that have arrived in their new queues."""
        self.settled(messages)

    def _between_channels(self) -> Iterable[Run]:
        """See `CompetingDriver._between_channels`. Dead letters are not done until they are in their new
        queues.
        """
        between = super()._between_channels()
        return between if self._dead is None else chain(between, self._dead.runs())

    def _unsettled(self) -> int:
        return super()._unsettled() + (0 if self._dead is None else len(self._dead))

    def end(self) -> Iterator[None]:
        """See `Driver.end`."""
        yield from super().end()
        if self._dead is not None:
            self._dead.clear()
