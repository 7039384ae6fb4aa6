"""The messages of a transient round-robin topic, held until they are done: in memory, or on a disk."""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from omq.drivers.spooled_bodies import SpooledBody
from omq_storage.blocks import Block
from omq_storage.fragments import Fragmented
from omq_storage.runs import Run, trimmed

JOINED_OCTETS = 1 << 20
"""Neighbouring blocks on the disk are one here up to this size: else many small ones would take much memory.
They are deleted from the disk when all of them are done.
"""

CHUNK_BLOCKS = 512
"""The greatest number of blocks of a chunk."""

RELEASED_BLOCKS = 256
"""The number of blocks that one call of `release` frees: it takes a few tenths of a millisecond."""


class OnDisk(Struct, frozen=True):
    """One or several blocks that are not in memory, but on the disk."""

    first: int
    next: int
    octets: int
    """The octets of its messages, those that are done included."""
    held: int = 0
    """The memory that it takes."""


class OnSpool(Struct, frozen=True):
    """A long message on the spool. Call `drop` when it is done."""

    message: Fragmented
    """Its description, whose number of the body means nothing."""
    body: SpooledBody
    held: int
    """The memory that it takes."""

    @property
    def first(self) -> int:
        """Its id."""
        return self.message.first

    @property
    def next(self) -> int:
        """The id after it."""
        return self.message.next


class _Chunk:
    """Some neighbouring blocks in order, each with the number of its messages that are not done."""

    __slots__ = ("blocks", "starts", "undone")

    def __init__(self) -> None:
        self.blocks: list[Block | OnDisk | OnSpool] = []
        self.starts: list[int] = []
        self.undone: list[int] = []

    def place(self, message: int) -> int:
        """Return the place of the block with a message; -1 if it was before all of them."""
        return bisect_right(self.starts, message) - 1

    def add(self, block: Block | OnDisk | OnSpool, count: int) -> None:
        """Add the newest block."""
        self.blocks.append(block)
        self.starts.append(block.first)
        self.undone.append(count)

    def insert(self, block: Block, count: int) -> None:
        """Add a block where it belongs."""
        place = self.place(block.first) + 1
        self.blocks.insert(place, block)
        self.starts.insert(place, block.first)
        self.undone.insert(place, count)

    def halve(self) -> "_Chunk":
        """Remove the later half of the blocks, and return them."""
        rest, half = _Chunk(), len(self.blocks) // 2
        rest.blocks, self.blocks = self.blocks[half:], self.blocks[:half]
        rest.starts, self.starts = self.starts[half:], self.starts[:half]
        rest.undone, self.undone = self.undone[half:], self.undone[:half]
        return rest

    def cut(self, begin: int, end: int) -> list[Block | OnDisk | OnSpool]:
        """Remove the blocks at these places of which all messages are done, and return them."""
        blocks, undone = self.blocks[begin:end], self.undone[begin:end]
        kept = [place for place, count in enumerate(undone, begin) if count]
        done = [block for block, count in zip(blocks, undone, strict=True) if not count]
        self.blocks[begin:end] = [self.blocks[place] for place in kept]
        self.starts[begin:end] = [self.starts[place] for place in kept]
        self.undone[begin:end] = [self.undone[place] for place in kept]
        return done


