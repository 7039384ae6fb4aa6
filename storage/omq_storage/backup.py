"""A copy of a store, made while a server goes on with it."""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import lmdb

from omq_storage.catalogue import Catalogue
from omq_storage.checkpoint import recover
from omq_storage.environment import Environment
from omq_storage.errors import StoreError, StoreInUse
from omq_storage.files import DIRECTORY_MODE, FILE_MODE, create, make_directory, sync_directory
from omq_storage.identity import Expected, Lineage
from omq_storage.levels import Level
from omq_storage.soundness import DATA, require_sound
from omq_storage.store import (
    CATALOGUE,
    CATALOGUE_MAP_SIZE,
    Format,
    State,
    lineage_of,
    lock_store,
    read_format,
    require_ours,
    write_format,
)

_PART = ".part"
_MAP_SIZE = 1 << 40
_TABLES = 16


def backup(path: Path, to: Path, boot_id: str, said: Callable[[str], None]) -> int:
    """Copies the store in a directory to another, which must not exist or be empty; its octets.

    What is confirmed before the call is in the copy. It is a store like any other, and durable on return. It
    knows that it is a copy: opened for the first time, it goes on far behind the ids that were handed out.
    ``said`` is called with what is copied, as it goes on.

    Raises StoreError and OSError; then nothing is there but perhaps a directory that ends in ``.part``.
    """
    form = read_format(path)
    if form is None:
        raise StoreError(f"There is no store in {path}.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} exists and is not an empty directory.")
    part = to.with_name(to.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    make_directory(part)
    try:
        with ExitStack() as held:
            try:
                held.enter_context(lock_store(path))
            except StoreInUse:
                pass  # the server that has it verified it when it started
            else:
                _see_that_it_is_sound(path, form, boot_id)
            # The catalogue last: so there is no message in the copy of a topic or with an id unknown to it.
            for name in (*(level.value for level in Level), CATALOGUE):
                said(name)
                _copy(path / name, part / name)
        _make_a_store_of_its_own(part, boot_id)
        write_format(part, State.BACKUP)
        size = sum(file.stat().st_size for file in part.rglob(DATA))
        if to.exists():
            to.rmdir()
        part.rename(to)
        sync_directory(to.parent)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(part, ignore_errors=True)
        raise
    return size


def _see_that_it_is_sound(path: Path, form: Format, boot_id: str) -> None:
    require_sound(path / CATALOGUE)
    catalogue = Catalogue(path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
    try:
        lineage = lineage_of(catalogue, path, form)
    finally:
        catalogue.close()
    for level in Level:
        expected = None if lineage is None else Expected(level, lineage)
        if level is not Level.STRONG:
            recover(path / level.value, boot_id, expected)
        require_sound(path / level.value)
        if expected is not None:
            require_ours(path / level.value, expected)


def _make_a_store_of_its_own(path: Path, boot_id: str) -> None:
    """Gives the copies a name of their own: a single file of a backup is none that a store can go on with."""
    lineage = Lineage.new()
    for level in Level:
        environment = Environment(path / level.value, level, map_size=_MAP_SIZE, boot_id=boot_id)
        try:
            environment.identify(lineage.identity(level))
        finally:
            environment.close()
    catalogue = Catalogue(path / CATALOGUE, map_size=CATALOGUE_MAP_SIZE)
    try:
        catalogue.set_lineage(lineage)
    finally:
        catalogue.close()


def _copy(source: Path, target: Path) -> None:
    """One environment, as it is after the last commit that was complete."""
    target.mkdir(DIRECTORY_MODE)
    try:
        source_environment = lmdb.open(
            str(source),
            map_size=_MAP_SIZE,
            max_dbs=_TABLES,
            max_readers=1024,
            readonly=True,
            mode=FILE_MODE,
        )
        # Into a file of ours: LMDB would leave it to the umask who may read the copy.
        with source_environment as environment, create(target / DATA) as file:
            environment.copyfd(file.fileno(), compact=True)
            os.fsync(file.fileno())
    except lmdb.Error as error:
        raise StoreError(f"{source} could not be copied: {error}.") from error
    sync_directory(target)
    require_sound(target)
