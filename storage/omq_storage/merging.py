"""Which small blocks are worth merging."""

from collections.abc import Sequence
from dataclasses import dataclass

from omq_storage import numbers
from omq_storage.blocks import BLOCK_HEADER, SPAN_LIMIT
from omq_storage.records import BlockInfo

MERGED_MESSAGES = 4096
MERGED_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of neighbours to merge into one block each."""

    runs: Sequence[Sequence[BlockInfo]]
    growing: int
    """Id of the first message of the earliest block whose run reaches the end of what was looked at: with
    more blocks behind it, it could be merged further.
    """


def plan(blocks: Sequence[BlockInfo], span: int = SPAN_LIMIT) -> Plan:
    """Plans for at least one block, in ascending order; merged ones span less than ``span`` microseconds.

    A run is merged only when the result is at least twice as large as its largest part.  So a message is
    rewritten some ten times at most while its block grows from the smallest to the largest, however often
    this is done.
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
            begin += 1  # its first block may be too large for the others, which may do without it
    return Plan(runs, blocks[-1].first if growing is None else growing)


def _reach(blocks: Sequence[BlockInfo], begin: int, span: int) -> int:
    """The end of the longest run from ``begin`` that may be one block."""
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
            or block.next - first.first > MERGED_MESSAGES
            or size + (_head_offsets(block.next - first.first) if heads else 0) > MERGED_BYTES
            or latest - first.time >= span
        ):
            break
        end += 1
    return end


def _share(block: BlockInfo) -> int:
    """Octets that a block adds to the one it is merged into: no header, but deltas even where it has none.

    Without the offsets of heads, which all messages have when one has a head.
    """
    deltas = 0 if block.span else numbers.SIZE * block.count
    return block.bytes - BLOCK_HEADER + deltas - (_head_offsets(block.count) if block.heads else 0)


def _head_offsets(count: int) -> int:
    """Octets of the offsets of so many heads."""
    return numbers.SIZE * (count + 1)
