"""Read stored blocks in bulk with Fetch, on a separate connection, so that other traffic need not wait."""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import anyio

from omq.client.errors import ConnectionLost, Gap, OmqError, ProtocolError, ServerError
from omq.client.network import Security, Stream
from omq.client.reasons import reason
from omq.client.silence import receive
from omq.client.stream import open_greeted
from omq.protocol.omq.blocks import Block, DamagedBlock, unpack_sent
from omq.protocol.omq.client import (
    BlockFetched,
    ClientSession,
    Declined,
    Event,
    MessagesGone,
    Told,
    Unasked,
)
from omq.protocol.omq.frames import FrameError
from omq.protocol.omq.types import Fetch

READ_OCTETS = 256 << 10
LONGEST_FRAME = 1 << 31


class Blocks:
    """An iterator over the blocks of a Fetch: whole stored blocks, verified, in the order of their ids.

    It reports gaps between them to the `on_gap` of `connect`. Iterating raises ServerError when the server
    ends the Fetch, and ConnectionLost.
    """

    def __init__(self, stream: Stream, id: bytes, command: Fetch, on_gap: Callable[[Gap], None]) -> None:
        self.next: int | None = None
        """The id of the next message, after the whole range was received."""
        self._stream = stream
        self._topic = command.topic
        self._on_gap = on_gap
        self._session: ClientSession[None] = ClientSession(id, LONGEST_FRAME)
        self._session.ask(command, None)
        self._events: deque[Event[None]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Block:
        while self.next is None:
            match await self._event():
                case BlockFetched(_, value):
                    block = self._unpacked(value)
                    if block.count:
                        return block
                    self._session.end_fetch()
                    self.next = block.first
                case MessagesGone(_, _, first, last, why):
                    self._on_gap(Gap(self._topic, first, last, why))
                case Declined(_, _, text) | Told(text) as error:
                    raise self._refusal(text, answers=isinstance(error, Declined))
                case other:
                    raise ProtocolError(f"the server answered what was not asked: {other!r:.200}")
        raise StopAsyncIteration

    def _refusal(self, text: bytes, *, answers: bool) -> OmqError:
        shown = text.decode("utf-8", "backslashreplace")
        if answers:
            return ServerError(shown, "Fetch", self._topic)
        return ConnectionLost("the server closed the connection", shown)

    @staticmethod
    def _unpacked(value: bytes | memoryview) -> Block:
        try:
            return unpack_sent(value)
        except DamagedBlock as error:
            raise ProtocolError(f"the server sent what is no block: {error}") from error

    async def _event(self) -> Event[None]:
        while not self._events:
            try:
                data = await receive(self._stream, READ_OCTETS)
                self._events += self._session.feed(bytes(data))
            except FrameError as error:
                raise ProtocolError(f"the server sent what is no frame: {error}") from error
            except Unasked as error:
                raise ProtocolError(str(error)) from error
            except anyio.BrokenResourceError as error:
                raise ConnectionLost(f"the connection broke: {reason(error)}") from error
            if not data:
                raise ConnectionLost("the server closed the connection")
            await self.flush()
        return self._events.popleft()

    async def flush(self) -> None:
        """Send the session's output: at first Connect and Fetch. Raises ConnectionLost."""
        if not (octets := self._session.take_output()):
            return
        try:
            await self._stream.send_all(octets)
        except anyio.BrokenResourceError as error:
            raise ConnectionLost(f"the connection broke: {reason(error)}") from error


@asynccontextmanager
async def fetching(
    host: str,
    port: int,
    security: Security | None,
    id: bytes,
    seconds: float,
    command: Fetch,
    on_gap: Callable[[Gap], None],
) -> AsyncIterator[Blocks]:
    """Run a Fetch on a connection that closes at the end of the block.

    Raises ConnectionFailed and HandshakeRefused.
    """
    stream = await open_greeted(host, port, seconds, security)
    try:
        blocks = Blocks(stream, id, command, on_gap)
        await blocks.flush()
        yield blocks
    finally:
        # Close at once: the caller does not need the rest of the range.
        stream.close()
