"""Small records with a checksum in front, so that a damaged record is detected and never used.

The CRC-32C covers the table and the key of a record besides its own octets.  So a record that stands under a
damaged key, or that was copied to another place, fails verification like one whose own octets changed.
"""

from struct import Struct
from typing import TypeVar

import msgspec

from omq_storage.crc import crc32c
from omq_storage.errors import DamagedRecord

_CHECKSUM = Struct(">I")

T = TypeVar("T")
Octets = TypeVar("Octets", bytes, memoryview)


def with_checksum(table: bytes, key: bytes, record: bytes) -> bytes:
    """Return the value to store for a record: its CRC-32C in 4 octets, then the record."""
    return _CHECKSUM.pack(_checksum(table, key, record)) + record


def verify(table: bytes, key: bytes, stored: Octets, what: str) -> Octets:
    """Return the record of a stored value, without its checksum.

    Raises DamagedRecord when the checksum does not match this table, key and record.  ``what`` names the
    record in the error sentence.
    """
    record = stored[_CHECKSUM.size :]
    if len(stored) < _CHECKSUM.size or _CHECKSUM.unpack_from(stored)[0] != _checksum(table, key, record):
        raise DamagedRecord(f"The record of {what} is damaged.")
    return record


def verify_and_decode(table: bytes, key: bytes, stored: bytes, kind: type[T], what: str) -> T:
    """Return the object of this type that was stored as MessagePack.

    Raises DamagedRecord when the checksum does not match, and when the record does not fit the type.
    """
    record = verify(table, key, stored, what)
    try:
        return msgspec.msgpack.decode(record, type=kind)
    except msgspec.DecodeError as error:
        raise DamagedRecord(f"The record of {what} cannot be read: {error}.") from error


def _checksum(table: bytes, key: bytes, record: bytes | memoryview) -> int:
    # The slash separates the two: without it, table "ab" and key "c" would have the checksum of "a" and "bc".
    checksum: int = crc32c(record, crc32c(b"%b/%b" % (table, key)))
    return checksum
