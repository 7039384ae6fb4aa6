"""All that this package asks of LMDB: typed transactions, errors in its own words, and a way back after
failures.

LMDB keeps a failed transaction from being stored; two things it leaves to its user are done here.  When even
the writing of its first two pages failed, it refuses every later transaction: the environment is then opened
anew. And deleting takes a few pages before it gives any back, so a full map could never be emptied: it is
opened anew with a somewhat larger one.  Both end every transaction, so they wait until no other thread is
inside.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import lmdb

from omq_storage.errors import DamagedFile, DamagedRecord, Limit, StoreError, StoreFailed, StoreFull
from omq_storage.files import FILE_MODE, NO_ROOM, has_room, sync_directory
from omq_storage.gate import Gate
from omq_storage.reader_places import Places
from omq_storage.soundness import ADVICE, DATA

if TYPE_CHECKING:
    from lmdb import Cursor as LmdbCursor
    from lmdb import Environment as LmdbEnvironment
    from lmdb import Transaction as LmdbTransaction
    from lmdb import _Database as LmdbTable

Cursor: TypeAlias = "LmdbCursor[bytes]"

_MOST_READERS = 1024


class Reading:
    """A read transaction: one unchanging state of the environment.  Values are copies and outlive it."""

    __slots__ = ("_tables", "_transaction")

    def __init__(self, transaction: "LmdbTransaction[bytes]", tables: "Mapping[bytes, LmdbTable]") -> None:
        self._transaction = transaction
        self._tables = tables

    def has(self, table: bytes) -> bool:
        """Whether there is such a table."""
        return table in self._tables

    def get(self, table: bytes, key: bytes) -> bytes | None:
        """The value of a key, None when there is none."""
        return self._transaction.get(key, db=self._tables[table])

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those of the keys that have one.  Faster than ``get``, most of all when sorted."""
        with self.cursor(table) as cursor:
            return dict(cursor.getmulti(keys))

    def cursor(self, table: bytes) -> Cursor:
        """An LMDB cursor; good within the transaction only."""
        return self._transaction.cursor(self._tables[table])


View = Callable[[bytes, bytes], memoryview | None]
"""The value of a key of a table, None when there is none: as a view of the map, which must not outlive the
transaction."""


