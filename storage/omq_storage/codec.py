"""Selects the codec: the compiled one if it was built, unless OMQ_PLAIN=1 is in the environment.

The functions here call the compiled codec first. It returns None for unusual input, and the plain function
then returns the value or raises the error. So there is one place for each error sentence, and both codecs
give the same values and errors.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from omq_storage import numbers, plain
from omq_storage.numbers import Octets

COMPILED = False
"""Whether the compiled codec is in use, as the module `native`."""

missing: str | None = None
"""The reason why the compiled codec cannot be imported; None if it is in use or was not wanted."""

if os.environ.get("OMQ_PLAIN") != "1":
    try:
        from omq_storage import _codec as native
    except ImportError as problem:  # it was not built here; the plain functions do the same, but slower
        missing = str(problem)
    else:
        COMPILED = True

__all__ = [
    "COMPILED",
    "describe",
    "frames_of",
    "gathered",
    "missing",
    "multiples",
    "native",
    "newer_sources",
    "priorities",
    "property_flags",
    "rises",
    "slices",
]


def describe() -> str:
    """Return the name of the codec of this process, for a log line."""
    return "compiled codec" if COMPILED else "plain Python codec"


def newer_sources() -> list[str]:
    """Return the sources of the compiled codec that changed after it was built.

    Only a checkout has sources. A codec that is older than the Python files beside it may lack functions that
    they call, or take other arguments.
    """
    if not COMPILED:
        return []
    assert native.__file__ is not None
    built = Path(native.__file__)
    sources = [built.with_name("_codec.pyx"), *sorted(built.with_name("native").glob("*.pxi"))]
    at = built.stat().st_mtime
    return [each.name for each in sources if each.exists() and each.stat().st_mtime > at]


def frames_of(topic: int, first: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes]:
    """See `omq_storage.plain.frames_of`."""
    made = native.frames_of(topic, first, bodies) if COMPILED else None
    return plain.frames_of(topic, first, bodies) if made is None else made


def slices(frames: Octets, offsets: Octets, index: int) -> list[memoryview]:
    """See `omq_storage.plain.slices`."""
    made = native.slices(frames, offsets, index) if COMPILED else None
    return plain.slices(frames, offsets, index) if made is None else made


def gathered(frames: Octets, offsets: Octets, begin: int, end: int, step: int) -> bytes:
    """See `omq_storage.plain.gathered`."""
    made = native.gathered(frames, offsets, begin, end, step) if COMPILED else None
    return plain.gathered(frames, offsets, begin, end, step) if made is None else made


def property_flags(offsets: Octets, octets: Octets) -> int:
    """See `omq_storage.plain.property_flags`."""
    found = native.property_flags(offsets, octets) if COMPILED else None
    return plain.property_flags(offsets, octets) if found is None else found


def priorities(offsets: Octets, octets: Octets) -> bytes:
    """See `omq_storage.plain.priorities`."""
    found = native.priorities(offsets, octets) if COMPILED else None
    return plain.priorities(offsets, octets) if found is None else found


def multiples(step: int, count: int) -> bytes:
    """See `omq_storage.numbers.multiples`."""
    made = native.multiples(step, count) if COMPILED else None
    return numbers.multiples(step, count) if made is None else made


def rises(offsets: Octets, count: int, size: int, least: int) -> bool:
    """See `omq_storage.numbers.rises`."""
    found = native.rises(offsets, count, size, least) if COMPILED else None
    return numbers.rises(offsets, count, size, least) if found is None else found
