"""What the spool has of one topic, read as if it were stored: see `omq.drivers.spool`."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from omq.drivers.seam import LITTLE_OCTETS, Gone
from omq.drivers.spool import Spool
from omq.drivers.spoolable import SpoolExtent
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock
from omq_storage.lookup import LargeBlock, VerifiedBlock
from omq_storage.pieces import LargeMessage


class Spooled:
    """Extents of one topic, in the order of their messages; messages between them may be lost."""

    __slots__ = ("_extents", "_spool", "octets")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._extents: list[SpoolExtent] = []
        self.octets = 0
        """The octets of all of them."""

    def __bool__(self) -> bool:
        return bool(self._extents)

    @property
    def first(self) -> int | None:
        """The id of the oldest message, or None."""
        return self._extents[0].first if self._extents else None

    @property
    def last(self) -> SpoolExtent | None:
        """The extent with the newest messages, or None."""
        return self._extents[-1] if self._extents else None

    def add(self, extents: Sequence[SpoolExtent], before: SpoolExtent | None) -> None:
        """Add newer messages, and those of the extent `before` again, which has not to be kept then."""
        if self._extents and self._extents[-1] is before:
            self._drop(self._extents.pop())
        self._extents += extents
        self.octets += sum(extent.octets for extent in extents)

    def covers(self, position: int) -> bool:
        """Return whether it has the message `position`."""
        return self._at(position) is not None

    def first_after(self, position: int) -> int | None:
        """Return the id of the first message above `position`, or None."""
        index = bisect_right(self._extents, position, key=attrgetter("first"))
        return self._extents[index].first if index < len(self._extents) else None

    def forget_below(self, position: int) -> None:
        """Drop the extents whose messages are all below `position`."""
        count = bisect_right(self._extents, position, key=attrgetter("next"))
        for extent in self._extents[:count]:
            self._drop(extent)
        del self._extents[:count]

    def _drop(self, extent: SpoolExtent) -> None:
        self.octets -= extent.octets
        self._spool.drop(extent)

    def clear(self) -> None:
        """Drop all extents."""
        if self._extents:
            self.forget_below(self._extents[-1].next)

    def at_hand(self, position: int) -> Sequence[Block]:
        """Return messages, this one among them, if they are few and the page cache has them."""
        extent = self._at(position)
        if extent is None or extent.octets > LITTLE_OCTETS:
            return ()
        try:
            return (self._spool.read_at_once(extent).block,)
        except (BlockingIOError, DamagedBlock):
            return ()

    # -- as a store: see the methods of `omq.drivers.driver.Driver` with these names -----------------------

    async def replay(self, position: int, largest: int | None) -> list[VerifiedBlock] | Gone:
        """Return the messages of the extent with this message. Raises LargeBlock."""
        extent = self._at(position)
        assert extent is not None
        if largest is not None and extent.octets > largest:
            raise LargeBlock(extent.octets)
        try:
            return [await self._spool.read(extent)]
        except DamagedBlock as damaged:
            return Gone(position, extent.next - 1, f"the store is damaged there ({damaged.why})")

    async def look_at(self, message: int) -> LargeMessage | None:
        """Verify a message for reading piece by piece; None when it is gone. Raises DamagedBlock."""
        extent = self._at(message)
        return None if extent is None else await self._spool.look_at(extent, message)

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """Return a piece of its body; None when it must be opened again. Raises DamagedBlock."""
        extent = self._at(message.id)
        return None if extent is None else await self._spool.read_piece(extent, message, begin, octets)

    def _at(self, position: int) -> SpoolExtent | None:
        index = bisect_right(self._extents, position, key=attrgetter("first")) - 1
        if index < 0 or position >= self._extents[index].next:
            return None
        return self._extents[index]
