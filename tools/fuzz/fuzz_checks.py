"""The common part of targets: cutting an input into pieces, choosing a twin of the codec, judging errors."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from omq_storage import codec

LONGEST_SENTENCE = 2048
"""Octets: no error says more. A name of 255 octets takes up to 1,022 of them where each is escaped."""

BUILT = importlib.util.find_spec("omq_storage._codec") is not None
"""Without the compiled codec there is only the plain one to be tried."""

TWINS = (False, True) if BUILT else (False,)


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, and the properties that it must have for any octets."""

    name: str
    about: str
    """The kind of octets that are read, in a few words."""

    check: Callable[[bytes], None]
    """Raises AssertionError, or whatever came out, for an input that is not treated as it should be."""

    seeds: tuple[bytes, ...]
    """Good inputs to begin with."""

    words: tuple[bytes, ...] = ()
    """Octets that mean something to the parser."""

    longest: int = 400
    """Octets: no input is longer."""


@contextmanager
def twin(compiled: bool) -> Iterator[None]:
    """Use the compiled codec, or the plain one, within the block."""
    before = codec.COMPILED
    if compiled:
        codec.native = importlib.import_module("omq_storage._codec")
    codec.COMPILED = compiled
    try:
        yield
    finally:
        codec.COMPILED = before


def in_pieces(data: bytes) -> tuple[int, list[bytes]]:
    """Return an input's first octet, and the others in up to four pieces.

    Two bits of the first octet say how many cuts there are, and an octet each where they are. The other bits
    are for the target.
    """
    control = data[0] if data else 0
    cuts = control & 3
    octets = data[1 + cuts :]
    bounds = sorted(at * len(octets) // 255 for at in data[1 : 1 + cuts])
    starts = [0, *bounds]
    return control >> 2, [
        octets[start:end] for start, end in zip(starts, [*bounds, len(octets)], strict=True)
    ]


def check_pieces(data: bytes, read: Callable[[list[bytes], int], object]) -> None:
    """Check that an input says the same in pieces and at once, compiled and plain. `read` takes the pieces,
    and the bits of the first octet that are for the target, and returns what they say.
    """
    choice, pieces = in_pieces(data)
    expected = read([b"".join(pieces)], choice)
    for compiled in TWINS:
        with twin(compiled):
            found = read(pieces, choice)
            assert found == expected, (found, expected)


def check_sentence(text: bytes | str) -> None:
    """Check that a sentence is one line of printable ASCII, of bounded length."""
    words = text.decode("ascii") if isinstance(text, bytes) else text
    assert words, "an error without words"
    assert words.isascii(), f"not ASCII: {words!r}"
    assert words.isprintable(), f"not printable: {words!r}"
    assert len(words) <= LONGEST_SENTENCE, f"an error of {len(words)} characters"
