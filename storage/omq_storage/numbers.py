"""The arrays of little-endian u32 in a block.  Arrow can use them in place."""

import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

Octets = bytes | memoryview

OFFSETS_LIMIT = 1 << 30
"""Offsets stay below this limit: ``rises`` needs the two highest bits of each number."""

_NUMBER = Struct("<I")
_PAIR = Struct("<II")

SIZE = _NUMBER.size
"""Octets of one number."""

_KEPT_COUNT = 1 << 13


def pack(numbers: Iterable[int]) -> bytes:
    """Return the array of these numbers."""
    four = array("I", numbers)
    if sys.byteorder == "big":
        four.byteswap()
    return four.tobytes()


def multiples(step: int, count: int) -> bytes:
    """Return the array of the first ``count`` multiples of ``step``, which begin with 0; all are below
    2^32.
    """
    return pack(range(0, count * step, step)) if step else bytes(SIZE * count)


def pair(first: int, second: int) -> bytes:
    """Return the array of two numbers."""
    return _PAIR.pack(first, second)


def unpack(octets: Octets) -> list[int]:
    """Return all numbers of an array."""
    four = array("I")
    four.frombytes(octets)
    if sys.byteorder == "big":
        four.byteswap()
    return four.tolist()


def number(octets: Octets, index: int) -> int:
    """Return the number at an index."""
    found: int = _NUMBER.unpack_from(octets, SIZE * index)[0]
    return found


def shifted(octets: Octets, shift: int) -> bytes:
    """Return an array with ``shift`` added to each number; no sum may reach 2^32.

    One addition of two large integers does it, with a lane of 32 bits for each number.
    """
    shifts = int.from_bytes(_NUMBER.pack(shift) * (len(octets) // SIZE), "little")
    return (int.from_bytes(octets, "little") + shifts).to_bytes(len(octets), "little")


def rises(offsets: Octets, count: int, size: int, least: int) -> bool:
    """Return whether ``count`` + 1 offsets begin at 0, end at ``size``, and are at least ``least`` apart.

    One subtraction of two large integers computes the differences of all neighbours, with a lane of 32 bits
    for each: three times as fast as a sorted copy.  The highest bit of each lane of the minuend is set before
    and stays set exactly if the difference is not negative.  The offsets must be below 2^30, otherwise a lane
    could borrow from the next one.
    """
    if number(offsets, 0) != 0 or number(offsets, count) != size:
        return False
    # The server makes blocks of up to 4,096 messages. One from elsewhere may have millions, and must not fill
    # the cache.
    top, apart = _kept_lanes(count, least) if count <= _KEPT_COUNT else _lanes(count, least)
    begins = int.from_bytes(offsets[:-SIZE], "little")
    ends = int.from_bytes(offsets[SIZE:], "little")
    high = top | (top >> 1)
    both = begins | ends
    # Whether `both & high` is 0. Python 3.14 would keep such a small result, for reuse, with all the memory
    # that was taken for it.
    if both | high != both ^ high:
        return False
    return ((ends | top) - begins - apart) & top == top


@lru_cache(maxsize=64)
def _kept_lanes(count: int, least: int) -> tuple[int, int]:
    return _lanes(count, least)


def _lanes(count: int, least: int) -> tuple[int, int]:
    """Return two integers with ``count`` lanes of 32 bits: with the highest bit in each lane, and
    ``least``.
    """
    top = int.from_bytes(b"\0\0\0\x80" * count, "little")
    apart = int.from_bytes(_NUMBER.pack(least) * count, "little")
    return top, apart
