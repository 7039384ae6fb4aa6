"""Checkpoints: how an environment that does not sync its commits survives a power failure.

See docs/RELIABILITY.md, "The promises".

Without a sync at every commit LMDB writes new pages, and reuses old ones, in any order the kernel likes;
after a power failure the file can hold any mixture.  A checkpoint makes one state safe from that:

1. A read transaction is held on the state after the last commit, and the file is synced.  LMDB never reuses a
page
   that a held state needs, so from then on every page of it stays on disk as it is.
2. The first two pages of the file, from which LMDB finds all others, are the only ones it writes over.  They
are
   saved in a file of their own, ``checkpoint``, together with the id of this start of the machine.
3. Then the state of the checkpoint before is let go.

When the environment is opened under another boot id and was not closed cleanly, the saved pages are put back,
and the environment is exactly what it was at that checkpoint.  The same where the file system was mounted
again meanwhile, see ``omq_storage.mounts``.  Else only the process died: the kernel still has everything that
was written, and nothing needs to be done.

A checkpoint says which store and level it is of, see ``omq_storage.identity``: the saved pages, written into
another file, would destroy it.

The file has two slots, written in turn, each with a checksum: a write that a power failure cut short leaves
the other one.  A slot, numbers big-endian::

    8 octets  "omqcheck"
    u32       CRC-32C of all that follows
    u32       length of the description
    u32       length of the pages
    u64       sequence number; the higher one counts
    description (JSON), pages
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from threading import Lock

from crc32c import crc32c

from omq_storage.database import Database, Snapshot
from omq_storage.errors import DamagedFile, StoreError, StoreFailed
from omq_storage.files import write_durably
from omq_storage.identity import Expected, Identity, read_identity
from omq_storage.levels import Level
from omq_storage.mounts import UNKNOWN, is_same, mounting
from omq_storage.soundness import ADVICE, DATA

_MAGIC = b"omqcheck"
_START = Struct(">8sI")
_REST = Struct(">IIQ")
_SLOT = 80 << 10  # the largest page LMDB uses has 32 KiB; a whole number of disk pages
CHECKPOINT = "checkpoint"
_NO_BOOT = ""

_MOST_HELD = 8
"""How many states are held while the checkpoint file cannot be written: each takes one of LMDB's places for
readers."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What ``recover`` found and did, and whether messages that someone may have seen could be gone."""

    what: str
    rolled_back: bool


@dataclass(frozen=True, slots=True)
class _Slot:
    """One saved checkpoint.  A boot id of no characters is unlike any other: always put the pages back."""

    sequence: int
    boot_id: str
    transaction: int
    clean: bool
    pages: bytes
    mount: str = UNKNOWN
    identity: Identity | None = None
    """What the saved state says of itself; None where an earlier version has saved it."""


