"""Reads one stored message piece by piece: for a client that stalled in its middle, or for lack of memory."""

from omq.drivers.driver import Driver
from omq.drivers.seam import LITTLE_OCTETS, MessageTruncated, Piece
from omq.drivers.stored_reads import READ_OCTETS
from omq.gap_reasons import ONE_NOT_KEPT, damage
from omq_storage.errors import DamagedBlock
from omq_storage.pieces import LargeMessage


class Pieces:
    """The progress of a client in a message. Only one piece of the message is in memory at a time."""

    __slots__ = ("_driver", "_held", "_looked_at", "begin", "message")

    def __init__(self, driver: Driver, message: int, begin: int = 0) -> None:
        self.message = message
        self.begin = begin
        """The number of octets of the body that were sent."""
        self._driver = driver
        self._held = 0  # octets of the memory for what is read from stores
        self._looked_at: LargeMessage | None = None

    async def take(self, *, slow: bool) -> Piece:
        """Return the next piece; a small one for a slow client, and when the memory is used up.

        Call `give_back` when it is written. Raises MessageTruncated when the message is not
        available any more, and omq_storage.errors.StoreError.
        """
        if not slow and self._driver.resources.memory.replayed.try_take(READ_OCTETS):
            self._held = READ_OCTETS
        try:
            return await self._read()
        except BaseException:  # cancelled, too: there is no piece that could be written
            self.give_back()
            raise

    async def _read(self) -> Piece:
        """Return the next piece of the message. Raise MessageTruncated and StoreError."""
        driver = self._driver
        while not driver.deleted:
            if self._looked_at is None:
                self._looked_at = await self._look()
            looked_at = self._looked_at
            try:
                found = await driver.read_piece(looked_at, self.begin, self._held or LITTLE_OCTETS)
            except DamagedBlock as damaged:
                raise MessageTruncated(damage(damaged)) from damaged
            if found is not None:
                return Piece(
                    looked_at.topic,
                    self.message,
                    looked_at.time,
                    looked_at.head,
                    looked_at.size,
                    begin=self.begin,
                    octets=found,
                )
            self._looked_at = None
        raise MessageTruncated("the topic was deleted")

    async def _look(self) -> LargeMessage:
        """Find the message in the store. Raise MessageTruncated if it is gone or damaged."""
        try:
            found = await self._driver.look_at(self.message)
        except DamagedBlock as damaged:
            raise MessageTruncated(damage(damaged)) from damaged
        if found is None:
            raise MessageTruncated(ONE_NOT_KEPT)
        return found

    def give_back(self) -> None:
        """Free the memory of the last piece."""
        self._driver.resources.memory.replayed.give(self._held)
        self._held = 0
