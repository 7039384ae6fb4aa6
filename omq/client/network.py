"""The stream underneath a connection: a socket, or TLS on one."""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

import anyio

from omq.addresses import format_address
from omq.client.errors import ConnectionFailed
from omq.client.tcp import TcpStream, connect_tcp
from omq.keepalive import keep_alive
from omq.protocol.tls import AROUND_OCTETS, PIECE_OCTETS, RECORD_OCTETS, TlsEngine, TlsError, shake_hands
from omq.protocol.tls_errors import NO_TLS, TlsEnded
from omq.server_address import Security

T = TypeVar("T")


class Stream(Protocol):
    """A byte stream. Its methods raise the same exceptions as those of `TcpStream`."""

    async def send_all(self, data: bytes) -> None: ...

    async def receive_some(self, max_bytes: int, seconds: float = math.inf) -> bytes: ...

    async def send_eof(self) -> None:
        """Close the sending direction; receiving continues."""

    def peer(self) -> tuple[str, int]:
        """Return the address and the port of the other side. Raise OSError."""

    def close(self) -> None:
        """Close the socket, also while a task waits for it. A second call does nothing."""


class TlsStream:
    """A socket with TLS on it, after its handshake. One task may send while another receives."""

    def __init__(self, stream: TcpStream, engine: TlsEngine) -> None:
        self._stream = stream
        self._engine = engine

    async def shake_hands(self) -> None:
        """Run the TLS handshake. Raises TlsError and anyio.BrokenResourceError."""
        await shake_hands(
            self._engine, self._stream.send_all, partial(self._stream.receive_some, RECORD_OCTETS)
        )

    async def send_all(self, data: bytes) -> None:
        with memoryview(data) as octets:
            for start in range(0, len(octets), RECORD_OCTETS):
                try:
                    ready = self._engine.write(octets[start : start + RECORD_OCTETS])
                except TlsError as error:
                    raise anyio.BrokenResourceError(f"TLS: {error}") from error
                if ready >= PIECE_OCTETS:
                    await self._flush()
        await self._flush()

    async def receive_some(self, max_bytes: int, seconds: float = math.inf) -> bytes:
        while True:
            try:
                data = self._engine.read(max_bytes)
            except TlsError as error:
                raise anyio.BrokenResourceError(f"TLS: {error}") from error
            if data is not None:
                return data
            self._engine.feed(await self._stream.receive_some(max_bytes + AROUND_OCTETS, seconds))

    async def send_eof(self) -> None:
        """Send `close_notify`, which is authenticated, unlike the end of the TCP stream. The TCP direction
        may stay open.
        """
        self._engine.finish()
        await self._flush()

    def peer(self) -> tuple[str, int]:
        return self._stream.peer()

    def close(self) -> None:
        """Close the socket, after `close_notify` if it takes that at once. Without `close_notify` the server
        logs that the connection broke.
        """
        self._engine.finish()
        self._stream.close(self._engine.outgoing())

    async def _flush(self) -> None:
        octets = self._engine.outgoing()
        if octets:
            await self._stream.send_all(octets)


async def open_stream(host: str, port: int, security: Security | None) -> Stream:
    """Connect, with a TLS handshake if `security` is given. Raises OSError and anyio.BrokenResourceError."""
    stream, connected = await connect_tcp(host, port)
    keep_alive(connected)
    if security is None:
        return stream
    try:
        tls = TlsStream(stream, TlsEngine(security.context, server_name=security.name))
        await tls.shake_hands()
    except TlsError as error:
        stream.close()
        hint = f"; {NO_TLS}" if isinstance(error, TlsEnded) else ""
        raise anyio.BrokenResourceError(f"TLS: {error}{hint}") from error
    except BaseException:  # cancelled, too
        stream.close()
        raise
    return tls


async def open_within(
    seconds: float,
    host: str,
    port: int,
    security: Security | None,
    exchange: Callable[[Stream], Awaitable[T]],
    question: str = "",
) -> T:
    """Connect, run the first exchange with the server, and return its result, all within `seconds`.

    Closes the stream if the exchange raises something. Raises what `open_stream` and the exchange raise, and
    ConnectionFailed after `seconds`: the server did not answer, or did not answer the `question`.
    """
    with anyio.move_on_after(seconds):
        stream = await open_stream(host, port, security)
        try:
            return await exchange(stream)
        except BaseException:  # cancelled, too
            stream.close()
            raise
    answered = f"answer {question}" if question else "answer"
    raise ConnectionFailed(f"{format_address(host, port)} did not {answered} within {seconds:g} s")
