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

When a record does not fit, a checkpoint takes its place: that costs three flushes, and makes all commits
durable.  After a checkpoint the journal begins again at its start (``restart``), and may grow.

Opening.  ``recover`` of ``omq_storage.checkpoint`` restores the last checkpoint, if that is necessary.  Then
``records_after`` returns what was committed since, and the environment makes these changes again, each record
in a transaction of its own.  A record names its transaction.  So those that the environment has are left out:
after a killed process it has all, except perhaps the last one, which nobody was told of.

Why no old record is taken for a new one.  The file is not erased when it begins again, so behind the newest
record is an older one, or a part of one.  It is not of the next transaction, because all records of a start
of the server have different transactions, and later ones are written later.  And it is not of another start
of the server, because each record has the identity of its environment, which every start changes.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from omq_storage.changes import Change
from omq_storage.errors import DamagedFile, DamagedRecord, StoreError
from omq_storage.files import create, sync_directory
from omq_storage.identity import IDENTITY_KEY, LevelIdentity, pack_identity, read_identity, unpack_identity
from omq_storage.integrity import ADVICE, DATA
from omq_storage.pages import Pages

JOURNAL = "journal"

_MAGIC = b"omqjrnal"
_START = Struct(">8sI")
_REST = Struct(">IQH")
_CHANGE = Struct(">BBHI")
_ALIGNMENT = 4096

MOST_RECORDS = 128
"""The number of records after which a checkpoint is taken: until then LMDB cannot reuse the pages of the
last one, and the data file grows.
"""

SMALLEST = MOST_RECORDS * _ALIGNMENT
LARGEST = 4 << 20
"""The octets of the file at first, and at most.  It doubles when it was full before it had ``MOST_RECORDS``.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A commit that the journal has."""

    transaction: int
    identity: LevelIdentity | None
    """The identity of the environment at that time; None if it had none."""
    changes: Sequence[Change]
    octets: int
    """The octets that it takes in the file."""


class Journal:
    """The journal of one open environment.  The owner makes sure that one call runs at a time."""

    def __init__(self, path: Path, identity: LevelIdentity | None) -> None:
        """Open the journal in this directory; begin it at its start.  The first record creates the file.

        ``identity``: that of the environment.  Raises OSError.
        """
        self._path = path / JOURNAL
        self._identity = b"" if identity is None else pack_identity(identity)
        self._file: int | None = None
        self._size = 0
        self._next = 0  # where the next record begins
        self._last = 0  # the octets of the record that was written last
        self._records = 0
        self._is_small = False  # whether it was full before it had MOST_RECORDS
        if self._path.exists():
            self._file = os.open(self._path, os.O_WRONLY)
            self._size = os.fstat(self._file).st_size

    def identify(self, identity: LevelIdentity) -> None:
        """Write this identity into all further records.  A checkpoint of an environment that has it must be
        durable.
        """
        self._identity = pack_identity(identity)
        self.restart()

    def restart(self) -> None:
        """Begin again at the start of the file.  A checkpoint with all commits so far must be durable."""
        self._next = self._records = 0
        if self._is_small:
            self._grow()

    def write(self, transaction: int, changes: Sequence[Change]) -> bool:
        """Make the changes of this transaction durable.  Return False, and write nothing, if they do not fit.

        Call ``wrote`` or ``retract`` afterwards.  Raises StoreError when the disk refuses; then call
        ``retract``.
        """
        if self._file is None:
            self._grow()
        if self._file is None:
            return False
        record = _encode(transaction, self._identity, changes)
        if self._records >= MOST_RECORDS or self._next + len(record) > self._size:
            self._is_small = self._records < MOST_RECORDS
            return False
        self._last = len(record)
        try:
            written = os.pwrite(self._file, record, self._next)
            os.fdatasync(self._file)
        except OSError as error:
            raise StoreError(f"The journal {self._path} could not be written: {error}.") from error
        if written != len(record):
            raise StoreError(f"The journal {self._path} could not be written.")
        return True

    def wrote(self) -> None:
        """Keep the record that was written last: its transaction is committed."""
        self._next += self._last
        self._records += 1

    def retract(self) -> None:
        """Erase the record that was written last: its transaction has failed.  Raises OSError."""
        if self._file is not None:
            os.pwrite(self._file, bytes(_START.size), self._next)
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._size = 0

    def _grow(self) -> None:
        """Create the file, or double it; its records may be lost.

        No failure is reported: without a journal, or with a small one, commits take checkpoints instead,
        which report what is wrong with the disk.
        """
        self._is_small = False
        size = min(LARGEST, max(SMALLEST, 2 * self._size))
        if size == self._size:
            return
        fresh_path = self._path.with_name(JOURNAL + ".new")
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
            fresh_path.replace(self._path)
            sync_directory(self._path.parent)
        except OSError:
            os.close(descriptor)
            return
        self._file, self._size = descriptor, size


