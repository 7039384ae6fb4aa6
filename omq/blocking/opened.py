"""A message whose body is received piece by piece."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self

from omq.blocking.portal import Portal
from omq.client import Head
from omq.client import OpenMessage as AsyncOpenMessage
from omq.client.opened import HELD_OCTETS, check_size


class OpenMessage:
    """One message of `Feed.opened`. Its body can be received once, before the next message is requested.

    Methods that receive octets raise TimeoutError when none arrive within the `timeout` of `Client.feed`, and
    the same exceptions as iteration over the feed. After a TimeoutError or Ctrl-C, the next call goes on
    where the last one ended, with every octet.
    """

    def __init__(self, portal: Portal, message: AsyncOpenMessage, timeout: float | None) -> None:
        self._portal = portal
        self._message = message
        self._timeout = timeout
        # The client's thread fills it: a piece that has come when Ctrl-C interrupts the call is not lost.
        self._pieces: deque[bytes] = deque()
        self._left = message.size  # octets that did not come yet
        self._opened = False
        self._skipped = False

    @property
    def head(self) -> Head:
        """The exchange, the routing key and the properties."""
        return self._message.head

    @property
    def size(self) -> int:
        """Octets of the body."""
        return self._message.size

    def body(self, longest: int = HELD_OCTETS) -> bytes:
        """Receive the whole body. Raises BodyTooLong if it has more than `longest` octets: use `open`."""
        check_size(self.size, longest)
        self._check_unopened()
        while self._left:
            self._receive(self._timeout)
        self._opened = True
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    @contextmanager
    def open(self) -> Iterator["BodyPieces"]:
        """Receive the body in pieces: `with message.open() as pieces`, and iterate over them in the block.
        What is not received within the block is skipped. Raises RuntimeError the second time.
        """
        self._check_unopened()
        self._opened = True
        pieces = BodyPieces(partial(self.next_piece, self._timeout))
        try:
            yield pieces
        finally:
            pieces.close()

    def next_piece(self, timeout: float | None = None) -> bytes | None:
        """Return the next octets of the body, or None at its end.

        Raises TimeoutError when none arrive within `timeout` seconds (None waits without limit), and
        RuntimeError when the rest of the body was skipped.
        """
        self._check_unskipped()
        self._opened = True
        if not self._pieces and self._left:
            self._receive(timeout)
        return self._pieces.popleft() if self._pieces else None

    def skip(self, timeout: float | None = None) -> None:
        """Receive the rest of the body, and drop it. Raises TimeoutError when no octets arrive within
        `timeout` seconds.
        """
        self._opened = True
        if self._left or self._pieces:
            self._skipped = True
        self._pieces.clear()
        while self._left:
            self._receive(timeout)
            self._pieces.clear()

    def _check_unopened(self) -> None:
        self._check_unskipped()
        if self._opened:
            raise RuntimeError("the body of this message was received already")

    def _check_unskipped(self) -> None:
        if self._skipped:
            raise RuntimeError("the rest of the body of this message was skipped")

    def _receive(self, timeout: float | None) -> None:
        self._portal.call_within(timeout, self._take)

    # -- in the client's thread ----------------------------------------------------------------------------

    async def take_held(self) -> None:
        """Take the octets of the body that have come already, so that a short one needs no further call."""
        if self._message.held:
            await self._take()

    async def _take(self) -> None:
        piece = await self._message.next_piece()
        if piece is not None:
            self._left -= len(piece)
            self._pieces.append(piece)


class BodyPieces:
    """Iterates over the pieces of a body."""

    def __init__(self, next_piece: Callable[[], bytes | None]) -> None:
        self._next_piece = next_piece
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        piece = None if self._closed else self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """End the iteration."""
        self._closed = True
