"""The CRC-32C of octets, and of octets of which only the checksums of the parts are known."""

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

_POLYNOMIAL = 0x82F63B78

Matrix = tuple[int, ...]
"""A linear map of 32-bit numbers over the field of two elements: the image of each bit."""


def _from_library() -> Callable[..., int]:
    """Return the function of the package ``crc32c``, without importing more than its compiled module.

    The package imports importlib.metadata for its own version, and so the parsers of mail, ZIP and CSV: 1.6
    MiB of memory in each process, and some 20 ms at its start.
    """
    if "crc32c" not in sys.modules:
        package = find_spec("crc32c")  # this does not execute the package
        folders = None if package is None else package.submodule_search_locations
        spec = None if folders is None else PathFinder.find_spec("crc32c._crc32c", folders)
        if spec is not None and spec.loader is not None:
            compiled = module_from_spec(spec)
            spec.loader.exec_module(compiled)
            function: Callable[..., int] = compiled.crc32c
            return function
    from crc32c import crc32c as imported

    return imported


crc32c = _from_library()
"""Return the CRC-32C of octets; with a second argument, that of the octets before it and these."""


def combined(first: int, second: int, length: int) -> int:
    """Return the CRC-32C of two parts joined, from the CRC-32C of each; the second has ``length`` octets.

    A CRC is linear: appending zeros to the first part multiplies its checksum by a fixed matrix, and the
    second part is added.  The matrix for ``length`` zeros is a product of those for powers of two.
    """
    power = 0
    while length:
        if length & 1:
            first = _times(_zeros(power), first)
        length >>= 1
        power += 1
    return first ^ second


@lru_cache(maxsize=64)
def _zeros(power: int) -> Matrix:
    """Return the matrix that appends 2^power octets of zeros."""
    if power:
        half = _zeros(power - 1)
        return tuple(_times(half, column) for column in half)
    matrix: Matrix = tuple(1 << bit >> 1 if bit else _POLYNOMIAL for bit in range(32))
    for _ in range(3):  # from one bit to eight
        matrix = tuple(_times(matrix, column) for column in matrix)
    return matrix


def _times(matrix: Matrix, vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total