class Writing(Reading):
    """A write transaction: stored as a whole when its ``with`` block ends well, else not at all."""

    __slots__ = ()

    def put(self, table: bytes, key: bytes, value: bytes, *, at_end: bool = False) -> None:
        """Sets the value of a key.  ``at_end`` is faster; it needs a key above all others of the table."""
        self._transaction.put(key, value, append=at_end, db=self._tables[table])

    def put_many(self, table: bytes, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Sets the values of keys.  Faster than ``put``, most of all for records that are sorted."""
        with self.cursor(table) as cursor:
            cursor.putmulti(records)

    def delete(self, table: bytes, key: bytes) -> None:
        """Removes a key, if it is there."""
        self._transaction.delete(key, db=self._tables[table])


@dataclass(frozen=True, slots=True)
class Room:
    """How much of an environment is used."""

    map_size: int
    used: int
    """Octets of the map that were ever used."""
    readers: int
    transaction: int
    """Number of the last transaction that was written."""


class Snapshot:
    """A held state of the environment, none of whose pages LMDB uses again until ``release``."""

    def __init__(self, places: Places, head: bytes) -> None:
        self._places = places
        self._transaction = places.begin()
        self.number = self._transaction.id()
        """The number of the transaction that wrote it."""
        self.head = head
        """The first two pages of the data file, from which LMDB finds everything else."""

    def release(self) -> None:
        """Lets LMDB use its pages again."""
        self._places.end(self._transaction)


class Database:
    """An open LMDB environment with some named tables."""

    def __init__(
        self,
        path: Path,
        tables: tuple[bytes, ...],
        *,
        map_size: int,
        sync: bool,
        added: tuple[bytes, ...] = (),
    ) -> None:
        """Opens the environment in an existing directory; makes its files, but not its tables, when missing.

        ``sync``: whether commits are durable.  ``added``: tables that one of an earlier version does not
        have.  Raises StoreError.
        """
        self.path = path
        self._needed = tables
        self._names = (*tables, *added)
        self._map_size = map_size
        self._sync = sync
        self._gate = Gate()
        self._turn = Lock()
        self._refusal: str | None = None
        self._closed = False
        self._lost = False
        self._environment: LmdbEnvironment
        self._places: Places
        self._tables: dict[bytes, LmdbTable] = {}
        self._open()
        # Kept open, so that a checkpoint needs no descriptor when clients have taken all there are.
        self._data = os.open(path / DATA, os.O_RDONLY)

    def make_tables(self, added: bool = False) -> None:
        """Makes the tables that are missing, ``added`` ones only when asked for.

        It is the first write to a new environment, and none to one that has them.
        """
        with self._turn, self._gate.inside(), self._in_our_words():
            for name in self._names if added else self._needed:
                if name not in self._tables:
                    self._tables[name] = self._environment.open_db(name)

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """A read transaction, from any thread."""
        with self._gate.inside(), self._in_our_words():
            self._require_open()
            transaction = self._places.begin()
            try:
                yield Reading(transaction, self._tables)
            finally:
                self._places.end(transaction)

    @contextmanager
    def viewing(self) -> Iterator[View]:
        """A read transaction, from any thread, for values too large to be copied whole."""
        with self._gate.inside(), self._in_our_words():
            self._require_open()
            transaction = self._places.begin_viewing()
            try:
                yield lambda table, key: transaction.get(key, db=self._tables[table])
            finally:
                self._places.end(transaction)

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """A write transaction, one at a time.  Leaving the block commits it, an exception drops it.

        Raises StoreFull, StoreFailed or StoreError, and then nothing of it is stored.
        """
        with self._turn, self._gate.inside(), self._in_our_words():
            self._require_open()
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            with self._environment.begin(write=True) as transaction:
                yield Writing(transaction, self._tables)

    def refuse(self, sentence: str) -> None:
        """From now on ``writing`` raises StoreFailed with this sentence."""
        self._refusal = sentence

    def hold(self) -> Snapshot:
        """The state after the last commit, held."""
        # Without the turn a commit could come between the transaction and the pages that lead to it.
        with self._turn, self._gate.inside(), self._in_our_words():
            self._require_open()
            head = os.pread(self._data, 2 * self._environment.stat()["psize"], 0)
            return Snapshot(self._places, head)

    def sync(self) -> None:
        """Makes everything committed so far durable; others read and write meanwhile.  Raises StoreError."""
        with self._gate.inside(), self._in_our_words():
            self._require_open()
            self._environment.sync(True)

    def panicked(self) -> bool:
        """Whether every transaction is refused until the environment is opened anew."""
        with self._gate.inside():
            if self._closed or self._lost:
                return self._lost
            with self._in_our_words():
                try:
                    self._places.end(self._places.begin())
                except lmdb.PanicError:
                    return True
                return False

    def reopen(self, growth: int = 0) -> None:
        """Opens the environment anew, with a map larger by ``growth``.  All snapshots are gone then."""
        with self._turn, self._gate.alone():
            if not self._lost:
                self._require_open()
                self._environment.close()
            # Until it is open: what makes opening fail, a want of descriptors say, may pass.
            self._lost = True
            self._map_size += growth
            self._open()
            self._lost = False

    def reader_check(self) -> int:
        """Clears the readers of processes that died; how many there were."""
        with self._gate.inside(), self._in_our_words():
            self._require_open()
            return self._environment.reader_check()

    def room(self) -> Room:
        """How much of the map is used, by how many readers."""
        with self._gate.inside(), self._in_our_words():
            self._require_open()
            info = self._environment.info()
            used = (info["last_pgno"] + 1) * self._environment.stat()["psize"]
            return Room(info["map_size"], used, info["num_readers"], info["last_txnid"])

    def close(self) -> None:
        """Waits for the transactions under way and closes; all snapshots are gone then."""
        with self._turn, self._gate.alone():
            if not self._closed:
                self._closed = True
                if not self._lost:
                    self._environment.close()
                self._lost = False
                os.close(self._data)

    def _open(self) -> None:
        with self._in_our_words():
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
                        pass  # make_tables makes it, when the caller is ready for the first write
                self._require_our_tables()
                self._places = Places(self._environment)
            except BaseException:  # Ctrl-C, too
                self._environment.close()
                raise

    def _require_our_tables(self) -> None:
        """Raises DamagedRecord unless all tables are there as they were made, or none at all."""
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

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """Turns what LMDB and the operating system raise into StoreError."""
        try:
            yield
        except lmdb.MapFullError as error:
            sentence = f"The map of {self.path} is full; it may have {self._map_size} octets."
            raise StoreFull(Limit.MAP, sentence) from error
        except DamagedRecord as error:
            raise DamagedFile(f"The file {self.path / DATA} is damaged: {error}  {ADVICE}.") from error
        except (lmdb.Error, OSError) as error:
            if self._is_for_want_of_room(error):
                raise StoreFull(Limit.DISK, f"There is no room on disk for {self.path}: {error}.") from error
            raise StoreError(f"The environment {self.path} failed: {error}.") from error

    def _is_for_want_of_room(self, error: Exception) -> bool:
        """Whether the operating system refused to store more."""
        if isinstance(error, OSError):
            return error.errno in NO_ROOM
        # LMDB's own errors have classes; others are the operating system's, passed on by their words.
        if isinstance(error, lmdb.DiskError) or any(str(error).endswith(os.strerror(n)) for n in NO_ROOM):
            return True
        # When only a part of a write found room, LMDB takes it for a fault of the disk.
        try:
            return str(error).endswith(os.strerror(errno.EIO)) and not has_room(self.path / DATA)
        except OSError:
            return False  # nothing can be tried
