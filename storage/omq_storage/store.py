"""A store: one directory with a catalogue and an environment for each sync level.

The directory::

    format       {"format": 3}; a higher number is refused.  The file also has "begun": true until the store
                 is created completely, or "backup": true until a backup is opened for the first time
    lock         locked by the one process that has the store open
    spare        disk space that is reserved for deletions
    catalogue/   strong/   weak/   async/       LMDB environments

Environments of format 1 have no identity, see ``omq_storage.identity``; those of formats 1 and 2 have no
tables for messages in fragments, see ``omq_storage.fragments``, and their catalogue has none for exchanges,
bindings and queues, see ``omq_storage.topology``.  Opening such a store adds them.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, assert_never

from omq_storage.catalogue import MESSAGE_IDS_SKIPPED, StoreCatalogue
from omq_storage.checkpoint import begin_checkpoints, recover
from omq_storage.environment import Environment
from omq_storage.errors import DamagedFile, NewerFormat, StoreError, StoreFull, StoreInUse
from omq_storage.files import FILE_MODE, NO_ROOM, make_directory, write_durably
from omq_storage.identity import Expected, Lineage, read_identity
from omq_storage.integrity import ADVICE, DATA, require_intact
from omq_storage.journal import JOURNALS, saved_identity
from omq_storage.levels import Level
from omq_storage.reserved_space import ReservedSpace

CATALOGUE = "catalogue"
FORMAT_FILE = "format"

FORMAT = 4
_OLDEST_FORMAT = 1
FORMAT_WITH_JOURNAL = 4
"""The first format in which the level Strong has checkpoints and a journal."""
_LOCK_FILE = "lock"
CATALOGUE_MAP_SIZE = 1 << 34
MAP_SIZE = 1 << 40
"""The default limit of the data file of a level in octets.  It reserves address space, but no memory or disk.
"""
_INTERRUPTED = "A start before this one put it back to a checkpoint, and was cut short."
_RESTORED = f"It is a restored backup; {MESSAGE_IDS_SKIPPED} message ids of each topic are skipped."
_BOOT_VARIABLE = "OMQ_BOOT_ID"
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of opening one environment."""

    level: Level
    what: str
    """One sentence for an operator."""
    rolled_back: bool
    """Whether messages that a client may have seen could be lost."""


