"""The sexp in a Blocks frame: a list of records (docs/PROTOCOL.md, "Fetch and Blocks").

A record is `((first 1)(count 1000)(time 1700000000000000)(bytes 121052))`; the time is in microseconds since
the epoch.
"""

from collections.abc import Iterable
from typing import Protocol

from omq.model import BlockInfo
from omq.protocol.omq import sexp
from omq.protocol.omq.converters import ConversionError, fields_of_sexp, int64_of_sexp
from omq.protocol.omq.sexp import SexpError

_FIELDS = (b"first", b"count", b"time", b"bytes")
_RECORD = b"((first %d)(count %d)(time %d)(bytes %d))"


class Info(Protocol):
    """The fields of a record."""

    @property
    def first(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def time(self) -> int: ...

    @property
    def bytes(self) -> int: ...


def write(blocks: tuple[BlockInfo, ...]) -> bytes:
    """Encode the records in machine form, in their order."""
    return b"(" + records(blocks) + b")"


def records(blocks: Iterable[Info]) -> bytes:
    """Encode the records as `write` does, without the outer parentheses."""
    return b"".join([_RECORD % (b.first, b.count, b.time, b.bytes) for b in blocks])


def read(payload: bytes) -> tuple[BlockInfo, ...]:
    """Parse the records of `write`; their fields may have any order. Raises SexpError."""
    found = sexp.read(payload)
    if found is None or isinstance(found, bytes):
        raise SexpError("a list of blocks must be a list")
    try:
        return tuple(BlockInfo(*map(int64_of_sexp, fields_of_sexp(record, _FIELDS))) for record in found)
    except ConversionError as error:
        raise SexpError(f"a block of the list {error}") from error
