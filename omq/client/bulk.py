"""Stored blocks in bulk: Fetch, on a connection of its own, so that nothing else waits for them."""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

import trio

from omq.client.errors import ConnectionLost, Gap, OmqError, ProtocolError, ServerError
from omq.client.network import Security, Stream
from omq.client.reasons import reason
from omq.client.replies import gap_in
from omq.client.silence import receive
from omq.client.stream import open_greeted
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq.blocks import Block, DamagedBlock, unpack_sent
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import FrameDecoder, FrameError, MessageRun
from omq.protocol.omq.sentences import sentence
from omq.protocol.omq.types import Ack, Connect, Error, Fetch, Frame, Ping, StoredBlock

READ_OCTETS = 256 << 10
LONGEST_FRAME = 1 << 31


class Blocks:
    """An iterator over the blocks of a Fetch: whole stored blocks, verified, in the order of their ids.

    What is known to be missing between them is told to the `on_gap` of `connect`. Iterating raises
    ServerError when the server ends the Fetch, and ConnectionLost.
    """

    def __init__(self, stream: Stream, topic: bytes, on_gap: Callable[[Gap], None]) -> None:
        self.next: int | None = None
        """The id to go on at, once everything was received."""
        self._stream = stream
        self._topic = topic
        self._on_gap = on_gap
        self._decoder = FrameDecoder(LONGEST_FRAME)
        self._frames: deque[Frame | MessageRun] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Block:
        while self.next is None:
            match await self._frame():
                case StoredBlock(value):
                    block = self._unpacked(value)
                    if block.count:
                        return block
                    self.next = block.first
                case Ping():
                    await self._send(sexp_of_command(Ack(time.time_ns() // 1000)) + b"\n")
                case Error(text):
                    gap = gap_in("Fetch", self._topic, text)
                    if gap is None:
                        raise self._refusal(text)
                    self._on_gap(gap)
                case other:
                    raise ProtocolError(f"the server answered what was not asked: {other!r:.200}")
        raise StopAsyncIteration

    def _refusal(self, text: bytes) -> OmqError:
        shown = text.decode("utf-8", "backslashreplace")
        if text.startswith(sentence("Fetch", self._topic, "")):
            return ServerError(shown, "Fetch", self._topic)
        return ConnectionLost("the server closed the connection", shown)

    @staticmethod
    def _unpacked(value: bytes | memoryview) -> Block:
        try:
            return unpack_sent(value)
        except DamagedBlock as error:
            raise ProtocolError(f"the server sent what is no block: {error}") from error

    async def _frame(self) -> Frame | MessageRun:
        while not self._frames:
            try:
                data = await receive(self._stream, READ_OCTETS)
                self._frames += self._decoder.feed(bytes(data))
            except FrameError as error:
                raise ProtocolError(f"the server sent what is no frame: {error}") from error
            except trio.BrokenResourceError as error:
                raise ConnectionLost(f"the connection broke: {reason(error)}") from error
            if not data:
                raise ConnectionLost("the server closed the connection")
        return self._frames.popleft()

    async def _send(self, octets: bytes) -> None:
        try:
            await self._stream.send_all(octets)
        except trio.BrokenResourceError as error:
            raise ConnectionLost(f"the connection broke: {reason(error)}") from error

    async def start(self, id: bytes, command: Fetch) -> None:
        """Introduce ourselves and ask. Raises ConnectionLost."""
        hello = sexp_of_command(Connect(VERSION_ONE, id)) + b"\n"
        await self._send(hello + sexp_of_command(command) + b"\n")


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
    """A Fetch on a connection that ends with the block. Raises ConnectionFailed and HandshakeRefused."""
    stream = await open_greeted(host, port, seconds, security)
    try:
        blocks = Blocks(stream, command.topic, on_gap)
        await blocks.start(id, command)
        yield blocks
    finally:
        # Closed at once: the rest of what was asked for is not wanted.
        stream.socket.close()