class Store:
    """An open store and a context manager, whose end closes the store cleanly."""

    def __init__(
        self,
        path: Path,
        catalogue: StoreCatalogue,
        environments: dict[Level, Environment],
        recoveries: tuple[Recovery, ...],
        spare: ReservedSpace,
        lock: ExitStack,
    ) -> None:
        """Use ``open``.  ``lock`` releases the directory when it is closed."""
        self.path = path
        self.catalogue = catalogue
        self.recoveries = recoveries
        self._environments = environments
        self._spare = spare
        self._lock = lock
        self._lock_file = _identity(path / _LOCK_FILE)

    @classmethod
    def open(cls, path: str | Path, *, map_size: int = MAP_SIZE, boot_id: str | None = None) -> Self:
        """Open the store in this directory, or create it.

        ``map_size``: limit of each environment in octets, see ``MAP_SIZE``.
        ``boot_id``: names this start of the machine, to tell a power failure from a killed process; by
        default the environment variable OMQ_BOOT_ID, or else the boot id of the kernel.

        Verifies every file before LMDB opens it, so that a damaged one can neither crash the process nor
        damage another.

        Raises StoreInUse, NewerFormat, DamagedFile, StoreFull, and StoreError when the directory cannot be
        used.
        """
        path = Path(path)
        try:
            with ExitStack() as opened:
                make_directory(path)
                _refuse_others(path)
                lock = opened.enter_context(lock_store(path))
                form = read_format(path)
                match None if form is None else form.state:
                    case None | StoreState.BEGUN:
                        is_new = True
                        _begin(path)
                    case StoreState.WHOLE | StoreState.BACKUP:
                        is_new = False
                        require_intact(path / CATALOGUE)
                    case state:
                        assert_never(state)
                spare = ReservedSpace(path)
                opened.callback(spare.close)
                is_backup = form is not None and form.state is StoreState.BACKUP
                catalogue = StoreCatalogue(path / CATALOGUE, map_size=min(map_size, CATALOGUE_MAP_SIZE))
                opened.callback(catalogue.close)
                if boot_id is None:
                    boot_id = current_boot()
                # Verify everything that could keep the store from opening before any level is changed.
                known = None if is_new or form is None else lineage_of(catalogue, path, form)
                recoveries = []
                is_journaled = not is_new and form is not None and form.number >= FORMAT_WITH_JOURNAL
                for level in Level:
                    expected = None if known is None else Expected(level, known)
                    recoveries.append(recover_level(path, level, boot_id, expected, is_journaled))
                    if not is_new:
                        require_intact(path / level.value)
                    if expected is not None:
                        require_ours(path / level.value, expected)
                lineage = catalogue.lineage or Lineage.new()
                # The first checkpoint of a level erases the fact that the level returned to an earlier one.
                # So the catalogue records it before any checkpoint is taken. The record stays until the
                # server has skipped all message ids that a client may have seen, even if it needs several
                # starts for that.
                lost = [recovery.level for recovery in recoveries if recovery.rolled_back]
                opening = lineage.opening(() if is_backup else lost)
                is_noted = _note(catalogue, opening, required=opening.lost != lineage.lost)
                environments: dict[Level, Environment] = {}

                def open_level(level: Level, journaled: bool) -> None:
                    def attempt() -> Environment:
                        return Environment(
                            path / level.value, level, map_size=map_size, boot_id=boot_id, journaled=journaled
                        )

                    try:
                        environment = attempt()
                    except StoreFull:  # what the journal has must be stored again
                        with spare.released():
                            environment = attempt()
                    opened.callback(environment.close, clean=False)
                    environments[level] = environment

                for level in Level:
                    open_level(level, is_journaled)
                    # Read the small records once: damage to them must fail the start, and not a later
                    # request.
                    environments[level].extents()
                    environments[level].positions()
                is_identified = is_noted and _identify(catalogue, environments, opening)
                if is_backup:
                    catalogue.skip_ids()
                number = form.number if form is not None and not is_new else _OLDEST_FORMAT
                begins = is_identified and not is_journaled and _begin_checkpoints(path, opening)
                if is_identified:
                    number = FORMAT if is_journaled or begins else FORMAT_WITH_JOURNAL - 1
                if form != Format(number, StoreState.WHOLE):
                    write_format(path, StoreState.WHOLE, number)
                if begins:
                    # From the first commit without a sync on, an earlier version must not open the store.
                    environments[Level.STRONG].close()
                    open_level(Level.STRONG, journaled=True)
                if is_backup:
                    recoveries = [Recovery(level, _RESTORED, rolled_back=True) for level in Level]
                else:
                    recoveries = [_with_earlier(recovery, opening.lost) for recovery in recoveries]
                    recoveries = [
                        _with_replayed(recovery, environments[recovery.level].replayed)
                        for recovery in recoveries
                    ]
                opened.pop_all()
                return cls(path, catalogue, environments, tuple(recoveries), spare, lock)
        except NotADirectoryError as error:
            what = f"{error.filename} is no directory"
            raise StoreError(f"The store {path} cannot be opened: {what}.") from error
        except OSError as error:
            what = error.strerror or str(error)
            if error.filename not in (None, str(path)):
                what = f"{error.filename}: {what}"
            raise StoreError(f"The store {path} cannot be opened: {what}.") from error

    def level(self, level: Level) -> Environment:
        """Return the environment of one sync level."""
        return self._environments[level]

    def with_spare_room(self, function: Callable[[], T]) -> T:
        """Run a deletion with the reserved disk space.  No other thread may write meanwhile.

        Afterwards the catalogue has free pages again, too, so that topics can be declared.  Raises
        StoreError.
        """
        try:
            with self._spare.released():
                result = function()
                self.catalogue.recycle_pages()
                return result
        except OSError as error:
            raise StoreError(f"The spare room of {self.path} cannot be used: {error}.") from error

    def is_in_place(self) -> bool:
        """Return whether the directory has this store: not if it was deleted, moved or replaced.  Then
        everything goes to files that nobody finds any more.  Raises OSError.
        """
        try:
            return _identity(self.path / _LOCK_FILE) == self._lock_file
        except (FileNotFoundError, NotADirectoryError):
            return False

    def restore_spare_room(self) -> None:
        """Reserve disk space for deletions again, as far as the disk has any.  Raises OSError if the disk
        fails.
        """
        self._spare.restore()

    def close(self, clean: bool = True) -> None:
        """Close all environments and release the directory.  A second call does nothing.

        ``clean=False`` takes no last checkpoints: the files are then as a killed process leaves them.
        """
        with ExitStack() as closing:
            # Called from the last to the first, each one even if another fails.
            closing.callback(self._lock.close)
            closing.callback(self._spare.close)
            closing.callback(self.catalogue.close)
            for environment in self._environments.values():
                closing.callback(environment.close, clean)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def current_boot() -> str:
    """Return the id of this start of the machine: the variable OMQ_BOOT_ID, or else the kernel's boot id."""
    return os.environ.get(_BOOT_VARIABLE) or _BOOT_FILE.read_text().strip()


