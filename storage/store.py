"""A store: one directory with a catalogue and an environment for each sync level (design, section 6).

The directory::

    format       {"format": 1}; a higher number is refused
    lock         held by the one process that has the store open
    catalogue/   strong/   weak/   async/       LMDB environments
"""

import fcntl
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, assert_never

from storage.catalogue import Catalogue
from storage.checkpoint import Recovered, recover
from storage.environment import Environment
from storage.errors import NewerFormat, StoreError, StoreInUse
from storage.files import make_directory, write_durably
from storage.levels import Level

_FORMAT = 1
_FORMAT_FILE = "format"
_LOCK_FILE = "lock"
CATALOGUE = "catalogue"
_CATALOGUE_MAP_SIZE = 1 << 34
_BOOT_VARIABLE = "OMQ_BOOT_ID"
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening one environment found and did."""

    level: Level
    what: str
    """One sentence for an operator."""
    rolled_back: bool
    """True when messages that someone may have seen could be gone."""


class Store:
    """An open store.  A context manager; leaving it closes the store cleanly."""

    def __init__(
        self,
        path: Path,
        catalogue: Catalogue,
        environments: dict[Level, Environment],
        recoveries: tuple[Recovery, ...],
        lock: ExitStack,
    ) -> None:
        """Use ``open``.  ``lock`` gives the directory back when it is closed."""
        self.path = path
        self.catalogue = catalogue
        self.recoveries = recoveries
        self._environments = environments
        self._lock = lock

    @classmethod
    def open(cls, path: str | Path, *, map_size: int = 1 << 40, boot_id: str | None = None) -> Self:
        """Opens the store in this directory, or makes it.

        ``map_size``: how large each environment may become, in octets; no memory or disk is taken by it.
        ``boot_id``: names this start of the machine, to tell a power failure from a killed process; by
        default the environment variable OMQ_BOOT_ID, or else the kernel's own.

        Raises StoreInUse, NewerFormat, StoreFull, and StoreError when the directory cannot be used.
        """
        path = Path(path)
        try:
            with ExitStack() as opened:
                make_directory(path)
                _refuse_others(path)
                lock = opened.enter_context(_lock(path))
                _claim_format(path)
                make_directory(path / CATALOGUE)
                catalogue = Catalogue(path / CATALOGUE, map_size=min(map_size, _CATALOGUE_MAP_SIZE))
                opened.callback(catalogue.close)
                if boot_id is None:
                    boot_id = current_boot()
                environments = {}
                recoveries = []
                for level in Level:
                    recoveries.append(_recover(path / level.value, level, boot_id))
                    environment = Environment(path / level.value, level, map_size=map_size, boot_id=boot_id)
                    opened.callback(environment.close, clean=False)
                    environments[level] = environment
                opened.pop_all()
                return cls(path, catalogue, environments, tuple(recoveries), lock)
        except OSError as error:
            raise StoreError(f"The store {path} cannot be opened: {error.strerror or error}.") from error

    def level(self, level: Level) -> Environment:
        """The environment of one sync level."""
        return self._environments[level]

    def close(self, clean: bool = True) -> None:
        """Closes everything and gives the directory back; calling it again does nothing.

        Without ``clean`` no last checkpoint is made.
        """
        with ExitStack() as closing:
            # Called last to first, each whatever happens to the others.
            closing.callback(self._lock.close)
            closing.callback(self.catalogue.close)
            for environment in self._environments.values():
                closing.callback(environment.close, clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(path: Path) -> ExitStack:
    """Takes the directory for this process, until what is returned is closed.  Raises StoreInUse."""
    with ExitStack() as taken:
        descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        taken.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreInUse(f"The store {path} is in use by another process.") from error
        return taken.pop_all()


def _refuse_others(path: Path) -> None:
    """Raises StoreError when the directory holds something that is no store, and leaves it as it is."""
    names = {entry.name for entry in path.iterdir()}
    # What an interrupted start may leave is no reason to refuse; files of somebody else are.
    others = sorted(names - {_LOCK_FILE, _FORMAT_FILE + ".new"})
    if others and _FORMAT_FILE not in names:
        raise StoreError(f"The directory {path} is not a store: it holds {others[0]!r}.")


def _claim_format(path: Path) -> None:
    """Writes the format file of a new store, or reads that of another.  Raises NewerFormat and StoreError."""
    try:
        check_format(path)
    except FileNotFoundError:
        write_durably(path / _FORMAT_FILE, json.dumps({"format": _FORMAT}).encode())


def check_format(path: Path) -> None:
    """Raises NewerFormat and StoreError unless the store in this directory has the format known here, and
    OSError when its format file cannot be read: FileNotFoundError when there is none.
    """
    file = path / _FORMAT_FILE
    content = file.read_bytes()
    try:
        number = json.loads(content)["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"The file {file} is damaged.") from error
    if not isinstance(number, int) or number < _FORMAT:
        raise StoreError(f"The file {file} is damaged.")
    if number > _FORMAT:
        raise NewerFormat(
            f"The store {path} has format {number}, made by a later version; this one knows {_FORMAT}."
        )


def current_boot() -> str:
    """Names this start of the machine: OMQ_BOOT_ID of the environment, or else the kernel's own."""
    return os.environ.get(_BOOT_VARIABLE) or _BOOT_FILE.read_text().strip()


def _recover(path: Path, level: Level, boot_id: str) -> Recovery:
    make_directory(path)
    match level:
        case Level.STRONG:
            recovered = Recovered("Every commit is durable; nothing needed to be done.", rolled_back=False)
        case Level.WEAK | Level.ASYNC:
            recovered = recover(path, boot_id)
        case _:
            assert_never(level)
    return Recovery(level, recovered.what, recovered.rolled_back)
