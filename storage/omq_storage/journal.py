"""The journal of the level Strong: with it, one flush of the disk makes a small commit durable.

See docs/RELIABILITY.md, "The promises".

Why it is needed.  A commit that LMDB makes durable by itself takes two flushes, one after the other: of the
pages that it wrote, and then of the meta page that leads to them.  So Strong does not sync its commits, and
has checkpoints like Weak and Async (``omq_storage.checkpoint``).  The journal has what changed since the last
one:

1. A write transaction makes its changes, and is not committed yet.
2. ``write`` puts a record with these changes into the journal.  When it returns, they survive a power
   failure.
3. LMDB commits.  Only now can readers see the changes.  If the commit fails, ``retract`` erases the record.

Why this is one flush.  The records overwrite a file whose blocks have all been written before, so the file
system has nothing to change but the octets themselves.

The records go to two files in turn.  When one is full, the other one begins again at its start, and a
checkpoint is due (``Journal.is_checkpoint_due``), which somebody takes while commits continue.  The full file
is free when a checkpoint has all of its commits.  If the other one is full before that, the next commit takes
a checkpoint itself, as do commits that are too large for a record.

Why a missing file is noticed.  A checkpoint has the sizes of the files, and a record goes only to a file
that the last checkpoint has.  So after a power failure ``recover`` finds that a file is missing, or shorter
than it was.

Opening.  ``recover`` of ``omq_storage.checkpoint`` restores the last checkpoint, if that is necessary.  Then
``records_after`` returns what was committed since, and the environment makes these changes again, each record
in a transaction of its own.  A record names its transaction.  So those that the environment has are left out:
after a killed process it has all, except perhaps the last one, which nobody was told of.

Why no old record is taken for a new one.  The files are not erased when they begin again, so behind the
newest record is an older one, or a part of one.  It is not of a later transaction, because all records of a
start of the server have different transactions, and later ones are written later.  And it is not of another
start of the server, because each record has the identity of its environment, which every start changes.

The layout of a record, at a multiple of 4,096 octets, so that no write touches the sectors of the record
before it, with big-endian numbers::

    8 octets  "omqjrnal"
    u32       CRC-32C of all that follows
    u32       length of all that follows
    u64       number of the transaction
    u16       length of the identity
    identity (see ``omq_storage.identity``), changes

A change is a byte, 1 for a put and 0 for a deletion, then the length of the table's name (u8), that of the
key (u16) and that of the value (u32), and then the three.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError

from omq_storage.crc import crc32c
from omq_storage.database import StoredChange
from omq_storage.errors import DamagedFile, DamagedRecord, StoreError
from omq_storage.files import create, sync_directory
from omq_storage.identity import IDENTITY_KEY, LevelIdentity, pack_identity, read_identity, unpack_identity
from omq_storage.integrity import ADVICE, DATA
from omq_storage.pages import Pages

JOURNALS = ("journal-1", "journal-2")

_MAGIC = b"omqjrnal"
_START = Struct(">8sI")
_REST = Struct(">IQH")
_CHANGE = Struct(">BBHI")
_ALIGNMENT = 4096

MOST_RECORDS = 256
"""The number of records of a file after which a checkpoint is due: until then LMDB cannot reuse the pages of
the last one, and the data file grows.
"""

SMALLEST = MOST_RECORDS * _ALIGNMENT
LARGEST = 2 << 20
"""The octets of a file at first, and at most.  It doubles when it was full before it had ``MOST_RECORDS``.
"""


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """A commit that the journal has."""

    transaction: int
    identity: LevelIdentity | None
    """The identity of the environment at that time; None if it had none."""
    changes: Sequence[StoredChange]
    octets: int
    """The octets that it takes in the file."""


class _File:
    """One of the two files."""

    last: int
    """The transaction of its newest record of this start; -1 if it has none."""

    def __init__(self, path: Path) -> None:
        """Open the file if it exists.  The first record creates it.  Raises OSError."""
        self.path = path
        self.last = -1
        self._file: int | None = None
        self._size = 0
        self._next = 0  # where the next record begins
        self._records = 0
        self._is_small = False  # whether it was full before it had MOST_RECORDS
        if path.exists():
            self._file = os.open(path, os.O_WRONLY)
            self._size = os.fstat(self._file).st_size

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def begin(self) -> None:
        """Begin again at the start.  None of the records is needed any more."""
        self._next = self._records = 0
        if self._is_small or not self.exists:
            self._grow()

    def has_room(self, octets: int) -> bool:
        """Return whether a record of this size can be written."""
        return self._file is not None and self._records < MOST_RECORDS and self._next + octets <= self._size

    def end(self) -> None:
        """Note that a record did not fit."""
        self._is_small = self._records < MOST_RECORDS

    def write(self, record: bytes) -> None:
        """Write a record, durably.  Raises OSError."""
        assert self._file is not None, "there is room"
        if os.pwrite(self._file, record, self._next) != len(record):
            raise OSError("not all of it was written")
        os.fdatasync(self._file)

    def keep(self, transaction: int, octets: int) -> None:
        """Keep the record that was written last."""
        self.last = transaction
        self._next += octets
        self._records += 1

    def retract(self) -> None:
        """Erase the record that was written last.  Raises OSError."""
        assert self._file is not None, "a record was written"
        os.pwrite(self._file, bytes(_START.size), self._next)
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._size = 0

    def _grow(self) -> None:
        """Create the file, or double it.

        No failure is reported: without a file, or with a small one, commits take checkpoints instead, which
        report what is wrong with the disk.
        """
        self._is_small = False
        size = min(LARGEST, max(SMALLEST, 2 * self._size))
        if size == self._size:
            return
        fresh_path = self.path.with_name(self.path.name + ".new")
        try:
            fresh = create(fresh_path)
        except OSError:
            return
        try:
            fresh.write(bytes(size))
            fresh.flush()
            os.fsync(fresh.fileno())
        except OSError:
            fresh_path.unlink(missing_ok=True)
            return
        else:
            descriptor = os.dup(fresh.fileno())
        finally:
            fresh.close()
        # From here on the old file may not be what the next start finds.
        self.close()
        try:
            fresh_path.replace(self.path)
            sync_directory(self.path.parent)
        except OSError:
            os.close(descriptor)
            return
        self._file, self._size = descriptor, size


class Journal:
    """The journal of one open environment.  The owner makes sure that one call runs at a time."""

    def __init__(
        self,
        path: Path,
        identity: LevelIdentity | None,
        durable: int,
        recorded: Mapping[str, int],
    ) -> None:
        """Open the journal in this directory.

        ``identity``: that of the environment.  The last checkpoint must have all commits so far;
        ``durable`` and ``recorded``: see ``checkpointed``.  Raises OSError.
        """
        self._identity = b"" if identity is None else pack_identity(identity)
        self._durable = durable
        self._recorded = recorded
        self._files = [_File(path / name) for name in JOURNALS]
        self._written: tuple[int, int] | None = None

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a checkpoint would free a file that is full."""
        return self._files[1].last > self._durable

    def checkpointed(self, durable: int, recorded: Mapping[str, int]) -> None:
        """Note a checkpoint: its transaction, and the files of the journal that it has, see ``sizes``."""
        self._durable = durable
        self._recorded = recorded

    def identify(self, identity: LevelIdentity) -> None:
        """Write this identity into all further records."""
        self._identity = pack_identity(identity)

    def write(self, transaction: int, changes: Sequence[StoredChange]) -> bool:
        """Make the changes of this transaction durable.  Return False, and write nothing, if they do not fit,
        or if the file for them is new: it can be used after the next checkpoint.

        Call ``keep`` or ``retract`` afterwards.  Raises StoreError when the disk refuses; then call
        ``retract``.
        """
        record = _encode(transaction, self._identity, changes)
        if not self._files[0].exists:
            self._files[0].begin()
        if self._is_new():
            return False
        if not self._files[0].has_room(len(record)):
            if self.is_checkpoint_due:
                return False
            self._files[0].end()
            self._files.reverse()
            self._files[0].begin()
            if self._is_new() or not self._files[0].has_room(len(record)):
                return False
        self._written = (transaction, len(record))
        try:
            self._files[0].write(record)
        except OSError as error:
            path = self._files[0].path
            raise StoreError(f"The journal {path} could not be written: {error}.") from error
        return True

    def _is_new(self) -> bool:
        """Return whether the last checkpoint does not have the file that is used."""
        return self._files[0].exists and self._files[0].path.name not in self._recorded

    def keep(self) -> None:
        """Keep the record that was written last: its transaction is committed."""
        assert self._written is not None, "a record was written"
        self._files[0].keep(*self._written)
        self._written = None

    def retract(self) -> None:
        """Erase the record that may have been written last: its transaction has failed.  Raises OSError."""
        if self._written is not None:
            self._files[0].retract()
            self._written = None

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def sizes(path: Path) -> dict[str, int]:
    """Return the octets of each file of the journal in this directory, by name.  Raises OSError."""
    found = {}
    for name in JOURNALS:
        with suppress(FileNotFoundError):
            found[name] = (path / name).stat().st_size
    return found


