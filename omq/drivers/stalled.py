"""The memory for messages of transient broadcast topics in the middle of which clients stopped reading.

The server must complete a frame that it has begun, and no store has these messages. So the sender of a
stalled client holds the message. When all of these exceed their share of the memory, the clients that have
taken nothing for the longest time are disconnected. A message counts once, even if several clients are in
the middle of it. Frames of a message that wait for the window of a client count beside it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from omq.drivers.seam import SLOW_SECONDS
from omq.logs import LogThrottle

log = logging.getLogger("omq.stalled")


FRAMES = -1
"""The id that stands for a topic for frames that wait for a window, which no other connection has."""


class HeldReader:
    """A client in the middle of a held message."""

    def __init__(self, cut_off: Callable[[str], None], client: object) -> None:
        self.cut_off = cut_off
        self.client = client
        """The connection: the same object for everything that it holds."""
        self.moved_at = trio.current_time() - SLOW_SECONDS
        """When the client last took something; initially, when it got the octets that it did not take."""

    def moved(self) -> None:
        """Record that the client took something."""
        self.moved_at = trio.current_time()


class _Message:
    """A held message, together with its block, and the clients in the middle of it."""

    def __init__(self, octets: int) -> None:
        self.octets = octets
        self.holders: set[HeldReader] = set()

    def moved_at(self) -> float:
        return max(holder.moved_at for holder in self.holders)


class Stalled:
    """All held messages of a server. A single message may exceed the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._messages: dict[tuple[int, int], _Message] = {}
        self._cut_off = LogThrottle(
            log, logging.WARNING, "connections were closed in the middle of a message"
        )

    def holders(self) -> list[int]:
        """Return the number of clients in the middle of each held message."""
        return [len(message.holders) for message in self._messages.values()]

    @contextmanager
    def holding(
        self, topic: int, message: int, octets: int, cut_off: Callable[[str], None], client: object
    ) -> Iterator[HeldReader]:
        """Hold a message of `octets` during the block, for a `client` (`HeldReader.client`).

        `cut_off` is called with a reason when the memory is needed for others; the caller must then leave the
        block at once.
        """
        holder = HeldReader(cut_off, client)
        key = topic, message
        held = self._messages.get(key)
        if held is None:
            held = self._messages[key] = _Message(octets)
            self.used += octets
        held.holders.add(holder)
        self._make_room()
        try:
            yield holder
        finally:
            held.holders.discard(holder)
            if not held.holders and self._messages.get(key) is held:
                self._forget(key)

    def _make_room(self) -> None:
        while self.used > self.limit and not self._is_single():
            oldest = min(self._messages.values(), key=_Message.moved_at)
            for holder in list(oldest.holders):
                self._forget_client(holder.client)
                holder.cut_off("it stopped reading, and the memory is needed for others")

    def _is_single(self) -> bool:
        """Return whether there is one message, of which frames of the same client may wait."""
        if len(self._messages) == 1:
            return True
        clients = {holder.client for message in self._messages.values() for holder in message.holders}
        return len(clients) == 1 and sum(topic != FRAMES for topic, _ in self._messages) == 1

    def _forget_client(self, client: object) -> None:
        """Count nothing more of a client that is cut off."""
        for key, message in list(self._messages.items()):
            message.holders = {holder for holder in message.holders if holder.client is not client}
            if not message.holders:
                self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        self.used -= self._messages.pop(key).octets

    def tell(self, line: str, *, peer: str, topic: bytes) -> None:
        """Log that a connection was closed in the middle of a message."""
        self._cut_off.add(line, peer=peer, topic=topic)
