"""The stored state of each topic, which the server reads at its start."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from omq.drivers.queue_options import QueueOptions
from omq.drivers.stored_types import LEVELS
from omq.logs import quoted, subject
from omq.model import Persistent, Transient, read_stored_persistence
from omq_storage.environment import Extent, Position
from omq_storage.errors import StoreError
from omq_storage.integrity import ADVICE
from omq_storage.levels import Level
from omq_storage.store import Store
from omq_storage.topics import TopicRecord

log = logging.getLogger("omq.catalogue")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The stored state of one topic with a record. The defaults are those of a new topic."""

    record: TopicRecord
    next_id: int = 1
    extent: Extent = field(default_factory=Extent)
    position: Position | None = None
    time: int = 0
    """The time of the last message."""
    stored_before_cursor: int = 0
    """The number of stored messages below the cursor of `position`."""
    lost: range = range(0)
    """Ids of messages that may have been lost before they were durable."""
    options: QueueOptions | None = None
    """The options of a queue that was declared as one."""


class TopicLoader:
    """Reads the topics of one store, once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._extents = {level: store.level(level).extents() for level in Level}
        self._positions = {level: store.level(level).positions() for level in Level}
        self._kept: dict[Level, set[int]] = {level: set() for level in Level}
        """The topics whose messages are kept at each level."""
        self._transient: set[int] = set()
        self.losses: dict[int, range] = {}
        """The ids, of each topic with any, that the catalogue does not know as lost yet."""

    def topics(self) -> Iterator[Loaded]:
        """Read all topics. Raises StoreError."""
        store = self._store
        rolled_back = {recovery.level for recovery in store.recoveries if recovery.rolled_back}
        queues = {topic: _read_options(topic, row) for topic, row in store.catalogue.queues().items()}
        for record in store.catalogue.topics():
            persistence = read_stored_persistence(record.persistence)
            match persistence:
                case Transient():
                    self._transient.add(record.id)
                    yield Loaded(record, record.reserved, options=queues.get(record.id))
                case Persistent(sync):
                    level = LEVELS[sync]
                    self._kept[level].add(record.id)
                    extent = self._extents[level].get(record.id, Extent())
                    next_id = record.next_id(extent)
                    lost = record.lost
                    if level in rolled_back and record.reserved > next_id:
                        log.warning(
                            "%s: messages %d to %d may have been lost before they were durable",
                            quoted(record.name),
                            next_id,
                            record.reserved - 1,
                            extra=subject(topic=record.name),
                        )
                        lost = self.losses[record.id] = range(max(1, extent.next), record.reserved)
                        next_id = record.reserved
                    position = self._positions[level].get(record.id)
                    below = 0 if position is None else position.cursor
                    yield Loaded(
                        record,
                        next_id,
                        extent,
                        position,
                        self._newest_time(level, record.id, extent),
                        self._stored_below(level, record.id, extent, below),
                        lost,
                        queues.get(record.id),
                    )
                case _:
                    assert_never(persistence)

    def leftovers(self, next_id: int) -> Iterator[tuple[Level, int]]:
        """Return the topics of which there are messages or positions to be deleted, with their levels.
        `next_id` is the id of the next new topic. Call this after `topics`. Raises StoreError.
        """
        every = set().union(*self._kept.values()) | self._transient
        for level, topics in self._kept.items():
            stored = self._extents[level].keys()
            for misplaced in (stored & every) - topics:
                if level is Level.ASYNC and misplaced in self._transient:
                    yield level, misplaced  # it had spilled, see omq.drivers.spill
                    continue
                log.error("topic %d has messages in %s, which is not its level", misplaced, level.value)
            for leftover in stored - every:
                if leftover >= next_id:
                    # The topic was not deleted: this is not the catalogue with which its messages were
                    # stored.
                    raise StoreError(
                        f"The store {self._store.path} has messages of topic {leftover}, which its catalogue "
                        f"never knew; {ADVICE}."
                    )
                # An interrupted deletion: the record in the catalogue is deleted first, the blocks follow.
                yield level, leftover
            # A topic that never had a message has a position alone. It may have been at another level then.
            for leftover in self._positions[level].keys() - stored - topics:
                if leftover < next_id:
                    yield level, leftover

    def _newest_time(self, level: Level, topic: int, extent: Extent) -> int:
        """Return the time of the last stored message, so that times never decrease if the clock was
        set back.
        """
        try:
            newest = self._store.level(level).blocks(topic, extent.last, 1) if extent.messages else []
        except StoreError as problem:
            log.error("topic %d: the time of its last message cannot be read: %s", topic, problem)
            return 0
        return newest[0].time + newest[0].span if newest else 0

    def _stored_below(self, level: Level, topic: int, extent: Extent, bound: int) -> int:
        """Return the number of stored messages with ids below a bound."""
        count, first = 0, extent.first
        try:
            while extent.messages and first < bound:
                infos = self._store.level(level).blocks(topic, first)
                if not infos:
                    break
                count += sum(min(info.next, bound) - info.first for info in infos if info.first < bound)
                first = infos[-1].next
        except StoreError as problem:
            log.error("topic %d: the number of its messages that are done cannot be read: %s", topic, problem)
        return count


def _read_options(topic: int, row: bytes) -> QueueOptions:
    """Return the options of a queue from its row in the catalogue. Raises StoreError."""
    try:
        return QueueOptions.decode(row)
    except msgspec.DecodeError as problem:
        raise StoreError(f"The options of queue {topic} cannot be read: {problem}; {ADVICE}.") from problem
