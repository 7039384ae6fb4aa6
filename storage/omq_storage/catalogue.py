"""The catalogue: which topics there are, kept durably in its own LMDB environment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from threading import Lock

import msgspec

from omq_storage.database import Database, Reading, Writing
from omq_storage.errors import DamagedRecord, NameTaken, StoreError, UnknownTopic
from omq_storage.identity import LINEAGE_KEY, Lineage, pack_lineage, unpack_lineage
from omq_storage.records import key_topic, topic_key
from omq_storage.sealed import seal, unseal

TOPICS = b"topics"
COUNTER = b"counter"
TABLES = (TOPICS, COUNTER)
NEXT = b"next"
_NUMBER = Struct(">Q")
_IDS = 1 << 31

MESSAGES_LEAPT = 1 << 32
TOPICS_LEAPT = 1 << 16
"""How many ids are skipped where it is unknown which of them were used."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What is kept about one topic.  ``delivery`` and ``persistence`` are the caller's own words."""

    id: int
    name: bytes
    delivery: str
    persistence: str
    declared: bool
    """True when someone declared it with these types, False when it only got the defaults."""
    reserved: int = 0
    """No message id from this one on was ever handed out."""
    resume: int = 0
    """Message ids below this one are not handed out any more: some were, and what they meant was lost."""


class Catalogue:
    """Every call may come from any thread; what it changed is durable when it returns."""

    def __init__(self, path: Path, *, map_size: int) -> None:
        """Opens the catalogue in an existing directory.  Raises DamagedFile for a damaged record."""
        self._lock = Lock()
        self._database = Database(path, TABLES, map_size=map_size, sync=True)
        self._database.make_tables()
        with self._database.reading() as transaction:
            records = topic_records(transaction)
            next_id = _next_id(transaction)
            lineage = transaction.get(COUNTER, LINEAGE_KEY)
            self._lineage = None if lineage is None else unpack_lineage(LINEAGE_KEY, lineage)
            if any(record.id >= next_id for record in records):
                raise DamagedRecord("The next topic id was used before.")
        self._records = {record.id: record for record in records}
        self._ids = {record.name: record.id for record in records}

    @staticmethod
    def make(
        path: Path,
        records: Iterable[TopicRecord],
        next_id: int,
        lineage: Lineage | None,
        *,
        map_size: int,
    ) -> None:
        """Makes a catalogue with these topics in an existing, empty directory, durably.

        ``next_id``: the id that the next new topic gets, above those of all that there ever were.
        ``lineage``: None for a store of format 1.  Raises StoreFull and StoreError.
        """
        database = Database(path, TABLES, map_size=map_size, sync=True)
        try:
            database.make_tables()
            with database.writing() as transaction:
                _put_next_id(transaction, next_id)
                if lineage is not None:
                    _put_lineage(transaction, lineage)
                for record in records:
                    _put(transaction, record)
        finally:
            database.close()

    @property
    def lineage(self) -> Lineage | None:
        """What is known of the store; None where only an earlier version had it open."""
        with self._lock:
            return self._lineage

    def set_lineage(self, lineage: Lineage) -> None:
        """Keeps what is known of the store.  Raises StoreFull."""
        with self._lock:
            # One record is written again as it is. Its old page becomes a free one, with the names of the
            # topics around it, from which a repair can take them; this commit may need the last such page.
            topics = sorted(self._records)
            again = [self._records[topics[lineage.generation % len(topics)]]] if topics else []
            self._write(again, lineage)

    def topics(self) -> list[TopicRecord]:
        """All topics, by ascending id."""
        with self._lock:
            return [self._records[topic] for topic in sorted(self._records)]

    def create(
        self,
        name: bytes,
        delivery: str,
        persistence: str,
        declared: bool,
        *,
        reserved: int = 0,
    ) -> TopicRecord:
        """A new topic with the next id, 0 to 2^31 - 1.  An id is never used again, even after ``delete``.

        Raises NameTaken, StoreFull, and StoreError when all ids were used.
        """
        with self._lock:
            if name in self._ids:
                raise NameTaken(f"There is a topic {name!r} already.")
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                topic = _next_id(transaction)
                if topic >= _IDS:
                    raise StoreError(f"All {_IDS} topic ids were used.")
                record = TopicRecord(
                    id=topic,
                    name=name,
                    delivery=delivery,
                    persistence=persistence,
                    declared=declared,
                    reserved=reserved,
                )
                _put_next_id(transaction, topic + 1)
                _put(transaction, record)
            self._keep(record)
            return record

    def update(self, record: TopicRecord) -> None:
        """Replaces the record of that id.

        Raises UnknownTopic, NameTaken, StoreFull, and StoreError when ``reserved`` would go down.
        """
        with self._lock:
            known = self._known(record.id)
            if record.reserved < known.reserved:
                raise _backwards(known, record.reserved)
            if self._ids.get(record.name, record.id) != record.id:
                raise NameTaken(f"There is a topic {record.name!r} already.")
            self._write([record])

    def reserve(self, reserved: Mapping[int, int]) -> None:
        """Sets ``reserved`` of these topic ids in one commit, after which ids below it may be handed out.

        Raises UnknownTopic, StoreFull, and StoreError when one would go down; then none is changed.
        """
        with self._lock:
            records = []
            for topic, bound in reserved.items():
                known = self._known(topic)
                if bound < known.reserved:
                    raise _backwards(known, bound)
                records.append(replace(known, reserved=bound))
            self._write(records)

    def resume(self, ids: Mapping[int, int]) -> None:
        """Sets ``resume`` of these topic ids in one commit.  Raises UnknownTopic and StoreFull."""
        with self._lock:
            self._write([replace(self._known(topic), resume=message) for topic, message in ids.items()])

    def settle(self, ids: Mapping[int, int]) -> None:
        """Does what ``resume`` does, and forgets in the same commit which levels had lost something.

        To be called when every id of those levels that may have been seen lies below these, or below what is
        stored.  Raises UnknownTopic and StoreFull.
        """
        with self._lock:
            lineage = self._lineage
            settled = None if lineage is None or not lineage.lost else replace(lineage, lost=())
            records = [replace(self._known(topic), resume=message) for topic, message in ids.items()]
            self._write(records, settled)

    def release(self, unused: Mapping[int, int]) -> None:
        """Lowers ``reserved`` of these topic ids in one commit: the ids from there on were never handed out.

        For a clean end only, after which nothing more is handed out.  Raises UnknownTopic and StoreFull.
        """
        with self._lock:
            self._write([replace(self._known(topic), reserved=bound) for topic, bound in unused.items()])

    def leap(self) -> None:
        """Skips ids that may have been handed out after this catalogue was copied: 2^32 of messages in each
        topic, and 65,536 of topics.  Raises StoreFull, and StoreError when too few are left.
        """
        with self._lock:
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                topic = _next_id(transaction) + TOPICS_LEAPT
                if topic >= _IDS:
                    raise StoreError("Too few topic ids are left to skip those that may be in use.")
                _put_next_id(transaction, topic)
                leapt = [
                    replace(record, reserved=bound, resume=bound)
                    for record in self._records.values()
                    for bound in (max(1, record.reserved) + MESSAGES_LEAPT,)
                ]
                for record in leapt:
                    _put(transaction, record)
            for record in leapt:
                self._keep(record)

    @property
    def next_id(self) -> int:
        """The id that the next topic gets; every id below it was used."""
        with self._lock, self._database.reading() as transaction:
            return _next_id(transaction)

    def delete(self, topic: int) -> None:
        """Forgets a topic; its blocks are the environment's to drop.  Raises UnknownTopic."""
        with self._lock:
            known = self._known(topic)
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                transaction.delete(TOPICS, topic_key(topic))
            del self._records[topic]
            del self._ids[known.name]

    def turn_over(self) -> None:
        """Commits twice, without changing anything.  Raises StoreFull and StoreError.

        LMDB uses a freed page again in the commit after the next one.  On a full disk a commit that finds no
        free page fails, and so would every later one: so here two are done while there is some room.
        """
        with self._lock:
            self._reopen_after_panic()
            for _ in range(2):
                with self._database.writing() as transaction:
                    _put_next_id(transaction, _next_id(transaction))

    def close(self) -> None:
        """Waits for the calls under way and closes the environment."""
        with self._lock:
            self._database.close()

    def _known(self, topic: int) -> TopicRecord:
        record = self._records.get(topic)
        if record is None:
            raise UnknownTopic(f"There is no topic with id {topic}.")
        return record

    def _write(self, records: list[TopicRecord], lineage: Lineage | None = None) -> None:
        if not records and lineage is None:
            return
        self._reopen_after_panic()
        with self._database.writing() as transaction:
            for record in records:
                _put(transaction, record)
            if lineage is not None:
                _put_lineage(transaction, lineage)
        self._lineage = lineage or self._lineage
        for record in records:
            self._keep(record)

    def _keep(self, record: TopicRecord) -> None:
        """Remembers what was written; only once it is durable."""
        before = self._records.get(record.id)
        if before is not None:
            del self._ids[before.name]
        self._records[record.id] = record
        self._ids[record.name] = record.id

    def _reopen_after_panic(self) -> None:
        if self._database.panicked():
            self._database.reopen()


