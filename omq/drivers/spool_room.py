"""The room of the spool for long messages, which is promised to each before its first octet comes.

Without that, several messages that do not fit together would all fail in their middle. While one waits for
room, and nothing moves on the spool, the others lose their promises: their clients send almost nothing.
"""

from collections import deque
from collections.abc import Callable
from itertools import takewhile

import trio

from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages


class Promise:
    """Pages that are kept for one message."""

    __slots__ = ("pages",)

    def __init__(self, pages: int) -> None:
        self.pages = pages


class _Place:
    """The place of a message that waits."""

    __slots__ = ("is_patient",)

    def __init__(self, *, is_patient: bool) -> None:
        self.is_patient = is_patient


class SpoolRoom:
    """The promised pages, and the messages that wait for a promise, in the order of their arrival. Patient
    ones wait for workers, and let the others pass.
    """

    def __init__(self, pages: SpoolPages) -> None:
        self._pages = pages
        self._promises: dict[Promise, None] = {}
        self._waiting: deque[_Place] = deque()
        self._moved = trio.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether a message waits for room that is not patient."""
        return any(not each.is_patient for each in self._waiting)

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return len(self._waiting)

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

    async def promise(
        self,
        pages: int,
        seconds: float,
        is_unwanted: Callable[[], bool],
        goes_on: Callable[[], bool] | None = None,
    ) -> Promise | None:
        """Promise N `pages` when they are free, and no message waits that is before it. When nothing has
        moved for N `seconds`, break the promises to others. If the pages are not free even then, return None,
        unless the message is patient, and `goes_on` returns that it waits on. Return None, too, when nobody
        wants the message any more: `is_unwanted` is asked when something moves.
        """
        if pages > self._pages.limit:
            return None
        place = _Place(is_patient=goes_on is not None)
        self._waiting.append(place)
        try:
            while not is_unwanted():
                is_next = self._is_next(place)
                if is_next and (made := self._promise(pages)) is not None:
                    return made
                with trio.move_on_after(seconds) as waiting:
                    await self._moved.wait()
                if waiting.cancelled_caught:
                    is_next = self._is_next(place)
                    if is_next:
                        self._break_promises()
                    if goes_on is None or not goes_on():
                        return self._promise(pages) if is_next else None
            return None
        finally:
            self._waiting.remove(place)
            self._wake()

    def _is_next(self, place: _Place) -> bool:
        before = takewhile(lambda each: each is not place, self._waiting)
        return not any(place.is_patient or not each.is_patient for each in before)

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
        """Note that something came of a message, or left, that pages were freed, or that a topic ended."""
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()


def pages_of(octets: int) -> int:
    """Return the number of pages that N octets take."""
    return -(-octets // PAGE_OCTETS)