def lock_store(path: Path) -> ExitStack:
    """Lock the directory for this process until the result is closed.  Raises StoreInUse."""
    with ExitStack() as taken:
        descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        taken.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreInUse(f"The store {path} is in use by another process.") from error
        return taken.pop_all()


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _refuse_others(path: Path) -> None:
    """Raise StoreError when the directory holds files that do not belong to a store."""
    names = {entry.name for entry in path.iterdir()}
    # An interrupted first start may have left these two.
    others = sorted(names - {_LOCK_FILE, FORMAT_FILE + ".new"})
    if others and FORMAT_FILE not in names:
        if is_store(path):
            raise DamagedFile(f"The file {path / FORMAT_FILE} is missing; {ADVICE}.")
        raise StoreError(f"The directory {path} is not a store: it holds {others[0]!r}.")


def is_store(path: Path) -> bool:
    """Return whether a directory is a store, also a damaged one."""
    names = (FORMAT_FILE, CATALOGUE, *(level.value for level in Level))
    return sum((path / name).exists() for name in names) > 1


class StoreState(Enum):
    """The state of a store, as its format file records it."""

    BEGUN = "begun"
    """The first start has not created all files yet; nothing was ever stored."""
    WHOLE = "whole"
    BACKUP = "backup"
    """A backup that was not opened yet; the original may have assigned further message ids since."""


@dataclass(frozen=True, slots=True)
class Format:
    """The content of the format file."""

    number: int
    state: StoreState


def read_format(path: Path) -> Format | None:
    """Return the content of the format file, or None if it is missing.

    Raises NewerFormat and DamagedFile.
    """
    file = path / FORMAT_FILE
    damaged = DamagedFile(f"The file {file} is damaged; {ADVICE}.")
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged from error
    number = content.pop("format", None) if isinstance(content, dict) else None
    if type(number) is not int or number < _OLDEST_FORMAT:
        raise damaged
    if number > FORMAT:
        raise NewerFormat(
            f"The store {path} has format {number}, made by a later version; this one knows {FORMAT}."
        )
    if not content:
        return Format(number, StoreState.WHOLE)
    for state in (StoreState.BEGUN, StoreState.BACKUP):
        if content == {state.value: True}:
            return Format(number, state)
    raise damaged


def write_format(path: Path, state: StoreState, number: int = FORMAT) -> None:
    """Write the format file.  Raises OSError."""
    content: dict[str, int | bool] = {"format": number}
    if state is not StoreState.WHOLE:
        content[state.value] = True
    write_durably(path / FORMAT_FILE, json.dumps(content).encode())


