"""The messages of a stored block that one worker of a round-robin topic gets: all, or every Nth."""

from typing import Protocol

from omq.drivers.seam import Octets
from omq_storage.blocks import Block


class Worker(Protocol):
    """The channel of the worker."""

    def give_later(self, block: Block, ids: range, octets: int) -> None:
        """Assign messages with N `octets` to it that were counted as sent, and were not."""


class DealtRun:
    """The messages of a block with these ids, which have a common step (`omq.drivers.push.SentRun`)."""

    __slots__ = ("_block", "_ids", "_worker", "count", "frames")

    def __init__(self, worker: Worker, block: Block, ids: range) -> None:
        self._worker = worker
        self._block = block
        self._ids = ids
        self.count = len(ids)
        self.frames: Octets = block.frames if self.count == block.count else block.gather(ids)

    def fall_back(self, follower: object, sent: int) -> tuple[int, bytes]:
        """Let the worker have the messages after the first `sent` octets later. Return the number of messages
        that count as sent, and the rest of the last one of them.

        They stay with this worker: others may have later ones of the same block already.
        """
        end = count = 0
        while end < sent:
            end += len(self._block.frame(self._ids[count]))
            count += 1
        if count < self.count:
            self._worker.give_later(self._block, self._ids[count:], len(self.frames) - end)
        return count, bytes(memoryview(self.frames)[sent:end])
