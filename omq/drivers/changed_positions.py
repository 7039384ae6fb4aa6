"""The round-robin topics whose positions must be saved."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from omq.drivers.posts import StoredDriver
from omq.drivers.signal import Signal


class ChangedPositions:
    """The drivers of one writer whose positions may have changed since they were saved."""

    def __init__(self) -> None:
        self.drivers: set[StoredDriver] = set()
        """The drivers, which only this class changes. Callers read this attribute: most have been added
        already, and a call would take longer.
        """
        self._has_drivers = Signal()
        self._saving = trio.Lock()

    def add(self, driver: StoredDriver) -> None:
        """Record that the position of a driver may have changed."""
        self.drivers.add(driver)
        self._has_drivers.set()

    async def wait(self) -> None:
        """Wait until a position may have changed, so that an idle server does no work for positions."""
        while not self.drivers:
            await self._has_drivers.wait()

    @asynccontextmanager
    async def saving(self) -> AsyncIterator[set[StoredDriver]]:
        """Take the drivers for a block that saves their positions. If another block is saving positions, wait
        for its end first. If the block raises something, add its drivers again.
        """
        async with self._saving:
            taken, self.drivers = self.drivers, set()
            try:
                yield taken
            except BaseException:  # cancelled, too: the next call tries again, even if nothing changes
                for driver in taken:
                    self.add(driver)
                raise
