"""A store: one directory with a catalogue and an environment for each sync level.

The directory::

    format       {"format": 2}; a higher number is refused.  Besides it "begun", true until everything
                 was made for the first time, or "backup", true until a backup is opened for the first time
    lock         held by the one process that has the store open
    spare        room that is kept for deletions
    catalogue/   strong/   weak/   async/       LMDB environments

In format 1 the environments did not say which store they belong to, see ``omq_storage.identity``.  Opening
such a store lets them say it.
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

from omq_storage.catalogue import MESSAGES_LEAPT, Catalogue
from omq_storage.checkpoint import Recovered, recover
from omq_storage.environment import Environment
from omq_storage.errors import DamagedFile, NewerFormat, StoreError, StoreFull, StoreInUse
from omq_storage.files import FILE_MODE, make_directory, write_durably
from omq_storage.identity import Expected, Lineage, read_identity
from omq_storage.levels import Level
from omq_storage.soundness import ADVICE, DATA, require_sound
from omq_storage.spare import SpareRoom

CATALOGUE = "catalogue"
FORMAT_FILE = "format"

FORMAT = 2
_OLDEST_FORMAT = 1
_LOCK_FILE = "lock"
CATALOGUE_MAP_SIZE = 1 << 34
_NOT_SETTLED = "A start before this one put it back to a checkpoint, and was cut short."
_RESTORED = f"It is a restored backup; {MESSAGES_LEAPT} message ids of each topic are skipped."
_BOOT_VARIABLE = "OMQ_BOOT_ID"
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


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
        spare: SpareRoom,
        lock: ExitStack,
    ) -> None:
        """Use ``open``.  ``lock`` gives the directory back when it is closed."""
        self.path = path
        self.catalogue = catalogue
        self.recoveries = recoveries
        self._environments = environments
        self._spare = spare
        self._lock = lock

    @classmethod
    def open(cls, path: str | Path, *, map_size: int = 1 << 40, boot_id: str | None = None) -> Self:
        """Opens the store in this directory, or makes it.

        ``map_size``: how large each environment may become, in octets; no memory or disk is taken by it.
        ``boot_id``: names this start of the machine, to tell a power failure from a killed process; by
        default the environment variable OMQ_BOOT_ID, or else the kernel's own.

        Every file is verified first, so that no damage can harm the process or spread.

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
                    case None | State.BEGUN:
                        is_new = True
                        _begin(path)
                    case State.WHOLE | State.BACKUP:
                        is_new = False
                        require_sound(path / CATALOGUE)
                    case state:
                        assert_never(state)
                spare = SpareRoom(path)
                opened.callback(spare.close)
                is_backup = form is not None and form.state is State.BACKUP
                catalogue = Catalogue(path / CATALOGUE, map_size=min(map_size, CATALOGUE_MAP_SIZE))
                opened.callback(catalogue.close)
                if boot_id is None:
                    boot_id = current_boot()
                # First everything that could keep the store from opening is looked at.
                known = None if is_new or form is None else lineage_of(catalogue, path, form)
                recoveries = []
                for level in Level:
                    expected = None if known is None else Expected(level, known)
                    recoveries.append(_recover(path / level.value, level, boot_id, expected))
                    if not is_new:
                        require_sound(path / level.value)
                    if expected is not None:
                        require_ours(path / level.value, expected)
                lineage = catalogue.lineage or Lineage.new()
                # The first checkpoint of a level forgets that it was put back. So before any is taken the
                # catalogue remembers it, until all ids that may have been seen are skipped.
                lost = [recovery.level for recovery in recoveries if recovery.rolled_back]
                opening = lineage.opening(() if is_backup else lost)
                is_noted = _note(catalogue, opening, required=opening.lost != lineage.lost)
                environments = {}
                for level in Level:
                    environment = Environment(path / level.value, level, map_size=map_size, boot_id=boot_id)
                    opened.callback(environment.close, clean=False)
                    environments[level] = environment
                    # What cannot be read is told now, and not when somebody needs it.
                    environment.extents()
                    environment.positions()
                is_identified = is_noted and _identify(catalogue, environments, opening)
                if is_backup:
                    catalogue.leap()
                number = form.number if form is not None and not is_new else _OLDEST_FORMAT
                if is_identified:
                    number = FORMAT
                if form != Format(number, State.WHOLE):
                    write_format(path, State.WHOLE, number)
                if is_backup:
                    recoveries = [Recovery(level, _RESTORED, rolled_back=True) for level in Level]
                else:
                    recoveries = [_with_earlier(recovery, opening.lost) for recovery in recoveries]
                opened.pop_all()
                return cls(path, catalogue, environments, tuple(recoveries), spare, lock)
        except NotADirectoryError as error:
            what = f"{error.filename} is no directory"
            raise StoreError(f"The store {path} cannot be opened: {what}.") from error
        except OSError as error:
            raise StoreError(f"The store {path} cannot be opened: {error.strerror or error}.") from error

    def level(self, level: Level) -> Environment:
        """The environment of one sync level."""
        return self._environments[level]

    def in_need(self, function: Callable[[], T]) -> T:
        """Runs what deletes with the room that is kept for it; nobody else may write meanwhile.

        Topics can be declared afterwards, too, in the room that was made.
        """
        try:
            with self._spare.given():
                result = function()
                self.catalogue.turn_over()
                return result
        except OSError as error:
            raise StoreError(f"The spare room of {self.path} cannot be used: {error}.") from error

    def restore_spare_room(self) -> None:
        """Keeps room for deletions again, as far as there is any.  OSError when the disk fails."""
        self._spare.restore()

    def close(self, clean: bool = True) -> None:
        """Closes everything and gives the directory back; calling it again does nothing.

        Without ``clean`` no last checkpoint is made.
        """
        with ExitStack() as closing:
            # Called last to first, each whatever happens to the others.
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
    """Names this start of the machine: OMQ_BOOT_ID of the environment, or else the kernel's own."""
    return os.environ.get(_BOOT_VARIABLE) or _BOOT_FILE.read_text().strip()


