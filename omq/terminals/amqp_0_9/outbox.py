"""What a connection answers: methods in the order in which they must be sent.

Everything here goes before messages of consumers. What a client must see first, such as the consume-ok before
the first message, is added here first.
"""

from collections import deque
from collections.abc import Callable, Sequence

import trio

from omq.drivers.seam import Octets
from omq.drivers.signal import Signal

COLLECTED_OCTETS = 64 << 10
"""How many octets are sent at once. After each send, messages have their turn."""

MOST_OCTETS = 256 << 10
"""How many octets may wait before no more methods are read: a client that does not read is not answered."""

MOST_ANSWERS = 10_000
"""How many answers may wait."""


class Outbox:
    """The answers of one connection. `signal` is set when there is something to collect."""

    def __init__(self, signal: Signal) -> None:
        self._wake = signal.set
        self._queue: deque[tuple[Sequence[Octets], int, Callable[[], None] | None]] = deque()
        self._room = trio.lowlevel.ParkingLot()
        self.octets = 0
        """How many octets wait."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, *parts: Octets, then: Callable[[], None] | None = None) -> None:
        """Send these octets. Call `then` when they are about to be sent."""
        size = sum(map(len, parts))
        self._queue.append((parts, size, then))
        self.octets += size
        self._wake()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read until some of it is sent."""
        return self.octets > MOST_OCTETS or len(self._queue) > MOST_ANSWERS

    async def room(self) -> None:
        """Wait until there is room for more answers."""
        while self.is_full:
            await self._room.park()

    def collect(self) -> list[Octets]:
        """Return what is to be sent next, in order."""
        parts: list[Octets] = []
        collected = 0
        while self._queue and collected < COLLECTED_OCTETS:
            some, size, then = self._queue.popleft()
            parts += some
            collected += size
            if then is not None:
                then()
        self.octets -= collected
        if parts and not self.is_full:
            self._room.unpark_all()
        return parts

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self._queue.clear()
        self.octets = 0
        self._room.unpark_all()
