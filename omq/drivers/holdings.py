"""The messages of a transient round-robin topic, held in memory until they are done."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from omq_storage.blocks import Block

JOINED_OCTETS = 1 << 20
"""Neighbouring blocks on the disk are one here up to this size: else many small ones would take much memory.
They are deleted from the disk when all of them are done.
"""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """One or several blocks that are not in memory, but on the disk."""

    first: int
    next: int
    octets: int
    """The octets of its messages, those that are done included."""
    held: int = 0
    """The memory that it takes."""


class Holdings:
    """Blocks in order, each with the number of its messages that are not done."""

    def __init__(self) -> None:
        self._blocks: list[Block | OnDisk] = []
        self._starts: list[int] = []
        self._undone: list[int] = []
        self._on_disk: deque[int] = deque()
        """Where those on the disk start. The first ones may be done."""

    def append(self, block: Block) -> None:
        self._blocks.append(block)
        self._starts.append(block.first)
        self._undone.append(block.count)

    def append_on_disk(self, first: int, next: int, octets: int) -> None:
        """Add a block that is on the disk."""
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, OnDisk) and last.next == first and last.octets + octets <= JOINED_OCTETS:
            self._blocks[-1] = OnDisk(last.first, next, last.octets + octets)
            self._undone[-1] += next - first
            return
        self._blocks.append(OnDisk(first, next, octets))
        self._starts.append(first)
        self._undone.append(next - first)
        self._on_disk.append(first)

    def first_on_disk(self) -> int | None:
        """Return the first id of the oldest block on the disk that is not done."""
        while self._on_disk:
            first = self._on_disk[0]
            index = bisect_left(self._starts, first)
            if index < len(self._starts) and self._starts[index] == first:
                return first
            self._on_disk.popleft()
        return None

    def find(self, message: int) -> Block | None:
        """Return the block with a message; None if it is on the disk, or done with its whole block."""
        index = bisect_right(self._starts, message) - 1
        block = self._blocks[index] if index >= 0 else None
        return block if isinstance(block, Block) and message < block.next else None

    def done(self, message: int, count: int) -> int:
        """Mark `count` messages of the block with `message` as done. Return the octets that became free."""
        index = bisect_right(self._starts, message) - 1
        self._undone[index] -= count
        if self._undone[index]:
            return 0
        # Free the block even if older ones remain: one long job must not keep all later messages in memory.
        freed = self._blocks[index].held
        del self._blocks[index], self._starts[index], self._undone[index]
        return freed

    def settled(self, ids: range) -> int:
        """Note these messages, of any blocks, as done; gives the octets that became free.

        Blocks that are done leave the lists together: one by one, each would move all that came after it.
        """
        begin = end = bisect_right(self._starts, ids.start) - 1
        freed = 0
        is_any_done = False
        while ids:
            if ids.start >= self._blocks[end].next:
                end = bisect_right(self._starts, ids.start) - 1
            block = self._blocks[end]
            here = min(len(ids), -((ids.start - block.next) // ids.step))
            ids = ids[here:]
            self._undone[end] -= here
            if not self._undone[end]:
                is_any_done = True
                freed += block.held
            end += 1
        if is_any_done:  # even if they free nothing, because they are on the disk
            kept = [index for index in range(begin, end) if self._undone[index]]
            self._blocks[begin:end] = [self._blocks[index] for index in kept]
            self._starts[begin:end] = [self._starts[index] for index in kept]
            self._undone[begin:end] = [self._undone[index] for index in kept]
        return freed

    def clear(self) -> int:
        """Remove all blocks. Return the octets that became free."""
        freed = sum(block.held for block in self._blocks)
        self._blocks.clear()
        self._starts.clear()
        self._undone.clear()
        self._on_disk.clear()
        return freed

    def __iter__(self) -> Iterator[Block]:
        """Iterate over the blocks in memory."""
        return (block for block in self._blocks if isinstance(block, Block))

    def summary(self) -> tuple[int, int, int | None]:
        """Return the number of messages that are not done, the octets held, and the oldest block's
        first id.
        """
        return (
            sum(self._undone),
            sum(block.held for block in self._blocks),
            self._starts[0] if self._starts else None,
        )
