"""Transports whose other ends the tests read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from omq.terminals.connection.transport import Transport

from .conversation import PATIENCE


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Transport, trio.SocketStream]]:
    """Yield a transport, and the stream at its other end; little fits between them."""
    ours, theirs = trio.socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 4096)
    async with trio.SocketStream(theirs) as stream:
        transport = Transport(trio.SocketStream(ours))
        try:
            yield transport, stream
        finally:
            transport.close()


async def said(stream: trio.SocketStream, count: int) -> bytes:
    """Return the next octets."""
    octets = b""
    with trio.fail_after(PATIENCE):
        while len(octets) < count:
            octets += await stream.receive_some(count - len(octets))
    return octets
