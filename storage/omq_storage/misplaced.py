"""Moving files of levels back to the level that their identity names.

An operator who restores files by hand may exchange the directories of two levels.  The files are intact, so
moving them back repairs the store without any loss.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from omq_storage.checkpoint import CHECKPOINT, saved_identity
from omq_storage.files import DIRECTORY_MODE, sync_directory
from omq_storage.identity import LevelIdentity, read_identity
from omq_storage.integrity import DATA
from omq_storage.journal import JOURNALS
from omq_storage.journal import saved_identity as saved_identity_of_journal
from omq_storage.levels import Level

_MOVED = ".moved"


def _journal_identity(name: str) -> Callable[[Path], LevelIdentity | None]:
    return lambda directory: saved_identity_of_journal(directory / name)


_IDENTITY_OF: dict[str, Callable[[Path], LevelIdentity | None]] = {
    DATA: read_identity,
    CHECKPOINT: saved_identity,
    **{name: _journal_identity(name) for name in JOURNALS},
}
"""The files of a level, and the function that reads the identity of each from its directory."""


def move_misplaced(path: Path, store: str) -> list[str]:
    """Move the files of this store (see ``LevelIdentity.store``) to the levels that their identities name.

    Returns a sentence for each moved file.  Moves no file to a level that keeps one of its own, and none if
    two claim the same level.  ``finish_moves`` completes an interrupted call.  Raises OSError when the disk
    fails.
    """
    report = []
    for name, identity_of in _IDENTITY_OF.items():
        owners = {}
        for level in Level:
            identity = identity_of(path / level.value)
            if identity is not None and identity.store == store and identity.level is not level:
                owners[level] = identity.level
        wanted = Counter(owners.values())
        while blocked := [
            level
            for level, owner in owners.items()
            if wanted[owner] > 1 or (owner not in owners and (path / owner.value / name).exists())
        ]:
            for level in blocked:
                del owners[level]
        for level, owner in owners.items():
            _move_aside(path, name, level, owner)
            report.append(f"The file {name} of {level.value} was put into {owner.value}, where it belongs.")
        _rename_moved(path, name)
    return report


def finish_moves(path: Path) -> list[str]:
    """Complete an interrupted ``move_misplaced``.  Return sentences.  Raises OSError when the disk fails."""
    report = []
    for name, identity_of in _IDENTITY_OF.items():
        for _ in Level:  # each round may free the place for another file
            for level in Level:
                directory = path / level.value
                if not (directory / (name + _MOVED)).exists() or not (directory / name).exists():
                    continue
                identity = identity_of(directory)
                if identity is None or identity.level is level:
                    continue
                if not (path / identity.level.value / (name + _MOVED)).exists():
                    _move_aside(path, name, level, identity.level)
        report += [
            f"The file {name} was put into {level.value}, where it belongs."
            for level in _rename_moved(path, name)
        ]
    return report


def _move_aside(path: Path, name: str, level: Level, owner: Level) -> None:
    """Move a file to its directory under a temporary name, because another file may still have its name."""
    (path / owner.value).mkdir(DIRECTORY_MODE, exist_ok=True)
    (path / level.value / name).rename(path / owner.value / (name + _MOVED))
    sync_directory(path / owner.value)
    sync_directory(path / level.value)


def _rename_moved(path: Path, name: str) -> list[Level]:
    """Give the moved files their final names where these are free.  Return the levels of these files."""
    levels = []
    for level in Level:
        moved = path / level.value / (name + _MOVED)
        if moved.exists() and not (path / level.value / name).exists():
            moved.rename(path / level.value / name)
            sync_directory(path / level.value)
            levels.append(level)
    return levels
