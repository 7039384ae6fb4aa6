"""The messages of one topic in the spool, which are read as stored ones are: see `omq.drivers.spool`."""

from array import array
from bisect import bisect_right
from collections.abc import Collection, Sequence

from msgspec import Struct

from omq.drivers.seam import LITTLE_OCTETS, Unavailable
from omq.drivers.spool import Spool
from omq.drivers.spoolable import SpoolExtent
from omq.drivers.spooled_bodies import SpooledBody
from omq.gap_reasons import damage
from omq_storage.blocks import Block
from omq_storage.errors import DamagedBlock
from omq_storage.fragments import Fragmented
from omq_storage.lookup import LargeBlock, VerifiedBlock
from omq_storage.pieces import LargeMessage

_NUMBERS = 4
"""The numbers of an extent in the index: its first id, the id after its last, its octets, and its page."""


class SpooledMessage(Struct, frozen=True):
    """A long message on the spool."""

    message: Fragmented
    """Its description, whose number of the body means nothing."""
    body: SpooledBody


class Spooled:
    """Extents of one topic, in the order of their messages; messages between them may be lost, in memory, or
    long ones.
    """

    __slots__ = ("_index", "_long", "_spool", "_topic", "octets")

    def __init__(self, spool: Spool, topic: int) -> None:
        self._spool = spool
        self._topic = topic
        self._index = array("Q")
        """The numbers of each extent, one after another: there may be very many small ones."""
        self._long: dict[int, SpooledMessage] = {}
        """The long messages by their ids, which increase."""
        self.octets = 0
        """The octets of all of them."""

    def __bool__(self) -> bool:
        return bool(self._index or self._long)

    @property
    def first(self) -> int | None:
        """The id of the oldest message, or None."""
        return self.first_after(-1)

    @property
    def last(self) -> SpoolExtent | None:
        """The extent with the newest messages, or None."""
        return self._extent(len(self._index) - _NUMBERS) if self._index else None

    def _extent(self, at: int) -> SpoolExtent:
        return SpoolExtent(self._topic, *self._index[at : at + _NUMBERS])

    def add(self, extents: Sequence[SpoolExtent], before: SpoolExtent | None) -> None:
        """Add newer messages, and those of the extent `before` again, which has not to be kept then."""
        if before is not None and self.last == before:
            self._drop(range(len(self._index) - _NUMBERS, len(self._index)))
        for each in extents:
            self._index.extend((each.first, each.next, each.octets, each.page))
            self.octets += each.octets

    def add_long(self, message: Fragmented, body: SpooledBody) -> None:
        """Add the newest message of the topic, a long one."""
        self._long[message.first] = SpooledMessage(message, body)
        self.octets += message.held

    def has_long_from(self, position: int) -> bool:
        """Return whether the id of a long message is `position` or above."""
        return bool(self._long) and next(reversed(self._long)) >= position

    def covers(self, position: int) -> bool:
        """Return whether it has the message `position`."""
        return position in self._long or self._at(position) is not None

    def first_after(self, position: int) -> int | None:
        """Return the id of the first message above `position`, or None."""
        at = self._behind(position)
        long = next((message for message in self._long if message > position), None)
        if at == len(self._index):
            return long
        return self._index[at] if long is None else min(self._index[at], long)

    def forget_below(self, position: int, kept: Collection[int] = ()) -> None:
        """Drop the extents whose messages are all below `position`, except those with a message of `kept`."""
        end = self._behind(position)
        if end and self._index[end - _NUMBERS + 1] > position:
            end -= _NUMBERS
        for message in sorted(kept, reverse=True):
            at = self._behind(message) - _NUMBERS
            if 0 <= at < end and message < self._index[at + 1]:
                self._drop(range(at + _NUMBERS, end))
                end = at
        self._drop(range(end))
        for message in list(self._long):
            if message >= position:
                break
            if message not in kept:
                self._drop_long(message)

    def _drop_long(self, message: int) -> None:
        long = self._long.pop(message)
        self.octets -= long.message.held
        long.body.drop()

    def _drop(self, numbers: range) -> None:
        if numbers:
            extents = [self._extent(at) for at in numbers[::_NUMBERS]]
            del self._index[numbers.start : numbers.stop]
            self.octets -= sum(extent.octets for extent in extents)
            self._spool.drop(extents)

    def clear(self) -> None:
        """Drop all messages."""
        self._drop(range(len(self._index)))
        for message in list(self._long):
            self._drop_long(message)

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

    async def replay(self, position: int, largest: int | None) -> list[VerifiedBlock] | Unavailable:
        """Return the messages of the extent with this message. Raises LargeBlock."""
        if (long := self._long.get(position)) is not None:
            raise LargeBlock(long.message.stored_octets, long.message)
        extent = self._at(position)
        assert extent is not None
        if largest is not None and extent.octets > largest:
            raise LargeBlock(extent.octets)
        try:
            return [await self._spool.read(extent)]
        except DamagedBlock as damaged:
            return Unavailable(position, extent.next - 1, damage(damaged))

    async def look_at(self, message: int) -> LargeMessage | None:
        """Verify a message for reading piece by piece; None when it is gone. Raises DamagedBlock."""
        if (long := self._long.get(message)) is not None:
            long.body.verify()
            found = long.message
            return LargeMessage(found.topic, message, found.time, found.own_head, found.size, found)
        extent = self._at(message)
        return None if extent is None else await self._spool.look_at(extent, message)

    async def read_piece(self, message: LargeMessage, begin: int, octets: int) -> bytes | None:
        """Return a piece of its body; None when it must be opened again. Raises DamagedBlock."""
        if (long := self._long.get(message.id)) is not None:
            return await long.body.read(long.message, begin, octets)
        extent = self._at(message.id)
        return None if extent is None else await self._spool.read_piece(extent, message, begin, octets)

    def _at(self, position: int) -> SpoolExtent | None:
        at = self._behind(position) - _NUMBERS
        return None if at < 0 or position >= self._index[at + 1] else self._extent(at)

    def _behind(self, position: int) -> int:
        """Return the place in the index of the extents that begin above `position`."""
        return _NUMBERS * bisect_right(
            range(len(self._index) // _NUMBERS), position, key=lambda each: self._index[each * _NUMBERS]
        )
