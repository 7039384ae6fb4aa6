"""Long messages: many sinks send one each at once, and subscribers stall in the middle of them.

However long the messages are, the memory of the server stays small, and each message arrives as it was sent.
"""

import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import cycle, islice
from pathlib import Path
from zlib import crc32

import trio
from long_transient import long_transient_messages
from server import Server
from tally import Outcome
from vitals import vitals

from omq.client import Client, Delivery, FromMessage, connect
from omq.model import PERSISTENCES, PersistenceName

MIB = 1 << 20

SINKS = 16
STALLED = 30

MOST_MEMORY = 150 * MIB
"""The greatest anonymous memory of the server (RssAnon)."""

SAMPLE_SECONDS = 0.05

SEED_DIGITS = 16
"""The number of digits at the beginning of a message that tell which one it is."""

STALL_SECONDS = 2.0
"""The number of seconds after which a client that takes nothing counts as stalled for certain."""

LITTLE = 4096
"""Size of the receive buffer of a client that does not read."""

LEVELS: tuple[PersistenceName, ...] = ("strong", "weak", "async")


async def long_messages(
    directory: Path, mebibytes: int, chance: random.Random, done: Callable[[], object]
) -> Outcome:
    """Send messages of this size: SINKS at once, and again while subscribers stall in the first ones."""
    outcome = Outcome()
    server = Server(directory / "store", "max_message_bytes = 4_294_967_282\n", "this-boot", {})
    try:
        url = f"omq://127.0.0.1:{await server.ready()}"
        async with trio.open_nursery() as watching, AsyncExitStack() as stalled:
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, vitals(server.process.pid).memory)
                    await trio.sleep(SAMPLE_SECONDS)

            watching.start_soon(watch)
            async with connect(url) as client:
                for level in LEVELS:
                    await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
                seeds = [chance.randrange(1 << 30) for _ in range(2 * SINKS)]
                await _send(client, seeds[:SINKS], mebibytes)
                for level in islice(cycle(LEVELS), STALLED):
                    await stalled.enter_async_context(await _stall(url, level))
                await trio.sleep(STALL_SECONDS)
                await _send(client, seeds[SINKS:], mebibytes)
                for level in LEVELS:
                    kept = [info.messages for info in await client.topics() if info.topic == level.encode()]
                    if kept != [len(_seeds(level, seeds))]:
                        outcome.blame(level, [f"{kept} messages are kept of {len(_seeds(level, seeds))}"])
                    elif not await _is_whole(client, level, chance.randint(1, kept[0]), seeds, mebibytes):
                        outcome.blame(level, ["a message is not what was sent"])
                    outcome.messages += kept[0]
            watching.cancel_scope.cancel()
        if most > MOST_MEMORY:
            outcome.blame("long messages", [f"the server took {most >> 20} MiB of memory"])
    finally:
        server.kill()
    seeds = [chance.randrange(1 << 30) for _ in range(SINKS)]
    await long_transient_messages(directory, mebibytes, seeds, MOST_MEMORY, outcome)
    for _ in range(mebibytes):
        done()
    return outcome


def _seeds(level: str, seeds: list[int]) -> list[int]:
    """Return the seeds of the messages of a topic. `_send` deals each half of them in the same way."""
    halves = (seeds[:SINKS], seeds[SINKS:])
    return [seed for half in halves for of, seed in zip(cycle(LEVELS), half, strict=False) if of == level]


def _piece(seed: int, number: int) -> bytes:
    """Return MiB `number` of a message: pieces of one message, and of others, differ."""
    digits = SEED_DIGITS
    return b"%0*d%0*d" % (digits, seed, digits, number) * (MIB // (2 * digits))


async def _send(client: Client, seeds: list[int], mebibytes: int) -> None:
    """Send a message for each seed, all at once, to the topics of all levels."""

    async def send(level: str, seed: int) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(mebibytes):
                yield _piece(seed, number)

        async with client.sink(level) as sink:
            await sink.publish_from(pieces(), mebibytes * MIB)

    async with trio.open_nursery() as nursery:
        for level, seed in zip(cycle(LEVELS), seeds, strict=False):
            nursery.start_soon(send, level, seed)


async def _is_whole(client: Client, level: str, message: int, seeds: list[int], mebibytes: int) -> bool:
    """Receive one message, and return whether it is one that was sent to the topic."""
    checksum = size = 0
    beginning = b""
    async with client.feed(level, FromMessage(message)) as feed, aclosing(feed.opened()) as messages:
        opened = await anext(messages)
        async with opened.open() as pieces:
            async for piece in pieces:
                checksum = crc32(piece, checksum)
                size += len(piece)
                beginning = (beginning + piece)[:SEED_DIGITS]
    seed = int(beginning)
    expected = 0
    for number in range(mebibytes):
        expected = crc32(_piece(seed, number), expected)
    return seed in _seeds(level, seeds) and (checksum, size) == (expected, mebibytes * MIB)


async def _stall(url: str, level: str) -> trio.SocketStream:
    """Return a connection that is subscribed to all messages of a topic, and reads none."""
    opened = trio.socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
    await opened.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    stream = trio.SocketStream(opened)
    await stream.send_all(
        bytes(7) + b"\1(Connect 1 stalled)\n(Subscribe %b From_beginning)\n" % level.encode()
    )
    return stream
