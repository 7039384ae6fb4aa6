"""The bodies of long messages, who sends them, who receives them, and who stalls in their middle."""

import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from zlib import crc32

import trio
from server import Server
from vitals import vitals

from omq.client import Client
from omq.client.opened import OpenMessage

MIB = 1 << 20

CONFIGURATION = "max_message_bytes = 4_294_967_282\n"
"""The configuration of a server that takes them."""

SEED_DIGITS = 16
"""The number of digits at the beginning of a message that tell which one it is."""

SAMPLE_SECONDS = 0.05

LITTLE = 4096
"""Size of the receive buffer of a client that does not read."""


def _piece(seed: int, number: int) -> bytes:
    """Return MiB `number` of a message: pieces of one message, and of others, differ."""
    digits = SEED_DIGITS
    return b"%0*d%0*d" % (digits, seed, digits, number) * (MIB // (2 * digits))


async def send(client: Client, topics: Iterable[str], mebibytes: int, seeds: list[int]) -> None:
    """Send a message of this size for each seed, all at once, to these topics in turn."""

    async def send_one(topic: str, seed: int) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(mebibytes):
                yield _piece(seed, number)

        async with client.sink(topic) as sink:
            await sink.publish_from(pieces(), mebibytes * MIB)

    async with trio.open_nursery() as nursery:
        for topic, seed in zip(cycle(topics), seeds, strict=False):
            nursery.start_soon(send_one, topic, seed)


def dealt(topics: Iterable[str], topic: str, seeds: list[int]) -> list[int]:
    """Return the seeds of the messages that `send` sends to one of the topics."""
    return [seed for of, seed in zip(cycle(topics), seeds, strict=False) if of == topic]


async def seed_of(opened: OpenMessage, mebibytes: int) -> int | None:
    """Receive a message, and return its seed; None unless it is octet for octet what was sent."""
    checksum = size = 0
    beginning = b""
    async with opened.open() as pieces:
        async for piece in pieces:
            checksum = crc32(piece, checksum)
            size += len(piece)
            beginning = (beginning + piece[:SEED_DIGITS])[:SEED_DIGITS]
    seed = int(beginning)
    expected = 0
    for number in range(mebibytes):
        expected = crc32(_piece(seed, number), expected)
    return seed if (checksum, size) == (expected, mebibytes * MIB) else None


async def stall(url: str, topic: str, replay: str) -> trio.SocketStream:
    """Return a connection that is subscribed to a topic, and reads nothing."""
    opened = trio.socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
    await opened.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    stream = trio.SocketStream(opened)
    await stream.send_all(bytes(7) + f"\1(Connect 1 stalled)\n(Subscribe {topic} {replay})\n".encode())
    return stream


@dataclass(slots=True)
class Memory:
    """The greatest anonymous memory of a server so far, in octets (RssAnon)."""

    most: int = 0


@asynccontextmanager
async def memory_watched(server: Server) -> AsyncIterator[Memory]:
    """Measure the memory of a server all the time within the block."""
    memory = Memory()

    async def watch() -> None:
        while True:
            memory.most = max(memory.most, vitals(server.process.pid).memory)
            await trio.sleep(SAMPLE_SECONDS)

    async with trio.open_nursery() as watching:
        watching.start_soon(watch)
        yield memory
        watching.cancel_scope.cancel()
