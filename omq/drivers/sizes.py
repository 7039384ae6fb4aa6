"""How many octets the messages of a queue have that are ready, for a queue with a limit of them."""

from bisect import bisect_right
from collections.abc import Iterable

from omq.drivers.unsettled import ranges
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.runs import Run


class Sizes:
    """The mean size of the messages of each block, for those that may still be counted again.

    A message counts with the mean of the block that it came in, as elsewhere in the server.
    """

    __slots__ = ("_firsts", "_means", "octets")

    def __init__(self) -> None:
        self.octets = 0
        """The octets of the bodies of all messages that are ready."""
        self._firsts: list[int] = []
        self._means: list[int] = []

    def knows(self, message: int) -> bool:
        """Whether there is a message up to this one."""
        return bool(self._firsts) and self._firsts[0] <= message

    def arrived(self, first: int, count: int, octets: int) -> None:
        """Messages from this id on are stored, and ready. `octets` is the size of their bodies."""
        self._firsts.append(first)
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
            del self._firsts[:count], self._means[:count]

    def _sum(self, ids: range) -> int:
        total = 0
        while ids:
            index = bisect_right(self._firsts, ids.start) - 1
            beyond = self._firsts[index + 1] if index + 1 < len(self._firsts) else ids[-1] + 1
            here = min(len(ids), -((ids.start - beyond) // ids.step))
            total += here * self._means[max(0, index)]
            ids = ids[here:]
        return total


def body_octets(block: Block) -> int:
    """Return the octets of the bodies of a block."""
    return block.size - FRAME_HEADER * block.count
