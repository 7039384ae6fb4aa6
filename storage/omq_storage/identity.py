"""The identity of a data file: its store, its sync level, and the start of the server that wrote it last.

An operator may restore one file from a backup, or copy a file to the wrong directory.  Every checksum in such
a file is right, but its messages and ids are wrong for this store.  So the files are marked:

- A store has a random name.
- Each level has a record with this name, its own level, and a generation (``LevelIdentity``).
- The catalogue has a record with the name and the range of generations that it accepts (``Lineage``).
- Every start gives the levels the next generation.  So a file of an earlier day has a generation that is too
  low.

The catalogue and the levels are separate files, and cannot change in one transaction.  A start that changed
them one after another and was interrupted would leave a store that refuses its own files.  So it takes three
steps, and the store can be opened after each of them:

1. The catalogue accepts the new generation besides the old one.
2. Each level stores the new generation.
3. The catalogue accepts the new generation only.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from omq_storage.checksummed import verify_and_decode, with_checksum
from omq_storage.errors import DamagedFile, DamagedRecord
from omq_storage.integrity import ADVICE, DATA
from omq_storage.levels import Level
from omq_storage.pages import Pages
from omq_storage.topics import COUNTER

IDENTITY = b"identity"
"""The table of a level."""
IDENTITY_KEY = b"this"
LINEAGE_KEY = b"lineage"


@dataclass(frozen=True, slots=True)
class LevelIdentity:
    """The identity that a level records."""

    store: str
    """The random name of its store."""
    level: Level
    generation: int
    """The number of the start that wrote it."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The identities of a store and its levels, which the catalogue records."""

    store: str
    """The random name of the store."""
    since: int
    """The lowest generation that a level may have."""
    generation: int
    """The highest generation that a level may have.  The two differ during a start, and after an interrupted
    one."""
    lost: tuple[Level, ...] = ()
    """Levels that returned to a checkpoint, while the server has not yet skipped all message ids of their
    topics
    that a client may have seen."""

    @classmethod
    def new(cls) -> Self:
        """Return the record of a new store."""
        return cls(os.urandom(16).hex(), since=1, generation=1)

    def opening(self, lost: Collection[Level]) -> "Lineage":
        """Return the record for step 1 of a start: it accepts the next generation, too.

        If a start was interrupted before, this start uses the generation of that one: levels that have it
        already and levels that do not are both accepted.
        """
        generation = self.generation + 1 if self.since == self.generation else self.generation
        every = tuple(level for level in Level if level in lost or level in self.lost)
        return replace(self, generation=generation, lost=every)

    @property
    def opened(self) -> "Lineage":
        """Return the record for step 3 of a start: it accepts the new generation only."""
        return replace(self, since=self.generation)

    def identity(self, level: Level) -> LevelIdentity:
        """Return the identity that a level gets in step 2 of this start."""
        return LevelIdentity(self.store, level, self.generation)

    def objection(self, level: Level, identity: LevelIdentity | None) -> str | None:
        """Return the reason why a file with this identity is not that of a level, as a clause; None if it
        is.
        """
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
    """The identities that one level of a store may have."""

    level: Level
    lineage: Lineage

    def objection(self, identity: LevelIdentity | None) -> str | None:
        """See ``Lineage.objection``."""
        return self.lineage.objection(self.level, identity)

    def require(self, file: Path, identity: LevelIdentity | None) -> None:
        """Raise DamagedFile unless the file with this identity is that of the level."""
        objection = self.objection(identity)
        if objection is not None:
            raise DamagedFile(f"The file {file} is not the right one: {objection}; {ADVICE}.")

    def is_foreign(self, identity: LevelIdentity) -> bool:
        """Return whether this is the identity of another level or store; the generation does not matter."""
        return (identity.store, identity.level) != (self.lineage.store, self.level)


def pack_identity(identity: LevelIdentity) -> bytes:
    """Return the stored value of an identity."""
    return with_checksum(IDENTITY, IDENTITY_KEY, msgspec.msgpack.encode(identity))


def unpack_identity(key: bytes, stored: bytes) -> LevelIdentity:
    """Return the identity of a stored value.  Raises DamagedRecord."""
    return verify_and_decode(IDENTITY, key, stored, LevelIdentity, "which store and level this is")


def pack_lineage(lineage: Lineage) -> bytes:
    """Return the stored value of a lineage."""
    return with_checksum(COUNTER, LINEAGE_KEY, msgspec.msgpack.encode(lineage))


def unpack_lineage(key: bytes, stored: bytes) -> Lineage:
    """Return the lineage of a stored value.  Raises DamagedRecord."""
    return verify_and_decode(COUNTER, key, stored, Lineage, "which store this is")


def read_identity(path: Path) -> LevelIdentity | None:
    """Return the identity of the data file in this directory, or None if none can be read.

    Reads the file without LMDB, because a data file must be verified before LMDB may map it.  Raises OSError
    when the file cannot be read at all.
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
                            pass  # damaged; another page may have an intact record
    return None
