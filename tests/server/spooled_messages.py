"""Long messages of transient topics, whose bodies are on the spool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from omq.drivers.spool import SpoolStatistics

from .conversation import PATIENCE, Conversation, Host, InProcess, OwnProcess, eventually, serving_process
from .dmp_conversation import envelopes, sink, stored
from .large_messages import MIB, body
from .round_robin_workers import worker
from .test_spool import spool_file

SETTINGS: dict[str, Any] = {
    "memory_bytes": 4 * MIB,
    "max_message_bytes": 1 << 30,
    "stall_seconds": PATIENCE,
    "spool_seconds": PATIENCE,
}

LONG = body(6 * MIB + 17, 1)
"""A message that is larger than the memory."""

MANY = 8
MANY_OCTETS = 24 * MIB
"""Messages that are published at once, and their size."""

LITTLE_MEMORY = 120 * MIB


def spool(host: InProcess) -> SpoolStatistics:
    return host.server.statistics().spool


async def emptied(host: InProcess) -> None:
    """Wait until nothing is on the spool, and neither memory nor room is taken."""
    await eventually(lambda: spool(host).used == 0)
    memory = host.server.memory
    await eventually(lambda: memory.uploaded.used == memory.unfinished.used == memory.replayed.used == 0)
    await eventually(lambda: has_no_spool(host))


async def done(host: InProcess) -> None:
    """Wait until nothing of any message is left."""
    await emptied(host)
    await eventually(lambda: host.server.memory.statistics().waiting == 0)


def has_no_spool(host: InProcess) -> bool:
    """Return whether the file of the spool is closed."""
    try:
        spool_file(Path(host.server.config.store))
    except AssertionError:
        return True
    return False


async def subscribed(host: Host, receive_octets: int | None = None) -> Conversation:
    """Return a subscriber of the topic, of whichever delivery it is."""
    return await worker(host, receive_octets=receive_octets)


async def begun(host: InProcess, client: Conversation, octets: int = 2 * MIB) -> Conversation:
    """Return a sink that has sent a part of LONG, of which something is on the spool."""
    connection = await sink(host, client)
    await connection.send(envelopes([LONG])[:octets])
    await eventually(lambda: spool(host).used > 0)
    return connection


@asynccontextmanager
async def taking_little_memory(store: Path) -> AsyncIterator[OwnProcess]:
    """Yield a server in a process of its own. Check that it takes little memory all the time (`RssAnon`)."""
    most = 0
    settings = "max_message_bytes = 4_294_967_282\nmemory_bytes = 16_777_216\n"
    async with serving_process(store, settings) as host, trio.open_nursery() as watching:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, anonymous(host.process.pid))
                await trio.sleep(0.02)

        watching.start_soon(watch)
        yield host
        watching.cancel_scope.cancel()
    assert 0 < most < LITTLE_MEMORY


def anonymous(process: int) -> int:
    """Return the anonymous memory of a process in octets."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


async def publish_many(host: OwnProcess, client: Conversation) -> None:
    """Publish MANY messages of MANY_OCTETS, all at once."""

    async def publish(connection: Conversation, octets: bytes) -> None:
        await connection.stream.send_all(octets)
        assert await stored(connection) == 1

    sinks = [await sink(host, client) for _ in range(MANY)]
    async with trio.open_nursery() as nursery:
        for number, connection in enumerate(sinks):
            nursery.start_soon(publish, connection, envelopes([bytes([number]) * MANY_OCTETS]))
