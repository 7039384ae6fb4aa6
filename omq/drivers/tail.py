"""The recent blocks of a topic in memory. All live subscribers are sent the same octets."""

import weakref
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Protocol

from omq.drivers.slices import Slices
from omq.drivers.spoolable import Spoolable, StallWatch
from omq_storage.blocks import Block

MOST_BLOCKS = 512
"""The greatest number of blocks that one call of `from_position` returns, so that its loop stays short."""


_NO_HOLES: frozenset[int] = frozenset()


class MemoryUser(Protocol):
    """A user of the memory of the tails: a tail, the backlog of a connection, or the index of the spool."""

    @property
    def is_stored(self) -> bool:
        """Whether a store has its messages, too: then nothing is lost when it forgets them."""

    @property
    def octets(self) -> int:
        """The octets of memory that it holds."""

    def forget(self, octets: int, kept: int) -> bool:
        """Drop about `octets` of the oldest blocks, but not the last `kept`.

        Return whether any was dropped.
        """

    def __len__(self) -> int: ...


class TailEvictor(Protocol):
    """Makes room in the memory of the tails."""

    asked_from: float
    """The octets in use, of messages that only memory has, from which on a tail that grows asks for room."""

    def ask(self) -> None:
        """Make room."""

    def room(self) -> int:
        """Return the approximate number of octets that may be kept before a publisher must wait."""

    def must_wait(self, octets: int, *, is_behind: bool, again: bool) -> bool:
        """Return whether a post of N `octets` must wait until there is room: see `PublisherQueues`.

        `is_behind`: whether its topic has messages in memory for a subscriber that is behind. `again`:
        whether this is asked because there may be room now.
        """


