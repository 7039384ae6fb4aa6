"""Checkpoints: how an environment that does not sync its commits survives a power failure.

See docs/RELIABILITY.md, "The promises".

Why they are needed.  Without a sync at every commit, the kernel writes the pages of many commits to the disk
in any order.  After a power failure the file may hold any mixture of old and new pages, and the meta page may
lead to pages that were never written.  LMDB cannot detect that.

Why saving two pages is enough.  LMDB is copy-on-write: a commit never overwrites a page of the state before
it, and never one that an open read transaction can see.  The only exception are the two meta pages at the
beginning of the file, which commits overwrite in turn; LMDB finds every other page from them.  So a state can
be restored when its pages are on the disk, are kept from being reused, and its meta pages are saved
elsewhere:

1. Begin a read transaction on the state after the last commit and copy the meta pages
   (``Database.snapshot``). From now on LMDB reuses no page of this state.
2. Sync the data file.  Now all pages of the state are on the disk.
3. Write the copied meta pages to a file of their own, ``checkpoint``, with the boot id of the machine, and
   sync it.  From now on a power failure leads back to this state.
4. End the read transaction of the previous checkpoint, so that LMDB can reuse its pages.  This step must be
   the last one: until step 3 is done, a power failure still leads back to the previous state.

Opening.  If the boot id differs and the environment was not closed cleanly, ``recover`` writes the saved meta
pages back, and the environment has exactly the state of that checkpoint.  It does the same when the file
system was mounted again meanwhile, see ``omq_storage.mounts``.  Otherwise only the process ended: the kernel
still has everything that was written, and nothing must be done.

A checkpoint names the store and the level to which it belongs, see ``omq_storage.identity``: meta pages that
were written into another data file would destroy it.

The file has two slots, written in turn, each with a checksum.  A power failure during a write leaves the
other slot intact.  The layout of a slot, with big-endian numbers::

    8 octets  "omqcheck"
    u32       CRC-32C of all that follows
    u32       length of the description
    u32       length of the pages
    u64       sequence number; the higher one counts
    description (JSON), pages
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from threading import Lock

from omq_storage.crc import crc32c
from omq_storage.database import Database, Snapshot
from omq_storage.errors import StoreError, StoreFailed
from omq_storage.files import write_durably
from omq_storage.identity import Expected, LevelIdentity, read_identity
from omq_storage.integrity import DATA
from omq_storage.journal import require_files, sizes
from omq_storage.levels import Level
from omq_storage.mounts import UNKNOWN, is_same_mount, mount_id
from omq_storage.pages import Pages

_MAGIC = b"omqcheck"
_START = Struct(">8sI")
_REST = Struct(">IIQ")
_SLOT = 80 << 10  # the largest page LMDB uses has 32 KiB; a whole number of disk pages
CHECKPOINT = "checkpoint"
_NO_BOOT = ""

_MOST_HELD = 8
"""The greatest number of snapshots that are held while the checkpoint file cannot be written.  Each takes a
reader slot.
"""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of ``recover``."""

    what: str
    """One sentence for an operator."""
    rolled_back: bool
    """Whether messages that a client may have seen could be lost, unless a journal has them."""
    is_restored: bool = False
    """Whether it is back at its last checkpoint."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """One saved checkpoint.  An empty boot id equals no other one: the pages are then always written back."""

    sequence: int
    boot_id: str
    transaction: int
    clean: bool
    pages: bytes
    mount: str = UNKNOWN
    identity: LevelIdentity | None = None
    """The identity in the saved state; None if an earlier version saved it."""
    journals: Mapping[str, int] = field(default_factory=dict)
    """The octets of each file of the journal; nothing if an earlier version saved it."""


def recover(path: Path, boot_id: str, expected: Expected | None = None) -> Recovered:
    """Restore the environment in this directory to its last checkpoint if a power failure requires it.

    Call it before the environment is opened.  It may be interrupted at any moment and called again.
    ``expected``: the identity that the environment must have; None if it is unknown.

    Raises DamagedFile when the checkpoint or the data file belongs to another store or level, or a file of
    the journal, which may have later commits, is missing or too short; then nothing was changed.  Raises
    OSError when the disk fails.
    """
    data = path / DATA
    newest = _read(path)
    if not data.exists():
        return Recovered("It is new.", rolled_back=False)
    if newest is None:
        # The file may be any mixture of pages. ``omq_storage.integrity`` decides whether it can be used.
        return Recovered(
            f"The file {path / CHECKPOINT} is gone or damaged; after a power failure newer messages could be "
            "missing.",
            rolled_back=True,
        )
    if expected is not None:
        expected.require(path / CHECKPOINT, newest.identity)
    if newest.clean:
        return Recovered("It was closed cleanly.", rolled_back=False)
    if newest.boot_id != boot_id:
        happened = "The machine ended without closing it"
    elif not is_same_mount(newest.mount, mount_id(path)):
        happened = "Its file system was mounted again, and it had not been closed"
    else:
        return Recovered(
            "The process ended, the machine did not; everything written is there.", rolled_back=False
        )
    if expected is not None:
        # Only store and level are compared. The generation says nothing here: before the meta pages are
        # restored, they may lead to a page of any age.
        own = read_identity(path)
        if own is not None and expected.is_foreign(own):
            expected.require(data, own)
    require_files(path, newest.journals)
    descriptor = os.open(data, os.O_WRONLY)
    try:
        os.pwrite(descriptor, newest.pages, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return Recovered(
        f"{happened}; it is back at its last checkpoint, of transaction {newest.transaction}.",
        rolled_back=True,
        is_restored=True,
    )


def needs_recovery(path: Path, boot_id: str) -> bool:
    """Return whether ``recover`` would restore the environment in this directory to its last checkpoint.

    Raises OSError when the checkpoint file cannot be read.
    """
    newest = _read(path)
    if newest is None:
        return True
    same = newest.boot_id == boot_id and is_same_mount(newest.mount, mount_id(path))
    return not newest.clean and not same


def saved_identity(path: Path) -> LevelIdentity | None:
    """Return the identity in the newest checkpoint of this directory, or None.

    Raises OSError when the checkpoint file cannot be read.
    """
    newest = _read(path)
    return None if newest is None else newest.identity


class Checkpoints:
    """Takes the checkpoints of one open environment.  It takes the first one at once, before any write."""

    def __init__(self, database: Database, boot_id: str, identity: LevelIdentity | None) -> None:
        """Take a first checkpoint. ``boot_id``: names this start of the machine. ``identity``: that of the
        environment, if it has one.

        Raises StoreError, and OSError when the checkpoint file cannot be read.
        """
        self._database = database
        self._boot_id = boot_id
        self._mount = mount_id(database.path)
        self._identity = identity
        self._taking = Lock()
        self._held: list[Snapshot] = []
        self.is_held = False
        """Whether a snapshot keeps the pages of the newest checkpoint.  A write while it is False must call
        ``hold`` first.  It is read without the lock, so that no write waits for a running checkpoint.
        """
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

    @property
    def journals(self) -> Mapping[str, int]:
        """The octets of each file of the journal that the last checkpoint has, by name."""
        return {} if self._safe is None else self._safe.journals

    def take(self, clean: bool = False) -> None:
        """Make all commits so far survive a power failure.  Other threads may write meanwhile.

        ``clean``: no write follows.  Does nothing if there was no commit since the last checkpoint.

        Raises StoreFailed when the disk refuses to sync.  A second attempt could not help: after a failed
        fsync the kernel may drop the pages it could not write and report success the next time.  So this
        environment refuses all further writes, and the next start returns to the previous checkpoint.
        """
        with self._taking:
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            if clean or self._database.room().transaction != self.durable:
                self._take(clean)

    def identify(self, identity: LevelIdentity) -> None:
        """Take a checkpoint of an environment whose identity has changed.  Raises what ``take`` raises.

        The checkpoint goes into both slots, so that no start returns to one with the previous identity.
        """
        with self._taking:
            if self._refusal is not None:
                raise StoreFailed(self._refusal)
            self._identity = identity
            self._take(clean=False, both=True)

    def renew(self, growth: int = 0) -> None:
        """Close and open the environment, see Database.reopen.  No thread may write meanwhile."""
        with self._taking:
            self.is_held = False
            self._held.clear()
            self._database.reopen(growth)
            self._take(clean=False)

    def hold(self) -> None:
        """Take a checkpoint if a write could reuse pages of the last one.  Raises StoreError if that fails.

        ``renew`` ends all snapshots.  If it could not take a checkpoint afterwards, the next start still
        returns to the previous one, and nothing keeps LMDB from reusing the pages of that state.
        """
        with self._taking:
            if not self.is_held and self._refusal is None:
                self._take(clean=False)

    def close(self) -> None:
        """Close the checkpoint file.  The owner of the database closes that, which ends the snapshots."""
        with self._taking:
            self._held.clear()
            os.close(self._file)

    def _take(self, clean: bool, both: bool = False) -> None:
        # A failed write of the checkpoint file leaves it unknown which of the held states a start would find
        # there. So all of them are kept until a write succeeds. When they are many, no further snapshot is
        # made, and the newest is tried again.
        if clean or both or len(self._held) < _MOST_HELD:
            self._held.append(self._database.snapshot())
        snapshot = self._held[-1]
        try:
            self._database.sync()
        except StoreError as error:
            self._give_up(error)
        journals = self._journals()
        # A clean end writes both slots. With only one, damage to it would return the next start to the
        # checkpoint before, although everything was closed in order.
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
                    journals,
                )
            )
        for old in self._held[:-1]:
            old.release()
        del self._held[:-1]
        self.is_held = True

    def _journals(self) -> dict[str, int]:
        try:
            return sizes(self._database.path)
        except OSError as error:
            sentence = f"The journal of {self._database.path} could not be found: {error}."
            raise StoreError(sentence) from error

    def _give_up(self, error: StoreError) -> None:
        sentence = (
            f"The disk refused to make {self._database.path} durable, so nothing more is written there; "
            "the next start goes back to the last checkpoint."
        )
        self._refusal = sentence
        self._database.refuse_writes(sentence)
        if self._safe is not None:
            try:
                self._write(replace(self._safe, sequence=self._sequence + 1, boot_id=_NO_BOOT, clean=False))
            except StoreError as second:
                raise StoreFailed(f"{sentence}  That could not even be noted: {second}") from error
        raise StoreFailed(sentence) from error

    def _write(self, slot: _Slot) -> None:
        """Overwrite the older slot.  Raises StoreError when the disk refuses."""
        try:
            os.pwrite(self._file, _encode(slot), slot.sequence % 2 * _SLOT)
            os.fdatasync(self._file)
        except OSError as error:
            sentence = f"The checkpoint of {self._database.path} could not be written: {error}."
            raise StoreError(sentence) from error
        self._sequence = slot.sequence
        self._safe = slot


def is_readable(path: Path) -> bool:
    """Return whether the file exists and has an intact checkpoint.  Raises OSError when it cannot be read."""
    return _read(path) is not None


def prepare(path: Path) -> None:
    """Create the checkpoint file if it is missing; call it before the environment is created.  Raises
    OSError.
    """
    if not (path / CHECKPOINT).exists():
        write_durably(path / CHECKPOINT, bytes(2 * _SLOT))


def begin_checkpoints(path: Path, identity: LevelIdentity) -> None:
    """Create the checkpoint file of an environment whose commits were all synced, and which is closed.

    Raises OSError.
    """
    with Pages(path / DATA) as pages:
        newest = pages.newest
    with (path / DATA).open("rb") as file:
        head = file.read(2 * newest.page_size)
    slot = _Slot(1, _NO_BOOT, newest.transaction, clean=True, pages=head, identity=identity)
    content = bytes(_SLOT) + _encode(slot)  # the slot of an odd number
    write_durably(path / CHECKPOINT, content + bytes(2 * _SLOT - len(content)))


def _read(path: Path) -> _Slot | None:
    """Return the newest intact checkpoint, or None."""
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
        "journals": dict(slot.journals),
    }
    if slot.identity is not None:
        described["store"] = slot.identity.store
        described["level"] = slot.identity.level.value
        described["generation"] = slot.identity.generation
    description = json.dumps(described).encode()
    rest = _REST.pack(len(description), len(slot.pages), slot.sequence) + description + slot.pages
    return _START.pack(_MAGIC, crc32c(rest)) + rest


def _decode(octets: bytes) -> _Slot | None:
    """Return the checkpoint in one slot; None if the slot is empty or damaged."""
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
        identity=LevelIdentity(description["store"], Level(description["level"]), description["generation"])
        if "store" in description
        else None,
        journals=description.get("journals", {}),
    )
