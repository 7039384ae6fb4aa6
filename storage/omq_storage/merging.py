"""Merges small consecutive blocks of a topic: plans which, and replaces each run of them by one block.

A merge takes many short steps.  While a step plans and merges, its thread holds the interpreter's lock, and
every other thread waits for it, by default up to the 5 ms after which Python takes the lock away; while a
step writes, the commits of the level wait.  A step of 4,096 blocks took 40 ms, and the round trips of all
clients were up to 5 ms longer during it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice

from omq_storage import numbers
from omq_storage.blocks import BLOCK_HEADER, SPAN_LIMIT, Block, merge, pack
from omq_storage.database import Reading, Writing
from omq_storage.errors import DamagedBlock, NewerFormat
from omq_storage.extents import extent_of, put_extent
from omq_storage.lookup import infos_from, verified
from omq_storage.records import BLOCKS, INDEX, BlockRecord, block_info, block_key, pack_info

MERGED_MESSAGES = 4096
MERGED_BYTES = 512 << 10

MOST_PASSES = 3
"""The most passes of a merge: those of single messages fill a block in two."""

# Limits of one step: see above.  Of single messages it takes some 0.7 ms.
BLOCKS_IN_STEP = 64
_OCTETS_MERGED = 1 << 20


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The runs of consecutive blocks to merge, each into one block."""

    runs: Sequence[Sequence[BlockRecord]]
    growing: int
    """First message id of the earliest block whose run reaches the end of the list.  Blocks that are appended
    later may still be merged with it, so the next scan begins here."""


@dataclass(frozen=True, slots=True)
class MergeStep:
    """The result of one step."""

    following: int | None
    """The message id at which the next step begins; None if nothing more can be merged from there on now."""
    has_merged: bool
    is_last: bool
    """Whether the step saw the last block of the topic."""


class SmallBlocks:
    """The small blocks of a topic from a message on, which are merged in passes of many steps.

    A pass makes one block of up to as many as a step has.  If a pass has several such steps, another pass
    merges their results, up to MOST_PASSES: blocks may be appended as quickly as they are merged.
    """

    start: int
    """The message id at which this pass began.  When all is merged, that at which the next merge of the topic
    begins: blocks that are appended later may still be merged with the last ones.
    """

    def __init__(self, merge: Callable[[int], MergeStep], start: int) -> None:
        """Merge nothing yet.  ``merge`` takes a step from a message id on: ``Environment.merge_small``."""
        self.start = start
        self._merge = merge
        self._following = start
        self._is_again = False
        self._passes = 1

    def step(self) -> bool:
        """Take one step.  Return whether there may be more to merge.  Raises what ``merge`` raises."""
        done = self._merge(self._following)
        self._is_again |= done.has_merged and not done.is_last
        if done.following is not None:
            self._following = done.following
            return True
        if self._is_again and self._passes < MOST_PASSES:
            self._following = self.start
            self._is_again = False
            self._passes += 1
            return True
        self.start = self._following
        return False


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


def merge_small(
    reading: Callable[[], AbstractContextManager[Reading]],
    writing: Callable[[], AbstractContextManager[Writing]],
    topic: int,
    start: int,
    span: int,
) -> MergeStep:
    """Merge blocks in one bounded transaction; see ``Environment.merge_small``. ``reading`` and ``writing``
    begin transactions.
    """
    with reading() as snapshot:
        found = list(islice(infos_from(snapshot, topic, start), BLOCKS_IN_STEP + 1))
        beyond = len(found) > BLOCKS_IN_STEP
        scanned = found[:BLOCKS_IN_STEP]
        if not scanned:
            return MergeStep(None, has_merged=False, is_last=True)
        planned = plan(scanned, min(span, SPAN_LIMIT))
        candidates = planned.runs
        begins_at_growing = beyond and planned.growing > scanned[0].first
        if begins_at_growing:
            # The next step sees the whole of this run.  Merged in parts, it could stay in parts.
            candidates = [run for run in candidates if run[0].first < planned.growing]
        runs = list(_within(candidates, _OCTETS_MERGED))
        # The values are copied and merged before the write transaction begins: other writers wait for it.
        values = [
            [(info, snapshot.get(BLOCKS, block_key(topic, info.first))) for info in run] for run in runs
        ]
    merged = []
    for run, parts in zip(runs, values, strict=True):
        block = _merged(topic, parts)
        if block is not None:
            merged.append((run, block, pack(block)))
    has_merged = False
    if merged:
        with writing() as transaction:
            for run, block, value in merged:
                has_merged |= _replace(transaction, run, block, value)
    is_cut = len(runs) < len(candidates)
    following: int | None
    if is_cut:
        following = runs[-1][-1].next
    elif beyond:
        following = planned.growing if begins_at_growing else scanned[-1].next
    else:
        following = planned.growing if has_merged else None
    return MergeStep(following, has_merged, is_last=not (is_cut or beyond))


def _within(runs: Sequence[Sequence[BlockRecord]], limit: int) -> Iterator[Sequence[BlockRecord]]:
    """Yield the first of these runs that have up to ``limit`` octets together, but at least one."""
    size = 0
    for run in runs:
        size += sum(info.bytes for info in run)
        if size > limit and run is not runs[0]:
            return
        yield run


def _merged(topic: int, run: Sequence[tuple[BlockRecord, bytes | None]]) -> Block | None:
    """Return one block for a run.  None if a part cannot be read: the parts stay, and ``read`` reports it."""
    try:
        return merge([verified(topic, info, value).block for info, value in run])
    except (DamagedBlock, NewerFormat):
        return None


def _replace(transaction: Writing, run: Sequence[BlockRecord], block: Block, value: bytes) -> bool:
    """Store a merged block in place of its parts.  Return False, and do nothing, if some part was deleted or
    merged meanwhile.

    The parts were read before this transaction began.  A server runs no deletion of the same level in
    between, but other users of this package may.
    """
    topic = block.topic
    keys = [block_key(topic, info.first) for info in run]
    if any(transaction.get(INDEX, key) != pack_info(key, info) for key, info in zip(keys, run, strict=True)):
        return False
    for key in keys[1:]:
        transaction.delete(INDEX, key)
        transaction.delete(BLOCKS, key)
    info = block_info(block, value)
    transaction.put(INDEX, keys[0], pack_info(keys[0], info))
    transaction.put(BLOCKS, keys[0], value)
    extent = extent_of(transaction, topic)
    saved = sum(part.bytes for part in run) - info.bytes
    put_extent(transaction, topic, replace(extent, bytes=extent.bytes - saved))
    return True
