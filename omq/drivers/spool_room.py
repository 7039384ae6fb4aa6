"""The room of the spool for long messages, which is promised to each before its first octet comes.

Without that, several messages that do not fit together would all fail in their middle. While one waits for
room, and nothing moves on the spool, the others lose their promises: their clients send almost nothing.
"""

import trio

from omq.drivers.signal import Signal
from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages


class Promise:
    """Pages that are kept for one message."""

    __slots__ = ("pages",)

    def __init__(self, pages: int) -> None:
        self.pages = pages


class SpoolRoom:
    """The promised pages, and the messages that wait for a promise, in the order of their arrival."""

    def __init__(self, pages: SpoolPages) -> None:
        self._pages = pages
        self._promises: dict[Promise, None] = {}
        self._turn = trio.Lock()
        self._moved = Signal()
        self.is_wanted = False
        """Whether a message waits for room."""

    def try_promise(self, pages: int) -> Promise | None:
        """Promise N `pages`, if as many are free and no other message waits."""
        return None if self.is_wanted else self._promise(pages)

    def _promise(self, pages: int) -> Promise | None:
        promised = sum(promise.pages for promise in self._promises)
        if self._pages.used + promised + pages > self._pages.limit:
            return None
        made = Promise(pages)
        self._promises[made] = None
        return made

    async def promise(self, pages: int, seconds: float) -> Promise | None:
        """Promise N `pages` when they are free. Return None if nothing moves for N `seconds`, and they are
        not free even without the promises to others.
        """
        if pages > self._pages.limit:
            return None
        async with self._turn:
            self.is_wanted = True
            try:
                while (made := self._promise(pages)) is None:
                    with trio.move_on_after(seconds) as waiting:
                        await self._moved.wait()
                    if waiting.cancelled_caught:
                        self._break_promises()
                        return self._promise(pages)
                return made
            finally:
                self.is_wanted = False

    def _break_promises(self) -> None:
        for promise in self._promises:
            promise.pages = 0

    def use(self, promise: Promise, pages: int) -> None:
        """Note that N of the promised `pages` are taken."""
        promise.pages = max(0, promise.pages - pages)

    def withdraw(self, promise: Promise) -> None:
        """Keep nothing for a message any more."""
        self._promises.pop(promise, None)
        self.moved()

    def moved(self) -> None:
        """Note that something came of a message, or that pages were freed."""
        if self.is_wanted:
            self._moved.set()


def pages_of(octets: int) -> int:
    """Return the number of pages that N octets take."""
    return -(-octets // PAGE_OCTETS)
