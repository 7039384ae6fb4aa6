"""Clients that stop reading in the middle of large messages, and the servers that send these."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from quietness import pass_until
from trio.testing import MockClock

from omq.connections import Terminal
from omq.drivers.seam import SLOW_SECONDS
from omq.protocol.omq.types import Subscribed
from omq.systemd import PassedSockets

from .conversation import PATIENCE, Conversation, InProcess, serving
from .dmp_conversation import Consumer, feed

MIB = 1 << 20
SIZE = 6 * MIB
"""More than a socket takes, so a client that is sent that much and reads nothing is in the middle of it."""

IN_MEMORY = 64 * MIB
"""A number of octets below which a message does not go to the disk as it arrives."""


def body_of(number: int, size: int = SIZE) -> bytes:
    """Return a body in which every place looks different, and unlike those of other messages."""
    lines = b"".join(b"%03d %07d\n" % (number, place) for place in range(0, size, 12 * 1024))
    return (lines * (size // len(lines) + 1))[:size]


@asynccontextmanager
async def small_server(store: Path, **settings: int) -> AsyncIterator[InProcess]:
    """Yield one that may hold one large message and little more."""
    async with serving(
        store, memory_bytes=8 * MIB, max_message_bytes=8 * MIB, ping_seconds=1000, **settings
    ) as host:
        yield host


@asynccontextmanager
async def sending_little(store: Path, **settings: float) -> AsyncIterator[InProcess]:
    """Yield a server whose sockets take some KiB at a time: connections inherit that from the one that
    listens.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 10)
        async with serving(
            store, PassedSockets((listener.dup(),)), **{"ping_seconds": 1000, **settings}
        ) as host:
            yield host


def is_stalled(terminal: Terminal) -> bool:
    return terminal.statistics().stalled_seconds is not None


def stalled(host: InProcess) -> int:
    """Return the number of connections that are being sent something for longer than a second."""
    return sum(map(is_stalled, host.server.terminals()))


async def stall(clock: MockClock, host: InProcess, count: int) -> None:
    """Let time pass until so many are."""
    await pass_until(lambda: stalled(host) >= count, clock, SLOW_SECONDS / 2)


class Reader:
    """A client that reads nothing until it is told to, by one protocol or the other."""

    def __init__(self, of: Conversation | Consumer) -> None:
        self.of = of

    @classmethod
    async def open(
        cls, host: InProcess, client: Conversation, way: str, replay: bytes, receive_octets: int = 4096
    ) -> "Reader":
        if way == "feed":
            return cls(await feed(host, client, b"(Get t %s)" % replay, receive_octets))
        subscriber = await host.connect(receive_octets)
        assert isinstance(await subscriber.ask(b"(Subscribe t %s)" % replay), Subscribed)
        return cls(subscriber)

    @property
    def connection(self) -> Conversation:
        return self.of.connection if isinstance(self.of, Consumer) else self.of

    async def bodies(self, count: int) -> list[bytes]:
        """Return the next N (`count`) bodies: from now on it reads fast."""
        self.connection.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        return await self.of.bodies(count)

    async def next(self) -> object:
        """Return the next frame of a subscription."""
        assert isinstance(self.of, Conversation)
        return await self.of.frame()

    async def is_cut_off(self) -> bool:
        """Read to the end; return whether it is in the middle of something."""
        with trio.fail_after(PATIENCE):
            try:
                while await self.of.receive():
                    pass
            except trio.BrokenResourceError:
                return True
        return self.of.unfinished > 0


WAYS = pytest.mark.parametrize("way", ["subscription", "feed"])
