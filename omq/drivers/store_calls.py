"""Calls of the store that declare and delete: in threads, and also when the disk is full."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar

from omq.drivers.problems import for_clients
from omq.drivers.reasons import NO_TOPIC, Failure, Refused
from omq.drivers.writer import Writer
from omq.logs import LogThrottle
from omq.threads import in_thread
from omq_storage.errors import Limit, StoreError, StoreFull, UnknownTopicId
from omq_storage.levels import Level
from omq_storage.store import Store

log = logging.getLogger("omq.catalogue")

T = TypeVar("T")


class StoreCalls:
    """Runs calls of one store, whose writers are these."""

    def __init__(self, store: Store, writers: Mapping[Level, Writer]) -> None:
        self._store = store
        self._writers = writers
        self._is_cramped = False
        self.refusal: Failure | None = None
        """The reason why the catalogue is not changed now; None if it is."""
        self.problems = LogThrottle.of_problem(log, "the catalogue")

    async def or_refused(self, function: Callable[[], T]) -> T:
        """Run a call that changes the store's catalogue in a thread. Raises Refused for its errors."""
        if self.refusal is not None:
            raise Refused.of(self.refusal)
        try:
            return await self.in_need(function)
        except UnknownTopicId as unknown:
            # The store has deleted the topic in another thread, and the task that deletes it has not gone on.
            raise Refused.of(NO_TOPIC) from unknown
        except StoreError as problem:
            self.problems.add(problem)
            raise Refused.of(for_clients(problem)) from problem

    async def in_need(self, function: Callable[[], T], writer: Writer | None = None) -> T:
        """Run a deletion or declaration, between the commits of its writer if it has one. Raises StoreError.

        If the disk is full, use the reserved disk space, while all writers pause so that none takes it.
        """
        try:
            return await (in_thread(function) if writer is None else writer.call(function))
        except StoreFull as full:
            if full.limit is not Limit.DISK:
                raise
        async with AsyncExitStack() as paused:
            for other in self._writers.values():
                await paused.enter_async_context(other.paused())
            return await in_thread(partial(self._store.with_spare_room, function))

    async def reserve(self, bounds: Mapping[int, int]) -> None:
        """See `omq_storage.catalogue.StoreCatalogue.reserve`."""
        try:
            await in_thread(partial(self._store.catalogue.reserve, bounds))
        except StoreFull:
            self._is_cramped = True
            raise

    async def sweep(self) -> None:
        """Delete the fragments of large messages that are no messages. Raises StoreError."""
        for writer in self._writers.values():
            while await self.in_need(writer.environment.sweep, writer):
                pass

    async def make_room(self) -> None:
        """Make sure that the catalogue has pages for the next reservation of ids, and reserve disk space for
        deletions, as far as the disk has any. Raises StoreError and OSError.
        """
        if self._is_cramped:
            # Not at the failure itself: that is in the middle of a commit, and its writer cannot pause.
            self._is_cramped = False
            await self.in_need(self._store.catalogue.recycle_pages)
        await in_thread(self._store.restore_spare_room)