def require_files(path: Path, recorded: Mapping[str, int]) -> None:
    """Raise DamagedFile if a file that a checkpoint has is missing in this directory, or shorter than it was.

    Raises OSError.
    """
    found = sizes(path)
    for name, octets in recorded.items():
        if name not in found:
            raise DamagedFile(f"The file {path / name} is missing; {ADVICE}.")
        if found[name] < octets:
            raise DamagedFile(
                f"The file {path / name} is damaged: it had {octets} octets and has {found[name]}; {ADVICE}."
            )


def records_after(path: Path, transaction: int, identity: LevelIdentity | None) -> Iterator[JournalRecord]:
    """Return the records of the commits after this transaction, in order, from the journal in this directory.

    ``identity``: that of the environment; records of other ones are left out.

    Raises DamagedFile when a record cannot be read, and a later one can.  Raises OSError when a file cannot
    be read.
    """
    found = {
        record.transaction: record
        for name in JOURNALS
        for record in _records(path / name)
        if record.identity == identity and record.transaction > transaction
    }
    for expected in range(transaction + 1, transaction + 1 + len(found)):
        if expected not in found:
            # A power failure may tear the last record.  Each one was durable before the next was written.
            names = " and ".join(JOURNALS)
            raise DamagedFile(
                f"One of the files {names} in {path} is damaged: it has lost the changes of transaction "
                f"{expected}; {ADVICE}."
            )
        yield found[expected]


