"""How many answers of a connection may wait before no more of its commands are read."""

import trio

from omq.terminals.omq.fetches import Fetches
from omq.terminals.omq.replies import Replies

MOST_REPLIES = 1000
"""How many answers may wait to be given or sent before no more commands are read."""

MOST_REPLY_OCTETS = 32 << 10
"""How much memory they may take before no more commands are read: some answers are large."""


class Backlog:
    """The answers of one connection that wait, as far as they keep its commands waiting."""

    def __init__(self, replies: Replies, fetches: Fetches, room: trio.lowlevel.ParkingLot) -> None:
        """`replies` and `fetches` wake those who wait in `room`."""
        self._replies = replies
        self._fetches = fetches
        self._room = room
        self._is_closed = False

    async def wait(self) -> None:
        """Wait until there is room for one more answer, or the connection is over."""
        while not self._is_closed and (
            len(self._replies) + len(self._fetches) >= MOST_REPLIES
            or self._replies.octets >= MOST_REPLY_OCTETS
        ):
            await self._room.park()

    def close(self) -> None:
        """The connection is over: nobody waits any more."""
        self._is_closed = True
        self._room.unpark_all()
