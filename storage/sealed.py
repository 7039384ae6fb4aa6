"""Small records with a checksum in front, so that damage to them is told instead of believed."""

from struct import Struct

from crc32c import crc32c

from storage.errors import StoreError

_CHECKSUM = Struct(">I")


def seal(record: bytes) -> bytes:
    """The record with its CRC-32C in front."""
    return _CHECKSUM.pack(crc32c(record)) + record


def unseal(sealed: bytes, what: str) -> bytes:
    """The record that was sealed.  Raises StoreError, naming ``what`` it is, when it was damaged."""
    record = sealed[_CHECKSUM.size :]
    if len(sealed) < _CHECKSUM.size or _CHECKSUM.unpack_from(sealed)[0] != crc32c(record):
        raise StoreError(f"The record of {what} is damaged.")
    return record