def _begin(path: Path) -> None:
    """Create the directories of a new store, and delete those that an interrupted first start has left."""
    write_format(path, StoreState.BEGUN)
    for name in (CATALOGUE, *(level.value for level in Level)):
        if (path / name).exists():
            shutil.rmtree(path / name)
        make_directory(path / name)


def lineage_of(catalogue: StoreCatalogue, path: Path, form: Format) -> Lineage | None:
    """Return the lineage in the catalogue; None for format 1, which has none.

    Raises DamagedFile when a catalogue of a later format has none.
    """
    if form.number == _OLDEST_FORMAT:
        return None
    if catalogue.lineage is None:
        raise DamagedFile(
            f"The file {path / CATALOGUE / DATA} is damaged: it has lost which store it belongs to; {ADVICE}."
        )
    return catalogue.lineage


def require_ours(path: Path, expected: Expected) -> None:
    """Raise DamagedFile unless the data file in this directory has an expected identity."""
    expected.require(path / DATA, read_identity(path))


def _note(catalogue: StoreCatalogue, lineage: Lineage, required: bool) -> bool:
    """Store the lineage in the catalogue.  Return False if there is no room for it and it is not
    ``required``.

    A full disk alone must not keep a store from opening: its operator needs the server to delete messages.
    Raises StoreFull if the record is ``required``.
    """
    try:
        catalogue.set_lineage(lineage)
    except StoreFull:
        if required:
            raise
        return False
    return True


def _identify(catalogue: StoreCatalogue, environments: dict[Level, Environment], opening: Lineage) -> bool:
    """Store the new identity in every level, then let the catalogue accept no other.  Return whether it did.

    If the disk has no room, the catalogue continues to accept the previous identities, too.
    """
    try:
        for level, environment in environments.items():
            environment.identify(opening.identity(level))
        catalogue.make_topology_tables()
        catalogue.set_lineage(opening.opened)
    except StoreFull:
        return False
    return True


def _begin_checkpoints(path: Path, lineage: Lineage) -> bool:
    """Create the checkpoint file of Level.STRONG, each of whose commits is synced.  Return False if the disk
    has no room for it.
    """
    try:
        begin_checkpoints(path / Level.STRONG.value, lineage.identity(Level.STRONG))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return False
    return True


def _with_earlier(recovery: Recovery, lost: tuple[Level, ...]) -> Recovery:
    """Return the result for a level, with the loss that an earlier, interrupted start has found."""
    if recovery.rolled_back or recovery.level not in lost:
        return recovery
    return Recovery(recovery.level, f"{_INTERRUPTED}  {recovery.what}", rolled_back=True)


def _with_replayed(recovery: Recovery, commits: int) -> Recovery:
    """Return the result for a level, with the number of commits that were made again from its journal."""
    if not commits:
        return recovery
    what = f"{recovery.what}  Commits that its journal had, and that are there again: {commits}."
    return Recovery(recovery.level, what, recovery.rolled_back)


def recover_level(
    path: Path, level: Level, boot_id: str, expected: Expected | None, is_journaled: bool
) -> Recovery:
    """Restore a level of the store in this directory to its last checkpoint, if that is necessary.

    ``is_journaled``: whether Level.STRONG has checkpoints and a journal.  For the rest, see
    ``checkpoint.recover``.
    """
    directory = path / level.value
    match level:
        case Level.STRONG if not is_journaled:
            is_new = not (directory / DATA).exists()
            what = "It is new." if is_new else "Every commit is durable; nothing needed to be done."
            return Recovery(level, what, rolled_back=False)
        case Level.STRONG:
            recovered = recover(directory, boot_id, expected)
            if expected is not None:
                for file in (directory / name for name in JOURNALS):
                    identity = saved_identity(file)
                    if identity is not None and expected.is_foreign(identity):
                        expected.require(file, identity)
            # The journal has every commit since then.
            return Recovery(level, recovered.what, recovered.rolled_back and not recovered.is_restored)
        case Level.WEAK | Level.ASYNC:
            recovered = recover(directory, boot_id, expected)
            return Recovery(level, recovered.what, recovered.rolled_back)
        case _:
            assert_never(level)