def topic_records(transaction: Reading) -> list[TopicRecord]:
    """Every topic's record, by ascending id.  Raises DamagedRecord when one is damaged."""
    return [decode_topic(key, sealed) for key, sealed in transaction.cursor(TOPICS)]


def _next_id(transaction: Reading) -> int:
    sealed = transaction.get(COUNTER, NEXT)
    return 0 if sealed is None else decode_next_id(NEXT, sealed)


def _put_next_id(transaction: Writing, topic: int) -> None:
    transaction.put(COUNTER, NEXT, seal(COUNTER, NEXT, _NUMBER.pack(topic)))


def _put_lineage(transaction: Writing, lineage: Lineage) -> None:
    transaction.put(COUNTER, LINEAGE_KEY, pack_lineage(lineage))


def decode_next_id(key: bytes, sealed: bytes) -> int:
    """The id that the next topic gets.  Raises DamagedRecord."""
    topic: int = _NUMBER.unpack(unseal(COUNTER, key, sealed, "the next topic id"))[0]
    return topic


def _put(transaction: Writing, record: TopicRecord) -> None:
    key = topic_key(record.id)
    transaction.put(TOPICS, key, seal(TOPICS, key, msgspec.msgpack.encode(record)))


def decode_topic(key: bytes, sealed: bytes) -> TopicRecord:
    """The record of a topic as it is stored.  Raises DamagedRecord."""
    what = f"topic {key_topic(key)} in the catalogue"
    try:
        return msgspec.msgpack.decode(unseal(TOPICS, key, sealed, what), type=TopicRecord)
    except msgspec.DecodeError as error:
        raise DamagedRecord(f"The record of {what} cannot be read: {error}.") from error


def _backwards(known: TopicRecord, bound: int) -> StoreError:
    return StoreError(
        f"Message ids of topic {known.id} were reserved up to {known.reserved}; {bound} would go back."
    )
