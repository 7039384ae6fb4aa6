"""Reading a store from another process, also while a server writes to it (docs/SPARK.md, "Read").

LMDB lets any number of processes read beside the one that writes, under three rules:

- A process opens an environment only once and does not inherit it over a fork.  ``opened`` returns the one
  reader of a store in this process.
- Read transactions are short, because LMDB cannot reuse pages that an open one may need, and the file grows.
- Locking is on.  Without it, LMDB would reuse pages while this process reads them.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from omq_storage.blocks import Block
from omq_storage.checkpoint import needs_recovery
from omq_storage.database import Reading, View
from omq_storage.errors import StoreError
from omq_storage.extents import extent_of
from omq_storage.fragments import FRAGMENTS
from omq_storage.integrity import require_end
from omq_storage.levels import Level
from omq_storage.lookup import infos_from, use_stored
from omq_storage.records import BLOCKS, EXTENTS, INDEX, BlockRecord, Extent
from omq_storage.store import (
    CATALOGUE,
    FORMAT_WITH_JOURNAL,
    MAP_SIZE,
    Format,
    StoreState,
    current_boot,
    read_format,
)
from omq_storage.topics import TOPICS, TopicRecord, topic_records

if TYPE_CHECKING:
    from lmdb import Environment as LmdbEnvironment
    from lmdb import _Database as LmdbTable

_MOST_TABLES = 16

T = TypeVar("T")


class StoreReader:
    """A store that is open for reading.  Any call may come from any thread, and may raise StoreError."""

    def __init__(self, path: Path) -> None:
        """Use ``opened``.  Raises NewerFormat and StoreError."""
        self.path = path
        try:
            # If a later part cannot be opened, the earlier ones are closed: LMDB refuses to open them again.
            with ExitStack() as unused:
                form = _require_store(path)
                self._catalogue = _Environment(path / CATALOGUE, (TOPICS,))
                unused.callback(self._catalogue.close)
                self._levels = {}
                for level in Level:
                    has_checkpoints = level is not Level.STRONG or form.number >= FORMAT_WITH_JOURNAL
                    if has_checkpoints and needs_recovery(path / level.value, current_boot()):
                        raise StoreError(
                            f"The store {path} was not closed before the machine was started again; "
                            "start omq-server on it once, which puts it in order."
                        )
                    self._levels[level] = _Environment(
                        path / level.value, (BLOCKS, INDEX, EXTENTS), added=(FRAGMENTS,)
                    )
                    unused.callback(self._levels[level].close)
                self._file = os.open(path / CATALOGUE / "data.mdb", os.O_RDONLY)
                unused.pop_all()
                weakref.finalize(self, os.close, self._file)
        except FileNotFoundError as error:
            raise StoreError(f"There is no store in {path}.") from error
        except OSError as error:
            raise StoreError(f"The store {path} cannot be read: {error.strerror or error}.") from error

    def is_deleted(self) -> bool:
        """Return whether the store was deleted, rather than moved."""
        return not os.fstat(self._file).st_nlink

    def topics(self) -> list[TopicRecord]:
        """Return the records of all topics, by ascending id."""
        with self._catalogue.reading() as transaction:
            return topic_records(transaction)

    def extent(self, level: Level, topic: int) -> Extent:
        """Return the extent of a topic."""
        with self._levels[level].reading() as transaction:
            return extent_of(transaction, topic)

    def blocks(self, level: Level, topic: int, first: int, limit: int) -> list[BlockRecord]:
        """Return up to ``limit`` index records: of the block with message ``first``, or the next, and
        onwards.
        """
        with self._levels[level].reading() as transaction:
            return list(islice(infos_from(transaction, topic, first), limit))

    def use(
        self, level: Level, topic: int, messages: range, use: Callable[[Block, range], T]
    ) -> Iterator[tuple[range, T]]:
        """Call ``use`` for each block that has some of these messages; see ``lookup.use_stored``."""
        environment = self._levels[level]
        return use_stored(environment.reading, environment.viewing, topic, messages, use)


class _Environment:
    """One LMDB environment that is open for reading."""

    def __init__(self, path: Path, tables: tuple[bytes, ...], added: tuple[bytes, ...] = ()) -> None:
        """Open the environment.  Raises StoreError, and OSError when a file cannot be used.

        ``added``: tables that it may lack until a server of this version uses it.
        """
        self._path = path
        self._names = tables
        self._added = added
        self._tables: dict[bytes, LmdbTable] = {}
        self._lock = Lock()
        for name, mode in (("data.mdb", os.O_RDONLY), ("lock.mdb", os.O_RDWR)):
            # The error of LMDB would not name the file.
            try:
                os.close(os.open(path / name, mode))
            except PermissionError as error:
                what = "write" if mode == os.O_RDWR else "read"
                raise StoreError(
                    f"The store needs permission to {what} {path / name}: readers take part in its locking."
                ) from error
        with _translated_errors(path):
            self._environment: LmdbEnvironment = lmdb.open(
                str(path), readonly=True, create=False, lock=True, map_size=MAP_SIZE, max_dbs=_MOST_TABLES
            )
            try:
                with self._begin():
                    last_page = self._environment.info()["last_pgno"]
                    require_end(path, last_page, self._environment.stat()["psize"])
            except BaseException:  # Ctrl-C, too
                self._environment.close()
                raise

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Run the block in a read transaction.  Raises StoreError."""
        with _translated_errors(self._path):
            tables = self._open_tables()
            with self._begin() as transaction:
                yield Reading(transaction, tables)

    @contextmanager
    def viewing(self) -> Iterator[View]:
        """Run the block in a read transaction that returns views of the map.  Raises StoreError."""
        with _translated_errors(self._path):
            tables = self._open_tables()
            with self._begin(buffers=True) as transaction:
                yield lambda table, key: transaction.get(key, db=tables[table])

    def _begin(self, *, buffers: bool = False) -> Any:
        begin: Callable[[], Any] = partial(self._environment.begin, buffers=buffers)
        try:
            return begin()
        except lmdb.MapResizedError:
            # The server has enlarged the map since this process opened it.
            self._environment.set_mapsize(0)
            return begin()

    def _open_tables(self) -> "dict[bytes, LmdbTable]":
        with self._lock:
            if not self._tables:
                self._tables = {name: self._environment.open_db(name, create=False) for name in self._names}
            for name in self._added:
                if name not in self._tables:
                    try:
                        self._tables[name] = self._environment.open_db(name, create=False)
                    except lmdb.NotFoundError:
                        pass  # no message is in fragments yet
            return self._tables


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise StoreError(f"The environment {path} cannot be read: {error}.") from error


