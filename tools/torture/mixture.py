"""Clients of all protocols do random things that are permitted, many at a time, on few topics.

Whatever they did, the server must be whole afterwards: it has reported no defect, its connections are over,
and when the topics are deleted, no share of its memory holds anything.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from random_clients import Act, amqp_1_0_client, amqp_client, live, omq_client, prepare
from server import Server
from tally import Outcome

from omq.client import ServerError, connect

AT_A_TIME = 12
"""The number of clients that are connected at a time."""

CLIENT_SECONDS = 20.0
"""The longest life of a client: some wait for ever."""

GIVEN_BACK_SECONDS = 20.0
"""The time in which the server gives everything back after the last client."""

CONFIGURATION = f"""
memory_bytes = {16 << 20}
fragment_octets = {256 << 10}
max_message_bytes = {4 << 20}
disk_reserve_bytes = 0
"""

SHARE = re.compile(r'^omq_memory_share_bytes\{share="(\w+)"\} (\S+)$', re.MULTILINE)
CONNECTIONS = re.compile(r'^omq_connections\{protocol="(\w+)"\} (\S+)$', re.MULTILINE)
DEFECT = re.compile(r"^.*(?:defect|Traceback).*$", re.MULTILINE)


async def mixture(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Run this many clients, and look at the server after them."""
    broken: list[str] = []
    happened: Counter[str] = Counter()
    with Server(directory / "mixture", CONFIGURATION, "torture", {}) as server:
        port = await server.ready()
        await prepare(port)
        left = iter(range(count))

        async def clients() -> None:
            for number in left:
                own = random.Random(f"{chance.random()} {number}")
                act = own.choice(acts(port))
                with trio.move_on_after(CLIENT_SECONDS):
                    await live(port, own, happened, act)
                done()

        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_A_TIME, count)):
                nursery.start_soon(clients)
        broken += await still_held(port)
        if server.stop():
            broken.append("the server did not end properly")
        broken += [f"the log has: {line}" for line in DEFECT.findall(server.log())]
    return Outcome(broken, messages=happened["MessageRun"] + happened["BasicDeliver"] + happened["Transfer"])


def acts(port: int) -> list[Act]:
    """Return the kinds of clients."""
    return [partial(omq_client, port), amqp_client, amqp_1_0_client]


async def still_held(port: int) -> list[str]:
    """Delete all topics, and return a sentence for everything that the server still holds after
    GIVEN_BACK_SECONDS.
    """
    held = ["the server does not answer"]
    with trio.move_on_after(GIVEN_BACK_SECONDS):
        while True:
            # Again and again: the server may execute commands of clients that are gone, which create topics.
            await delete_topics(port)
            if not (held := _held(await metrics(port))):
                break
            await trio.sleep(0.1)
    return held


async def delete_topics(port: int) -> None:
    """Delete the topics that there are now."""
    async with connect(f"omq://127.0.0.1:{port}") as client:
        for info in await client.topics():
            with suppress(ServerError):  # a queue may have expired meanwhile
                await client.delete(info.topic)


def _held(text: str) -> list[str]:
    """Return a sentence for each share of the memory in use, and for each protocol with connections but
    HTTP.
    """
    shares, connections = SHARE.findall(text), CONNECTIONS.findall(text)
    if not shares or not connections:
        return [f"the metrics have no memory or no connections: {text[:200]!r}"]
    held = [f"the share {name} is not given back: {octets}" for name, octets in shares if float(octets)]
    others = [(name, number) for name, number in connections if name != "http"]
    return held + [f"connections of {name} are left: {number}" for name, number in others if float(number)]


async def metrics(port: int) -> str:
    """Return the metrics of the server."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return b"".join([part async for part in stream]).decode()