def has_records(path: Path) -> bool:
    """Return whether the journal in this directory may have commits that the data file beside it has not.

    Raises DamagedFile as ``records_after`` does, and OSError when a file cannot be read.
    """
    with Pages(path / DATA) as pages:
        transaction = pages.newest.transaction
    return any(records_after(path, transaction, read_identity(path)))


def saved_identity(file: Path) -> LevelIdentity | None:
    """Return the identity in the first record of a file of a journal, or None.

    Raises OSError when the file cannot be read.
    """
    first = next(_records(file), None)
    return None if first is None else first.identity


def _records(file: Path) -> Iterator[JournalRecord]:
    """Return all records that can be read, also those behind one that cannot."""
    try:
        content = memoryview(file.read_bytes())
    except FileNotFoundError:
        return
    begin = 0
    while begin < len(content):
        record = _decode(content[begin:])
        if record is None:
            begin += _ALIGNMENT
        else:
            yield record
            begin += record.octets


def _encode(transaction: int, identity: bytes, changes: Sequence[StoredChange]) -> bytes:
    parts = [b"", identity]
    for table, key, value in changes:
        octets = b"" if value is None else value
        parts += (_CHANGE.pack(value is not None, len(table), len(key), len(octets)), table, key, octets)
    length = _REST.size - 4 + sum(map(len, parts))
    parts[0] = _REST.pack(length, transaction, len(identity))
    rest = b"".join(parts)
    record = _START.pack(_MAGIC, crc32c(rest)) + rest
    return record + bytes(-len(record) % _ALIGNMENT)


def _decode(content: memoryview) -> JournalRecord | None:
    """Return the record at the start of these octets; None if there is none, or it is damaged."""
    if len(content) < _START.size + _REST.size:
        return None
    magic, checksum = _START.unpack_from(content)
    length, transaction, named = _REST.unpack_from(content, _START.size)
    end = _START.size + 4 + length
    if magic != _MAGIC or end > len(content) or crc32c(content[_START.size : end]) != checksum:
        return None
    at = _START.size + _REST.size
    try:
        identity = unpack_identity(IDENTITY_KEY, bytes(content[at : at + named])) if named else None
        changes = list(_changes(content[at + named : end]))
    except (DamagedRecord, StructError):
        return None
    return JournalRecord(transaction, identity, changes, end + -end % _ALIGNMENT)


def _changes(content: memoryview) -> Iterator[StoredChange]:
    at = 0
    while at < len(content):
        is_put, *lengths = _CHANGE.unpack_from(content, at)
        at += _CHANGE.size
        parts = []
        for length in lengths:
            parts.append(bytes(content[at : at + length]))
            at += length
        yield parts[0], parts[1], parts[2] if is_put else None
