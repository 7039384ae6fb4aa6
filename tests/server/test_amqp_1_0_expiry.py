"""AMQP 1.0: messages whose time ends while a part of them has been sent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.drivers.queue_options import QueueOptions
from omq.protocol.amqp_1_0.performatives import Detach, Disposition, Flow, Modified, Transfer, write

from .amqp_1_0_peer import ACCEPTED, REJECTED, RELEASED, Peer, data, opened
from .conversation import InProcess, eventually, serving

SIZE = 4 << 20
LONG = data(bytes(SIZE))

TTL = 50
"""The number of seconds that messages of the queue may wait: longer than a test takes."""

LATER = 52
"""Seconds after which they have expired. A client that is silent for twice as long, and while a slow machine
does its work, is not gone.
"""

EITHER = pytest.mark.parametrize("durable", [True, False], ids=["durable", "ephemeral"])

KEPT = pytest.mark.parametrize(
    ("durable", "memory"),
    [(True, 1 << 30), (True, 64 << 20), (False, 1 << 30)],
    ids=["in memory", "stored", "ephemeral"],
)
"""The place of the message: with little memory it is read from the store."""


pytestmark = pytest.mark.usefixtures("patience", "system_time")


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers of messages of two queues."""

    queue: int
    dead: int


async def declare(host: InProcess, **options: Any) -> None:
    """Declare a queue whose messages expire, and one for its dead letters."""
    catalogue = host.server.catalogue
    await catalogue.declare_queue(b"dead", QueueOptions(durable=True))
    found = QueueOptions(ttl_ms=1000 * TTL, dead_letter_exchange=b"", dead_letter_key=b"dead", **options)
    await catalogue.declare_queue(b"q", found)


def counted(host: InProcess) -> Counted:
    """Return the numbers of messages in the queues."""
    found = {driver.topic.topic: driver.info().messages for driver in host.server.catalogue}
    return Counted(found[b"q"], found[b"dead"])


async def left(host: InProcess, clock: MockClock, expected: Counted) -> None:
    """Wait until the queues have these numbers of messages, and see that they keep them."""
    await eventually(lambda: counted(host) == expected)
    await pass_time(clock, LATER, step=LATER / 4)
    assert counted(host) == expected


async def begin(client: Peer, octets: bytes, delivery: int = 0, *, settled: bool = False) -> None:
    """Send the first part of a message."""
    await client.say(Transfer(1, delivery, b"%d" % delivery, 0, settled, True), payload=octets[:60_000])
    await client.settle()


async def end(client: Peer, octets: bytes) -> None:
    """Send the rest of it."""
    for at in range(60_000, len(octets), 60_000):
        part = octets[at : at + 60_000]
        await client.say(Transfer(1, more=at + len(part) < len(octets)), payload=part)


@EITHER
@pytest.mark.parametrize("settled", [False, True])
async def test_the_time_of_a_message_begins_with_its_end(
    store: Path, clock: MockClock, durable: bool, settled: bool
) -> None:
    """Its parts take longer to come than it may wait. It expires as one that came at once."""
    async with serving(store) as host, opened(host.port) as client:
        await declare(host, durable=durable)
        await client.sender("q")
        await begin(client, LONG, settled=settled)
        await pass_time(clock, LATER, step=LATER)
        await end(client, LONG)
        if settled:
            await client.settle()
        else:
            await client.accepted(0)
        await quiet()
        assert counted(host) == Counted(1, 0)
        await pass_time(clock, LATER, step=LATER)
        await left(host, clock, Counted(0, 1))
        await client.receiver("dead", credit=1)
        assert (await client.message()).octets.endswith(LONG)


@EITHER
async def test_messages_behind_an_incomplete_one_expire(store: Path, clock: MockClock, durable: bool) -> None:
    """A part of a message delays no other producer's, and an aborted message is no dead letter."""
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await declare(host, durable=durable)
        await client.sender("q")
        await other.sender("q")
        await begin(client, LONG)
        await other.accepted(await other.publish(data(b"short")))
        await pass_time(clock, LATER, step=LATER)
        await eventually(lambda: counted(host) == Counted(0, 1))
        await client.say(Transfer(1, aborted=True))
        await client.settle()
        await left(host, clock, Counted(0, 1))


