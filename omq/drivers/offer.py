"""Messages for which a driver has no room now, and the wake-up of their publisher when there is.

A driver never waits: `Driver.offer` takes messages over, or answers with a place in the line for room. So a
terminal decides what it does meanwhile: it waits, goes on with other commands, or gives up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from omq.drivers.confirmation import Confirmation
from omq.drivers.waits import Room


class NoRoom(ABC):
    """A post for which there is no room now: its place in the queue for room.

    The publisher offers nothing else to the same topic until these messages are accepted or given up: so
    its messages stay in order. Room that is granted to this place is not available to
    others, until `again` or `leave` is called: do that soon after the wake-up.
    """

    __slots__ = ("_is_woken", "_wake", "room")

    def __init__(self, room: Room | None = None) -> None:
        self.room = room
        """The topic whose workers make the room; None if room becomes free without action of clients."""
        self._wake: Callable[[], None] | None = None
        self._is_woken = False

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when `again` can make progress; at once if it already can.

        It is called in the middle of the driver's work: it only notes that, and wakes a task.
        """
        if self._is_woken:
            self._is_woken = False
            wake()
        else:
            self._wake = wake

    def woken(self) -> None:
        """Call the function of `call_when_free`. The driver calls this when `again` can make progress."""
        wake, self._wake = self._wake, None
        if wake is None:
            self._is_woken = True
        else:
            wake()

    @abstractmethod
    def again(self) -> "Offered":
        """Offer the same messages again. Return the confirmation, or itself if there is still no room.

        Raises Refused. After that, and after a confirmation, this place is used up.
        """

    @abstractmethod
    def leave(self) -> None:
        """Give up the place, and the messages that are not accepted yet. The place may be used up already."""

    async def taken(self) -> Confirmation:
        """Wait until the messages are accepted. Raises Refused."""
        while True:
            await self.free()
            if isinstance(offered := self.again(), Confirmation):
                return offered

    async def free(self) -> None:
        """Wait until `again` can make progress; give up the place if that is cancelled."""
        free = trio.Event()
        self.call_when_free(free.set)
        try:
            await free.wait()
        except trio.Cancelled:
            self.leave()
            raise


Offered = Confirmation | NoRoom
"""The result of an offer."""
