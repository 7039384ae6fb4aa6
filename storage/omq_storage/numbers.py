"""Arrays of little-endian u32, as a block has them: so that Arrow can use them where they lie."""

import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

Octets = bytes | memoryview

OFFSETS_LIMIT = 1 << 30
"""No array of offsets leads this far: ``rises`` needs the two highest bits."""

_NUMBER = Struct("<I")

SIZE = _NUMBER.size
"""Octets of one number."""

_KEPT_COUNT = 1 << 13


def pack(numbers: Iterable[int]) -> bytes:
    """The array of these numbers."""
    four = array("I", numbers)
    if sys.byteorder == "big":
        four.byteswap()
    return four.tobytes()


def unpack(octets: Octets) -> list[int]:
    """All numbers of an array."""
    four = array("I")
    four.frombytes(octets)
    if sys.byteorder == "big":
        four.byteswap()
    return four.tolist()


def number(octets: Octets, index: int) -> int:
    """One number of an array."""
    found: int = _NUMBER.unpack_from(octets, SIZE * index)[0]
    return found


def shifted(octets: Octets, shift: int) -> bytes:
    """An array with ``shift`` added to each number; none may reach 2^32.

    Added at once, as two large numbers with a lane of 32 bits for each.
    """
    shifts = int.from_bytes(_NUMBER.pack(shift) * (len(octets) // SIZE), "little")
    return (int.from_bytes(octets, "little") + shifts).to_bytes(len(octets), "little")


def rises(offsets: Octets, count: int, size: int, least: int) -> bool:
    """Whether ``count`` + 1 offsets begin at 0, end at ``size``, and are at least ``least`` apart.

    All of the neighbours are subtracted at once, as two large numbers with a lane of 32 bits for each: three
    times as fast as a sorted copy.  The highest bit, set beforehand in every lane of the minuend, survives
    exactly where the difference is not negative.  That needs offsets under 2^30, else one lane could borrow
    from the next.
    """
    if number(offsets, 0) != 0 or number(offsets, count) != size:
        return False
    # Blocks have up to 4,096 messages here; one from elsewhere may have millions, and must not fill the
    # cache.
    top, apart = _kept_lanes(count, least) if count <= _KEPT_COUNT else _lanes(count, least)
    begins = int.from_bytes(offsets[:-SIZE], "little")
    ends = int.from_bytes(offsets[SIZE:], "little")
    high = top | (top >> 1)
    if (begins | ends) & high:
        return False
    return ((ends | top) - begins - apart) & top == top


@lru_cache(maxsize=64)
def _kept_lanes(count: int, least: int) -> tuple[int, int]:
    return _lanes(count, least)


def _lanes(count: int, least: int) -> tuple[int, int]:
    """Two large numbers of ``count`` lanes of 32 bits: the highest bit in each lane, and ``least``."""
    top = int.from_bytes(b"\0\0\0\x80" * count, "little")
    apart = int.from_bytes(_NUMBER.pack(least) * count, "little")
    return top, apart
