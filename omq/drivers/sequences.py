"""Recognise repeated messages of idempotent producers (docs/PROTOCOL.md, "Idempotent producers").

A message with a producer and a sequence number is *repeated* if the number is not above the last
one of that producer: the server confirms it as if it were new, and drops it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import TypeVar

from omq_storage.batches import Batch, Bodies
from omq_storage.fragments import Uploaded

PostedBatch = TypeVar("PostedBatch", Batch, Batch | Uploaded)

Origin = tuple[bytes, int]
"""The producer of a message, 0 to 255 octets, and its sequence number, 0 to 2^64-1."""

_PRODUCER = itemgetter(0)

Origins = Sequence[Origin | None]
"""The origins of a run of messages: empty, or one for each message, None for a message without one."""


class RecentSequences:
    """The last sequence numbers of producers of all transient topics, in memory: the `limit` used last."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # In the order of their last use. A plain dict would search for its first entry among all deleted
        # ones.
        self._sequences: OrderedDict[tuple[int, bytes], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def last(self, topic: int, producers: Iterable[bytes]) -> dict[bytes, int]:
        """Return the last sequence number of each of these producers of a topic id that has one."""
        known = self._sequences
        return {producer: known[topic, producer] for producer in producers if (topic, producer) in known}

    def keep(self, topic: int, sequences: Mapping[bytes, int]) -> None:
        """Set the last sequence numbers of these producers of a topic id."""
        for producer, sequence in sequences.items():
            self._sequences.pop((topic, producer), None)
            self._sequences[topic, producer] = sequence
        while len(self._sequences) > self._limit:
            self._sequences.popitem(last=False)

    def lower(self, topic: int, producers: Iterable[bytes], before: Mapping[bytes, int]) -> None:
        """Set the last sequence numbers of these producers of a topic id back to those `before`, where these
        are lower; forget the producers that had none.
        """
        for producer, last in self.last(topic, producers).items():
            if producer not in before:
                del self._sequences[topic, producer]
            elif before[producer] < last:
                self._sequences[topic, producer] = before[producer]


def producers_of(origins: Origins) -> set[bytes]:
    """Return all producers of these origins."""
    return set(map(_PRODUCER, filter(None, origins)))


def without_repeated(
    batch: PostedBatch, heads: Sequence[bytes], origins: Origins, last: dict[bytes, int]
) -> tuple[PostedBatch, Sequence[bytes]]:
    """Return the messages that are not repeated, and their heads.

    `last`: the last sequence number of each producer; updated with those of these messages.
    """
    new = [origin is None or _moves_on(last, *origin) for origin in origins]
    if not origins or all(new):
        return batch, heads
    if isinstance(batch, Uploaded):
        return Bodies([]), []
    return Bodies(list(compress(batch.bodies(), new))), list(compress(heads, new))


def _moves_on(last: dict[bytes, int], producer: bytes, sequence: int) -> bool:
    if sequence <= last.get(producer, -1):
        return False
    last[producer] = sequence
    return True
