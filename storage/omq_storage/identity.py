"""Which store and level a data file belongs to, and since which start.

A store has a random name.  Each of its levels carries that name, its own level and a generation, in a table
of one record.  The catalogue carries the name too, and the generations that the levels may have.  Every start
gives the levels the next generation.  So a file in the place of another level, of another store, or of an
earlier day does not go unnoticed: its content is well formed, and its messages and ids would be wrong.

The levels and the catalogue are files of their own, which cannot change in one transaction.  So a start first
lets the catalogue accept the new generation besides the old one, then writes it into each level, and then
lets the catalogue accept the new one only.  It can be interrupted anywhere.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from omq_storage.errors import DamagedRecord
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.sealed import seal, unseal
from omq_storage.soundness import DATA

IDENTITY = b"identity"
"""The table of a level."""
IDENTITY_KEY = b"this"
_CATALOGUE_TABLE = b"counter"
LINEAGE_KEY = b"lineage"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a level says of itself."""

    store: str
    """The random name of its store."""
    level: Level
    generation: int
    """The number of the start that wrote it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the catalogue knows of its store."""

    store: str
    since: int
    """The lowest generation that a level may have,"""
    generation: int
    """and the highest one.  They differ while a start goes on, and after one that was interrupted."""
    lost: tuple[Level, ...] = ()
    """Levels that went back to a checkpoint, and of whose topics not all ids that may have been seen were
    skipped yet."""

    @classmethod
    def new(cls) -> Self:
        """That of a store that begins."""
        return cls(os.urandom(16).hex(), since=1, generation=1)

    def opening(self, lost: Collection[Level]) -> "Lineage":
        """That of a start that goes on: besides what was accepted, the next generation is."""
        generation = self.generation + 1 if self.since == self.generation else self.generation
        every = tuple(level for level in Level if level in lost or level in self.lost)
        return replace(self, generation=generation, lost=every)

    @property
    def opened(self) -> "Lineage":
        """That of a start that has given its generation to all levels."""
        return replace(self, since=self.generation)

    def identity(self, level: Level) -> Identity:
        """What a level has to say of itself after this start."""
        return Identity(self.store, level, self.generation)

    def objection(self, level: Level, identity: Identity | None) -> str | None:
        """Why a file that says this of itself is not the one of a level, a clause; None when it is."""
        if identity is None:
            return "it does not say which store and level it belongs to"
        if identity.store != self.store:
            return "it belongs to another store"
        if identity.level is not level:
            return f"it belongs to the level {identity.level.value}"
        if identity.generation < self.since:
            return (
                f"it is older than the rest of the store: it is of start {identity.generation}, "
                f"and start {self.since} has changed it since"
            )
        if identity.generation > self.generation:
            return (
                f"it is newer than the catalogue: it is of start {identity.generation}, "
                f"and the catalogue is of start {self.generation}"
            )
        return None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a level of a store has to say of itself."""

    level: Level
    lineage: Lineage

    def objection(self, identity: Identity | None) -> str | None:
        """See ``Lineage.objection``."""
        return self.lineage.objection(self.level, identity)

    def is_foreign(self, identity: Identity) -> bool:
        """Whether what says this of itself is of another level or store, whatever its generation."""
        return (identity.store, identity.level) != (self.lineage.store, self.level)


def pack_identity(identity: Identity) -> bytes:
    """The stored record."""
    return seal(IDENTITY, IDENTITY_KEY, msgspec.msgpack.encode(identity))


def unpack_identity(key: bytes, sealed: bytes) -> Identity:
    """What a level says of itself.  Raises DamagedRecord."""
    record = unseal(IDENTITY, key, sealed, "which store and level this is")
    try:
        return msgspec.msgpack.decode(record, type=Identity)
    except msgspec.DecodeError as error:
        raise DamagedRecord(
            f"The record of which store and level this is cannot be read: {error}."
        ) from error


def pack_lineage(lineage: Lineage) -> bytes:
    """The stored record."""
    return seal(_CATALOGUE_TABLE, LINEAGE_KEY, msgspec.msgpack.encode(lineage))


def unpack_lineage(key: bytes, sealed: bytes) -> Lineage:
    """What the catalogue knows of its store.  Raises DamagedRecord."""
    record = unseal(_CATALOGUE_TABLE, key, sealed, "which store this is")
    try:
        return msgspec.msgpack.decode(record, type=Lineage)
    except msgspec.DecodeError as error:
        raise DamagedRecord(f"The record of which store this is cannot be read: {error}.") from error


def read_identity(path: Path) -> Identity | None:
    """What the data file in this directory says of itself, read without LMDB; None when it cannot be told.

    OSError when the file cannot be read at all.
    """
    try:
        pages = Pages(path / DATA)
    except FileNotFoundError:
        return None
    with pages:
        if not pages.metas:
            return None
        seen: set[int] = set()
        for _, tables in pages.leaves(pages.newest.main_root, seen):
            for table in tables:
                if table.key != IDENTITY or table.tree is None:
                    continue
                for _, entries in pages.leaves(table.tree, seen):
                    for entry in entries:
                        try:
                            return unpack_identity(entry.key, entry.value)
                        except DamagedRecord:
                            pass  # it tells nothing, and the next may
    return None
