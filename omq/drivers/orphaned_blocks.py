"""The blocks that deleted topics leave in the store, until they are deleted, too."""

import logging
from collections.abc import Mapping
from functools import partial
from itertools import islice

from omq.drivers.store_calls import StoreCalls
from omq.drivers.writer import Writer
from omq.logs import LogThrottle
from omq_storage.errors import StoreError
from omq_storage.levels import Level

DROPPED_AT_ONCE = 64
"""The greatest number of topics whose blocks are deleted in one commit."""

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
        for level, writer in self._writers.items():
            topics = iter(sorted(topic for leftover, topic in self._topics if leftover is level))
            while some := list(islice(topics, DROPPED_AT_ONCE)):
                await self._drop(level, writer, some)

    async def _drop(self, level: Level, writer: Writer, topics: list[int]) -> None:
        """Delete the blocks of these topics in few commits, or else those of each topic by itself."""
        try:
            left = topics
            while left:
                drop_some = partial(writer.environment.drop_some, left)
                more = await self._calls.in_need(drop_some, writer)
                self._topics.difference_update((level, topic) for topic in left if topic not in more)
                left = more
        except StoreError as problem:
            if len(topics) == 1:
                self._undropped.add(f"topic {topics[0]}: {problem}")
                return
            for topic in left:
                await self._drop(level, writer, [topic])
