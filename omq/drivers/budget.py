"""The bounded memory of the whole server (terminal-driver RFC, section 3.5.4: buckets).

Whoever holds message octets that could pile up takes them from here first and gives them back when they
are written or sent. When it is spent, takers wait, which stops the reading of their sockets.
"""

from collections import deque

import trio


class Budget:
    """A count of octets with a limit; those who must wait are served in the order they came."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

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

    async def take(self, octets: int) -> None:
        """Wait until `octets` are free, then hold them."""
        if not self._waiting and self._fits(octets):
            self.used += octets
            return
        granted = trio.Event()
        entry = (octets, granted)
        self._waiting.append(entry)
        try:
            await granted.wait()
        except trio.Cancelled:
            if granted.is_set():
                self.give(octets)
            else:
                self._waiting.remove(entry)
                self._grant()
            raise

    def give(self, octets: int) -> None:
        """Give back what was taken."""
        self.used -= octets
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            octets, granted = self._waiting.popleft()
            self.used += octets
            granted.set()
