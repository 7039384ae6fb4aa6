"""AMQP 1.0: messages that are sent settled to a client whose session has no window for all of their frames.

Such a message is done when its last frame has left. If the link, its session or its connection ends before,
the message is delivered again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import performatives, stored
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Transfer,
)

from .amqp_1_0_peer import ACCEPTED, Peer, data, opened, source, target
from .conversation import InProcess, eventually, serving

FRAME = 1024

MESSAGES = {"frames": data(b"x" * 3000), "pieces": data(b"y" * 200_000), "stored": data(b"z" * 600_000)}
"""Messages that are sent as a whole, in pieces from memory, and in pieces from the store."""

LENGTHS = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())

FAILED = performatives.write(Modified(delivery_failed=True))


def frames(message: bytes, deliveries: int = 0) -> int:
    """Return the number of frames of this message."""
    around = stored.redelivered(stored.PLAIN, deliveries) if deliveries else stored.PLAIN
    return -(-(len(message) + len(around.before)) // (FRAME - 64))


def waiting(host: InProcess, name: bytes = b"jobs") -> int:
    """Return the number of messages of a queue, with those that are delivered and not done."""
    return {driver.topic.topic: driver.info().messages for driver in host.server.catalogue}[name]


@asynccontextmanager
async def holding(host: InProcess, message: bytes, address: str = "jobs") -> AsyncIterator[tuple[Peer, Peer]]:
    """Yield a client that publishes this message, and one that gets it settled. It has no window for the last
    frame.
    """
    window = frames(message) - 1
    async with opened(host.port) as other, opened(host.port, max_frame=FRAME, window=window) as client:
        await client.say(Attach("r", 0, True, 1, source=source(address), target=target("here")))
        assert (await client.until(Attach)).snd_settle_mode == 1
        await client.say(Flow(0, window, 0, 100, 0, 0, 10))
        await client.settle()
        await client.say(Flow(0, window, 0, 100))
        await other.sender(address)
        delivery = await other.publish_long(message)
        if address == "jobs":
            await other.accepted(delivery)
        for _ in range(window):
            said, _ = await client.next()
            assert isinstance(said, Transfer), said
            assert said.more
        yield other, client


async def leave(client: Peer, how: str) -> None:
    """End the link in this way."""
    match how:
        case "detach":
            await client.say(Detach(0, closed=True))
            await client.until(Detach)
        case "end":
            await client.say(End())
            await client.until(End)
        case "close":
            await client.say(Close())
            await client.until(Close)
        case _:
            await client.stream.aclose()


@LENGTHS
@pytest.mark.parametrize("how", ["detach", "end", "close", "cut off"])
async def test_a_settled_message_that_has_left_in_part_is_delivered_again(
    store: Path, how: str, message: bytes
) -> None:
    async with (
        serving(store, fragment_octets=256 << 10) as host,
        holding(host, message) as (other, client),
    ):
        assert waiting(host) == 1
        await leave(client, how)
        await other.receiver("jobs", credit=1)
        again = await other.message()
        assert again.octets.endswith(message)
        assert again.octets == stored.redelivered(stored.PLAIN, 1).before + message
        await other.told(again.delivery, again.delivery)
        await eventually(lambda: waiting(host) == 0)


@LENGTHS
async def test_a_settled_message_is_done_when_its_last_frame_has_left(store: Path, message: bytes) -> None:
    async with (
        serving(store, fragment_octets=256 << 10) as host,
        holding(host, message) as (_, client),
    ):
        assert waiting(host) == 1
        await client.say(Flow(frames(message) - 1, 1, 0, 100))
        said, _ = await client.next()
        assert isinstance(said, Transfer), said
        assert not said.more
        await eventually(lambda: waiting(host) == 0)
        await client.say(Detach(0, closed=True))
        await client.heard(Detach)


@LENGTHS
async def test_a_producer_learns_that_a_settled_message_has_left_in_part(store: Path, message: bytes) -> None:
    async with serving(store) as host, holding(host, message, "unicast.node") as (other, client):
        await client.say(Detach(0, closed=True))
        await client.heard(Detach)
        outcome = await other.heard(Disposition)
        assert (outcome.first, outcome.state) == (0, FAILED)


@LENGTHS
async def test_a_producer_learns_when_the_last_frame_of_a_settled_message_has_left(
    store: Path, message: bytes
) -> None:
    async with serving(store) as host, holding(host, message, "unicast.node") as (other, client):
        await other.say(Flow(0, 100, 0, 100, echo=True))
        await other.heard(Flow)  # and no outcome before it
        await client.say(Flow(frames(message) - 1, 1, 0, 100))
        said, _ = await client.next()
        assert isinstance(said, Transfer), said
        outcome = await other.heard(Disposition)
        assert (outcome.first, outcome.state) == (0, ACCEPTED)
