"""Many long messages of transient topics at once, and a kill in their middle.

They wait on the spool, which is one file without a name: so a kill leaves nothing of them.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import trio
from long_bodies import CONFIGURATION, MIB, SAMPLE_SECONDS, dealt, memory_watched, seed_of, send, stall
from server import Server
from tally import Outcome

from omq.client import Client, Delivery, Transient, connect
from omq.errors import OmqError

WORKERS = 2

TOPICS = {"all": Delivery.BROADCAST, "work": Delivery.ROUND_ROBIN}
"""The topics; the sinks send to them in turn."""

WITHIN_SECONDS = 30
"""The number of seconds within which the spool is empty after its last message was received."""


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
    received: dict[str, list[int | None]] = {topic: [] for topic in TOPICS}
    async with memory_watched(server) as memory, connect(url) as client:
        await _declare(client)
        async with await stall(url, "all", "From_current"), trio.open_nursery() as nursery:
            for topic in ("all", *["work"] * WORKERS):
                await nursery.start(_receive, client, topic, mebibytes, received[topic])
            nursery.start_soon(send, client, TOPICS, mebibytes, seeds)
            await _until(lambda: sum(map(len, received.values())) >= len(seeds))
            nursery.cancel_scope.cancel()
    for topic in TOPICS:
        sent = dealt(TOPICS, topic, seeds)
        if Counter(received[topic]) != Counter(sent):
            outcome.blame(topic, ["what was delivered is not what was sent, once each"])
        outcome.messages += len(sent)
    if memory.most > most_memory:
        outcome.blame("long transient messages", [f"the server took {memory.most >> 20} MiB of memory"])
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
        async with connect(url) as client, await stall(url, "all", "From_current"):
            await send(client, TOPICS, mebibytes, seeds)
    except* (OmqError, OSError):
        pass


async def _receive(
    client: Client,
    topic: str,
    mebibytes: int,
    received: list[int | None],
    task_status: trio.TaskStatus[None],
) -> None:
    """Receive messages until cancelled; note their seeds, None for one that is not what was sent."""
    async with client.feed(topic) as feed, aclosing(feed.opened()) as messages:
        task_status.started()
        async for opened in messages:
            seed = await seed_of(opened, mebibytes)
            received.append(seed)


def _spooled(server: Server) -> int:
    """Return the octets that the spool of a server takes on the disk; 0 when its file is closed."""
    for number in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            if str(number.readlink()).endswith(" (deleted)") and number.stat().st_size:
                return number.stat().st_blocks * 512
        except OSError:
            continue  # it was closed meanwhile
    return 0