class Holdings:
    """Blocks in order, in chunks: so it costs the same to remove one, however many there are."""

    def __init__(self) -> None:
        self.messages = 0
        """The number of messages that are not done."""
        self.octets = 0
        """The octets of memory that the blocks take. Those of messages that are done count until `release`.
        """
        self.spooled = 0
        """The octets of the messages on the spool that are not done."""
        self.spilled = 0
        """The octets of the blocks on the disk. A block counts until all of its messages are done."""
        self._chunks: list[_Chunk] = []  # none but the last is empty
        self._firsts: list[int] = []  # no block of a chunk starts below its number here
        self._on_disk: deque[int] = deque()
        """The first ids of the blocks on the disk, in ascending order. The first blocks may be done."""
        self._settled: deque[Run] = deque()
        self._cleared: list[_Chunk] = []

    def append(self, block: Block) -> None:
        """Add the newest block."""
        self._append(block, block.count)

    def put_back(self, block: Block) -> None:
        """Add a block with messages that are not held, wherever it belongs among the others."""
        number = max(0, bisect_right(self._firsts, block.first) - 1)
        if number == len(self._chunks) - 1 and block.first >= self._firsts[number]:
            place = self._chunks[number].place(block.first) + 1
            is_last = place == len(self._chunks[number].blocks)
        else:
            is_last = not self._chunks
        if is_last:
            self._append(block, block.count)
            return
        chunk = self._chunks[number]
        chunk.insert(block, block.count)
        self._firsts[number] = min(self._firsts[number], block.first)
        if len(chunk.blocks) > 2 * CHUNK_BLOCKS:
            rest = chunk.halve()
            self._chunks.insert(number + 1, rest)
            self._firsts.insert(number + 1, rest.starts[0])
        self.messages += block.count
        self.octets += block.held

    def append_on_disk(self, first: int, next: int, octets: int) -> None:
        """Add a block that is on the disk."""
        self.spilled += octets
        chunk = self._chunks[-1] if self._chunks else None
        last = chunk.blocks[-1] if chunk is not None and chunk.blocks else None
        if isinstance(last, OnDisk) and last.next == first and last.octets + octets <= JOINED_OCTETS:
            assert chunk is not None
            chunk.blocks[-1] = OnDisk(last.first, next, last.octets + octets)
            chunk.undone[-1] += next - first
            self.messages += next - first
            return
        self._append(OnDisk(first, next, octets), next - first)
        self._on_disk.append(first)

    def append_on_spool(self, message: OnSpool) -> None:
        """Add a long message that is on the spool."""
        self._append(message, 1)
        self.spooled += message.message.size

    def _append(self, block: Block | OnDisk | OnSpool, count: int) -> None:
        if not self._chunks or len(self._chunks[-1].blocks) >= CHUNK_BLOCKS:
            self._chunks.append(_Chunk())
            self._firsts.append(block.first)
        self._chunks[-1].add(block, count)
        self.messages += count
        self.octets += block.held

    def first_on_disk(self) -> int | None:
        """Return the first id of the oldest block on the disk that is not done."""
        while self._on_disk:
            first = self._on_disk[0]
            found = self._find(first)
            if found is not None and found.first == first:
                return first
            self._on_disk.popleft()
        return None

    def _find(self, message: int) -> Block | OnDisk | OnSpool | None:
        """Return the newest block that starts at this message or before it, or None."""
        number = bisect_right(self._firsts, message) - 1
        if number < 0:
            return None
        chunk = self._chunks[number]
        place = chunk.place(message)
        return chunk.blocks[place] if place >= 0 else None

    def find(self, message: int) -> Block | Fragmented | None:
        """Return the block with a message, or its description if it is on the spool; None if it is with
        others on the disk, or done with its whole block.
        """
        block = self._find(message)
        if block is None or message >= block.next:
            return None
        if isinstance(block, OnSpool):
            return block.message
        return block if isinstance(block, Block) else None

    def on_spool(self, message: int) -> OnSpool | None:
        """Return a long message that is on the spool; None if there is none with this id, or it is done."""
        found = self._find(message)
        return found if isinstance(found, OnSpool) and found.first == message else None

    def blocks_from(self, message: int, most: int) -> list[Block | Fragmented]:
        """Return the first blocks in memory, and messages on the spool, from the one with this message on, at
        most `most`.
        """
        found: list[Block | Fragmented] = []
        number = max(0, bisect_right(self._firsts, message) - 1)
        while number < len(self._chunks) and len(found) < most:
            chunk = self._chunks[number]
            for block in chunk.blocks[max(0, chunk.place(message)) :]:
                if isinstance(block, OnDisk) or block.next <= message or len(found) >= most:
                    continue
                found.append(block.message if isinstance(block, OnSpool) else block)
            number += 1
        return found

    def done(self, message: int, count: int) -> int:
        """Mark `count` messages of the block with `message` as done. Return the octets that became free."""
        number = bisect_right(self._firsts, message) - 1
        chunk = self._chunks[number]
        place = chunk.place(message)
        self.messages -= count
        chunk.undone[place] -= count
        if chunk.undone[place]:
            return 0
        # Free the block even if older ones remain: one long job must not keep all later messages in memory.
        done = chunk.blocks[place : place + 1]
        del chunk.blocks[place], chunk.starts[place], chunk.undone[place]
        return self._shrank(number, done)

    def settle(self, run: Run) -> None:
        """Mark these messages, of any blocks, as done. `release` frees their blocks."""
        self.messages -= run.bits.bit_count()
        self._settled.append(run)

    @property
    def is_settling(self) -> bool:
        """Whether `release` has something to do."""
        return bool(self._settled)

    def release(self) -> int:
        """Free about RELEASED_BLOCKS blocks of messages that `settle` marked. Return the octets that became
        free.

        To free a hundred thousand blocks in one call would take a tenth of a second.
        """
        freed = 0
        left = RELEASED_BLOCKS
        while self._settled and left > 0:
            rest, looked_at, octets = self._release(self._settled[0], left)
            freed += octets
            left -= looked_at
            if rest is not None:
                self._settled[0] = rest
            else:
                self._settled.popleft()
        return freed

    def _release(self, run: Run, most: int) -> tuple[Run | None, int, int]:
        """Free blocks with the first of these messages, at most `most` and of one chunk. Return the rest of
        the messages, how many blocks were looked at, and the octets that became free.

        Blocks that are done leave the lists together: one by one, each would move all that came after it.
        """
        first, step, bits, _ = trimmed(run)
        number = bisect_right(self._firsts, first) - 1
        chunk = self._chunks[number]
        begin = place = chunk.place(first)
        is_any_done = False
        while place - begin < most:
            after = chunk.blocks[place].next
            if first >= after:
                place = chunk.place(first)
                after = chunk.blocks[place].next
                if first >= after:
                    break  # the next one is in a later chunk
            places = min(bits.bit_length(), -((first - after) // step))
            rest = bits >> places
            chunk.undone[place] -= bits.bit_count() - rest.bit_count()
            is_any_done |= not chunk.undone[place]
            bits = rest
            if not bits:
                place += 1
                break
            first, _, bits, _ = trimmed(Run(first + places * step, step, bits))
            place += 1
            if place == len(chunk.blocks):
                break
        freed = 0
        if is_any_done:  # even if they free nothing, because they are on the disk
            freed = self._shrank(number, chunk.cut(begin, place))
        return Run(first, step, bits) if bits else None, place - begin, freed

    def _shrank(self, number: int, done: Sequence[Block | OnDisk | OnSpool]) -> int:
        """Subtract blocks that have left a chunk. Return the octets that became free."""
        octets = sum([block.held for block in done])
        self.octets -= octets
        self.spooled -= _drop(done)
        self.spilled -= sum([block.octets for block in done if isinstance(block, OnDisk)])
        if not self._chunks[number].blocks and number < len(self._chunks) - 1:
            del self._chunks[number], self._firsts[number]
        return octets

    def clear(self) -> int:
        """Remove all blocks, which `free_some` frees. Return their octets."""
        freed, self.octets, self.messages, self.spooled, self.spilled = self.octets, 0, 0, 0, 0
        self._cleared, self._chunks = self._chunks, []
        self._firsts.clear()
        self._on_disk.clear()
        self._settled.clear()
        return freed

    def free_some(self) -> bool:
        """Free some of the blocks that `clear` removed. Return whether there are more."""
        if self._cleared:
            _drop(self._cleared.pop().blocks)
        return bool(self._cleared)

    @property
    def first(self) -> int | None:
        """The first id of the oldest block, or None."""
        return self._chunks[0].starts[0] if self._chunks and self._chunks[0].starts else None


def _drop(blocks: Iterable[Block | OnDisk | OnSpool]) -> int:
    """Give the pages of those of these blocks that are on the spool back. Return the octets of these."""
    octets = 0
    for block in blocks:
        if isinstance(block, OnSpool):
            block.body.drop()
            octets += block.message.size
    return octets
