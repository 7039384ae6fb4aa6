"""The answers of a connection: methods in the order in which they must be sent.

Everything here goes before messages of consumers. What a client must see first, such as the consume-ok before
the first message, is added here first.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from omq.drivers.seam import Octets
from omq.drivers.signal import Signal

COLLECTED_OCTETS = 64 << 10
"""The number of octets that are sent at once. After each send, messages have their turn."""

MOST_OCTETS = 32 << 10
"""The number of waiting octets from which on no more methods are read: a client that does not read is not
answered.
"""

MOST_ANSWERS = 1_000
"""The number of waiting answers from which on no more methods are read."""


@dataclass(frozen=True, slots=True)
class _Answer:
    parts: Sequence[Octets]
    octets: int
    channel: int
    then: Callable[[], None] | None


class Outbox:
    """The answers of one connection. `signal` is set when there is something to collect."""

    def __init__(self, signal: Signal) -> None:
        self._wake = signal.set
        # None while there are none, which is most of the time: an empty deque takes 700 octets.
        self._queue: deque[_Answer] | None = None
        self._held: dict[int, list[_Answer]] = {}
        """The answers that wait for the end of a message, by the channel of both."""
        self._room: trio.lowlevel.ParkingLot | None = None  # made by the first task that waits in it
        self._count = 0
        self.octets = 0
        """The number of waiting octets."""

    def __len__(self) -> int:
        return self._count

    def add(self, *parts: Octets, channel: int = 0, then: Callable[[], None] | None = None) -> None:
        """Send these octets on a channel. Call `then` when they are about to be sent."""
        answer = _Answer(parts, sum(map(len, parts)), channel, then)
        if self._queue is None:
            self._queue = deque()
        self._queue.append(answer)
        self._count += 1
        self.octets += answer.octets
        self._wake()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read until some of it is sent."""
        return self.octets > MOST_OCTETS or self._count > MOST_ANSWERS

    async def room(self) -> None:
        """Wait until there is room for more answers."""
        while self.is_full:
            if self._room is None:
                self._room = trio.lowlevel.ParkingLot()
            await self._room.park()

    def hold(self, channel: int) -> None:
        """Hold the frames of this channel: a message is begun on it, and nothing may come between its
        frames.
        """
        self._held.setdefault(channel, [])

    def is_held(self, channel: int) -> bool:
        """Return whether a message is begun on this channel."""
        return channel in self._held

    def release(self, channel: int) -> None:
        """Queue the frames that waited for the message of this channel, which is sent."""
        held = self._held.pop(channel, None)
        if held:
            if self._queue is None:
                self._queue = deque()
            self._queue.extendleft(reversed(held))
            self._wake()

    def collect(self) -> list[Octets]:
        """Return the octets that must be sent next, in order."""
        parts: list[Octets] = []
        collected = 0
        while self._queue and collected < COLLECTED_OCTETS:
            answer = self._queue.popleft()
            if (held := self._held.get(answer.channel)) is not None:
                held.append(answer)
                continue
            parts += answer.parts
            collected += answer.octets
            self._count -= 1
            if answer.then is not None:
                answer.then()
        if not self._queue:
            self._queue = None
        self.octets -= collected
        if self._room is not None and parts and not self.is_full:
            self._room.unpark_all()
        return parts

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self._queue = None
        self._held.clear()
        self._count = self.octets = 0
        if self._room is not None:
            self._room.unpark_all()