def records_after(path: Path, transaction: int, identity: LevelIdentity | None) -> Iterator[Record]:
    """Return the records of the commits after this transaction, in order, from the journal in this directory.

    ``identity``: that of the environment; records of other ones are left out.

    Raises DamagedFile when a record cannot be read, and a later one can.  Raises OSError when the file cannot
    be read.
    """
    expected = transaction + 1
    content = _content(path)
    begin = 0
    while begin < len(content):
        record = _decode(content[begin:])
        if record is None or record.identity != identity or record.transaction > expected:
            break
        if record.transaction == expected:
            yield record
            expected += 1
        begin += record.octets
    # A power failure may have torn the last record, but each one was durable before the next was written.
    for place in range(begin, len(content), _ALIGNMENT):
        later = _decode(content[place:])
        if later is not None and later.identity == identity and later.transaction >= expected:
            raise DamagedFile(
                f"The file {path / JOURNAL} is damaged: it has lost the changes of transaction {expected}; "
                f"{ADVICE}."
            )


def has_records(path: Path) -> bool:
    """Return whether the journal in this directory may have commits that the data file beside it has not.

    Raises DamagedFile as ``records_after`` does, and OSError when a file cannot be read.
    """
    with Pages(path / DATA) as pages:
        transaction = pages.newest.transaction
    return any(records_after(path, transaction, read_identity(path)))


def saved_identity(path: Path) -> LevelIdentity | None:
    """Return the identity in the first record of the journal in this directory, or None.

    Raises OSError when the file cannot be read.
    """
    first = _decode(_content(path))
    return None if first is None else first.identity


def _content(path: Path) -> memoryview:
    try:
        return memoryview((path / JOURNAL).read_bytes())
    except FileNotFoundError:
        return memoryview(b"")


def _encode(transaction: int, identity: bytes, changes: Sequence[Change]) -> bytes:
    parts = [b"", identity]
    for table, key, value in changes:
        octets = b"" if value is None else value
        parts += (_CHANGE.pack(value is not None, len(table), len(key), len(octets)), table, key, octets)
    length = _REST.size - 4 + sum(map(len, parts))
    parts[0] = _REST.pack(length, transaction, len(identity))
    rest = b"".join(parts)
    record = _START.pack(_MAGIC, crc32c(rest)) + rest
    return record + bytes(-len(record) % _ALIGNMENT)


def _decode(content: memoryview) -> Record | None:
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
    return Record(transaction, identity, changes, end + -end % _ALIGNMENT)


def _changes(content: memoryview) -> Iterator[Change]:
    at = 0
    while at < len(content):
        is_put, *lengths = _CHANGE.unpack_from(content, at)
        at += _CHANGE.size
        parts = []
        for length in lengths:
            parts.append(bytes(content[at : at + length]))
            at += length
        yield parts[0], parts[1], parts[2] if is_put else None
