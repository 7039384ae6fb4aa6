"""A message whose body is received piece by piece."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from omq.client.errors import BodyTooLong
from omq.client.run_iterator import RunIterator
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
        self._skipped = False

    @property
    def held(self) -> int:
        """Octets of the body that have come already: receiving them does not wait."""
        return len(self._beginning)

    async def body(self, longest: int = HELD_OCTETS) -> bytes:
        """Receive the whole body. Raises BodyTooLong if it has more than `longest` octets: use `open`."""
        check_size(self.size, longest)
        async with self.open() as pieces:
            return b"".join([piece async for piece in pieces])

    @asynccontextmanager
    async def open(self) -> AsyncIterator["BodyPieces"]:
        """Receive the body in pieces: `async with message.open() as pieces`. What is not received within the
        block is skipped. Raises RuntimeError the second time.

        Iteration raises the same exceptions as that of the feed. After a cancelled iteration, another one
        goes on with the next piece.
        """
        if self._opened:
            raise RuntimeError("the body of this message was received already")
        async with aclosing(BodyPieces(self.next_piece)) as pieces:
            self._opened = True
            yield pieces

    async def next_piece(self) -> bytes | None:
        """Return the next octets of the body, or None at its end. A cancelled call loses nothing. Raises as
        iteration over the pieces does, and RuntimeError when the rest of the body was skipped.
        """
        self._opened = True
        if self._skipped:
            raise RuntimeError("the rest of the body of this message was skipped")
        return await self._next()

    async def _next(self) -> bytes | None:
        if self._beginning:
            piece, self._beginning = self._beginning, b""
        elif self._left:
            piece = await self._receive(self._left)
        else:
            return None
        self._left -= len(piece)
        return piece

    async def skip(self) -> None:
        """Receive the rest of the body, and drop it."""
        self._opened = True
        self._skipped = self._skipped or self._left > 0
        while await self._next() is not None:
            pass


class BodyPieces(RunIterator[bytes]):
    """Iterates over the pieces of a body."""

    def __init__(self, next_piece: Callable[[], Awaitable[bytes | None]]) -> None:
        super().__init__(next_piece)
        self._closed = False

    async def __anext__(self) -> bytes:
        if self._closed:
            raise StopAsyncIteration
        return await super().__anext__()

    async def aclose(self) -> None:
        """End the iteration."""
        self._closed = True


def check_size(size: int, longest: int) -> None:
    """Raise BodyTooLong for a body that has more octets than its receiver holds."""
    if size > longest:
        raise BodyTooLong(f"the body has {size} octets, more than the {longest} to be held")
