"""Long messages: many sinks send one each at once, and subscribers stall in the middle of them.

However long the messages are, the memory of the server stays small, and each message arrives as it was sent.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from itertools import cycle, islice
from pathlib import Path

import trio
from long_bodies import CONFIGURATION, dealt, memory_watched, seed_of, send, stall
from long_transient import long_transient_messages
from server import Server
from tally import Outcome

from omq.client import Client, Delivery, FromMessage, connect
from omq.model import PERSISTENCES, PersistenceName

SINKS = 16
STALLED = 30

MOST_MEMORY = 150 << 20
"""The greatest anonymous memory of the server (RssAnon)."""

STALL_SECONDS = 2.0
"""The number of seconds after which a client that takes nothing counts as stalled for certain."""

LEVELS: tuple[PersistenceName, ...] = ("strong", "weak", "async")


async def long_messages(
    directory: Path, mebibytes: int, chance: random.Random, done: Callable[[], object]
) -> Outcome:
    """Send messages of this size: SINKS at once, and again while subscribers stall in the first ones."""
    outcome = Outcome()
    server = Server(directory / "store", CONFIGURATION, "this-boot", {})
    try:
        url = f"omq://127.0.0.1:{await server.ready()}"
        async with memory_watched(server) as memory, AsyncExitStack() as stalled, connect(url) as client:
            for level in LEVELS:
                await client.declare(level, Delivery.BROADCAST, PERSISTENCES[level])
            seeds = [chance.randrange(1 << 30) for _ in range(2 * SINKS)]
            await send(client, LEVELS, mebibytes, seeds[:SINKS])
            for level in islice(cycle(LEVELS), STALLED):
                await stalled.enter_async_context(await stall(url, level, "From_beginning"))
            await trio.sleep(STALL_SECONDS)
            await send(client, LEVELS, mebibytes, seeds[SINKS:])
            for level in LEVELS:
                sent = dealt(LEVELS, level, seeds[:SINKS]) + dealt(LEVELS, level, seeds[SINKS:])
                kept = [info.messages for info in await client.topics() if info.topic == level.encode()]
                if kept != [len(sent)]:
                    outcome.blame(level, [f"{kept} messages are kept of {len(sent)}"])
                elif await _received(client, level, chance.randint(1, kept[0]), mebibytes) not in sent:
                    outcome.blame(level, ["a message is not what was sent"])
                outcome.messages += kept[0]
        if memory.most > MOST_MEMORY:
            outcome.blame("long messages", [f"the server took {memory.most >> 20} MiB of memory"])
    finally:
        server.kill()
    seeds = [chance.randrange(1 << 30) for _ in range(SINKS)]
    await long_transient_messages(directory, mebibytes, seeds, MOST_MEMORY, outcome)
    for _ in range(mebibytes):
        done()
    return outcome


async def _received(client: Client, level: str, message: int, mebibytes: int) -> int | None:
    """Receive one message, and return its seed; None unless it is what was sent."""
    async with client.feed(level, FromMessage(message)) as feed, aclosing(feed.opened()) as messages:
        return await seed_of(await anext(messages), mebibytes)
