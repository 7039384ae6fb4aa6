"""Reads stored blocks for one broadcast channel, as much at a time as the memory for replays allows."""

from omq.drivers.driver import Driver
from omq.drivers.seam import Unavailable
from omq.drivers.stored_reads import READ_OCTETS
from omq_storage.lookup import LargeBlock, VerifiedBlock


class Replaying:
    """The memory for messages that a channel has read from the store and its subscriber has not taken yet."""

    __slots__ = ("_driver", "octets")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.octets = 0
        """The octets that it holds of the memory for replays; 0 if the memory was used up."""

    async def read(self, position: int, *, slow: bool) -> list[VerifiedBlock] | Unavailable | None:
        """Return stored blocks from `position` on, or the gap there; None if the first block is too large for
        the memory: its message must be read piece by piece. Raises StoreError.

        Without memory, and for a slow subscriber, it reads one block.
        """
        replayed = self._driver.resources.memory.replayed
        if not (slow or self.octets) and replayed.try_take(READ_OCTETS):
            self.octets = READ_OCTETS
        largest = READ_OCTETS
        while True:
            try:
                return await self._driver.replay(position, self.octets or 1, largest)
            except LargeBlock as large:
                if large.message is not None:
                    break  # in fragments: it is never read whole
                largest = large.octets
            if not self.octets or largest > replayed.limit:
                break
            self.give_back()
            if not replayed.try_take(largest):
                break
            self.octets = largest
        self.give_back()
        return None

    def give_back(self) -> None:
        """Free the memory of the last read."""
        if self.octets:
            self._driver.resources.memory.replayed.give(self.octets)
            self.octets = 0
