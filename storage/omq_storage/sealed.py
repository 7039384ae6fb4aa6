"""Small records with a checksum in front, so that damage to them is told instead of believed.

The checksum is taken over the place of a record too, its table and its key: a record that stands under a
damaged key, or was put somewhere else, is as damaged as one whose own octets changed.
"""

from struct import Struct

from crc32c import crc32c

from omq_storage.errors import DamagedRecord

_CHECKSUM = Struct(">I")


def seal(table: bytes, key: bytes, record: bytes) -> bytes:
    """The record with its CRC-32C in front, as it is stored in this table under this key."""
    return _CHECKSUM.pack(_checksum(table, key, record)) + record


def unseal(table: bytes, key: bytes, sealed: bytes, what: str) -> bytes:
    """The record that was sealed for this place.  Raises DamagedRecord, naming ``what`` it is, when it was
    damaged.
    """
    record = sealed[_CHECKSUM.size :]
    if len(sealed) < _CHECKSUM.size or _CHECKSUM.unpack_from(sealed)[0] != _checksum(table, key, record):
        raise DamagedRecord(f"The record of {what} is damaged.")
    return record


def _checksum(table: bytes, key: bytes, record: bytes) -> int:
    # The slash keeps the end of the table's name from being taken for the beginning of a key.
    checksum: int = crc32c(record, crc32c(b"%b/%b" % (table, key)))
    return checksum
