"""A message whose body is received piece by piece."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from omq.client.errors import BodyTooLong
from omq.protocol.amqp.head import Head

HELD_OCTETS = 64 << 20
"""The longest body that `OpenMessage.body` holds unless its caller allows more."""


class OpenMessage:
    """One message of `Feed.opened`. Its body can be received once, before the next message is requested."""

    def __init__(
        self, head: Head, size: int, beginning: bytes, receive: Callable[[int], Awaitable[bytes]]
    ) -> None:
        """Create a message of which only the beginning is received. `receive(most)` returns the next octets,
        at least one and at most `most`.
        """
        self.head = head
        self.size = size
        """Octets of the body."""
        self._beginning = beginning
        self._receive = receive
        self._left = size
        self._opened = False

    async def body(self, longest: int = HELD_OCTETS) -> bytes:
        """Receive the whole body. Raises BodyTooLong if it has more than `longest` octets: use `open`."""
        if self.size > longest:
            raise BodyTooLong(f"the body has {self.size} octets, more than the {longest} to be held")
        async with self.open() as pieces:
            return b"".join([piece async for piece in pieces])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Receive the body in pieces: `async with message.open() as pieces`. What is not received within the
        block is skipped. Raises RuntimeError the second time.

        Iteration raises the same exceptions as that of the feed.
        """
        if self._opened:
            raise RuntimeError("the body of this message was received already")
        self._opened = True
        async with aclosing(self._pieces()) as pieces:
            yield pieces

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        if self._beginning:
            piece, self._beginning = self._beginning, b""
            self._left -= len(piece)
            yield piece
        while self._left:
            piece = await self._receive(self._left)
            self._left -= len(piece)
            yield piece

    async def skip(self) -> None:
        """Receive the rest of the body, and drop it."""
        self._opened = True
        async for _ in self._pieces():
            pass
