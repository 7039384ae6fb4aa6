"""A WebSocket to a server under test, with the methods of a plain stream: raw connections talk through it."""

import socket
from typing import Any

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Message,
    Ping,
    Pong,
    RejectConnection,
    Request,
    TextMessage,
)

from .conversation import CONNECT, PATIENCE, VERSION_ONE, Conversation, Host


class Rejected(Exception):
    """The server did not open the WebSocket; the status is the argument."""


class WebSocketStream:
    """The client's side of a WebSocket, with the part of trio.SocketStream that conversations use."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, origin: str | None = None) -> None:
        self.stream = stream
        self.engine = WSConnection(ConnectionType.CLIENT)
        self.closed: CloseConnection | None = None
        """The server's close; None before it."""
        self.pongs: list[bytes] = []
        self._received: list[bytes] = []
        self._origin = origin

    @property
    def socket(self) -> Any:
        """The socket below."""
        return self.stream.socket  # type: ignore[attr-defined]  # the stream below is one of a plain socket

    def setsockopt(self, *option: int) -> None:
        """Set an option of the socket below."""
        self.socket.setsockopt(*option)

    async def open(self, authority: str) -> None:
        """Do the handshake. Raises Rejected."""
        fields = [] if self._origin is None else [(b"Origin", self._origin.encode())]
        await self.stream.send_all(
            self.engine.send(Request(host=authority, target="/ws", extra_headers=fields))
        )
        while True:
            self.engine.receive_data(await self.stream.receive_some(64 << 10) or None)
            for event in self.engine.events():
                match event:
                    case AcceptConnection():
                        self._take()
                        return
                    case RejectConnection(status_code=status):
                        raise Rejected(status)

    async def send_all(self, octets: bytes) -> None:
        """Send octets of the stream as one binary message."""
        await self.message(BytesMessage(data=octets))

    async def message(self, message: Message | Ping) -> None:
        """Send a message, or a Ping."""
        await self.stream.send_all(self.engine.send(message))

    async def receive_some(self, most: int) -> bytes:
        """Return the octets of the stream that are there; none behind Close."""
        while not self._received:
            if self.closed is not None:
                return b""
            data = await self.stream.receive_some(64 << 10)
            assert data, "the connection ended without Close"
            self.engine.receive_data(data)
            self._take()
        octets = b"".join(self._received)
        self._received = [octets[most:]] if octets[most:] else []
        return octets[:most]

    def _take(self) -> None:
        for event in self.engine.events():
            match event:
                case BytesMessage():
                    self._received.append(bytes(event.data))
                case Pong():
                    self.pongs.append(bytes(event.payload))
                case CloseConnection():
                    self.closed = event
                case TextMessage():
                    raise AssertionError("the server sends no text")

    async def send_eof(self) -> None:
        """Send Close, which is the end of this side's stream."""
        await self.stream.send_all(self.engine.send(CloseConnection(code=1000)))


async def open_websocket(
    host: Host, origin: str | None = None, receive_octets: int | None = None
) -> Conversation:
    """Return a WebSocket on which nothing was said."""
    plain = await host.open(receive_octets)
    stream = WebSocketStream(plain.stream, origin)
    with trio.fail_after(PATIENCE):
        await stream.open(f"127.0.0.1:{host.port}")
    return Conversation(stream)  # type: ignore[arg-type]  # it has the methods of a SocketStream that are used


async def connect_websocket(host: Host, receive_octets: int | None = None) -> Conversation:
    """Return a WebSocket after the handshake of omq and Connect."""
    conversation = await open_websocket(host, receive_octets=receive_octets)
    await conversation.send(VERSION_ONE + CONNECT)
    assert await conversation.octets(8) == VERSION_ONE
    return conversation


def stream_of(conversation: Conversation) -> WebSocketStream:
    """Return the WebSocket below a conversation."""
    stream: object = conversation.stream
    assert isinstance(stream, WebSocketStream)
    return stream


def closed_with(conversation: Conversation) -> int:
    """Return the code of the Close that the server sent."""
    closed = stream_of(conversation).closed
    assert closed is not None
    return closed.code


def without_delay(conversation: Conversation) -> None:
    """Send every piece in a segment of its own."""
    stream_of(conversation).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
