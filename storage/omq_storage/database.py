"""The only user of LMDB in this package: typed transactions, typed errors, and recovery from failed commits.

LMDB itself makes sure that a failed transaction changes nothing.  It leaves two failures to its user, and
``reopen`` handles both:

- When LMDB cannot write one of its two meta pages it sets a fatal flag, MDB_PANIC, and refuses every later
  transaction.  Only closing and opening the environment clears the flag.
- LMDB never overwrites a page in use, so a deletion writes a few new pages before it frees any.  In a map
  without a free page no deletion can succeed.  Opening the environment with a larger map makes room for one.

Closing an environment invalidates its transactions, and a thread that touched one afterwards would crash the
process.  So every call that reads holds a readers-writer lock as ``shared``.  ``reopen`` and ``close`` hold
it as ``exclusive``, and the lock of writes, too.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import lmdb

from omq_storage.errors import DamagedFile, DamagedRecord, Limit, StoreError, StoreFailed, StoreFull
from omq_storage.files import FILE_MODE, NO_ROOM, allocate, has_room, sync_directory
from omq_storage.integrity import ADVICE, DATA
from omq_storage.reader_slots import ReaderSlots
from omq_storage.readers_writer_lock import ReadersWriterLock

if TYPE_CHECKING:
    from lmdb import Cursor as LmdbCursor
    from lmdb import Environment as LmdbEnvironment
    from lmdb import Transaction as LmdbTransaction
    from lmdb import _Database as LmdbTable

Cursor: TypeAlias = "LmdbCursor[bytes]"
W = TypeVar("W", bound="Writing")

_MOST_READERS = 1024

_LOCK = "lock.mdb"
_LOCK_OCTETS = 128 + 64 * _MOST_READERS
"""The size of LMDB's lock file: two cache lines, and one for each reader slot."""


