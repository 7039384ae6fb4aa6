"""A wake-up for one task: set from anywhere in the Trio thread, waited for by its owner."""

import trio


class Signal:
    """Set any number of times, it wakes its one waiter once. A set before the wait is not lost."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: trio.Event | None = None

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return when it was set since the last wait; the next wait waits anew."""
        if self._is_set:
            await trio.lowlevel.checkpoint()
        else:
            self._event = trio.Event()
            try:
                await self._event.wait()
            finally:
                self._event = None
        self._is_set = False
