"""Deletes topics: those that a client deletes, that no client uses any more, or whose owner has ended.

The store has a record of a durable topic, and blocks of a persistent one. The record is deleted first: then
no client finds the topic, also after a restart. The blocks follow, as far as the disk has room for that
(`omq.drivers.orphaned_blocks`).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import assert_never

import trio

from omq.drivers.driver import Driver
from omq.drivers.factory import DriverFactory
from omq.drivers.lifetime import Durable, Ephemeral, Ownership
from omq.drivers.orphaned_blocks import OrphanedBlocks
from omq.drivers.reasons import NO_TOPIC, Refused
from omq.drivers.reservations import Reservations
from omq.drivers.slices import in_slices
from omq.drivers.store_calls import StoreCalls
from omq.drivers.topic_quota import TopicQuota
from omq.drivers.topics_by_name import TopicsByName
from omq.logs import quoted
from omq.model import Topic
from omq_storage.catalogue import StoreCatalogue
from omq_storage.levels import Level

log = logging.getLogger("omq.catalogue")

DELETED_AT_ONCE = 8
"""The number of topics of a connection that has ended that are deleted in one step."""


class TopicDeletion:
    """Deletes the topics of one server."""

    def __init__(
        self,
        topics: TopicsByName,
        quota: TopicQuota,
        ids: Reservations,
        store: StoreCatalogue,
        calls: StoreCalls,
        orphaned_blocks: OrphanedBlocks,
        factory: DriverFactory,
        changing: trio.Lock,
        nursery: trio.Nursery,
    ) -> None:
        """Use `changing`, the lock of the catalogue: its holder may declare, change or delete topics. What is
        deleted later is deleted in the nursery.
        """
        self._topics = topics
        self._quota = quota
        self._ids = ids
        self._store = store
        self._calls = calls
        self._orphaned_blocks = orphaned_blocks
        self._factory = factory
        self._changing = changing
        self._nursery = nursery
        self._unused: dict[Driver, Callable[[], bool]] = {}
        """The topics that could not be deleted when no client used them, and whether that is still so."""
        self.deleted: Callable[[Driver], None] = _ignore
        """Called when a topic has been deleted."""

    async def delete(self, name: bytes) -> Topic:
        """Delete a topic with all its messages, and end the channels of its subscribers. Raises Refused."""
        async with self._changing:
            driver = self._topics.drivers.get(name)
            if driver is None:
                raise Refused.of(NO_TOPIC)
            if isinstance(driver.lifetime, Ephemeral):
                with trio.CancelScope(shield=True):
                    await in_slices(self._delete_ephemeral(driver, driver.lifetime))
            else:
                await self._delete_durable([driver])
            return driver.topic

    async def delete_many(self, names: Collection[bytes]) -> list[Topic]:
        """Delete those of a few topics that are durable, as `delete` does but in one commit. Return them.

        What cannot be deleted is left to the single deletion, which tries again and is told why.
        """
        async with self._changing:
            found = map(self._topics.drivers.get, names)
            drivers = [each for each in found if each is not None and isinstance(each.lifetime, Durable)]
            if len(drivers) < 2:
                return []
            try:
                await self._delete_durable(drivers)
            except Refused as refused:
                log.debug("%d topics could not be deleted together: %s", len(drivers), refused)
                return []
            return [driver.topic for driver in drivers]

    def delete_unused(self, driver: Driver, is_still: Callable[[], bool]) -> None:
        """Delete a topic that no client uses, if that is still true when its turn comes."""
        match driver.lifetime:
            case Ephemeral():
                self.delete_at_once(driver)
            case Durable():
                self._nursery.start_soon(self._delete_unused, driver, is_still)
            case other:
                assert_never(other)

    async def delete_left(self) -> None:
        """Delete the topics that `delete_unused` could not delete before, as far as that is possible now."""
        for driver, is_still in tuple(self._unused.items()):
            await self._delete_unused(driver, is_still)
            if driver in self._unused:
                return  # the store takes no changes yet

    async def _delete_unused(self, driver: Driver, is_still: Callable[[], bool]) -> None:
        self._unused.pop(driver, None)
        async with self._changing:
            if self._topics.drivers.get(driver.topic.topic) is not driver or not is_still():
                return  # it was deleted or given other types, or was used by now
            try:
                await self._delete_durable([driver])
            except Refused as refused:
                self._unused[driver] = is_still
                self._calls.problems.add(f"{quoted(driver.topic.topic)}, which is used no more: {refused}")

    def delete_of(self, owner: Ownership) -> None:
        """Delete the topics of a connection that has ended: in steps, because there may be thousands."""
        if owner.end(DELETED_AT_ONCE):
            self._nursery.start_soon(self._delete_of, owner)

    async def _delete_of(self, owner: Ownership) -> None:
        while owner.end(DELETED_AT_ONCE):
            await trio.lowlevel.checkpoint()

    def delete_at_once(self, driver: Driver) -> None:
        """Delete an ephemeral topic in one step, unless it is deleted already: there are few subscribers, or
        none.
        """
        assert isinstance(driver.lifetime, Ephemeral)
        for _ in self._delete_ephemeral(driver, driver.lifetime):
            pass

    def _delete_ephemeral(self, driver: Driver, lifetime: Ephemeral) -> Iterator[None]:
        if self._topics.drivers.get(driver.topic.topic) is not driver:
            return
        del self._topics.drivers[driver.topic.topic]
        if lifetime.owner is not None:
            lifetime.owner.discard(driver.topic.id)
        yield from self._end(driver)

    async def _delete_durable(self, drivers: Sequence[Driver]) -> None:
        """Delete topics that the store has, in one commit. The caller holds `changing`. Raises Refused; then
        none is deleted.
        """
        topics = self._topics
        with trio.CancelScope(shield=True):  # interrupted, it would keep octets until the next start
            async with self._ids.held_back():
                ids = [driver.topic.id for driver in drivers]
                await self._calls.or_refused(partial(self._store.delete_many, ids))
                for driver in drivers:
                    driver.deleted = True
                    del topics.routes[driver.topic.topic]
            for driver in drivers:
                del topics.drivers[driver.topic.topic]
                del topics.records[driver.topic.id]
            await in_slices(self._end_all(drivers))
            if any(driver.writer is not None for driver in drivers):
                await self._orphaned_blocks.drop()

    def _end_all(self, drivers: Iterable[Driver]) -> Iterator[None]:
        for driver in drivers:
            yield from self._end(driver)
            yield

    def _end(self, driver: Driver) -> Iterator[None]:
        """End a topic that nobody finds any more, and the channels of its subscribers, in steps."""
        self._quota.deleted(driver.topic.id)
        self.deleted(driver)
        # Blocks that cannot be deleted now are tried again until they are.
        if driver.writer is not None:
            self._orphaned_blocks.add(driver.environment.level, driver.topic.id)
        elif driver.has_spilled:
            self._orphaned_blocks.add(Level.ASYNC, driver.topic.id)
        yield from driver.end()
        self._factory.stop(driver)


def _ignore(driver: Driver) -> None:
    """Do nothing: the default listener for deleted topics."""
