"""Read blocks from a store on this machine, also while a server writes it. Not for network file systems."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, assert_never

from omq.bulk.access import TOPIC_DELETED, Gap, Span, StoredTopic, why_unreadable
from omq.gap_reasons import damage, missing, too_large
from omq.model import BlockInfo, Delivery, Persistent, Transient, read_stored_persistence
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock
from omq_storage.fragments import TooLargeToHold
from omq_storage.levels import Level
from omq_storage.reader import opened
from omq_storage.records import Extent
from omq_storage.topics import TopicRecord

T = TypeVar("T")


class LocalStore:
    """Implements `omq.bulk.access.Access`. The store stays open in this process after this is closed."""

    shows_all = True

    def __init__(self, path: str) -> None:
        """Open the store at this path. Raise omq_storage.errors.StoreError."""
        self._reader = opened(Path(path))
        self._records: dict[int, TopicRecord] = {}

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
        persistence = read_stored_persistence(record.persistence)
        problem = why_unreadable(Delivery(record.delivery), persistence)
        extent = Extent() if problem else self._reader.extent(_level(record), record.id)
        next_id = record.next_id(extent)
        self._records[record.id] = record
        first = extent.oldest(next_id)
        return StoredTopic(record.id, name, first, next_id, extent.bytes, persistence, problem)

    def block_at(self, topic: StoredTopic, message: int, end: int) -> BlockInfo | None:
        record = self._record_of(topic)
        found = [] if record is None else self._reader.blocks(_level(record), topic.id, message, 1)
        if not found or found[0].first >= end:
            return None
        return BlockInfo(found[0].first, found[0].count, found[0].time, found[0].bytes)

    def fetch(
        self,
        topic: StoredTopic,
        start: int,
        end: int,
        use: Callable[[Block, range], T],
        ahead: Sequence[Span] = (),
    ) -> Iterator[T | Gap]:
        record = self._record_of(topic)
        if record is None:
            if start < end:
                yield Gap(start, end - 1, TOPIC_DELETED)
            return
        level = _level(record)
        position = start
        while position < end:
            try:
                for messages, made in self._reader.use(level, topic.id, range(position, end), use):
                    yield from self._gaps(record, position, messages.start)
                    yield made
                    position = messages.stop
                yield from self._gaps(record, position, end)
                position = end
            except TooLargeToHold as large:
                yield from self._gaps(record, position, large.message)
                yield Gap(large.message, large.message, too_large(large.octets, "a block"))
                position = large.message + 1
            except DamagedBlock as damaged:
                if damaged.first > position:
                    following = min(damaged.first, end)
                    yield from self._gaps(record, position, following)
                    position = following
                else:
                    last = min(max(position, damaged.last_known), end - 1)
                    yield Gap(position, last, damage(damaged))
                    position = last + 1

    def _gaps(self, record: TopicRecord, position: int, following: int) -> Iterator[Gap]:
        """Yield the gaps from `position` to the next stored message."""
        while position < following:
            extent = self._reader.extent(_level(record), record.id)
            ids, reason = missing(extent, record.lost, position, following)
            yield Gap(position, ids.stop - 1, reason)
            position = ids.stop

    def _record_of(self, topic: StoredTopic) -> TopicRecord | None:
        """Return the record of a topic; None if the topic was deleted."""
        if topic.id not in self._records:
            self._records.update({record.id: record for record in self._reader.topics()})
        return self._records.get(topic.id)


def _level(record: TopicRecord) -> Level:
    """Return the sync level of a topic. A transient topic has none; return any, since nothing of it is
    stored.
    """
    match read_stored_persistence(record.persistence):
        case Transient():
            return Level.WEAK
        case Persistent(sync):
            return Level(sync.value.lower())
        case other:
            assert_never(other)
