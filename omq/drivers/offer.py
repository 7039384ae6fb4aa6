"""Messages that a driver has no room for now, and how their publisher hears that there is room again.

A driver never waits: `Driver.offer` takes messages over, or answers with a place in the line for room. So a
terminal decides what it does meanwhile: it waits, goes on with other commands, or gives up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from omq.drivers.confirmation import Confirmation
from omq.drivers.waits import Room


class NoRoom(ABC):
    """There is no room for the messages of one post now: the post's place in the line for it.

    Whoever has it offers nothing else to the same topic until these messages are taken over or given up: so
    the messages of one publisher stay in order. What is granted to this place is kept for it, and from
    others, until `again` or `leave` is called: do that soon after the wake-up.
    """

    __slots__ = ("_is_woken", "_wake", "room")

    def __init__(self, room: Room | None = None) -> None:
        self.room = room
        """The topic whose workers make the room; None where room comes whatever clients do."""
        self._wake: Callable[[], None] | None = None
        self._is_woken = False

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when `again` can do more than it could before; at once if it already can.

        It is called in the middle of the driver's work: it only notes that, and wakes a task.
        """
        if self._is_woken:
            self._is_woken = False
            wake()
        else:
            self._wake = wake

    def woken(self) -> None:
        """The driver's side: it is worth while to call `again`."""
        wake, self._wake = self._wake, None
        if wake is None:
            self._is_woken = True
        else:
            wake()

    @abstractmethod
    def again(self) -> "Offered":
        """Offer the same messages again: the confirmation, or itself while there is still no room for them.

        Raises Refused. After that, and after a confirmation, this place is used up.
        """

    @abstractmethod
    def leave(self) -> None:
        """Give the place up, and with it what is not taken over yet. It may be used up already."""

    async def taken(self) -> Confirmation:
        """Wait until the messages are taken over. Raises Refused."""
        try:
            while True:
                free = trio.Event()
                self.call_when_free(free.set)
                await free.wait()
                if isinstance(offered := self.again(), Confirmation):
                    return offered
        except trio.Cancelled:
            self.leave()
            raise


Offered = Confirmation | NoRoom
"""The answer to an offer."""
