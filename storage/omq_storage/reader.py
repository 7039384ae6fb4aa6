"""A store read by another process, also while a server writes it (docs/SPARK.md, "Read").

LMDB lets any number of processes read beside the one that writes. Each may have an environment open only
once, and must not carry it over a fork; so it is opened in the process that reads, with ``opened``. Read
transactions are short, because a long one makes the file grow. Locking is always on: without it LMDB would
give the pages that are being read to the writer.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from omq_storage.blocks import Block
from omq_storage.catalogue import TOPICS, TopicRecord, topic_records
from omq_storage.checkpoint import needs_recovery
from omq_storage.database import Reading, View
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.lookup import extent_of, infos_from, use_stored
from omq_storage.records import BLOCKS, EXTENTS, INDEX, BlockInfo, Extent
from omq_storage.store import CATALOGUE, State, current_boot, read_format

if TYPE_CHECKING:
    from lmdb import Environment as LmdbEnvironment
    from lmdb import _Database as LmdbTable

_MAP_SIZE = 1 << 40
_MOST_TABLES = 16

T = TypeVar("T")


class StoreReader:
    """What a store holds, for reading.  Calls may come from any thread."""

    def __init__(self, path: Path) -> None:
        """Use ``opened``.  Raises NewerFormat and StoreError."""
        self.path = path
        try:
            _require_store(path)
            self._catalogue = _Environment(path / CATALOGUE, (TOPICS,))
            self._levels = {}
            for level in Level:
                if level is not Level.STRONG and needs_recovery(path / level.value, current_boot()):
                    raise StoreError(
                        f"The store {path} was not closed before the machine was started again; "
                        "start omq-server on it once, which puts it in order."
                    )
                self._levels[level] = _Environment(path / level.value, (BLOCKS, INDEX, EXTENTS))
        except FileNotFoundError as error:
            raise StoreError(f"There is no store in {path}.") from error
        except OSError as error:
            raise StoreError(f"The store {path} cannot be read: {error.strerror or error}.") from error

    def topics(self) -> list[TopicRecord]:
        """Every topic, by ascending id."""
        with self._catalogue.reading() as transaction:
            return topic_records(transaction)

    def extent(self, level: Level, topic: int) -> Extent:
        """What is stored of a topic."""
        with self._levels[level].reading() as transaction:
            return extent_of(transaction, topic)

    def blocks(self, level: Level, topic: int, first: int, limit: int) -> list[BlockInfo]:
        """The records of the block with message ``first``, or the next one, and of those behind it."""
        with self._levels[level].reading() as transaction:
            return list(islice(infos_from(transaction, topic, first), limit))

    def use(
        self, level: Level, topic: int, messages: range, use: Callable[[Block, range], T]
    ) -> Iterator[tuple[range, T]]:
        """What ``use`` makes of these messages, block by block; see ``lookup.use_stored``."""
        environment = self._levels[level]
        return use_stored(environment.reading, environment.viewing, topic, messages, use)


class _Environment:
    """One LMDB environment, opened for reading."""

    def __init__(self, path: Path, tables: tuple[bytes, ...]) -> None:
        """Raises StoreError, and OSError when a file cannot be used."""
        self._path = path
        self._names = tables
        self._tables: dict[bytes, LmdbTable] | None = None
        self._turn = Lock()
        for name, mode in (("data.mdb", os.O_RDONLY), ("lock.mdb", os.O_RDWR)):
            # LMDB would say only that the permission is missing, and not where.
            try:
                os.close(os.open(path / name, mode))
            except PermissionError as error:
                what = "write" if mode == os.O_RDWR else "read"
                raise StoreError(
                    f"The store needs permission to {what} {path / name}: readers take part in its locking."
                ) from error
        with _in_our_words(path):
            self._environment: LmdbEnvironment = lmdb.open(
                str(path), readonly=True, create=False, lock=True, map_size=_MAP_SIZE, max_dbs=_MOST_TABLES
            )

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """A read transaction.  Raises StoreError."""
        with _in_our_words(self._path):
            tables = self._open_tables()
            with self._begin() as transaction:
                yield Reading(transaction, tables)

    @contextmanager
    def viewing(self) -> Iterator[View]:
        """A read transaction for values that are looked at where they lie.  Raises StoreError."""
        with _in_our_words(self._path):
            tables = self._open_tables()
            with self._begin(buffers=True) as transaction:
                yield lambda table, key: transaction.get(key, db=tables[table])

    def _begin(self, *, buffers: bool = False) -> Any:
        begin: Callable[[], Any] = partial(self._environment.begin, buffers=buffers)
        try:
            return begin()
        except lmdb.MapResizedError:
            # The server has a larger map than this process knows of.
            self._environment.set_mapsize(0)
            return begin()

    def _open_tables(self) -> "dict[bytes, LmdbTable]":
        with self._turn:
            if self._tables is None:
                self._tables = {name: self._environment.open_db(name, create=False) for name in self._names}
            return self._tables


@contextmanager
def _in_our_words(path: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise StoreError(f"The environment {path} cannot be read: {error}.") from error


_turn = Lock()
_readers: dict[tuple[int, int, int], StoreReader] = {}


def _require_store(path: Path) -> None:
    """Raises StoreError unless there is a store of the format known here, and OSError."""
    form = read_format(path)
    if form is None or form.state is State.BEGUN:
        raise StoreError(f"There is no store in {path}.")


def opened(path: Path) -> StoreReader:
    """The reader of the store in this directory: one for each store and process, opened when first asked for.

    Raises NewerFormat and StoreError.
    """
    try:
        _require_store(path)
        found = (path / CATALOGUE / "data.mdb").stat()
    except FileNotFoundError as error:
        raise StoreError(f"There is no store in {path}.") from error
    except OSError as error:
        raise StoreError(f"The store {path} cannot be read: {error.strerror or error}.") from error
    key = (os.getpid(), found.st_dev, found.st_ino)
    with _turn:
        if key not in _readers:
            _readers[key] = StoreReader(path)
        return _readers[key]
