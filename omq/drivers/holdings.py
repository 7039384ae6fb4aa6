"""The messages of a transient round-robin topic, held in memory until they are done."""

from bisect import bisect_right

from omq_storage.blocks import Block
from omq_storage.runs import Run


class Holdings:
    """Blocks in order, each with the number of its messages that are not done."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._undone: list[int] = []

    def append(self, block: Block) -> None:
        self._blocks.append(block)
        self._starts.append(block.first)
        self._undone.append(block.count)

    def find(self, message: int) -> Block:
        """Return the block of a message that is not done."""
        return self._blocks[bisect_right(self._starts, message) - 1]

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

    def settled(self, run: Run) -> int:
        """Mark the messages of a run, of any blocks, as done. Return the octets that became free."""
        first, step, bits, _ = run
        freed = 0
        while bits:
            skipped = (bits & -bits).bit_length() - 1
            first += skipped * step
            bits >>= skipped
            # The number of ids of the run in the block of the first of them.
            within = -((first - self.find(first).next) // step)
            freed += self.done(first, (bits & ((1 << within) - 1)).bit_count())
            first += within * step
            bits >>= within
        return freed

    def clear(self) -> int:
        """Remove all blocks. Return the octets that became free."""
        freed = sum(block.held for block in self._blocks)
        self._blocks.clear()
        self._starts.clear()
        self._undone.clear()
        return freed

    def summary(self) -> tuple[int, int, int | None]:
        """Return the number of messages that are not done, the octets held, and the oldest block's
        first id.
        """
        return (
            sum(self._undone),
            sum(block.held for block in self._blocks),
            self._starts[0] if self._starts else None,
        )
