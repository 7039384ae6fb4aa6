"""The messages of a stored block that one worker of a round-robin topic gets: all, or every Nth."""

from collections.abc import Sequence
from typing import Protocol

from omq.drivers.seam import Octets
from omq_storage.blocks import Block
from omq_storage.runs import Run


class UnsentDealer(Protocol):
    """The driver of the topic."""

    def unsent(self, messages: int, octets: int) -> None:
        """Subtract N `messages` with N `octets` of frames that were counted as sent and were not."""

    def returned(self, messages: Sequence[Run]) -> None:
        """Assign these messages again."""


class DealtRun:
    """The messages of a block with these ids, which have a common step (`omq.drivers.push.SentRun`)."""

    __slots__ = ("_block", "_dealer", "_ids", "count", "frames")

    def __init__(self, dealer: UnsentDealer, block: Block, ids: range) -> None:
        self._dealer = dealer
        self._block = block
        self._ids = ids
        self.count = len(ids)
        self.frames: Octets = block.frames if self.count == block.count else block.gather(ids)

    def fall_back(self, follower: object, sent: int) -> tuple[int, bytes]:
        """Return the messages after the first `sent` octets to the topic. Return the number of messages that
        count as sent, and the rest of the last one of them.
        """
        end = count = 0
        while end < sent:
            end += len(self._block.frame(self._ids[count]))
            count += 1
        unsent = self._ids[count:]
        if unsent:
            self._dealer.unsent(len(unsent), len(self.frames) - end)
            self._dealer.returned([Run(unsent.start, unsent.step, (1 << len(unsent)) - 1)])
        return count, bytes(memoryview(self.frames)[sent:end])
