"""The bounded memory of the whole server (terminal-driver RFC, section 3.5.4: buckets).

Whoever holds message octets that could pile up takes them from here first and gives them back when they
are written or sent. When it is spent, takers wait, which stops the reading of their sockets.
"""

from collections import deque
from collections.abc import Callable

import trio


class Turn:
    """Octets that are wanted of a budget, in the line for them."""

    __slots__ = ("granted", "is_granted", "octets")

    def __init__(self, octets: int, granted: Callable[[], None]) -> None:
        self.octets = octets
        self.granted = granted
        self.is_granted = False


class Budget:
    """A count of octets with a limit; those who must wait are served in the order they came."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[Turn] = deque()

    def _fits(self, octets: int) -> bool:
        # One taker may exceed the limit when nobody holds anything: else it could never go on.
        return self.used == 0 or self.used + octets <= self.limit

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """How many tasks wait for it."""
        return len(self._waiting)

    def try_take(self, octets: int) -> bool:
        """Hold `octets` if they are free now and nobody waits for them."""
        if self._waiting or not self._fits(octets):
            return False
        self.used += octets
        return True

    def force(self, octets: int) -> None:
        """Hold `octets` whether they are free or not."""
        self.used += octets

    def line_up(self, octets: int, granted: Callable[[], None]) -> Turn:
        """Wait for `octets` behind all others who do, when `try_take` did not get them: `granted` is called
        when they are held.
        """
        turn = Turn(octets, granted)
        self._waiting.append(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """Want this no more: give back what was granted, or leave the line."""
        if turn.is_granted:
            self.give(turn.octets)
        else:
            self._waiting.remove(turn)
            self._grant()

    async def take(self, octets: int) -> None:
        """Wait until `octets` are free, then hold them."""
        if self.try_take(octets):
            return
        granted = trio.Event()
        turn = self.line_up(octets, granted.set)
        try:
            await granted.wait()
        except trio.Cancelled:
            self.leave(turn)
            raise

    def give(self, octets: int) -> None:
        """Give back what was taken."""
        self.used -= octets
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].octets):
            turn = self._waiting.popleft()
            self.used += turn.octets
            turn.is_granted = True
            turn.granted()
