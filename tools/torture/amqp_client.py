"""A small client of AMQP 0-9-1 for the load: publishes with confirms, and consumes with acknowledgements."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from omq.protocol.amqp.fields import LongString, Table, Value
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.frames import CONTENT, FRAME, FrameType, body_frames, header_frame, method_frame
from omq.protocol.amqp_0_9.layouts import Method

CHANNEL = 1
NO_PROPERTIES = b"\0\0"

M = TypeVar("M", bound=Method)


class Closed(Exception):
    """The server closed the connection or the channel, or is gone."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message of a consumer."""

    tag: int
    body: bytes


class AmqpClient:
    """One connection with one channel. One task uses it."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._octets = bytearray()
        self._deliveries: deque[Delivered] = deque()
        self._returned = 0
        self._published = 0

    async def send(self, *sent: Method) -> None:
        """Send methods on the channel."""
        await self._send(b"".join(method_frame(CHANNEL, method) for method in sent))

    async def call(self, method: Method, answer: type[M], channel: int = CHANNEL) -> M:
        """Send a method, and return its answer."""
        await self._send(method_frame(channel, method))
        return await self.wait_for(answer)

    async def wait_for(self, answer: type[M]) -> M:
        """Return the next method of this type. Raises Closed."""
        while True:
            method = await self._next()
            if isinstance(method, answer):
                return method

    async def publish(self, exchange: bytes, key: bytes, bodies: Sequence[bytes]) -> tuple[bool, bool]:
        """Publish mandatory messages, and wait for the confirmations. Return whether all were stored, and
        whether all were routed.
        """
        method = methods.BasicPublish(exchange, key, mandatory=True)
        parts: list[bytes | memoryview] = []
        for body in bodies:
            parts += [method_frame(CHANNEL, method), header_frame(CHANNEL, NO_PROPERTIES, len(body))]
            parts += body_frames(CHANNEL, body, 1 << 17)
        self._returned = 0
        pending = set(range(self._published + 1, self._published + len(bodies) + 1))
        self._published += len(bodies)
        await self._send(b"".join(parts))
        are_stored = True
        while pending:
            match await self._next():
                case methods.BasicAck(tag, multiple):
                    pending = {each for each in pending if each != tag and not (multiple and each < tag)}
                case methods.BasicNack(tag, multiple):
                    pending = {each for each in pending if each != tag and not (multiple and each < tag)}
                    are_stored = False
                case _:
                    pass
        return are_stored, not self._returned

    async def delivered(self) -> Delivered:
        """Return the next message of a consumer."""
        while not self._deliveries:
            await self._next()
        return self._deliveries.popleft()

    async def _send(self, octets: bytes) -> None:
        try:
            await self._stream.send_all(octets)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Closed from None

    async def _next(self) -> Method:
        """Return the next method; a delivery is also kept. Raises Closed."""
        kind, payload = await self._frame()
        while kind is not FrameType.METHOD:
            kind, payload = await self._frame()
        method = methods.decode(payload)
        match method:
            case methods.ConnectionClose() | methods.ChannelClose():
                raise Closed(method.reply_text.decode())
            case methods.BasicDeliver():
                self._deliveries.append(Delivered(method.delivery_tag, await self._body()))
            case methods.BasicReturn():
                self._returned += 1
                await self._body()
            case _:
                pass
        return method

    async def _body(self) -> bytes:
        _, header = await self._frame()
        size = CONTENT.unpack_from(header)[2]
        body = bytearray()
        while len(body) < size:
            body += (await self._frame())[1]
        return bytes(body)

    async def _frame(self) -> tuple[FrameType, bytes]:
        kind, _, size = FRAME.unpack(await self._exactly(FRAME.size))
        return FrameType(kind), (await self._exactly(size + 1))[:-1]

    async def _exactly(self, count: int) -> bytes:
        while len(self._octets) < count:
            try:
                read = await self._stream.receive_some()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise Closed from None
            if not read:
                raise Closed
            self._octets += read
        octets = bytes(self._octets[:count])
        del self._octets[:count]
        return octets


@asynccontextmanager
async def amqp(port: int) -> AsyncIterator[AmqpClient]:
    """Connect, and open the channel with confirms. Raises Closed and OSError."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = AmqpClient(stream)
        await client._send(b"AMQP\0\0\x09\1")
        await client.wait_for(methods.ConnectionStart)
        login = methods.ConnectionStartOk(Table(), b"PLAIN", b"\0torture\0", b"en_US")
        await client.call(login, methods.ConnectionTune, 0)
        await client._send(method_frame(0, methods.ConnectionTuneOk(0, 0, 0)))
        await client.call(methods.ConnectionOpen(b"/"), methods.ConnectionOpenOk, 0)
        await client.call(methods.ChannelOpen(), methods.ChannelOpenOk)
        await client.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        yield client


def arguments(**values: bytes) -> Table:
    """Return the arguments of a declaration: `x_message_ttl` for x-message-ttl."""
    entries: tuple[tuple[bytes, Value], ...] = tuple(
        (name.replace("_", "-").encode(), LongString(value)) for name, value in values.items()
    )
    return Table(entries)
