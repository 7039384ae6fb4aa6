"""A limited share of the server's memory (terminal-driver RFC, section 3.5.4: buckets).

Code that is about to queue messages takes their octets from a budget first, and gives them back when the
messages are written or sent. When the budget is used up, takers wait. A publisher's terminal that waits does
not read its socket: that is the backpressure.
"""

from collections import deque
from collections.abc import Callable

import trio


class Turn:
    """An entry in the queue of a budget."""

    __slots__ = ("granted", "is_granted", "octets")

    def __init__(self, octets: int, granted: Callable[[], None]) -> None:
        self.octets = octets
        self.granted = granted
        self.is_granted = False


class Budget:
    """A count of octets with a limit. Waiting takers are served in the order of their arrival."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.eased: Callable[[], None] | None = None
        """Called when the used part falls to half of the budget, or less."""
        self._waiting: deque[Turn] = deque()

    def _fits(self, octets: int) -> bool:
        # One taker may exceed the limit when nothing is held: otherwise one message larger than the limit
        # would wait for ever.
        return self.used == 0 or self.used + octets <= self.limit

    @property
    def free(self) -> int:
        """The octets that may be taken now: 0 while others wait for theirs."""
        return 0 if self._waiting else max(0, self.limit - self.used)

    @property
    def is_wanted(self) -> bool:
        """Whether a taker waits."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """The number of waiting takers."""
        return len(self._waiting)

    def try_take(self, octets: int) -> bool:
        """Take `octets` if they are free now and no other taker waits. Return whether they were taken."""
        if self._waiting or not self._fits(octets):
            return False
        self.used += octets
        return True

    def force(self, octets: int) -> None:
        """Take `octets` even if they are not free."""
        self.used += octets

    def enqueue(self, octets: int, granted: Callable[[], None]) -> Turn:
        """Wait for `octets` behind all other takers, after `try_take` has failed.

        `granted` is called when they are taken.
        """
        turn = Turn(octets, granted)
        self._waiting.append(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """Leave the queue, or give back the octets if they were granted already."""
        if turn.is_granted:
            self.give(turn.octets)
        else:
            self._waiting.remove(turn)
            self._grant()

    async def take(self, octets: int) -> None:
        """Wait until `octets` are free, then take them."""
        if self.try_take(octets):
            return
        granted = trio.Event()
        turn = self.enqueue(octets, granted.set)
        try:
            await granted.wait()
        except trio.Cancelled:
            self.leave(turn)
            raise

    def give(self, octets: int) -> None:
        """Give `octets` back."""
        half = self.limit // 2
        was_short = self.used > half
        self.used -= octets
        self._grant()
        if was_short and self.used <= half and self.eased is not None:
            self.eased()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].octets):
            turn = self._waiting.popleft()
            self.used += turn.octets
            turn.is_granted = True
            turn.granted()
