"""The work for single messages of a block in plain Python; `_codec.pyx` is its compiled twin.

`omq_storage.codec` selects one of the two. `omq_storage.blocks` describes frames and offsets.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from struct import Struct

from omq_storage import numbers
from omq_storage.numbers import Octets

FRAME_HEADER = 17
FRAMES_LIMIT = numbers.OFFSETS_LIMIT
ID_LIMIT = 1 << 64

_LENGTH_SIZE = 4

MESSAGE = 2
"""The type of a Message frame."""

FRAME = Struct(">IBQI")
"""The header of a Message frame: length, type, message id, topic id."""

# The flags of the properties of a head, up to priority: content-type and content-encoding are strings.
_STRINGS, _HEADERS, _DELIVERY_MODE, _PRIORITY = 0xC000, 0x2000, 0x1000, 0x0800


def frames_of(topic: int, first: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return frames and offsets of these bodies. Raises ValueError as `omq_storage.blocks.encode` does."""
    count = len(bodies)
    if not count:
        raise ValueError("A block needs at least one message.")
    if first + count > ID_LIMIT:
        raise ValueError(f"Message ids from {first} on do not fit into 64 bits.")
    lengths = list(map(len, bodies))
    size = sum(lengths) + FRAME_HEADER * count
    if size >= FRAMES_LIMIT:
        raise ValueError(f"A block of {size} octets is too large; it must stay under {FRAMES_LIMIT}.")
    # All loops below run in C code of the interpreter: they take half the time of a loop in Python.
    lengths_sent = map((FRAME_HEADER - _LENGTH_SIZE).__add__, lengths)
    pieces = [b""] * (2 * count)
    pieces[::2] = map(FRAME.pack, lengths_sent, repeat(MESSAGE), range(first, first + count), repeat(topic))
    pieces[1::2] = bodies
    offsets = accumulate(map(FRAME_HEADER.__add__, lengths), initial=0)
    return b"".join(pieces), numbers.pack(offsets)


def slices(frames: Octets, offsets: Octets, index: int) -> list[memoryview]:
    """Return each frame from an index on."""
    view = memoryview(frames)
    return [view[begin:end] for begin, end in pairwise(numbers.unpack(offsets)[index:])]


def property_flags(offsets: Octets, octets: Octets) -> int:
    """Return the property flags that any of these heads has, which are in the form of an AMQP content header:
    exchange and routing key, each with its length in one octet, then the flags.
    """
    heads = bytes(octets)
    flags = 0
    for begin, end in pairwise(numbers.unpack(offsets)):
        at = begin
        for _ in range(2):
            at += 1 + heads[at] if at < end else 0
        if begin < at and at + 2 <= end:
            flags |= int.from_bytes(heads[at : at + 2], "big")
    return flags


def priorities(offsets: Octets, octets: Octets) -> bytes:
    """Return the property priority of each of these heads, an octet each: 0 for one that has none, and for
    octets that are not a whole head.
    """
    heads = bytes(octets)
    bounds = pairwise(numbers.unpack(offsets))
    return bytes([_priority(heads, begin, end) if begin < end else 0 for begin, end in bounds])


def _priority(heads: bytes, begin: int, end: int) -> int:
    at = _after_strings(heads, begin, end, 2)
    flags = int.from_bytes(heads[at : at + 2], "big") if at + 2 <= end else 0
    if not flags & _PRIORITY:
        return 0
    at = _after_strings(heads, at + 2, end, (flags & _STRINGS).bit_count())
    if flags & _HEADERS:
        at += 4 + int.from_bytes(heads[at : at + 4], "big") if at + 4 <= end else end
    at += bool(flags & _DELIVERY_MODE)
    return heads[at] if at < end else 0


def _after_strings(heads: bytes, at: int, end: int, count: int) -> int:
    """Return the end of N (`count`) strings, each with its length in one octet."""
    for _ in range(count):
        at += 1 + heads[at] if at < end else 0
    return at


def gathered(frames: Octets, offsets: Octets, begin: int, end: int, step: int) -> bytes:
    """Return the joined frames at these indexes, all of which exist."""
    view = memoryview(frames)
    bounds = numbers.unpack(offsets)
    return b"".join([view[bounds[index] : bounds[index + 1]] for index in range(begin, end, step)])