class Reading:
    """A read transaction: a consistent snapshot of the environment.  Values are copies and outlive it.

    Every method may raise lmdb.Error; ``Database.reading`` turns it into StoreError.
    """

    __slots__ = ("_tables", "_transaction")

    def __init__(self, transaction: "LmdbTransaction[bytes]", tables: "Mapping[bytes, LmdbTable]") -> None:
        self._transaction = transaction
        self._tables = tables

    def has(self, table: bytes) -> bool:
        """Return whether the environment has this table."""
        return table in self._tables

    def get(self, table: bytes, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        return self._transaction.get(key, db=self._tables[table])

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the values of these keys; a key without a value is left out.

        One call is faster than many calls of ``get``, in particular for sorted keys.
        """
        with self.cursor(table) as cursor:
            return dict(cursor.getmulti(keys))

    def cursor(self, table: bytes) -> Cursor:
        """Return an LMDB cursor over a table.  It is valid only within the transaction."""
        return self._transaction.cursor(self._tables[table])


View = Callable[[bytes, bytes], memoryview | None]
"""Returns the value of a key of a table, or None.  The value is a view of the memory map, and must not be
used
after the transaction."""


class Writing(Reading):
    """A write transaction: committed when its ``with`` block ends, aborted when the block raises."""

    __slots__ = ()

    def put(self, table: bytes, key: bytes, value: bytes, *, at_end: bool = False) -> None:
        """Set the value of a key.  ``at_end`` is faster, and requires a key above all others in the table."""
        self._transaction.put(key, value, append=at_end, db=self._tables[table])

    def put_many(self, table: bytes, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Set the values of several keys.  Faster than ``put``, in particular for sorted records."""
        with self.cursor(table) as cursor:
            cursor.putmulti(records)

    def delete(self, table: bytes, key: bytes) -> None:
        """Remove a key, if the table has it."""
        self._transaction.delete(key, db=self._tables[table])

    @property
    def number(self) -> int:
        """The number that the transaction will have."""
        return self._transaction.id()


StoredChange = tuple[bytes, bytes, bytes | None]
"""The name of a table, a key, and its new value; None if the key was deleted."""

MOST_RECORDED_OCTETS = 512 << 10
"""The greatest number of octets of the keys and values of a record.  To write more takes longer than the
flush that it saves.
"""

MOST_CHANGES = 1024
"""The greatest number of changes of a record."""


class RecordedWriting(Writing):
    """A write transaction that records its changes for the journal."""

    __slots__ = ("_octets", "changes", "has_changed")

    def __init__(self, transaction: "LmdbTransaction[bytes]", tables: "Mapping[bytes, LmdbTable]") -> None:
        super().__init__(transaction, tables)
        self.has_changed = False
        self.changes: list[StoredChange] | None = []
        """All changes in their order; None if they are more than a record can have."""
        self._octets = 0

    def put(self, table: bytes, key: bytes, value: bytes, *, at_end: bool = False) -> None:
        """See ``Writing.put``."""
        super().put(table, key, value, at_end=at_end)
        self._record(table, key, value)

    def put_many(self, table: bytes, records: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Writing.put_many``."""
        super().put_many(table, records)
        if len(records) > MOST_CHANGES:
            self.has_changed = True
            self.changes = None
        else:
            for key, value in records:
                self._record(table, key, value)

    def delete(self, table: bytes, key: bytes) -> None:
        """See ``Writing.delete``."""
        if self._transaction.delete(key, db=self._tables[table]):
            self._record(table, key, None)

    def _record(self, table: bytes, key: bytes, value: bytes | None) -> None:
        self.has_changed = True
        if self.changes is None:
            return
        self._octets += len(key) + (0 if value is None else len(value))
        if self._octets > MOST_RECORDED_OCTETS or len(self.changes) == MOST_CHANGES:
            self.changes = None
        else:
            self.changes.append((table, key, value))


@dataclass(frozen=True, slots=True)
class MapUse:
    """The used part of an environment's map."""

    map_size: int
    """Octets of the map: the limit of the data file."""
    used: int
    """Octets of the map up to the last page that was ever written."""
    readers: int
    """Slots of the reader table that are taken."""
    transaction: int
    """Number of the last transaction that was committed."""


class Snapshot:
    """A state of the environment that a read transaction keeps: LMDB reuses none of its pages until
    ``release``.
    """

    def __init__(self, slots: ReaderSlots, head: bytes) -> None:
        self._slots = slots
        self._transaction = slots.begin()
        self.number = self._transaction.id()
        """The number of the transaction that committed this state."""
        self.head = head
        """The two meta pages of the data file as they were then; LMDB finds all other pages from them."""

    def release(self) -> None:
        """Allow LMDB to reuse the pages of this state."""
        self._slots.end(self._transaction)


class _TranslatedErrors:
    """A context manager that passes the exceptions of its blocks to a function."""

    __slots__ = ("_translate",)

    def __init__(self, translate: Callable[[BaseException], None]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._translate(error)


class Database:
    """An open LMDB environment with named tables.  Any call may come from any thread."""

    def __init__(
        self,
        path: Path,
        tables: tuple[bytes, ...],
        *,
        map_size: int,
        sync: bool,
        added: tuple[bytes, ...] = (),
    ) -> None:
        """Open the environment in an existing directory.  Create its files, but not its tables, if missing.

        ``map_size``: limit of the data file in octets.  ``sync``: whether a commit is durable when it
        returns. ``added``: tables that an environment of format 1 may lack.  Raises StoreError.
        """
        self.path = path
        self._needed = tables
        self._names = (*tables, *added)
        self._map_size = map_size
        self._sync = sync
        self._in_use = ReadersWriterLock()
        # reopen and close hold both locks, and take this one first. So its holder need not take _in_use.
        self._write_lock = Lock()
        self._errors = _TranslatedErrors(self._translate)
        self._refusal: str | None = None
        self._closed = False
        self._lost = False
        self._has_failed = False  # since it was opened, or found to be well
        self._environment: LmdbEnvironment
        self._slots: ReaderSlots
        self._tables: dict[bytes, LmdbTable] = {}
        self._open()
        # Stays open, so that a checkpoint works when connections have taken all file descriptors.
        self._data = os.open(path / DATA, os.O_RDONLY)

    def make_tables(self, added: bool = False) -> None:
        """Create the tables that are missing; those of ``added`` only on request.

        This is the first write to a new environment.  It writes nothing if all tables exist.
        """
        with self._write_lock, self._errors:
            for name in self._names if added else self._needed:
                if name not in self._tables:
                    self._tables[name] = self._environment.open_db(name)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Run the block in a read transaction.  Raises StoreError."""
        with self._in_use.shared(), self._errors:
            self._require_open()
            transaction = self._slots.begin()
            try:
                yield Reading(transaction, self._tables)
            finally:
                self._slots.end(transaction)

    @contextmanager
    def viewing(self) -> Iterator[View]:
        """Run the block in a read transaction that returns views of the map, for values too large to copy.

        Raises StoreError.
        """
        with self._in_use.shared(), self._errors:
            self._require_open()
            transaction = self._slots.begin_viewing()
            try:
                yield lambda table, key: transaction.get(key, db=self._tables[table])
            finally:
                self._slots.end(transaction)

    def writing(self) -> AbstractContextManager[Writing]:
        """Return a context manager that runs its block in a write transaction, one at a time.  The end of the
        block commits, an exception aborts.

        Raises StoreFull, StoreFailed or StoreError; then nothing of the transaction is stored.
        """
        return self._writing(Writing)

    def recorded_writing(self) -> AbstractContextManager[RecordedWriting]:
        """Do as ``writing``, and record the changes."""
        return self._writing(RecordedWriting)

    @contextmanager
    def _writing(self, kind: type[W]) -> Iterator[W]:
        with self._write_lock, self._errors:
            self._require_open()
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            with self._environment.begin(write=True) as transaction:
                yield kind(transaction, self._tables)

    def refuse_writes(self, sentence: str) -> None:
        """Make every later ``writing`` raise StoreFailed with this sentence."""
        self._refusal = sentence

    def snapshot(self) -> Snapshot:
        """Return the state after the last commit, and keep its pages from being reused."""
        # The write lock keeps the two steps consistent: a commit between them would overwrite one of the meta
        # pages, and the saved pages would lead to a state that the read transaction does not protect.
        with self._write_lock, self._errors:
            self._require_open()
            head = os.pread(self._data, 2 * self._environment.stat()["psize"], 0)
            return Snapshot(self._slots, head)

    def sync(self) -> None:
        """Make all commits so far durable.

        Other threads may read and write meanwhile.  Raises StoreError.
        """
        with self._in_use.shared(), self._errors:
            self._require_open()
            self._environment.sync(True)

    def panicked(self) -> bool:
        """Return whether LMDB refuses every transaction until ``reopen`` (MDB_PANIC)."""
        if not self._has_failed:
            return False  # every call that makes LMDB refuse them raises
        with self._in_use.shared():
            if self._closed or self._lost:
                return self._lost
            with self._errors:
                try:
                    self._slots.end(self._slots.begin())
                except lmdb.PanicError:
                    return True
                self._has_failed = False
                return False

    def reopen(self, growth: int = 0) -> None:
        """Close and open the environment, with ``growth`` more octets of map.  All snapshots become invalid.

        Raises StoreError; then every later call raises it too, until another ``reopen`` succeeds.
        """
        with self._write_lock, self._in_use.exclusive():
            if not self._lost:
                self._require_open()
                self._environment.close()
            # Opening may fail for a passing reason, such as no free descriptor.  So the flag stays set until
            # the environment is open again, and the next call may try again.
            self._lost = True
            self._map_size += growth
            self._open()
            self._lost = False

    def reader_check(self) -> int:
        """Free the reader slots of processes that died, and return their number."""
        with self._in_use.shared(), self._errors:
            self._require_open()
            return self._environment.reader_check()

    def room(self) -> MapUse:
        """Return the used part of the map, and the number of its readers."""
        with self._in_use.shared(), self._errors:
            self._require_open()
            info = self._environment.info()
            used = (info["last_pgno"] + 1) * self._environment.stat()["psize"]
            return MapUse(info["map_size"], used, info["num_readers"], info["last_txnid"])

    def close(self) -> None:
        """Wait for the open transactions and close.  All snapshots become invalid."""
        with self._write_lock, self._in_use.exclusive():
            if not self._closed:
                self._closed = True
                if not self._lost:
                    self._environment.close()
                self._lost = False
                os.close(self._data)

    def _open(self) -> None:
        with self._errors:
            # LMDB maps this file with holes.  The process would crash when a reader takes a slot in a hole
            # while the disk is full.  Do it before LMDB opens the file: LMDB holds a lock on it, which the
            # process would lose when it closes another descriptor of it.
            allocate(self.path / _LOCK, _LOCK_OCTETS)
            self._environment = lmdb.open(
                str(self.path),
                map_size=self._map_size,
                sync=self._sync,
                metasync=self._sync,
                max_dbs=len(self._names),
                max_readers=_MOST_READERS,
                max_spare_txns=1,
                mode=FILE_MODE,
            )
            try:
                sync_directory(self.path)
                self._tables = {}
                for name in self._names:
                    try:
                        self._tables[name] = self._environment.open_db(name, create=False)
                    except lmdb.NotFoundError:
                        pass  # make_tables creates it when the caller is ready for the first write
                self._require_our_tables()
                self._slots = ReaderSlots(self._environment)
            except BaseException:  # Ctrl-C, too
                self._environment.close()
                raise

    def _require_our_tables(self) -> None:
        """Raise DamagedRecord unless the environment has all tables with their flags, or no table at all."""
        with self._environment.begin() as transaction:
            missing = [name for name in self._needed if name not in self._tables]
            if missing and transaction.stat()["entries"]:
                raise DamagedRecord(f"There is no table {missing[0].decode()!r}.")
            for name, table in self._tables.items():
                if any(table.flags().values()):
                    raise DamagedRecord(f"The table {name.decode()!r} has another order.")

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"The store in {self.path} was closed.")
        if self._lost:
            raise StoreError(f"The environment {self.path} could not be opened again yet.")

    def _translate(self, error: BaseException) -> None:
        """Raise StoreError for an error of LMDB or of the operating system."""
        match error:
            case lmdb.MapFullError():
                sentence = f"The map of {self.path} is full; it may have {self._map_size} octets."
                raise StoreFull(Limit.MAP, sentence) from error
            case DamagedRecord():
                raise DamagedFile(f"The file {self.path / DATA} is damaged: {error}  {ADVICE}.") from error
            case lmdb.Error() | OSError():
                self._has_failed = True
                if self._is_for_want_of_room(error):
                    raise StoreFull(
                        Limit.DISK, f"There is no room on disk for {self.path}: {error}."
                    ) from error
                raise StoreError(f"The environment {self.path} failed: {error}.") from error
            case _:
                pass

    def _is_for_want_of_room(self, error: Exception) -> bool:
        """Return whether the error says that the disk, a quota or a file size limit is exhausted."""
        if isinstance(error, OSError):
            return error.errno in NO_ROOM
        # py-lmdb has a class for each error of LMDB.  It passes on an error of the operating system only as
        # text, so the text must be compared with what strerror says.
        if isinstance(error, lmdb.DiskError) or any(str(error).endswith(os.strerror(n)) for n in NO_ROOM):
            return True
        # LMDB reports a short write as EIO, also when the reason is a full disk.  A test write tells them
        # apart.
        try:
            return str(error).endswith(os.strerror(errno.EIO)) and not has_room(self.path / DATA)
        except OSError:
            return False  # the test itself failed, so EIO is taken literally
