"""What is done for each message of a block, in plain Python; `_codec.pyx` is the compiled twin.

`omq_storage.codec` chooses between the two. Layout of frames and offsets: see `omq_storage.blocks`.
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
_MESSAGE = 2
_FRAME = Struct(">IBQI")


def frames_of(topic: int, first: int, bodies: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The frames of these bodies, and their offsets. ValueError where `omq_storage.blocks.encode` says so."""
    count = len(bodies)
    if not count:
        raise ValueError("A block needs at least one message.")
    if first + count > ID_LIMIT:
        raise ValueError(f"Message ids from {first} on do not fit into 64 bits.")
    lengths = list(map(len, bodies))
    size = sum(lengths) + FRAME_HEADER * count
    if size >= FRAMES_LIMIT:
        raise ValueError(f"A block of {size} octets is too large; it must stay under {FRAMES_LIMIT}.")
    # All the loops below run inside the interpreter's own C code: about half the time of a loop written out.
    lengths_sent = map((FRAME_HEADER - _LENGTH_SIZE).__add__, lengths)
    pieces = [b""] * (2 * count)
    pieces[::2] = map(_FRAME.pack, lengths_sent, repeat(_MESSAGE), range(first, first + count), repeat(topic))
    pieces[1::2] = bodies
    offsets = accumulate(map(FRAME_HEADER.__add__, lengths), initial=0)
    return b"".join(pieces), numbers.pack(offsets)


def slices(frames: Octets, offsets: Octets, index: int) -> list[memoryview]:
    """Each frame from an index on."""
    view = memoryview(frames)
    return [view[begin:end] for begin, end in pairwise(numbers.unpack(offsets)[index:])]


def gathered(frames: Octets, offsets: Octets, begin: int, end: int, step: int) -> bytes:
    """The frames at these indexes, of which none is outside, one after another."""
    view = memoryview(frames)
    bounds = numbers.unpack(offsets)
    return b"".join([view[bounds[index] : bounds[index + 1]] for index in range(begin, end, step)])
