"""One stored message given piece by piece: to a client that stalled in its middle, or for want of memory."""

from omq.drivers.driver import READ_OCTETS, Driver
from omq.drivers.seam import LITTLE_OCTETS, Piece, Torn
from omq_storage.errors import DamagedBlock
from omq_storage.pieces import LargeMessage


class Pieces:
    """Where a client is in a message. Of the message itself one piece is held at a time."""

    __slots__ = ("_driver", "_held", "_looked_at", "begin", "message")

    def __init__(self, driver: Driver, message: int, begin: int = 0) -> None:
        self.message = message
        self.begin = begin
        """How many octets of its body the client has."""
        self._driver = driver
        self._held = 0  # octets of the memory for what is read from stores
        self._looked_at: LargeMessage | None = None

    async def take(self, *, slow: bool) -> Piece:
        """The next piece: a little to one who is slow, and when the memory for more is spent. `give_back` is
        to be called when it is written.

        Raises Torn when the message cannot be had any more, and omq_storage.errors.StoreError.
        """
        if not slow and self._driver.resources.memory.replayed.try_take(READ_OCTETS):
            self._held = READ_OCTETS
        try:
            return await self._read()
        except BaseException:
            self.give_back()  # there is no piece that could be written
            raise

    async def _read(self) -> Piece:
        """Raises Torn and StoreError."""
        driver = self._driver
        while not driver.deleted:
            if self._looked_at is None:
                self._looked_at = await self._look()
            looked_at = self._looked_at
            found = await driver.read_piece(looked_at, self.begin, self._held or LITTLE_OCTETS)
            if found is not None:
                return Piece(looked_at.topic, self.message, looked_at.head, looked_at.size, self.begin, found)
            self._looked_at = None
        raise Torn("the topic was deleted")

    async def _look(self) -> LargeMessage:
        """Raises Torn."""
        try:
            found = await self._driver.look_at(self.message)
        except DamagedBlock as damaged:
            raise Torn(f"the store is damaged there ({damaged.why})") from damaged
        if found is None:
            raise Torn("it is no longer kept")
        return found

    def give_back(self) -> None:
        """The memory of the last piece is free."""
        self._driver.resources.memory.replayed.give(self._held)
        self._held = 0