# -- to a consumer -------------------------------------------------------------------------------------------


async def some(client: Peer, frames: int) -> bytes:
    """Return the octets of a message in the next N (`frames`) frames, which are not its last ones."""
    octets = b""
    for _ in range(frames):
        said, payload = await client.next()
        assert isinstance(said, Transfer)
        assert said.more
        assert not said.aborted
        octets += payload
    return octets


async def rest(client: Peer) -> bytes:
    """Open the window of the session, and return the rest of a message."""
    await client.say(Flow(3, 1 << 20, 0, 1 << 20))
    octets = bytearray()
    more = True
    while more:
        said, payload = await client.next()
        assert isinstance(said, Transfer)
        assert not said.aborted
        octets += payload
        more = said.more
    return bytes(octets)


async def begun(host: InProcess, client: Peer, clock: MockClock, other: Peer) -> bytes:
    """Publish a long message, send the beginning to a client that then closes its window, and let the message
    expire. Return the beginning.
    """
    await other.sender("q")
    await other.accepted(await other.publish_long(LONG))
    await client.receiver("q", snd=0)
    await client.say(Flow(0, 3, 0, 1 << 20, 0, 0, 10))
    octets = await some(client, 3)
    await pass_time(clock, LATER, step=LATER)
    assert counted(host) == Counted(1, 0)
    return octets


@KEPT
@pytest.mark.parametrize(
    ("state", "expected"),
    [(ACCEPTED, Counted(0, 0)), (REJECTED, Counted(0, 1)), (RELEASED, Counted(0, 1))],
    ids=["accepted", "rejected", "released"],
)
async def test_a_message_that_expires_within_its_delivery_is_completed(
    store: Path, clock: MockClock, durable: bool, memory: int, state: bytes, expected: Counted
) -> None:
    """The consumer decides: an expired message that it gives back is a dead letter, once."""
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port, window=3) as client,
        opened(host.port) as other,
    ):
        await declare(host, durable=durable)
        octets = await begun(host, client, clock, other)
        octets += await rest(client)
        assert octets.endswith(LONG)
        await client.told(0, 0, state)
        await client.settle()
        await left(host, clock, expected)
        # The link goes on.
        await other.accepted(await other.publish(data(b"next")))
        assert (await client.message()).octets.endswith(data(b"next"))


@KEPT
@pytest.mark.parametrize("cut", [False, True], ids=["detached", "cut off"])
async def test_an_expired_message_whose_delivery_ends_is_a_dead_letter(
    store: Path, clock: MockClock, durable: bool, memory: int, cut: bool
) -> None:
    """All of it, once, though a consumer had a part of it."""
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port, window=3) as client,
        opened(host.port) as other,
    ):
        await declare(host, durable=durable)
        await begun(host, client, clock, other)
        if cut:
            await client.stream.aclose()
        else:
            await client.say(Detach(0, closed=True))
            await client.heard(Detach)
        await other.receiver("q", handle=2, credit=10)
        await eventually(lambda: host.server.memory.stalled.used == 0)
        await left(host, clock, Counted(0, 1))
        await other.receiver("dead", handle=3, credit=10)
        assert (await other.message()).octets.endswith(LONG)


@KEPT
async def test_a_failed_delivery_of_an_expired_message(
    store: Path, clock: MockClock, durable: bool, memory: int
) -> None:
    async with (
        serving(store, memory_bytes=memory) as host,
        opened(host.port, window=3) as client,
        opened(host.port) as other,
    ):
        await declare(host, durable=durable)
        await begun(host, client, clock, other)
        # The client settles the delivery before all of it has come.
        await client.say(Disposition(True, 0, 0, True, write(Modified(delivery_failed=True))))
        await client.settle()
        await rest(client)
        await left(host, clock, Counted(0, 1))
        await other.accepted(await other.publish(data(b"next")))
        assert (await client.message()).octets.endswith(data(b"next"))
