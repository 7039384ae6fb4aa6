"""The messages of a transient round-robin topic, held in memory until they are done."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from omq_storage.blocks import Block


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A block that is not in memory, but on the disk."""

    first: int
    next: int
    held: int = 0
    """The memory that it takes."""


class Holdings:
    """Blocks in order, each with the number of its messages that are not done."""

    def __init__(self) -> None:
        self._blocks: list[Block | OnDisk] = []
        self._starts: list[int] = []
        self._undone: list[int] = []

    def append(self, block: Block) -> None:
        self._blocks.append(block)
        self._starts.append(block.first)
        self._undone.append(block.count)

    def append_on_disk(self, first: int, next: int) -> None:
        """Add a block that is on the disk."""
        self._blocks.append(OnDisk(first, next))
        self._starts.append(first)
        self._undone.append(next - first)

    def first_on_disk(self) -> int | None:
        """Return the first id of the oldest block on the disk that is not done."""
        return next((block.first for block in self._blocks if isinstance(block, OnDisk)), None)

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
