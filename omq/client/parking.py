"""A place where tasks wait to be woken, like `trio.lowlevel.ParkingLot`, on asyncio and on Trio."""

from collections import deque

import anyio


class ParkingLot:
    """Tasks that wait. Each checks its condition again when it is woken."""

    def __init__(self) -> None:
        self._parked: deque[anyio.Event] = deque()

    async def park(self) -> None:
        """Wait until another task calls `unpark` for this one, or `unpark_all`."""
        event = anyio.Event()
        self._parked.append(event)
        try:
            await event.wait()
        except BaseException:  # cancelled
            if event.is_set():
                self.unpark()  # pass the wake-up on to the next task
            else:
                self._parked.remove(event)
            raise

    def unpark(self) -> None:
        """Wake the task that has waited the longest."""
        if self._parked:
            self._parked.popleft().set()

    def unpark_all(self) -> None:
        """Wake all waiting tasks."""
        while self._parked:
            self._parked.popleft().set()
