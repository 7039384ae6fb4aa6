"""How many octets the messages of a queue have that are ready, for a queue with a limit of them."""

from bisect import bisect_right
from collections.abc import Iterable

from omq.drivers.unsettled import ranges
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.runs import Run

_LEAST_LOOKED_AT = 1024
"""So many blocks are kept without a look at which of them are done."""


class Sizes:
    """The mean size of the messages of each block, for those that may still be counted again.

    A message counts with the mean of the block that it came in, as elsewhere in the server.
    """

    __slots__ = ("_enough", "_firsts", "_means", "_nexts", "octets")

    def __init__(self) -> None:
        self.octets = 0
        """The octets of the bodies of all messages that are ready."""
        self._firsts: list[int] = []
        self._nexts: list[int] = []  # ids between two blocks were lost: they have no message
        self._means: list[int] = []
        self._enough = _LEAST_LOOKED_AT

    @property
    def have_grown(self) -> bool:
        """Whether it is time for `forget_below`: the blocks are twice as many as after the last call."""
        return len(self._firsts) >= self._enough

    def arrived(self, first: int, count: int, octets: int) -> None:
        """Messages from this id on are stored, and ready. `octets` is the size of their bodies."""
        self._firsts.append(first)
        self._nexts.append(first + count)
        self._means.append(octets // count)
        self.octets += count * self._means[-1]

    def add(self, ids: range) -> None:
        """Messages are ready again."""
        self.octets += self._sum(ids)

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Messages are ready again."""
        for run in runs:
            for ids in ranges(run):
                self.add(ids)

    def take(self, ids: range) -> None:
        """Messages are not ready any more."""
        self.octets -= self._sum(ids)

    def forget_below(self, message: int) -> None:
        """Messages below this one are done."""
        count = bisect_right(self._firsts, message) - 1
        if count > len(self._firsts) // 2:
            del self._firsts[:count], self._nexts[:count], self._means[:count]
        self._enough = max(_LEAST_LOOKED_AT, 2 * len(self._firsts))

    def _sum(self, ids: range) -> int:
        total = 0
        index = max(0, bisect_right(self._firsts, ids.start) - 1)
        while ids and index < len(self._firsts):
            before = _count_below(ids, self._firsts[index])
            here = _count_below(ids, self._nexts[index])
            total += (here - before) * self._means[index]
            ids = ids[here:]
            index = max(index + 1, bisect_right(self._firsts, ids.start) - 1)
        return total


def _count_below(ids: range, bound: int) -> int:
    """Return how many ids are below a bound."""
    return max(0, min(len(ids), -((ids.start - bound) // ids.step)))


def body_octets(block: Block) -> int:
    """Return the octets of the bodies of a block."""
    return block.size - FRAME_HEADER * block.count
