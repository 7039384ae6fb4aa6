"""The room of the spool for long messages, which is promised to each before its first octet comes.

Without that, several messages that do not fit together would all fail in their middle. While one waits for
room, and nothing moves on the spool, the others lose their promises: their clients send almost nothing.

A message waits until the spooler has found the subscribers that take nothing, and has given back the room of
their messages. So both measure time in the same way (`omq.drivers.scheduled_time`).
"""

from collections.abc import Callable, Iterator
from itertools import islice
from math import inf

import trio

from omq.drivers.scheduled_time import MOST_COUNTED, ScheduledTime
from omq.drivers.signal import Signal
from omq.drivers.spool_pages import PAGE_OCTETS, SpoolPages

MARGIN = 2 * MOST_COUNTED
"""The seconds for which a message waits longer than a subscriber may take nothing: the spooler sees the
subscriber for the first time one round later, and sums of fractions are not exact.
"""

LEAST_WAIT = 0.01
"""The least number of seconds between two checks of a message that waits."""


class Promise:
    """Pages that are kept for one message."""

    __slots__ = ("pages",)

    def __init__(self, pages: int) -> None:
        self.pages = pages


class _Place:
    """The place of a message that waits."""

    __slots__ = ("is_patient", "is_unwanted", "pages", "promise", "woken")

    def __init__(self, pages: int, is_unwanted: Callable[[], bool], *, is_patient: bool) -> None:
        self.pages = pages
        self.is_unwanted = is_unwanted
        self.is_patient = is_patient
        self.promise: Promise | None = None
        self.woken = trio.Event()
        """Set when it has its promise, or nobody wants the message any more."""


class SpoolRoom:
    """The promised pages, and the messages that wait for a promise, in the order of their arrival. Patient
    ones wait for workers, and let the others pass.

    There may be thousands, so what moves on the spool wakes none: free pages wake those that get them.
    """

    def __init__(self, pages: SpoolPages, changed: Signal) -> None:
        """Create the room on these pages. `changed` wakes the spooler, which calls `looked`."""
        self._pages = pages
        self._changed = changed
        self._time = ScheduledTime()
        self._promises: dict[Promise, None] = {}
        self._promised = 0
        """The pages of all promises."""
        self._waiting: dict[_Place, None] = {}
        self._urgent: dict[_Place, None] = {}
        """The waiting messages that are not patient."""
        self._moved_at = -inf
        self.unfinished = 0
        """The pages of messages that are not complete: nobody can take these."""

    @property
    def is_wanted(self) -> bool:
        """Whether a message waits for room that is not patient."""
        return bool(self._urgent)

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        return len(self._waiting)

    @property
    def has_complete(self) -> bool:
        """Whether the spool has messages that somebody can take, so that there is room again."""
        return self._pages.used > self.unfinished

    def try_promise(self, pages: int) -> Promise | None:
        """Promise N `pages`, if as many are free and no other message waits."""
        return None if self.is_wanted else self._promise(pages)

    def _promise(self, pages: int) -> Promise | None:
        if self._pages.used + self._promised + pages > self._pages.limit:
            return None
        made = Promise(pages)
        self._promises[made] = None
        self._promised += pages
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
        wants the message any more: `is_unwanted` is asked when a topic ends.
        """
        if pages > self._pages.limit or is_unwanted():
            return None
        place = _Place(pages, is_unwanted, is_patient=goes_on is not None)
        self._waiting[place] = None
        if not place.is_patient:
            self._urgent[place] = None
        self._look()
        self._changed.set()
        began = self._time.seconds
        try:
            while not place.woken.is_set():
                left = max(began, self._moved_at) + seconds + MARGIN - self._time.seconds
                if left > 0:
                    with trio.move_on_after(max(left, LEAST_WAIT)):
                        await place.woken.wait()
                    continue
                if self._is_next(place):
                    self._break_promises()
                if goes_on is None or not goes_on():
                    break
                began = self._time.seconds
        except BaseException:
            if place.promise is not None:
                self.withdraw(place.promise)
            raise
        finally:
            self._leave(place)
            self._look()
        return place.promise

    def _look(self) -> None:
        """Promise pages that are free to the messages that are next."""
        while any(self._is_given(place) for place in self._next()):
            pass

    def _next(self) -> Iterator[_Place]:
        """Yield the first message, and the first one that is not patient."""
        yield from islice(self._urgent, 1)
        yield from islice(self._waiting, 1)

    def _is_next(self, place: _Place) -> bool:
        return any(each is place for each in self._next())

    def _is_given(self, place: _Place) -> bool:
        """Promise the pages to a message, and wake it, if they are free."""
        place.promise = self._promise(place.pages)
        if place.promise is None:
            return False
        self._leave(place)
        place.woken.set()
        return True

    def _leave(self, place: _Place) -> None:
        self._waiting.pop(place, None)
        self._urgent.pop(place, None)

    def _break_promises(self) -> None:
        for promise in self._promises:
            promise.pages = 0
        self._promised = 0
        self._look()

    def use(self, promise: Promise, pages: int) -> None:
        """Note that N of the promised `pages` are taken."""
        taken = min(promise.pages, pages)
        promise.pages -= taken
        self._promised -= taken

    def withdraw(self, promise: Promise) -> None:
        """Keep nothing for a message any more."""
        self._promises.pop(promise, None)
        self.use(promise, promise.pages)
        self.freed()

    def moved(self) -> None:
        """Note that something came of a message, or left."""
        self._moved_at = self._time.seconds

    def looked(self) -> None:
        """Note that the spooler has dropped what no subscriber needs: it does so all the time while a message
        waits.
        """
        self._time.pass_to(trio.current_time())

    def freed(self) -> None:
        """Note that pages are free."""
        self.moved()
        self._look()

    def topic_ended(self) -> None:
        """Wake the messages that nobody wants any more."""
        for place in self._waiting:
            if place.is_unwanted():
                place.woken.set()


def pages_of(octets: int) -> int:
    """Return the number of pages that N octets take."""
    return -(-octets // PAGE_OCTETS)
