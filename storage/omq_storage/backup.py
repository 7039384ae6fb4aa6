"""Copying a store while a server uses it."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb

from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import Environment, replay
from omq_storage.errors import StoreError, StoreInUse
from omq_storage.files import DIRECTORY_MODE, FILE_MODE, create, make_directory, sync_directory
from omq_storage.identity import Expected, Lineage
from omq_storage.integrity import DATA, require_intact
from omq_storage.levels import Level
from omq_storage.store import (
    CATALOGUE,
    CATALOGUE_MAP_SIZE,
    FORMAT_WITH_JOURNAL,
    MAP_SIZE,
    Format,
    StoreState,
    lineage_of,
    lock_store,
    read_format,
    recover_level,
    require_ours,
    write_format,
)

_PART = ".part"
_TABLES = 16


def backup(path: Path, to: Path, boot_id: str, progress: Callable[[str], None]) -> int:
    """Copy a store to the directory ``to``, which must not exist or be empty.  Return the octets of the copy.

    The copy has all messages that were confirmed before the call, and is durable on return.  It is marked as
    a copy: its first start skips message ids, because the original may have assigned further ids meanwhile.
    ``progress`` is called with the name of each part before it is copied.

    Raises StoreError and OSError; then at most a directory whose name ends in ``.part`` is left.
    """
    form = read_format(path)
    if form is None:
        raise StoreError(f"There is no store in {path}.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise _taken(to)
    if to.resolve().is_relative_to(path.resolve()):
        raise StoreError(f"{to} is inside of the store {path}: who loses the store would lose its backup.")
    part = to.with_name(to.name + _PART)
    with _empty_directory(part, to):
        return _fill(path, part, to, form, boot_id, progress)


def _taken(to: Path) -> StoreError:
    return StoreError(f"{to} exists and is not an empty directory.")


@contextmanager
def _empty_directory(part: Path, to: Path) -> Iterator[None]:
    """Make a directory for the copy, or empty that of an interrupted backup.  Lock it, since another backup
    to ``to`` would empty it meanwhile.
    """
    make_directory(part)
    descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"Another backup to {to} is running.") from error
        # The other backup may have ended since the directory was opened, and with it the name.
        if not part.is_dir() or not os.path.samestat(os.fstat(descriptor), part.stat()):
            raise _taken(to)
        for entry in part.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        yield
    finally:
        os.close(descriptor)


def _fill(
    path: Path, part: Path, to: Path, form: Format, boot_id: str, progress: Callable[[str], None]
) -> int:
    """Copy a store into the empty directory ``part`` and give it the name ``to``."""
    try:
        with ExitStack() as held:
            try:
                held.enter_context(lock_store(path))
            except StoreInUse:
                pass  # a server uses the store, and verified it when it started
            else:
                _require_intact(path, form, boot_id)
            # The catalogue comes last: so the copied catalogue knows every topic, and has reserved every
            # message id, that the copied levels have.
            for name in (*(level.value for level in Level), CATALOGUE):
                progress(name)
                _copy(path / name, part / name)
        _give_new_identity(part, boot_id)
        write_format(part, StoreState.BACKUP)
        size = sum(file.stat().st_size for file in part.rglob(DATA))
        try:
            part.rename(to)
        except OSError as error:
            if to.exists():
                raise _taken(to) from error
            raise
        sync_directory(to.parent)
    except BaseException as error:  # Ctrl-C, too
        shutil.rmtree(part, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(to)  # that of a write has no name, such as on a full disk
        raise
    return size


def _require_intact(path: Path, form: Format, boot_id: str) -> None:
    require_intact(path / CATALOGUE)
    catalogue = StoreCatalogue(path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
    try:
        lineage = lineage_of(catalogue, path, form)
    finally:
        catalogue.close()
    for level in Level:
        expected = None if lineage is None else Expected(level, lineage)
        is_journaled = form.number >= FORMAT_WITH_JOURNAL
        recover_level(path, level, boot_id, expected, is_journaled)
        require_intact(path / level.value)
        if expected is not None:
            require_ours(path / level.value, expected)
        if level is Level.STRONG and is_journaled:
            replay(path / level.value, boot_id, MAP_SIZE)


def _give_new_identity(path: Path, boot_id: str) -> None:
    """Give the copy a store name of its own, so that the original store never accepts one of its files."""
    lineage = Lineage.new()
    for level in Level:
        environment = Environment(path / level.value, level, map_size=MAP_SIZE, boot_id=boot_id)
        try:
            environment.identify(lineage.identity(level))
        finally:
            environment.close()
    catalogue = StoreCatalogue(path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
    try:
        catalogue.set_lineage(lineage)
    finally:
        catalogue.close()


def _copy(source: Path, target: Path) -> None:
    """Copy one environment in the state of its last complete commit."""
    target.mkdir(DIRECTORY_MODE)
    try:
        source_environment = lmdb.open(
            str(source),
            map_size=MAP_SIZE,
            max_dbs=_TABLES,
            max_readers=1024,
            readonly=True,
            mode=FILE_MODE,
        )
        # Create the file here: with LMDB the umask would decide who may read the copy.
        with source_environment as environment, create(target / DATA) as file:
            environment.copyfd(file.fileno(), compact=True)
            os.fsync(file.fileno())
    except lmdb.Error as error:
        raise StoreError(f"{source} could not be copied to {target}: {error}.") from error
    sync_directory(target)
    require_intact(target)
