"""The blocks that deleted topics leave in the store, until they are deleted, too."""

import logging
from collections.abc import Mapping
from functools import partial

from omq.drivers.store_calls import StoreCalls
from omq.drivers.writer import Writer
from omq.logs import LogThrottle
from omq_storage.errors import StoreError
from omq_storage.levels import Level

log = logging.getLogger("omq.catalogue")


class OrphanedBlocks:
    """The topics whose blocks are left, each with its sync level."""

    def __init__(self, calls: StoreCalls, writers: Mapping[Level, Writer]) -> None:
        self._calls = calls
        self._writers = writers
        self._topics: set[tuple[Level, int]] = set()
        self._undropped = LogThrottle.of_problem(log, "not all of a deleted topic could be deleted yet")

    def add(self, level: Level, topic: int) -> None:
        """Let the next `drop` delete the blocks of this topic."""
        self._topics.add((level, topic))

    async def drop(self) -> None:
        """Delete the remaining blocks of deleted topics, as far as the store has room for that."""
        for level, topic in sorted(self._topics, key=lambda leftover: leftover[1]):
            writer = self._writers[level]
            try:
                while await self._calls.in_need(partial(writer.environment.drop_some, topic), writer):
                    pass
            except StoreError as problem:
                self._undropped.add(f"topic {topic}: {problem}")
            else:
                self._topics.discard((level, topic))
