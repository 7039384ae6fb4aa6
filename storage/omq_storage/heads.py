"""The heads of a block's messages: one string of octets for each, kept beside the frames.

What is in a head is for others to know: here it is octets, and empty for a message that has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from omq_storage import numbers
from omq_storage.numbers import OFFSETS_LIMIT, Octets


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of consecutive messages, as a block carries them."""

    offsets: Octets
    """One little-endian u32 more than there are messages: where each head begins, and where the last ends."""
    octets: Octets
    """The heads, one after another."""

    def copy(self) -> "Heads":
        """The same with octets of its own."""
        return Heads(bytes(self.offsets), bytes(self.octets))

    def values(self, begin: int) -> list[bytes]:
        """Each head from index ``begin`` on."""
        octets = bytes(self.octets)
        return [octets[start:end] for start, end in pairwise(numbers.unpack(self.offsets)[begin:])]

    def value(self, index: int) -> bytes:
        """The head at this index."""
        begin, end = numbers.number(self.offsets, index), numbers.number(self.offsets, index + 1)
        return bytes(self.octets[begin:end])


def encode_heads(heads: Sequence[bytes], count: int) -> Heads | None:
    """The heads of ``count`` messages; None when all of them are empty.

    ValueError when their number is another, or they would reach 1 GiB.
    """
    if len(heads) != count:
        raise ValueError(f"There are {len(heads)} heads for {count} messages.")
    lengths = list(map(len, heads))
    size = sum(lengths)
    if not size:
        return None
    _check_size(size)
    return Heads(numbers.pack(accumulate(lengths, initial=0)), b"".join(heads))


def merge_heads(parts: Sequence[tuple[Heads | None, int]]) -> Heads | None:
    """The heads of several runs of messages that follow one another, each with its count of messages.

    ValueError when they would reach 1 GiB.
    """
    if all(heads is None for heads, _ in parts):
        return None
    offsets = [numbers.pack([0])]
    base = 0
    for heads, count in parts:
        if heads is None:
            offsets.append(numbers.pack([base]) * count)
            continue
        # Looked at first: no offset may reach 2^32.
        _check_size(base + len(heads.octets))
        offsets.append(numbers.shifted(heads.offsets[numbers.SIZE :], base))
        base += len(heads.octets)
    return Heads(b"".join(offsets), b"".join(heads.octets for heads, _ in parts if heads is not None))


def _check_size(size: int) -> None:
    if size >= OFFSETS_LIMIT:
        raise ValueError(f"Heads of {size} octets are too many; they must stay under {OFFSETS_LIMIT}.")
