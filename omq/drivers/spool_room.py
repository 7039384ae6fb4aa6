"""The room of the spool for long messages, which is promised to each before its first octet comes.

Without that, several messages that do not fit together would all fail in their middle.
"""

import trio

from omq.drivers.signal import Signal
from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages


class SpoolRoom:
    """The promised pages, and the messages that wait for a promise, in the order of their arrival."""

    def __init__(self, pages: SpoolPages) -> None:
        self._pages = pages
        self._promised = 0
        self._turn = trio.Lock()
        self._moved = Signal()
        self.is_wanted = False
        """Whether a message waits for room."""

    def try_promise(self, pages: int) -> bool:
        """Promise N `pages`, if as many are free and no other message waits."""
        return not self.is_wanted and self._promise(pages)

    def _promise(self, pages: int) -> bool:
        if self._pages.used + self._promised + pages > self._pages.limit:
            return False
        self._promised += pages
        return True

    async def promise(self, pages: int, seconds: float) -> bool:
        """Promise N `pages` when they are free. Return False when nothing has moved for N `seconds`."""
        if pages > self._pages.limit:
            return False
        async with self._turn:
            self.is_wanted = True
            try:
                while not self._promise(pages):
                    with trio.move_on_after(seconds) as waiting:
                        await self._moved.wait()
                    if waiting.cancelled_caught:
                        return False
                return True
            finally:
                self.is_wanted = False

    def withdraw(self, pages: int) -> None:
        """Take back the promise of N `pages`: they are taken now, or will not be."""
        self._promised -= pages
        self.moved()

    def moved(self) -> None:
        """Note that pages were taken for a message, or freed."""
        if self.is_wanted:
            self._moved.set()


def pages_of(octets: int) -> int:
    """Return the number of pages that N octets take."""
    return -(-octets // PAGE_OCTETS)