class TailMemory:
    """The limit for the tails of all topics. Beyond it, the largest tails lose their oldest blocks. Those of
    persistent topics are the first: their subscribers read on in the store.

    So a topic whose subscribers keep up, or are at most `share` octets behind, loses no block because of
    topics with slow subscribers.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.unstored = 0
        """The octets in use without those of messages that a store has, too, which may be forgotten."""
        self.backlogged = 0
        """The octets in use of the backlogs of connections."""
        self.relief: TailEvictor | None = None
        """Makes room before anything is forgotten. None: nothing does."""
        self._tails: dict[MemoryUser, None] = {}

    def users(self) -> list[MemoryUser]:
        """Return all tails and backlogs that are not empty."""
        return list(self._tails)

    async def leave_behind(self, watch: StallWatch) -> None:
        """Leave subscribers behind, in all their topics, that have received nothing for too long."""
        slices = Slices()
        for user in self.users():
            await slices.step()
            topic = user.topic() if isinstance(user, Tail) and user.topic is not None else None
            if topic is not None:
                await topic.leave_behind(watch)

    def room(self) -> int:
        """Return the approximate number of octets that may be kept now before the publisher must wait."""
        return self.limit if self.relief is None else self.relief.room()

    def share(self) -> int:
        """Return the number of octets that a topic's fastest subscriber may be behind without losing
        messages.
        """
        return self.limit // (2 * max(2, len(self._tails) + 1))

    def grew(self, tail: MemoryUser, octets: int) -> None:
        self.hold(tail, octets)
        if self.relief is not None and self.unstored > self.relief.asked_from:
            self.relief.ask()
        if self.used > self.limit:
            self._make_room(tail)

    def hold(self, tail: MemoryUser, octets: int) -> None:
        """Count these octets of a tail, and make no room for them now."""
        self.used += octets
        if not tail.is_stored:
            self.unstored += octets
        self._tails[tail] = None

    def _make_room(self, growing: MemoryUser) -> None:
        """Free memory down to an eighth below the limit, so that not every block needs a search for
        the largest.
        """
        stored: list[MemoryUser] = []
        unstored: list[MemoryUser] = []
        for tail in self._tails:
            (stored if tail.is_stored else unstored).append(tail)
        self._make_room_in(stored, growing)
        self._make_room_in(unstored, growing)

    def _make_room_in(self, tails: list[MemoryUser], growing: MemoryUser) -> None:
        wanted = self.limit - self.limit // 8
        if self.used <= wanted:
            return
        largest = [(-tail.octets, number, tail) for number, tail in enumerate(tails)]
        heapify(largest)
        while largest and self.used > wanted:
            _, number, tail = heappop(largest)
            lead = tail.octets + (largest[0][0] if largest else 0)
            # The newest block stays: its subscribers have not received it yet.
            kept = 1 if tail is growing else 0
            if tail.forget(min(self.used - wanted, max(1, lead)), kept):
                heappush(largest, (-tail.octets, number, tail))

    def shrank(self, tail: MemoryUser, octets: int) -> None:
        self.used -= octets
        if not tail.is_stored:
            self.unstored -= octets
        if not len(tail):
            self._tails.pop(tail, None)


class Tail:
    """Blocks with consecutive ids, oldest first, at most `limit` octets (one block may be larger).

    Between them there may be holes: the ids of long messages, which have never been in memory.
    """

    __slots__ = ("_blocks", "_holes", "_limit", "_memory", "_starts", "is_stored", "octets", "topic")

    def __init__(self, memory: TailMemory, limit: int, *, is_stored: bool = False) -> None:
        self.is_stored = is_stored
        self._memory = memory
        self._limit = limit
        self.topic: weakref.ref[Spoolable] | None = None
        """Its topic, if its blocks may move to the spool."""
        # Two parallel lists, so that a position can be found by bisection.
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._holes = _NO_HOLES
        self.octets = 0

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def first(self) -> int | None:
        """The id of the oldest message, or None."""
        return self._starts[0] if self._starts else None

    @property
    def next(self) -> int | None:
        """The id after the newest message, or None."""
        return self._blocks[-1].next if self._blocks else None

    def append(self, block: Block) -> None:
        """Add the newest block, and drop the oldest blocks that no longer fit."""
        # A round-robin topic omits blocks that do not fit, and skips ids that its store has lost. Then the
        # blocks would not be consecutive, and `covers` would be wrong for a position between them.
        if self._blocks and self._blocks[-1].next != block.first and not self._reaches(block.first):
            self.clear()
        self._blocks.append(block)
        self._starts.append(block.first)
        octets = block.held
        self.octets += octets
        self._memory.grew(self, octets)
        if self.octets > self._limit:
            self.forget(self.octets - self._limit, 1)

    def leave_out(self, message: int) -> None:
        """Note that the message after the newest block is elsewhere."""
        if self._blocks:
            self._holes |= {message}

    def _reaches(self, position: int) -> bool:
        """Return whether nothing but holes is between the newest block and `position`."""
        between = range(self._blocks[-1].next, position)
        return len(between) <= len(self._holes) and self._holes.issuperset(between)

    def forget(self, octets: int, kept: int) -> bool:
        """Drop about `octets` of the oldest blocks, but not the last `kept`.

        Return whether any was dropped.
        """
        count = 0
        while octets > 0 and count < len(self._blocks) - kept:
            octets -= self._blocks[count].held
            count += 1
        self._cut(count)
        return count > 0

    def forget_below(self, position: int) -> None:
        """Drop the blocks whose messages are all below `position`."""
        count = bisect_right(self._starts, position) - 1
        if count >= 0 and position >= self._blocks[count].next:
            count += 1
        if count > 0:
            self._cut(count)

    def clear(self) -> None:
        self._cut(len(self._blocks))

    def _cut(self, count: int) -> None:
        octets = sum(block.held for block in self._blocks[:count])
        del self._blocks[:count]
        del self._starts[:count]
        if self._holes:
            self._holes = frozenset(each for each in self._holes if self._starts and each > self._starts[0])
        self.octets -= octets
        self._memory.shrank(self, octets)

    def covers(self, position: int) -> bool:
        """Return whether the tail has the message `position`."""
        return (
            bool(self._starts)
            and self._starts[0] <= position < self._blocks[-1].next
            and position not in self._holes
        )

    def first_after(self, position: int) -> int | None:
        """Return the first id of the first block that begins above `position`, or None."""
        index = bisect_right(self._starts, position)
        return self._starts[index] if index < len(self._starts) else None

    def from_position(self, position: int, octets: int) -> list[Block]:
        """Return the block with `position` and the following ones up to a hole, about `octets`, at least one
        block.
        """
        index = bisect_right(self._starts, position) - 1
        end = index
        while end < len(self._blocks) and octets > 0 and end - index < MOST_BLOCKS:
            octets -= self._blocks[end].held
            end += 1
        return self._up_to_hole(self._blocks[index:end])

    def _up_to_hole(self, blocks: list[Block]) -> list[Block]:
        return unbroken(blocks) if self._holes else blocks

    def before(self, position: int, octets: int) -> list[Block]:
        """Return the oldest blocks up to a hole, of those whose messages are all below `position`: about N
        `octets`.
        """
        end = 0
        while end < len(self._blocks) and octets > 0 and self._blocks[end].next <= position:
            octets -= self._blocks[end].held
            end += 1
        return self._up_to_hole(self._blocks[:end])

    def octets_after(self, position: int, enough: int) -> int:
        """Return the number of octets from `position` on; stop counting at `enough`."""
        total = 0
        for block in reversed(self._blocks):
            if block.next <= position or total >= enough:
                break
            total += block.held
        return total


def unbroken(blocks: list[Block]) -> list[Block]:
    """Return the blocks up to the first gap of ids."""
    for index, (block, following) in enumerate(pairwise(blocks), 1):
        if block.next != following.first:
            return blocks[:index]
    return blocks
