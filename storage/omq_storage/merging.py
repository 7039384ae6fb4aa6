"""Planning which small blocks to merge."""

from collections.abc import Sequence
from dataclasses import dataclass

from omq_storage import numbers
from omq_storage.blocks import BLOCK_HEADER, SPAN_LIMIT
from omq_storage.records import BlockRecord

MERGED_MESSAGES = 4096
MERGED_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The runs of consecutive blocks to merge, each into one block."""

    runs: Sequence[Sequence[BlockRecord]]
    growing: int
    """First message id of the earliest block whose run reaches the end of the list.  Blocks that are appended
    later may still be merged with it, so the next scan begins here."""


def plan(blocks: Sequence[BlockRecord], span: int = SPAN_LIMIT) -> MergePlan:
    """Plan the merges of at least one block; the blocks are in ascending order.

    A merged block spans less than ``span`` microseconds.  A run is merged only if the result is at least
    twice as large as its largest part.  So a message is rewritten some ten times at most while its block
    grows from the smallest to the largest size, however often the plan runs.
    """
    runs = []
    growing: int | None = None
    begin = 0
    while begin < len(blocks):
        end = _reach(blocks, begin, span)
        if end == len(blocks) and growing is None:
            growing = blocks[begin].first
        run = blocks[begin:end]
        if sum(block.bytes for block in run) >= 2 * max(block.bytes for block in run):
            runs.append(run)
            begin = end
        else:
            begin += 1  # the first block may be too large for this run; the others may form a run without it
    assert growing is not None  # the reach of the last block ends with it
    return MergePlan(runs, growing)


def _reach(blocks: Sequence[BlockRecord], begin: int, span: int) -> int:
    """Return the end index of the longest run from ``begin`` on that one block can hold.

    A message in fragments is a run of its own.
    """
    first = blocks[begin]
    latest = first.time + first.span
    size = _share(first) + BLOCK_HEADER
    heads = first.heads
    end = begin + 1
    while end < len(blocks):
        block = blocks[end]
        latest = max(latest, block.time + block.span)
        size += _share(block)
        heads |= block.heads
        if (
            block.first != blocks[end - 1].next
            or first.body
            or block.body
            or block.next - first.first > MERGED_MESSAGES
            or size + (_head_offsets(block.next - first.first) if heads else 0) > MERGED_BYTES
            or latest - first.time >= span
        ):
            break
        end += 1
    return end


def _share(block: BlockRecord) -> int:
    """Return the octets that a block adds to a merged one, without the offsets of heads.

    The merged block has one header, and time deltas for all messages.  It has offsets of heads for all
    messages or for none, so ``_reach`` adds them for the whole run.
    """
    deltas = 0 if block.span else numbers.SIZE * block.count
    return block.bytes - BLOCK_HEADER + deltas - (_head_offsets(block.count) if block.heads else 0)


def _head_offsets(count: int) -> int:
    """Return the octets of the offsets of ``count`` heads."""
    return numbers.SIZE * (count + 1)
