"""Reads of the store for drivers of persistent topics: blocks, pieces of messages, lists of blocks."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import trio

from omq.drivers.counted_topic import CountedTopic
from omq.drivers.seam import Unavailable
from omq.drivers.writer import Writer
from omq.gap_reasons import damage, missing
from omq.logs import LogThrottle
from omq.threads import in_thread
from omq_storage.environment import BlockRecord, Environment
from omq_storage.errors import DamagedBlock, StoreError
from omq_storage.lookup import LargeBlock, VerifiedBlock
from omq_storage.pieces import LargeMessage

T = TypeVar("T")

READ_OCTETS = 1 << 20
"""The size of one read of the store: large compared with the cost of a thread switch, small for the memory.
"""


class ReadLimits(Protocol):
    """The limits on the threads that read for all drivers of a server."""

    @property
    def readers(self) -> trio.CapacityLimiter:
        """Return the limit for messages."""

    @property
    def listers(self) -> trio.CapacityLimiter:
        """Return the limit for lists of blocks."""


class StoredReads(CountedTopic):
    """The part of a driver that reads stored messages."""

    writer: Writer | None
    resources: ReadLimits
    lost: range
    """The ids that a power failure took, as far as they are known."""
    _unreadable: LogThrottle

    @property
    def environment(self) -> Environment:
        assert self.writer is not None, "a transient topic has no store"
        return self.writer.environment

    async def read(self, position: int, octets: int, largest: int | None = None) -> list[VerifiedBlock]:
        """Return stored blocks from `position` on, without those that subscribers may not see yet.

        Raises omq_storage.lookup.LargeBlock when the first of them has more than `largest` octets or is a
        message in fragments, and omq_storage.errors.StoreError, which is also logged: DamagedBlock when it is
        damaged.
        """
        read = partial(self.environment.read_stored, self.topic.id, position, octets, largest=largest)
        blocks = await self._in_reader(read)
        return [stored for stored in blocks if stored.block.first < self.next_id]

    async def replay(
        self, position: int, octets: int, largest: int | None = None
    ) -> list[VerifiedBlock] | Unavailable:
        """Return stored blocks from `position` on, as `read`, if the first of them has that message; or else
        which messages are not available there, and why.

        `position` is below `next_id`. Raises omq_storage.lookup.LargeBlock as `read` does, and
        omq_storage.errors.StoreError.
        """
        # Every message below this id is either stored or lost: the store is written before the id increases.
        known = self.next_id
        try:
            blocks = await self.read(position, octets, largest)
            kept = blocks[0].block.first if blocks else known
        except DamagedBlock as damaged:
            if damaged.first <= position:
                return Unavailable(position, min(damaged.last_known, known - 1), damage(damaged))
            blocks = []
            kept = min(damaged.first, known)  # a damaged key may contain an id that was never assigned
        except LargeBlock as large:
            if large.message is None or large.message.first <= position:
                raise
            blocks = []
            kept = min(large.message.first, known)
        if kept <= position:
            return blocks
        # A deletion may have come before the read, and not be known to the driver yet: ask the store.
        extent = await self._in_reader(partial(self.environment.extent, self.topic.id))
        ids, reason = missing(extent, self.lost, position, kept)
        return Unavailable(position, ids.stop - 1, reason)

    async def look_at(self, message: int) -> LargeMessage | None:
        """Verify a stored message for reading piece by piece; None when it is not stored any more.

        Raises omq_storage.errors.StoreError, which is also logged: DamagedBlock when it is damaged.
        """
        return await self._in_reader(partial(self.environment.bodies.open_message, self.topic.id, message))

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """Return a piece of its body; None when it must be opened again.

        Raises omq_storage.errors.StoreError, which is also logged.
        """
        return await self._in_reader(partial(self.environment.bodies.read_piece, message, begin, octets))

    async def _in_reader(self, read: Callable[[], T]) -> T:
        try:
            return await in_thread(read, limiter=self.resources.readers)
        except StoreError as problem:
            self._unreadable.add(problem)
            raise

    async def stored_blocks(
        self, first: int, count: int, limit: int, then: Callable[[list[BlockRecord]], T]
    ) -> T:
        """List the blocks with any of `count` messages from `first` on, at most `limit`. Return the result of
        `then` for the list; it is called in the thread that has read the list.

        Raises omq_storage.errors.StoreError, which is also logged.
        """
        end = min(first + count, self.next_id)
        environment = self.environment

        def listed() -> T:
            infos = environment.blocks(self.topic.id, first, limit) if first < end else []
            return then([info for info in infos if info.first < end])

        try:
            return await in_thread(listed, limiter=self.resources.listers)
        except StoreError as problem:
            self._unreadable.add(problem)
            raise
