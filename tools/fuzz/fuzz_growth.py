"""Detects whether a parser keeps memory after parsing."""

import gc
import sys
from pathlib import Path

from fuzz_checks import Target

ROUNDS = 30
"""The number of times that the inputs are parsed between two measurements."""

LOOKS = 20

ALLOWED_BLOCKS = 100
ALLOWED_OCTETS = 1 << 19
"""The octets that the interpreter and the C library may take by themselves between two looks, once caches are
filled.
"""


class GrowthError(AssertionError):
    """A parser holds more every time the same inputs have been read again."""


def check_growth(target: Target, inputs: list[bytes]) -> str:
    """Read the same inputs again and again until memory stays as it is, and say when. Raises GrowthError.

    Counted are Python's allocated blocks, and the process's anonymous memory. Both grow less and less at
    first.
    """
    words = ""
    blocks, octets = _held()
    for look in range(1, LOOKS + 1):
        for _ in range(ROUNDS):
            _read_all(target, inputs)
        more_blocks, more_octets = _held()
        words = (
            f"{len(inputs)} inputs {ROUNDS} times again: {more_blocks - blocks:+} blocks, "
            f"{(more_octets - octets) // 1024:+} KiB at look {look}"
        )
        if more_blocks - blocks <= ALLOWED_BLOCKS and more_octets - octets <= ALLOWED_OCTETS:
            return words
        blocks, octets = more_blocks, more_octets
    raise GrowthError(f"{target.name} grows: {words}")


def _read_all(target: Target, inputs: list[bytes]) -> None:
    for data in inputs:
        target.check(data)


def _held() -> tuple[int, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return sys.getallocatedblocks(), int(line.split()[1]) * 1024
