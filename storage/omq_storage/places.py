"""Files of levels that changed places, put back where they say that they belong."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from omq_storage.checkpoint import CHECKPOINT, saved_identity
from omq_storage.files import DIRECTORY_MODE, sync_directory
from omq_storage.identity import Identity, read_identity
from omq_storage.levels import Level
from omq_storage.soundness import DATA

_MOVED = ".moved"

_SAID: dict[str, Callable[[Path], Identity | None]] = {DATA: read_identity, CHECKPOINT: saved_identity}
"""The files of a level, and what they say of themselves, by their directory."""


def put_in_place(path: Path, store: str) -> list[str]:
    """Moves files of levels of this store, see ``Identity.store``, to where they belong; a sentence each.

    Only where nothing is in the way but files that are moved too.  A move that is cut short is completed by
    ``finish_moves``.  OSError when the disk fails.
    """
    told = []
    for name, said in _SAID.items():
        owners = {}
        for level in Level:
            identity = said(path / level.value)
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
            _set_down(path, name, level, owner)
            told.append(f"The file {name} of {level.value} was put into {owner.value}, where it belongs.")
        _pick_up(path, name)
    return told


def finish_moves(path: Path) -> list[str]:
    """Completes what was cut short of ``put_in_place``; sentences.  OSError when the disk fails."""
    told = []
    for name, said in _SAID.items():
        for _ in Level:  # each may free the place of another one
            for level in Level:
                directory = path / level.value
                if not (directory / (name + _MOVED)).exists() or not (directory / name).exists():
                    continue
                identity = said(directory)
                if identity is None or identity.level is level:
                    continue
                if not (path / identity.level.value / (name + _MOVED)).exists():
                    _set_down(path, name, level, identity.level)
        told += [
            f"The file {name} was put into {level.value}, where it belongs." for level in _pick_up(path, name)
        ]
    return told


def _set_down(path: Path, name: str, level: Level, owner: Level) -> None:
    """Moves a file to the directory where it belongs, beside the one that may still be there."""
    (path / owner.value).mkdir(DIRECTORY_MODE, exist_ok=True)
    (path / level.value / name).rename(path / owner.value / (name + _MOVED))
    sync_directory(path / owner.value)
    sync_directory(path / level.value)


def _pick_up(path: Path, name: str) -> list[Level]:
    """Gives the moved files their names, where these are free now; in which levels."""
    levels = []
    for level in Level:
        moved = path / level.value / (name + _MOVED)
        if moved.exists() and not (path / level.value / name).exists():
            moved.rename(path / level.value / name)
            sync_directory(path / level.value)
            levels.append(level)
    return levels