def lock_store(path: Path) -> ExitStack:
    """Takes the directory for this process, until what is returned is closed.  Raises StoreInUse."""
    with ExitStack() as taken:
        descriptor = os.open(path / _LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
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
    others = sorted(names - {_LOCK_FILE, FORMAT_FILE + ".new"})
    if others and FORMAT_FILE not in names:
        if is_store(path):
            raise DamagedFile(f"The file {path / FORMAT_FILE} is missing; {ADVICE}.")
        raise StoreError(f"The directory {path} is not a store: it holds {others[0]!r}.")


def is_store(path: Path) -> bool:
    """Whether a directory is a store, or what damage has left of one."""
    names = (FORMAT_FILE, CATALOGUE, *(level.value for level in Level))
    return sum((path / name).exists() for name in names) > 1


class State(Enum):
    """What a store says of itself in its format file; the values stand there too."""

    BEGUN = "begun"
    """Its files were being made for the first time, and nothing was ever kept in it."""
    WHOLE = "whole"
    BACKUP = "backup"
    """It is a copy, and was not opened yet; what it was a copy of may have gone on."""


@dataclass(frozen=True, slots=True)
class Format:
    """What the format file says."""

    number: int
    state: State


def read_format(path: Path) -> Format | None:
    """What the format file says, None when there is none.  Raises NewerFormat and DamagedFile."""
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
        return Format(number, State.WHOLE)
    for state in (State.BEGUN, State.BACKUP):
        if content == {state.value: True}:
            return Format(number, state)
    raise damaged


def write_format(path: Path, state: State, number: int = FORMAT) -> None:
    """Writes the format file.  OSError when that fails."""
    content: dict[str, int | bool] = {"format": number}
    if state is not State.WHOLE:
        content[state.value] = True
    write_durably(path / FORMAT_FILE, json.dumps(content).encode())


def _begin(path: Path) -> None:
    """Makes the directories of a new store, without what an interrupted start has left of them."""
    write_format(path, State.BEGUN)
    for name in (CATALOGUE, *(level.value for level in Level)):
        if (path / name).exists():
            shutil.rmtree(path / name)
        make_directory(path / name)


def lineage_of(catalogue: Catalogue, path: Path, form: Format) -> Lineage | None:
    """What the catalogue of a store knows of it; None for format 1, of which nothing can be expected.

    Raises DamagedFile where it does not know it any more.
    """
    if form.number == _OLDEST_FORMAT:
        return None
    if catalogue.lineage is None:
        raise DamagedFile(
            f"The file {path / CATALOGUE / DATA} is damaged: it has lost which store it belongs to; {ADVICE}."
        )
    return catalogue.lineage


def require_ours(path: Path, expected: Expected) -> None:
    """Raises DamagedFile unless the data file in this directory is the one that belongs there."""
    objection = expected.objection(read_identity(path))
    if objection is not None:
        raise DamagedFile(f"The file {path / DATA} is not the right one: {objection}; {ADVICE}.")


def _note(catalogue: Catalogue, lineage: Lineage, required: bool) -> bool:
    """Lets the catalogue know this of the store; whether it does.

    Raises StoreFull only when it is ``required``: for want of room alone a store must not stay closed.
    """
    try:
        catalogue.set_lineage(lineage)
    except StoreFull:
        if required:
            raise
        return False
    return True


def _identify(catalogue: Catalogue, environments: dict[Level, Environment], opening: Lineage) -> bool:
    """Lets every level say what it is, and the catalogue accept nothing else; whether there was room.

    Where there was none the catalogue goes on accepting what the levels said before.
    """
    try:
        for level, environment in environments.items():
            environment.identify(opening.identity(level))
        catalogue.set_lineage(opening.opened)
    except StoreFull:
        return False
    return True


def _with_earlier(recovery: Recovery, lost: tuple[Level, ...]) -> Recovery:
    """What was found of a level, when an earlier start may have lost something of it."""
    if recovery.rolled_back or recovery.level not in lost:
        return recovery
    return Recovery(recovery.level, f"{_NOT_SETTLED}  {recovery.what}", rolled_back=True)


def _recover(path: Path, level: Level, boot_id: str, expected: Expected | None) -> Recovery:
    match level:
        case Level.STRONG:
            recovered = Recovered("Every commit is durable; nothing needed to be done.", rolled_back=False)
        case Level.WEAK | Level.ASYNC:
            recovered = recover(path, boot_id, expected)
        case _:
            assert_never(level)
    return Recovery(level, recovered.what, recovered.rolled_back)