_lock = Lock()
_readers: dict[tuple[int, int, int], StoreReader] = {}


def _require_store(path: Path) -> Format:
    """Return the format of the store in this directory.  Raises NewerFormat, and StoreError if there is none.
    Raises OSError, too.
    """
    form = read_format(path)
    if form is None or form.state is StoreState.BEGUN:
        raise StoreError(f"There is no store in {path}.")
    return form


def opened(path: Path) -> StoreReader:
    """Return the reader of the store in this directory, and open it at the first call.

    There is one reader for each store and process, for as long as the store exists.  Raises NewerFormat and
    StoreError.
    """
    try:
        _require_store(path)
        found = (path / CATALOGUE / "data.mdb").stat()
    except FileNotFoundError as error:
        raise StoreError(f"There is no store in {path}.") from error
    except OSError as error:
        raise StoreError(f"The store {path} cannot be read: {error.strerror or error}.") from error
    key = (os.getpid(), found.st_dev, found.st_ino)
    with _lock:
        if key not in _readers:
            _forget_deleted()
            _readers[key] = StoreReader(path)
        return _readers[key]


def _forget_deleted() -> None:
    """Forget the readers of stores that were deleted.  They close when nothing uses them any more: each takes
    some tebibytes of the addresses that a process has.
    """
    pid = os.getpid()
    for key, reader in list(_readers.items()):
        if key[0] == pid and reader.is_deleted():
            del _readers[key]
