"""The heads of a block's messages, beside the frames: one string of octets for each message.

This package interprets nothing of a head but its property flags and the property priority.  It is empty for a
message that has none.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import msgspec

from omq_storage import codec, numbers
from omq_storage.numbers import OFFSETS_LIMIT, Octets


class Heads(msgspec.Struct, frozen=True):
    """The heads of consecutive messages in the form that a block has."""

    offsets: Octets
    """Count + 1 little-endian u32: the index of the first octet of each head, and the end of the last."""
    octets: Octets
    """The heads, joined."""

    def copy(self) -> "Heads":
        """Return a copy with octets of its own."""
        return Heads(bytes(self.offsets), bytes(self.octets))

    def property_flags(self) -> int:
        """Return the property flags that any of the heads has."""
        return codec.property_flags(self.offsets, self.octets)

    def priorities(self) -> bytes:
        """Return the priority of each head, an octet each: 0 for one that has none."""
        return codec.priorities(self.offsets, self.octets)

    def values(self, begin: int, end: int | None = None) -> list[bytes]:
        """Return each head from index ``begin`` on, up to the one before ``end``."""
        octets = bytes(self.octets)
        last = None if end is None else numbers.SIZE * (end + 1)
        offsets = numbers.unpack(self.offsets[numbers.SIZE * begin : last])
        return [octets[start:stop] for start, stop in pairwise(offsets)]

    def value(self, index: int) -> bytes:
        """Return the head at this index."""
        begin, end = numbers.number(self.offsets, index), numbers.number(self.offsets, index + 1)
        return bytes(self.octets[begin:end])


def common(heads: Sequence[bytes]) -> bytes | None:
    """Return the head that all of these messages have; None if they differ, or if there is no message.

    Most senders send messages that are alike. Equal heads that are one object cost no comparison.
    """
    count = len(heads)
    if count == 1:
        return heads[0]
    return heads[0] if count and heads.count(heads[0]) == count else None


def octets_of(heads: Sequence[bytes]) -> int:
    """Return the number of octets that these heads have together."""
    if len(heads) == 1:
        return len(heads[0])
    head = common(heads)
    return sum(map(len, heads)) if head is None else len(heads) * len(head)


def encode_heads(heads: Sequence[bytes], count: int) -> Heads | None:
    """Return the heads of ``count`` messages; None if all are empty.

    Raises ValueError for another number of heads, and if they reach 1 GiB.
    """
    if len(heads) != count:
        raise ValueError(f"There are {len(heads)} heads for {count} messages.")
    if count == 1:
        # If messages come one by one, each is a block, and this takes half of the time.
        (only,) = heads
        if not only:
            return None
        _check_size(len(only))
        return Heads(numbers.pair(0, len(only)), only)
    head = common(heads)
    if head is not None:
        _check_size(count * len(head))
        return Heads(codec.multiples(len(head), count + 1), head * count) if head else None
    lengths = list(map(len, heads))
    size = sum(lengths)
    if not size:
        return None
    _check_size(size)
    return Heads(numbers.pack(accumulate(lengths, initial=0)), b"".join(heads))


def merge_heads(parts: Sequence[tuple[Heads | None, int]]) -> Heads | None:
    """Return the joined heads of consecutive blocks; each part has the heads and the count of messages.

    Raises ValueError if they reach 1 GiB.
    """
    if all(heads is None for heads, _ in parts):
        return None
    offsets = [numbers.pack([0])]
    base = 0
    for heads, count in parts:
        if heads is None:
            offsets.append(numbers.pack([base]) * count)
            continue
        # This check comes before the addition: `shifted` needs sums below 2^32.
        _check_size(base + len(heads.octets))
        offsets.append(numbers.shifted(heads.offsets[numbers.SIZE :], base))
        base += len(heads.octets)
    return Heads(b"".join(offsets), b"".join(heads.octets for heads, _ in parts if heads is not None))


def _check_size(size: int) -> None:
    if size >= OFFSETS_LIMIT:
        raise ValueError(f"Heads of {size} octets are too many; they must stay under {OFFSETS_LIMIT}.")
