"""Messages for which a driver has no room now, and the wake-up of their publisher when there is.

A driver never waits: `Driver.offer` accepts messages, or returns a `PendingOffer`, which waits in the queue
for room. So the terminal decides what it does meanwhile: it waits, executes other commands, or gives up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from omq.drivers.confirmation import Confirmation
from omq.drivers.wait_graph import Room


class PendingOffer(ABC):
    """A post for which there is no room now, and which waits in a queue for room.

    The publisher must offer nothing else to the same topic until these messages are accepted or given up, so
    that its messages stay in order. Room that is granted to this offer is not available to others until
    `again` or `leave` is called: call one of them soon after the wake-up.
    """

    __slots__ = ("room",)

    def __init__(self, room: Room | None = None) -> None:
        self.room = room
        """The topic whose workers make the room; None if room becomes free without action of clients."""

    @abstractmethod
    def call_when_free(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when `again` can make progress; at once if it already can. It may be called after
        `leave`, too. Call this again after an `again` that made no confirmation.

        The driver calls it in the middle of its work, so `wake` must only set a flag or wake a task.
        """

    @abstractmethod
    def again(self) -> "Offered":
        """Offer the same messages again. Return the confirmation, or itself if there is still no room.

        Raises Refused. After that, and after a confirmation, this offer must not be used again.
        """

    @abstractmethod
    def leave(self) -> None:
        """Leave the queue, and give up the messages that are not accepted yet; do nothing after the end."""

    async def taken(self) -> Confirmation:
        """Wait until the messages are accepted. Raises Refused."""
        while True:
            await self.free()
            if isinstance(offered := self.again(), Confirmation):
                return offered

    async def free(self) -> None:
        """Wait until `again` can make progress; leave the queue if that is cancelled."""
        free = trio.Event()
        self.call_when_free(free.set)
        try:
            await free.wait()
        except trio.Cancelled:
            self.leave()
            raise


class QueuedOffer(PendingOffer):
    """A pending offer that is itself in a queue for room."""

    __slots__ = ("_is_woken", "_wake")

    def __init__(self, room: Room | None = None) -> None:
        super().__init__(room)
        self._wake: Callable[[], None] | None = None
        self._is_woken = False

    def call_when_free(self, wake: Callable[[], None]) -> None:
        """See `PendingOffer`."""
        if self._is_woken:
            self._is_woken = False
            wake()
        else:
            self._wake = wake

    def woken(self) -> None:
        """Call the function of `call_when_free`. The queue calls this when `again` can make progress."""
        wake, self._wake = self._wake, None
        if wake is None:
            self._is_woken = True
        else:
            wake()


Offered = Confirmation | PendingOffer
"""The result of an offer."""
