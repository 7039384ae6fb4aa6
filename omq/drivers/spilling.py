"""A round-robin topic that spills: messages for which the memory has no room wait on the disk."""

from collections.abc import Sequence

from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver, InitialState
from omq.drivers.lifetime import Ephemeral
from omq.drivers.offer import Offered, PendingOffer
from omq.drivers.push import Pushes
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.sequences import Origins, producers_of, without_repeated
from omq.drivers.spill import Spill
from omq_storage.batches import Batch
from omq_storage.blocks import Block
from omq_storage.environment import Environment, Extent
from omq_storage.fragments import Fragmented
from omq_storage.heads import octets_of


class SpillingDriver(RoundRobinDriver):
    """One topic, which spills if it is transient and a queue of AMQP."""

    def __init__(self, opening: InitialState) -> None:
        self._spill: Spill | None = None
        self._is_spilling = False
        super().__init__(opening)

    def offer(self, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()) -> Offered:
        """See `Driver.offer`. While messages are on their way to the disk, later ones go there, too."""
        if self.spills_next and not self.deleted:
            return self._without_room(batch, heads, origins)
        return super().offer(batch, heads, origins)

    def _without_room(self, batch: Batch, heads: Sequence[bytes], origins: Origins) -> Offered:
        """See `Driver._without_room`. Queues of AMQP spill: their publishers must not wait for consumers."""
        if origins or not isinstance(self.lifetime, Ephemeral):
            return super()._without_room(batch, heads, origins)
        return self.spill(batch, heads)

    def _most_held(self) -> int:
        """See `RoundRobinDriver._most_held`. A queue of AMQP may have more while all topics use no more than
        half of the share: to write messages to the disk and to read them back costs twice as much.
        """
        most = super()._most_held()
        if not isinstance(self.lifetime, Ephemeral):
            return most
        waiting = self.resources.memory.waiting
        return max(most, self._held + waiting.limit // 2 - waiting.used)

    def spill(self, batch: Batch, heads: Sequence[bytes] = ()) -> Offered:
        """Take messages of a transient topic over that have no room in its memory, as `offer` does, but onto
        the disk. So nothing waits for its consumers.
        """
        assert not self.is_persistent
        if self._spill is None:
            self._spill = Spill(self, self.resources.spills, self.resources.memory.posted)
        return self._spill.offer(batch, heads, batch.octets + octets_of(heads))

    def hand_over(self, batch: Batch, heads: Sequence[bytes], origins: Origins, octets: int) -> Confirmation:
        """See `Driver.hand_over`. What others have on its way to the disk comes first."""
        if self._spill is None or not self._spill.on_the_way:
            return super().hand_over(batch, heads, origins, octets)
        self.free(octets)
        if not origins:
            return self._spill.force(batch, heads, octets)
        sequences = self.resources.memory.sequences
        producers = producers_of(origins)
        before = sequences.last(self.topic.id, producers)
        last = dict(before)
        batch, heads = without_repeated(batch, heads, origins, last)
        sequences.keep(self.topic.id, last)
        if not batch.count:
            return self._spill.numbered  # which may be on their way, too, and fail
        confirmation = self._spill.force(batch, heads, octets, producers)

        def look_failed() -> None:
            if confirmation.failure is not None:  # so they are not repeated when they come again
                sequences.lower(self.topic.id, producers, before)

        confirmation.listen(look_failed)
        return confirmation

    @property
    def spills_next(self) -> bool:
        """Whether the next messages must go to the disk, because others are on their way there."""
        return self._spill is not None and self._spill.on_the_way > 0

    @property
    def has_spilled(self) -> bool:
        """Whether messages of a transient topic are on the disk, or were."""
        return self._spill is not None

    @property
    def environment(self) -> Environment:
        """See `Driver.environment`."""
        return super().environment if self._spill is None else self._spill.environment

    def stored(self, blocks: Sequence[Block | Fragmented], extent: Extent, pushes: Pushes) -> None:
        """See `Driver.stored`. Called for a transient topic, too, when messages were spilled."""
        if self._spill is None:
            super().stored(blocks, extent, pushes)
            return
        self._is_spilling = True
        try:
            for block in blocks:
                assert isinstance(block, Block), "only a persistent topic takes fragments"
                self.next_id = block.next
                self._count_in(block)
                self._keep(block)
        finally:
            self._is_spilling = False
        self._spill.keep_deleting(self.resources.dead_letters.start)

    def _hold(self, block: Block) -> None:
        if self._is_spilling:
            self._holdings.append_on_disk(block.first, block.next, block.held)
        else:
            super()._hold(block)

    def first_on_disk(self) -> int:
        """Return an id below which no message is needed from the disk."""
        first = self._holdings.first_on_disk()
        return self.next_id if first is None else first


def offer_or_spill(driver: Driver, batch: Batch, heads: Sequence[bytes]) -> Offered:
    """Offer messages to a topic, as `Driver.offer` does, and spill them where they would have to wait for
    its workers. For those who cannot wait: the workers may wait for them. Raises Refused.

    They still wait for memory on the way to a store, for ids, and for the fastest subscriber of a transient
    broadcast topic.
    """
    offered = driver.offer(batch, heads)
    return offered if isinstance(offered, Confirmation) else _spilled(driver, batch, heads, offered)


async def taken_or_spilled(
    driver: Driver, batch: Batch, heads: Sequence[bytes], offered: Offered
) -> Confirmation:
    """Wait until a topic accepts messages, for which `offer_or_spill` has returned this. Raises Refused.

    A topic may need ids first, and have no room when it gets them.
    """
    while not isinstance(offered, Confirmation):
        await offered.free()
        offered = offered.again()
        if not isinstance(offered, Confirmation):
            offered = _spilled(driver, batch, heads, offered)
    return offered


def _spilled(driver: Driver, batch: Batch, heads: Sequence[bytes], pending: PendingOffer) -> Offered:
    """Spill messages that would wait for the workers of a topic. Return the offer of messages that wait for
    something else: it stays in its queue.
    """
    if isinstance(driver, SpillingDriver) and pending.room is driver and driver.has_ids(batch.count):
        pending.leave()
        return driver.spill(batch, heads)
    return pending
