"""Many long messages of transient topics at once, and a kill in their middle.

They wait on the spool, which is one file without a name: so a kill leaves nothing of them.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import cycle
from pathlib import Path
from zlib import crc32

import trio
from server import Server
from tally import Outcome
from vitals import vitals

from omq.client import Client, Delivery, Transient, connect
from omq.errors import OmqError

MIB = 1 << 20

CONFIGURATION = "max_message_bytes = 4_294_967_282\n"

WORKERS = 2

TOPICS = {"all": Delivery.BROADCAST, "work": Delivery.ROUND_ROBIN}
"""The topics; the sinks send to them in turn."""

SEED_DIGITS = 16
"""The number of digits at the beginning of a message that tell which one it is."""

SAMPLE_SECONDS = 0.05

WITHIN_SECONDS = 30
"""The number of seconds within which the spool is empty after its last message was received."""

LITTLE = 4096
"""Size of the receive buffer of a client that does not read."""


async def long_transient_messages(
    directory: Path, mebibytes: int, seeds: list[int], most_memory: int, outcome: Outcome
) -> None:
    """Send a message of this size for each seed, all at once, to a subscriber beside a stalled one, and to
    workers. Kill the server in the middle of more of them, and send them to the next one.
    """
    store = directory / "transient"
    server = Server(store, CONFIGURATION, "this-boot", {})
    try:
        url = f"omq://127.0.0.1:{await server.ready()}"
        await _deliver(server, url, mebibytes, seeds, most_memory, outcome)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_interrupted, url, mebibytes, seeds)
            await _until(lambda: _spooled(server) >= mebibytes * MIB // 2)
            server.kill()
        if left := [str(path) for path in store.rglob("spool*")]:
            outcome.blame("long transient messages", [f"a kill left {left}"])
        server = Server(store, CONFIGURATION, "this-boot", {})
        url = f"omq://127.0.0.1:{await server.ready()}"
        async with connect(url) as client:
            for info in await client.topics():
                if info.messages:
                    outcome.blame(info.topic.decode(), [f"a kill left {info.messages} messages"])
        await _deliver(server, url, mebibytes, seeds, most_memory, outcome)
    finally:
        server.kill()


async def _deliver(
    server: Server, url: str, mebibytes: int, seeds: list[int], most_memory: int, outcome: Outcome
) -> None:
    """Send all messages, receive them, and look at the memory and the spool."""
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, vitals(server.process.pid).memory)
            await trio.sleep(SAMPLE_SECONDS)

    received: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    async with trio.open_nursery() as watching, connect(url) as client, AsyncExitStack() as stalled:
        watching.start_soon(watch)
        await _declare(client)
        await stalled.enter_async_context(await _stall(url))
        async with trio.open_nursery() as nursery:
            for topic in ("all", *["work"] * WORKERS):
                await nursery.start(_receive, client, topic, mebibytes, received[topic])
            nursery.start_soon(_send, client, mebibytes, seeds)
            await _until(lambda: sum(map(len, received.values())) >= len(seeds))
            nursery.cancel_scope.cancel()
        watching.cancel_scope.cancel()
    for topic in TOPICS:
        sent = sorted(seed for of, seed in zip(cycle(TOPICS), seeds, strict=False) if of == topic)
        if sorted(received[topic]) != sent:
            outcome.blame(topic, ["what was delivered is not what was sent, once each"])
        outcome.messages += len(sent)
    if most > most_memory:
        outcome.blame("long transient messages", [f"the server took {most >> 20} MiB of memory"])
    with trio.move_on_after(WITHIN_SECONDS):
        await _until(lambda: not _spooled(server))
    if left := _spooled(server):
        outcome.blame("long transient messages", [f"{left} octets are on the spool, and nobody needs them"])


async def _until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await trio.sleep(SAMPLE_SECONDS)


async def _declare(client: Client) -> None:
    for topic, delivery in TOPICS.items():
        await client.declare(topic, delivery, Transient())


async def _interrupted(url: str, mebibytes: int, seeds: list[int]) -> None:
    """Send messages that nobody receives completely, because the server is killed."""
    try:
        async with connect(url) as client, await _stall(url):
            await _send(client, mebibytes, seeds)
    except* (OmqError, OSError):
        pass


def _piece(seed: int, number: int) -> bytes:
    """Return MiB `number` of a message: pieces of one message, and of others, differ."""
    digits = SEED_DIGITS
    return b"%0*d%0*d" % (digits, seed, digits, number) * (MIB // (2 * digits))


async def _send(client: Client, mebibytes: int, seeds: list[int]) -> None:
    async def send(topic: str, seed: int) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for number in range(mebibytes):
                yield _piece(seed, number)

        async with client.sink(topic) as sink:
            await sink.publish_from(pieces(), mebibytes * MIB)

    async with trio.open_nursery() as nursery:
        for topic, seed in zip(cycle(TOPICS), seeds, strict=False):
            nursery.start_soon(send, topic, seed)


async def _receive(
    client: Client,
    topic: str,
    mebibytes: int,
    received: list[int],
    task_status: trio.TaskStatus[None],
) -> None:
    """Receive messages until cancelled; note the seeds of those that are octet for octet what was sent."""
    async with client.feed(topic) as feed, aclosing(feed.opened()) as messages:
        task_status.started()
        async for opened in messages:
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
            received.append(seed if (checksum, size) == (expected, mebibytes * MIB) else -1)


async def _stall(url: str) -> trio.SocketStream:
    """Return a connection that is subscribed to the broadcast topic, and reads nothing."""
    opened = trio.socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
    await opened.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    stream = trio.SocketStream(opened)
    await stream.send_all(bytes(7) + b"\1(Connect 1 stalled)\n(Subscribe all From_current)\n")
    return stream


def _spooled(server: Server) -> int:
    """Return the octets that the spool of a server takes on the disk; 0 when its file is closed."""
    for number in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            if str(number.readlink()).endswith(" (deleted)") and number.stat().st_size:
                return number.stat().st_blocks * 512
        except OSError:
            continue  # it was closed meanwhile
    return 0
