"""The catalogue: the records of all topics, exchanges, bindings and queues, in an LMDB environment of its own
whose commits are synced.

All records are held in memory, too.  A change is written and synced first, and enters the memory only then:
so a reader never sees a topic that a power failure could take back.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

from omq_storage.database import Database, Writing
from omq_storage.errors import DamagedRecord, NameTaken, StoreError, UnknownTopicId
from omq_storage.identity import LINEAGE_KEY, Lineage, pack_lineage, unpack_lineage
from omq_storage.records import topic_key
from omq_storage.topics import (
    COUNTER,
    TOPIC_IDS,
    TOPICS,
    TopicRecord,
    put_next_id,
    put_topic,
    read_next_id,
    take_ids,
    topic_records,
)
from omq_storage.topology import (
    BINDINGS,
    EXCHANGES,
    LONGEST_NAME,
    QUEUES,
    TOPOLOGY_TABLES,
    BindingRecord,
    ExchangeRecord,
    StoredTopology,
    binding_key,
    check_ends,
    delete_bindings,
    pack_binding,
    pack_exchange,
    put_queue,
    put_topology,
    read_topology,
)

TABLES_OF_FORMAT_2 = (TOPICS, COUNTER)
TABLES = (*TABLES_OF_FORMAT_2, *TOPOLOGY_TABLES)

MESSAGE_IDS_SKIPPED = 1 << 32
TOPIC_IDS_SKIPPED = 1 << 16
"""The number of ids that are skipped where it is unknown which ones were assigned."""


class StoreCatalogue:
    """An open catalogue.  Any call may come from any thread, and its changes are durable when it returns.

    Every call that writes may raise StoreFull, StoreFailed and StoreError.
    """

    def __init__(self, path: Path, *, map_size: int) -> None:
        """Open the catalogue in an existing directory.  ``map_size``: limit of the data file in octets.

        Raises DamagedFile for a damaged record, and StoreError.
        """
        self._lock = Lock()
        self._database = Database(
            path, TABLES_OF_FORMAT_2, map_size=map_size, sync=True, added=TOPOLOGY_TABLES
        )
        self._database.make_tables()
        with self._database.reading() as transaction:
            records = topic_records(transaction)
            self._topology = read_topology(transaction)
            next_id = read_next_id(transaction)
            lineage = transaction.get(COUNTER, LINEAGE_KEY)
            self._lineage = None if lineage is None else unpack_lineage(LINEAGE_KEY, lineage)
            if any(record.id >= next_id for record in records):
                raise DamagedRecord("The next topic id was used before.")
            check_ends(self._topology, {record.id for record in records})
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
        topology: StoredTopology | None = None,
    ) -> None:
        """Create a catalogue with these records in an existing, empty directory; durable on return.

        ``next_id``: the id of the next new topic, above all ids that were ever used.  ``lineage``: None for a
        store of format 1.  Raises StoreFull and StoreError.
        """
        database = Database(path, TABLES, map_size=map_size, sync=True)
        try:
            database.make_tables()
            with database.writing() as transaction:
                put_next_id(transaction, next_id)
                if lineage is not None:
                    _put_lineage(transaction, lineage)
                for record in records:
                    put_topic(transaction, record)
                if topology is not None:
                    put_topology(transaction, topology)
        finally:
            database.close()

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of the store; None if only an earlier version has opened it."""
        with self._lock:
            return self._lineage

    def set_lineage(self, lineage: Lineage) -> None:
        """Store the lineage of the store.  Raises StoreFull."""
        with self._lock:
            # Every start comes through here, and reuses one free page. Free pages still have the names of
            # topics that were on them, from which a repair can restore lost names. So write one topic record
            # again, unchanged and another one each time: its old page becomes free, with a copy of those
            # names. The same with an exchange and with the options of a queue.
            topics = sorted(self._records)
            again = [self._records[topics[lineage.generation % len(topics)]]] if topics else []
            self._write(again, lineage, self._topology.sample(lineage.generation))

    def topics(self) -> list[TopicRecord]:
        """Return the records of all topics, by ascending id."""
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
        queue: bytes | None = None,
        retention: tuple[int | None, int | None] | None = None,
    ) -> TopicRecord:
        """Create a topic and return its record.  ``queue``: the options of a queue, in the same commit.

        Its id is the next one, from 0 to 2^31 - 1.  No id is used twice, not even after ``delete``.  Raises
        NameTaken, StoreFull, and StoreError when all ids were used.
        """
        record = TopicRecord(0, name, delivery, persistence, declared, reserved, retention=retention)
        with self._lock:
            return self._create(record, [name], queue)[0]

    def create_many(
        self, names: Sequence[bytes], delivery: str, persistence: str, declared: bool, *, reserved: int = 0
    ) -> list[TopicRecord]:
        """Create topics with the same types in one commit and return their records, as ``create`` does.

        Raises as ``create`` does; then none is created.
        """
        record = TopicRecord(0, b"", delivery, persistence, declared, reserved)
        with self._lock:
            return self._create(record, names)

    def _create(
        self, like: TopicRecord, names: Sequence[bytes], queue: bytes | None = None
    ) -> list[TopicRecord]:
        """Create topics whose records differ from ``like`` in their ids and names."""
        taken = [name for name, count in Counter(names).items() if count > 1 or name in self._ids]
        if taken:
            raise NameTaken(f"There is a topic {taken[0]!r} already.")
        if queue is None:
            self._reopen_after_panic()
        else:
            self._prepare_topology()
        with self._database.writing() as transaction:
            topics = take_ids(transaction, len(names))
            records = [replace(like, id=topic, name=name) for topic, name in zip(topics, names, strict=True)]
            for record in records:
                put_topic(transaction, record)
                if queue is not None:
                    put_queue(transaction, record.id, queue)
        for record in records:
            self._keep(record)
            if queue is not None:
                self._topology.queues[record.id] = queue
        return records

    def reserve_topics(self, count: int) -> range:
        """Reserve ids for topics without a record, and return them.  No other topic gets them, ever.

        Raises StoreFull, and StoreError when all ids were used.
        """
        with self._lock:
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                return take_ids(transaction, count)

    def update(self, record: TopicRecord) -> None:
        """Replace the record with this id.

        Raises UnknownTopicId, NameTaken, StoreFull, and StoreError when ``reserved`` would decrease.
        """
        with self._lock:
            known = self._known(record.id)
            if record.reserved < known.reserved:
                raise _backwards(known, record.reserved)
            if self._ids.get(record.name, record.id) != record.id:
                raise NameTaken(f"There is a topic {record.name!r} already.")
            self._write([record])

    def reserve(self, reserved: Mapping[int, int]) -> None:
        """Set ``reserved`` of topics (topic id -> message id) in one commit.

        On return the message ids below it may be assigned.  Raises UnknownTopicId, StoreFull, and StoreError
        when one would decrease; then none is changed.
        """
        with self._lock:
            records = []
            for topic, bound in reserved.items():
                known = self._known(topic)
                if bound < known.reserved:
                    raise _backwards(known, bound)
                records.append(replace(known, reserved=bound))
            self._write(records)

    def retain(self, topic: int, retention: tuple[int | None, int | None] | None) -> TopicRecord:
        """Set ``retention`` of a topic, and return its record.  Raises UnknownTopicId and StoreFull."""
        with self._lock:
            record = replace(self._known(topic), retention=retention)
            self._write([record])
            return record

    def resume(self, ids: Mapping[int, int]) -> None:
        """Set ``resume`` of topics (topic id -> message id) in one commit.  Raises UnknownTopicId and
        StoreFull.
        """
        with self._lock:
            self._write(
                [replace(self._known(topic), resume=message, lost_from=0) for topic, message in ids.items()]
            )

    def settle(self, lost: Mapping[int, range]) -> None:
        """Record the ids that topics lost (topic id -> message ids; not below 1), and erase in the same
        commit the record of levels that lost messages.

        Call it when every message id that a client may have seen is one of these, or below the stored
        messages.  Raises UnknownTopicId and StoreFull.
        """
        with self._lock:
            lineage = self._lineage
            settled = None if lineage is None or not lineage.lost else replace(lineage, lost=())
            records = [
                replace(self._known(topic), resume=ids.stop, lost_from=ids.start)
                for topic, ids in lost.items()
            ]
            self._write(records, settled)

    def release(self, unused: Mapping[int, int]) -> None:
        """Lower ``reserved`` of topics (topic id -> message id) in one commit.

        For a clean shutdown only: the ids from there on were not assigned, and none is assigned any more.
        Raises UnknownTopicId and StoreFull.
        """
        with self._lock:
            self._write([replace(self._known(topic), reserved=bound) for topic, bound in unused.items()])

    def skip_ids(self) -> None:
        """Skip the ids that the original may have assigned after this catalogue was copied.

        Skips 2^32 message ids of each topic and 65,536 topic ids.  Raises StoreFull, and StoreError when too
        few topic ids are left.
        """
        with self._lock:
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                topic = read_next_id(transaction) + TOPIC_IDS_SKIPPED
                if topic >= TOPIC_IDS:
                    raise StoreError("Too few topic ids are left to skip those that may be in use.")
                put_next_id(transaction, topic)
                leapt = [
                    replace(record, reserved=bound, resume=bound, lost_from=0)
                    for record in self._records.values()
                    for bound in (max(1, record.reserved) + MESSAGE_IDS_SKIPPED,)
                ]
                for record in leapt:
                    put_topic(transaction, record)
            for record in leapt:
                self._keep(record)

    @property
    def next_id(self) -> int:
        """The id of the next new topic; no id from this one on was ever used."""
        with self._lock, self._database.reading() as transaction:
            return read_next_id(transaction)

    def delete(self, topic: int) -> None:
        """Delete the record of a topic, with its bindings and its options as a queue.

        ``Environment.drop`` deletes its blocks.  Raises UnknownTopicId.
        """
        self.delete_many([topic])

    def delete_many(self, topics: Sequence[int]) -> None:
        """Delete the records of several topics in one commit, as ``delete`` does.

        Raises UnknownTopicId; then none is deleted.
        """
        with self._lock:
            known = [self._known(topic) for topic in topics]
            self._reopen_after_panic()
            bound: dict[int, BindingRecord] = {}
            for topic in topics:
                bound |= self._topology.of(topic)
            with self._database.writing() as transaction:
                for topic in topics:
                    transaction.delete(TOPICS, topic_key(topic))
                    if topic in self._topology.queues:
                        transaction.delete(QUEUES, topic_key(topic))
                delete_bindings(transaction, bound)
            for record in known:
                del self._records[record.id]
                del self._ids[record.name]
                self._topology.queues.pop(record.id, None)
            self._unbind(bound)

    # -- exchanges, bindings and queues --------------------------------------------------------------------

    def make_topology_tables(self) -> None:
        """Create the tables that a store of format 2 lacks.  Raises StoreFull."""
        with self._lock:
            self._prepare_topology()

    def exchanges(self) -> list[ExchangeRecord]:
        """Return the records of all exchanges, by name."""
        with self._lock:
            return [record for _, record in sorted(self._topology.exchanges.items())]

    def bindings(self) -> list[BindingRecord]:
        """Return the records of all bindings in the order in which they were made."""
        with self._lock:
            return self._topology.bindings()

    def queues(self) -> dict[int, bytes]:
        """Return the options of all queues by topic id."""
        with self._lock:
            return dict(self._topology.queues)

    def put_exchange(self, record: ExchangeRecord) -> None:
        """Add an exchange.  Raises StoreFull, and ValueError for a name that is empty or too long."""
        if not 1 <= len(record.name) <= LONGEST_NAME:
            raise ValueError(f"The name of an exchange has 1 to {LONGEST_NAME} octets.")
        with self._lock:
            self._prepare_topology()
            with self._database.writing() as transaction:
                transaction.put(EXCHANGES, record.name, pack_exchange(record))
            self._topology.exchanges[record.name] = record

    def delete_exchange(self, name: bytes) -> None:
        """Delete the record of an exchange, if there is one, and all bindings from it and to it.

        Raises StoreFull.
        """
        with self._lock:
            bound = self._topology.of(name)
            if name not in self._topology.exchanges and not bound:
                return
            self._prepare_topology()
            with self._database.writing() as transaction:
                transaction.delete(EXCHANGES, name)
                delete_bindings(transaction, bound)
            self._topology.exchanges.pop(name, None)
            self._unbind(bound)

    def bind(self, record: BindingRecord) -> None:
        """Add a binding unless there is one with the same values.  Raises UnknownTopicId and StoreFull."""
        with self._lock:
            if isinstance(record.destination, int):
                self._known(record.destination)
            if self._topology.number(record) is not None:
                return
            self._prepare_topology()
            number = self._topology.next_number
            with self._database.writing() as transaction:
                transaction.put(BINDINGS, binding_key(number), pack_binding(number, record))
            self._topology.add(number, record)

    def unbind(self, record: BindingRecord) -> None:
        """Delete a binding if there is one with these values.  Raises StoreFull."""
        with self._lock:
            number = self._topology.number(record)
            if number is None:
                return
            self._reopen_after_panic()
            with self._database.writing() as transaction:
                transaction.delete(BINDINGS, binding_key(number))
            self._topology.remove(record)

    def set_queue(self, topic: int, options: bytes) -> None:
        """Set the options of a queue.  Raises UnknownTopicId and StoreFull."""
        with self._lock:
            self._known(topic)
            self._prepare_topology()
            with self._database.writing() as transaction:
                put_queue(transaction, topic, options)
            self._topology.queues[topic] = options

    def _prepare_topology(self) -> None:
        self._reopen_after_panic()
        self._database.make_tables(added=True)

    def _unbind(self, bound: Mapping[int, BindingRecord]) -> None:
        for record in bound.values():
            self._topology.remove(record)

    # -- all records ---------------------------------------------------------------------------------------

    def recycle_pages(self) -> None:
        """Commit twice without a change, so that the catalogue has free pages.  Raises StoreFull and
        StoreError.

        LMDB reuses a freed page only in the commit after the next one.  On a full disk, a commit that finds
        no free page fails, and so does every later one.  Two commits while the disk has some room prevent
        that.
        """
        with self._lock:
            self._reopen_after_panic()
            for _ in range(2):
                with self._database.writing() as transaction:
                    put_next_id(transaction, read_next_id(transaction))

    def close(self) -> None:
        """Wait for running calls and close the environment."""
        with self._lock:
            self._database.close()

    def _known(self, topic: int) -> TopicRecord:
        record = self._records.get(topic)
        if record is None:
            raise UnknownTopicId(f"There is no topic with id {topic}.")
        return record

    def _write(
        self, records: list[TopicRecord], lineage: Lineage | None = None, again: StoredTopology | None = None
    ) -> None:
        if not records and lineage is None:
            return
        self._reopen_after_panic()
        with self._database.writing() as transaction:
            for record in records:
                put_topic(transaction, record)
            if lineage is not None:
                _put_lineage(transaction, lineage)
            if again is not None:
                put_topology(transaction, again)
        self._lineage = lineage or self._lineage
        for record in records:
            self._keep(record)

    def _keep(self, record: TopicRecord) -> None:
        """Replace the record in memory; call it only when the new one is durable."""
        before = self._records.get(record.id)
        if before is not None:
            del self._ids[before.name]
        self._records[record.id] = record
        self._ids[record.name] = record.id

    def _reopen_after_panic(self) -> None:
        if self._database.panicked():
            self._database.reopen()


def _put_lineage(transaction: Writing, lineage: Lineage) -> None:
    transaction.put(COUNTER, LINEAGE_KEY, pack_lineage(lineage))


def _backwards(known: TopicRecord, bound: int) -> StoreError:
    return StoreError(
        f"Message ids of topic {known.id} were reserved up to {known.reserved}; {bound} would go back."
    )