def recover(path: Path, boot_id: str, expected: Expected | None = None) -> Recovered:
    """Puts the environment in this directory back to its last checkpoint if need be; before it is opened.

    Can be interrupted at any moment and done again.  ``expected``: what it has to say of itself, None where
    that cannot be known.

    Raises DamagedFile when the checkpoint or the data file belongs elsewhere; then nothing was changed.
    OSError when the disk fails.
    """
    data = path / DATA
    newest = _read(path)
    if not data.exists():
        return Recovered("It is new.", rolled_back=False)
    if newest is None:
        # It may be any mixture of pages.  Whether it can be used is for ``omq_storage.soundness`` to say.
        return Recovered(
            f"The file {path / CHECKPOINT} is gone or damaged; after a power failure newer messages could be "
            "missing.",
            rolled_back=True,
        )
    if expected is not None:
        objection = expected.objection(newest.identity)
        if objection is not None:
            raise DamagedFile(f"The file {path / CHECKPOINT} is not the right one: {objection}; {ADVICE}.")
    if newest.clean:
        return Recovered("It was closed cleanly.", rolled_back=False)
    if newest.boot_id != boot_id:
        happened = "The machine ended without closing it"
    elif not is_same(newest.mount, mounting(path)):
        happened = "Its file system was mounted again, and it had not been closed"
    else:
        return Recovered(
            "The process ended, the machine did not; everything written is there.", rolled_back=False
        )
    if expected is not None:
        # The generation is not looked at: the file may hold pages of any time.
        own = read_identity(path)
        if own is not None and expected.is_foreign(own):
            objection = expected.objection(own)
            raise DamagedFile(f"The file {data} is not the right one: {objection}; {ADVICE}.")
    descriptor = os.open(data, os.O_WRONLY)
    try:
        os.pwrite(descriptor, newest.pages, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Recovered(
        f"{happened}; it is back at its last checkpoint, of transaction {newest.transaction}.",
        rolled_back=True,
    )


def needs_recovery(path: Path, boot_id: str) -> bool:
    """Whether ``recover`` would have to put the environment in this directory back before it may be opened.

    OSError when the checkpoint file cannot be read.
    """
    newest = _read(path)
    if newest is None:
        return True
    same = newest.boot_id == boot_id and is_same(newest.mount, mounting(path))
    return not newest.clean and not same


def saved_identity(path: Path) -> Identity | None:
    """What the newest checkpoint in this directory says of itself, None when there is none that does.

    OSError when the checkpoint file cannot be read.
    """
    newest = _read(path)
    return None if newest is None else newest.identity


class Checkpoints:
    """Takes the checkpoints of one open environment.  The first is taken at once, before any write."""

    def __init__(self, database: Database, boot_id: str, identity: Identity | None) -> None:
        """``identity``: what the environment says of itself.

        Raises StoreError, and OSError when the checkpoint file cannot be read.
        """
        self._database = database
        self._boot_id = boot_id
        self._mount = mounting(database.path)
        self._identity = identity
        self._taking = Lock()
        self._held: list[Snapshot] = []
        self._is_held = False  # the state that a start would go back to
        self._refusal: str | None = None
        newest = _read(database.path)
        self._sequence = 0 if newest is None else newest.sequence
        self._safe = newest
        self._file = os.open(database.path / CHECKPOINT, os.O_RDWR)
        with self._taking:
            self._take(clean=False)

    @property
    def durable(self) -> int:
        """Number of the last transaction that would survive a power failure."""
        return -1 if self._safe is None else self._safe.transaction

    def take(self, clean: bool = False) -> None:
        """Makes everything committed so far survive a power failure; others write meanwhile.

        ``clean``: nothing will be written after it.  Without anything new since the last one nothing is done.

        Raises StoreFailed when the disk refused to sync.  What was refused may still seem to be there, but
        cannot be made safe any more by trying again: the kernel reports such a failure only once.  So nothing
        more is written, and the next start goes back to the checkpoint before.
        """
        with self._taking:
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            if clean or self._database.room().transaction != self.durable:
                self._take(clean)

    def identify(self, identity: Identity) -> None:
        """Takes a checkpoint of an environment that says this of itself now.  Raises as ``take`` does.

        It goes into both slots, so that no start goes back to one that says something else.
        """
        with self._taking:
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            self._identity = identity
            self._take(clean=False, both=True)

    def renew(self, growth: int = 0) -> None:
        """Opens the environment anew; nothing may be written meanwhile.  See Database.reopen."""
        with self._taking:
            self._is_held = False
            self._held.clear()
            self._database.reopen(growth)
            self._take(clean=False)

    def require_held(self) -> None:
        """Call it before every write.  Raises StoreError when that could take pages of the last checkpoint.

        Opening the environment anew lets go of the state that was held.  Where no checkpoint could be taken
        after it, a start goes back to the one before, whose pages nothing keeps from being written over.  So
        a checkpoint is tried again first, and as long as that fails nothing is written.
        """
        if self._is_held:
            return  # the usual case, in which no write waits for a checkpoint that is being taken
        with self._taking:
            if not self._is_held and self._refusal is None:
                self._take(clean=False)

    def close(self) -> None:
        """Gives the checkpoint file back; the database is closed by its owner, which lets the state go."""
        with self._taking:
            self._held.clear()
            os.close(self._file)

    def _take(self, clean: bool, both: bool = False) -> None:
        # Only when the new state is safe may an older one be let go.  Until a checkpoint file was written
        # without error it is unknown which one a start would find there, so every one held so far is kept.
        # When they are many, the newest of them is tried again.
        if clean or both or len(self._held) < _MOST_HELD:
            self._held.append(self._database.hold())
        snapshot = self._held[-1]
        try:
            self._database.sync()
        except StoreError as error:
            self._give_up(error)
        # At the end it goes into both slots: damage to one would else take back the last interval.
        for _ in range(2 if clean or both else 1):
            self._write(
                _Slot(
                    self._sequence + 1,
                    self._boot_id,
                    snapshot.number,
                    clean,
                    snapshot.head,
                    self._mount,
                    self._identity,
                )
            )
        for old in self._held[:-1]:
            old.release()
        del self._held[:-1]
        self._is_held = True

    def _give_up(self, error: StoreError) -> None:
        sentence = (
            f"The disk refused to make {self._database.path} durable, so nothing more is written there; "
            "the next start goes back to the last checkpoint."
        )
        self._refusal = sentence
        self._database.refuse(sentence)
        if self._safe is not None:
            try:
                self._write(replace(self._safe, sequence=self._sequence + 1, boot_id=_NO_BOOT, clean=False))
            except StoreError as second:
                raise StoreFailed(f"{sentence}  That could not even be noted: {second}") from error
        raise StoreFailed(sentence) from error

    def _write(self, slot: _Slot) -> None:
        """Writes the slot that is not the newest; StoreError when the disk refuses."""
        try:
            os.pwrite(self._file, _encode(slot), slot.sequence % 2 * _SLOT)
            os.fdatasync(self._file)
        except OSError as error:
            sentence = f"The checkpoint of {self._database.path} could not be written: {error}."
            raise StoreError(sentence) from error
        self._sequence = slot.sequence
        self._safe = slot


def is_readable(path: Path) -> bool:
    """Whether the checkpoint file is there and has a good checkpoint.  OSError when it cannot be read."""
    return _read(path) is not None


def prepare(path: Path) -> None:
    """Makes the checkpoint file, if there is none, before the environment.  OSError when that fails."""
    if not (path / CHECKPOINT).exists():
        write_durably(path / CHECKPOINT, bytes(2 * _SLOT))


def _read(path: Path) -> _Slot | None:
    """The newest good checkpoint, None when there is none."""
    try:
        content = (path / CHECKPOINT).read_bytes()
    except FileNotFoundError:
        return None
    slots = [_decode(content[begin : begin + _SLOT]) for begin in (0, _SLOT)]
    good = [slot for slot in slots if slot is not None]
    return max(good, key=lambda slot: slot.sequence, default=None)


def _encode(slot: _Slot) -> bytes:
    described: dict[str, object] = {
        "boot_id": slot.boot_id,
        "transaction": slot.transaction,
        "clean": slot.clean,
        "mount": slot.mount,
    }
    if slot.identity is not None:
        described["store"] = slot.identity.store
        described["level"] = slot.identity.level.value
        described["generation"] = slot.identity.generation
    description = json.dumps(described).encode()
    rest = _REST.pack(len(description), len(slot.pages), slot.sequence) + description + slot.pages
    return _START.pack(_MAGIC, crc32c(rest)) + rest


def _decode(octets: bytes) -> _Slot | None:
    """The checkpoint in one slot, None when it is empty or damaged."""
    if len(octets) < _START.size + _REST.size:
        return None
    magic, checksum = _START.unpack_from(octets)
    described, paged, sequence = _REST.unpack_from(octets, _START.size)
    begin = _START.size + _REST.size
    end = begin + described + paged
    if magic != _MAGIC or end > len(octets) or crc32c(octets[_START.size : end]) != checksum:
        return None
    description = json.loads(octets[begin : begin + described])
    return _Slot(
        sequence=sequence,
        boot_id=description["boot_id"],
        transaction=description["transaction"],
        clean=description["clean"],
        pages=octets[end - paged : end],
        mount=description.get("mount", UNKNOWN),
        identity=Identity(description["store"], Level(description["level"]), description["generation"])
        if "store" in description
        else None,
    )
