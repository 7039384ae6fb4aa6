"""Large messages, and their fragments in a store."""

from pathlib import Path
from random import Random

import lmdb

from omq.protocol.omq.types import Subscribed
from omq_storage.fragments import FRAGMENT_OCTETS, FRAGMENTS, LOOSE

from .conversation import Conversation, InProcess, eventually, serving
from .dmp_conversation import envelopes, sink, stored

MIB = 1 << 20


def body(size: int, salt: int = 0) -> bytes:
    """Return octets in which no two fragments are equal."""
    return Random(salt).randbytes(size)


LARGE = [body(MIB, 1), body(700_000, 2), body(3 * MIB + 17, 3)]


async def send(host: InProcess, client: Conversation, bodies: list[bytes]) -> None:
    """Send bodies through a sink, in pieces that have nothing to do with them."""
    connection = await sink(host, client)
    octets = envelopes(bodies)
    for begin in range(0, len(octets), 70_001):
        await connection.send(octets[begin : begin + 70_001])
    assert await stored(connection) == len(bodies)


async def everything(host: InProcess, client: Conversation, count: int) -> list[bytes]:
    assert isinstance(await client.ask(b"(Subscribe t From_beginning)"), Subscribed)
    return await client.bodies(count)


def leftovers(store: Path, level: str = "weak") -> tuple[int, int]:
    """Return the numbers of fragments and of loose bodies of a stopped server."""
    with lmdb.open(str(store / level), max_dbs=16, readonly=True, lock=False) as environment:
        tables = [environment.open_db(name, create=False) for name in (FRAGMENTS, LOOSE)]
        with environment.begin() as transaction:
            found = [transaction.stat(table)["entries"] for table in tables]
    return found[0], found[1]


def fragments(bodies: list[bytes]) -> int:
    return sum(-(-len(each) // FRAGMENT_OCTETS) for each in bodies)


async def swept(store: Path) -> None:
    """Check that a server that runs for a moment leaves only the fragments of the messages."""
    async with serving(store) as host:
        writer = next(each for level, each in host.server.catalogue.writers.items() if level.value == "weak")
        await eventually(lambda: not writer.environment.sweep())
    assert leftovers(store) == (fragments(LARGE), 0)
