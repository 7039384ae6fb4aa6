"""The octets of the ready messages of a queue, for a queue with a limit on them."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from omq.drivers.unsettled import ranges
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.fragments import Fragmented
from omq_storage.runs import Run

_LEAST_LOOKED_AT = 1024
"""The least number of blocks at which those that are done are forgotten."""


class Sizes:
    """The mean size of the messages of each block, for those that may still be counted again.

    A message counts with the mean of the block that it came in, as elsewhere in the server.
    """

    __slots__ = ("_before", "_enough", "_firsts", "_means", "_nexts", "_sum", "octets")

    def __init__(self) -> None:
        self.octets = 0
        """The octets of the bodies of all messages that are ready."""
        self._firsts = array("Q")
        self._nexts = array("Q")  # ids between two blocks were lost: they have no message
        self._means = array("Q")
        self._before = array("Q")  # the octets of all blocks that arrived before this one
        self._sum = 0  # the octets of all blocks that have arrived
        self._enough = _LEAST_LOOKED_AT

    @property
    def have_grown(self) -> bool:
        """Whether it is time for `forget_below`: the blocks are twice as many as after the last call."""
        return len(self._firsts) >= self._enough

    def arrived(self, first: int, count: int, octets: int) -> None:
        """Add messages from `first` on that are stored and ready. `octets` is the size of their bodies."""
        mean = octets // count
        self._firsts.append(first)
        self._nexts.append(first + count)
        self._means.append(mean)
        self._before.append(self._sum)
        self._sum += count * mean
        self.octets += count * mean

    def add(self, ids: range) -> None:
        """Add messages that are ready again."""
        self.octets += self._octets_of(ids)

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Add messages that are ready again."""
        for run in runs:
            for ids in ranges(run):
                self.add(ids)

    def take(self, ids: range) -> None:
        """Subtract messages that are not ready any more."""
        self.octets -= self._octets_of(ids)

    def after(self, message: int, octets: int) -> int:
        """Return the id after the messages from this one on that have at least N `octets` together, as
        few as possible; or after all that have arrived.
        """
        wanted = self._octets_below(message) + octets
        index = bisect_left(self._before, wanted) - 1
        if index < 0:
            return message
        missing = wanted - self._before[index]
        if missing > (self._nexts[index] - self._firsts[index]) * self._means[index]:
            return self._nexts[-1]
        return self._firsts[index] - (-missing // self._means[index])

    def forget_below(self, message: int) -> None:
        """Forget the sizes of messages below this one, which are done."""
        count = bisect_right(self._firsts, message) - 1
        if count > len(self._firsts) // 2:
            for numbers in (self._firsts, self._nexts, self._means, self._before):
                del numbers[:count]
        self._enough = max(_LEAST_LOOKED_AT, 2 * len(self._firsts))

    def _octets_of(self, ids: range) -> int:
        if ids.step == 1:
            return self._octets_below(ids.stop) - self._octets_below(ids.start)
        total = 0
        index = max(0, bisect_right(self._firsts, ids.start) - 1)
        while ids and index < len(self._firsts):
            before = _count_below(ids, self._firsts[index])
            here = _count_below(ids, self._nexts[index])
            total += (here - before) * self._means[index]
            ids = ids[here:]
            index = max(index + 1, bisect_right(self._firsts, ids.start) - 1)
        return total

    def _octets_below(self, message: int) -> int:
        """Return the octets of the messages below this one, those of forgotten blocks included."""
        index = bisect_right(self._firsts, message) - 1
        if index < 0:
            return self._before[0] if self._before else self._sum
        known = min(message, self._nexts[index]) - self._firsts[index]
        return self._before[index] + known * self._means[index]


def _count_below(ids: range, bound: int) -> int:
    """Return the number of ids below a bound."""
    return max(0, min(len(ids), -((ids.start - bound) // ids.step)))


def body_octets(block: Block | Fragmented) -> int:
    """Return the octets of the bodies of a block."""
    return block.size if isinstance(block, Fragmented) else block.size - FRAME_HEADER * block.count
