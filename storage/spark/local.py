"""Blocks out of a store of this machine, also while a server writes it. Never over a network file system."""

from collections.abc import Iterator
from pathlib import Path

from omq.protocol.types import BlockInfo
from storage.blocks import Block
from storage.catalogue import TopicRecord
from storage.errors import DamagedBlock
from storage.levels import Level
from storage.reader import opened
from storage.records import Extent
from storage.spark.access import HOLE, Gap, StoredTopic, why_unreadable
from storage.spark.errors import UnknownTopic

READ_OCTETS = 1 << 20
"""How much is read at a time: what is held of a topic, however large it is."""


class LocalStore:
    """See `storage.spark.access.Access`. The store stays open in this process when this is closed."""

    shows_all = True

    def __init__(self, path: str) -> None:
        """Raises storage.errors.StoreError."""
        self._reader = opened(Path(path))
        self._levels: dict[int, Level] = {}

    def __enter__(self) -> "LocalStore":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> dict[str, StoredTopic]:
        found: dict[str, StoredTopic] = {}
        for record in self._reader.topics():
            try:
                name = record.name.decode()
            except UnicodeDecodeError:
                continue
            found[name] = self._topic(record, name)
        return found

    def _topic(self, record: TopicRecord, name: str) -> StoredTopic:
        problem = why_unreadable(record.delivery, record.persistence)
        extent = Extent() if problem else self._reader.extent(_level(record), record.id)
        next_id = max(1, extent.next, record.resume)
        first = extent.first if extent.messages else next_id
        self._levels[record.id] = _level(record)
        return StoredTopic(record.id, name, first, next_id, extent.bytes, problem)

    def block_at(self, topic: StoredTopic, message: int, end: int) -> BlockInfo | None:
        found = self._reader.blocks(self._level_of(topic), topic.id, message, 1)
        if not found or found[0].first >= end:
            return None
        return BlockInfo(found[0].first, found[0].count, found[0].time, found[0].bytes)

    def fetch(self, topic: StoredTopic, start: int, end: int) -> Iterator[Block | Gap]:
        level = self._level_of(topic)
        position = start
        while position < end:
            try:
                found = self._reader.read(level, topic.id, position, READ_OCTETS)
                blocks = [stored.block for stored in found]
                kept = min(blocks[0].first, end) if blocks else end
            except DamagedBlock as damaged:
                if damaged.first <= position:
                    last = damaged.first if damaged.last is None else damaged.last
                    yield Gap(position, min(last, end - 1), f"the store is damaged there ({damaged.why})")
                    position = last + 1
                    continue
                blocks = []
                kept = min(damaged.first, end)
            if kept > position:
                yield Gap(position, kept - 1, self._why_gone(level, topic, position))
                position = kept
                continue
            for block in blocks:
                # What lies behind a gap of ids comes after the news of it.
                if block.first > position or position >= end:
                    break
                yield block
                position = block.next

    def _why_gone(self, level: Level, topic: StoredTopic, message: int) -> str:
        extent = self._reader.extent(level, topic.id)
        if extent.messages and message >= extent.first:
            return HOLE
        return "they are no longer kept"

    def _level_of(self, topic: StoredTopic) -> Level:
        if topic.id not in self._levels:
            self.topics()
        try:
            return self._levels[topic.id]
        except KeyError:
            raise UnknownTopic(f"The topic {topic.name!r} was deleted.") from None


def _level(record: TopicRecord) -> Level:
    """The names of the sync levels are those of their environments; a transient topic is in none of them."""
    return Level.WEAK if record.persistence == "Transient" else Level(record.persistence.lower())
