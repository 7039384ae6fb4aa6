"""AMQP 1.0: messages that may wait for a limited time, by their ttl or their absolute-expiry-time."""

from pathlib import Path
from typing import Any

import pytest
from quietness import START, pass_time
from trio.testing import MockClock

from omq.drivers.queue_options import QueueOptions
from omq.protocol.amqp.fields import Array, LongString, Table
from omq.protocol.amqp_1_0 import encoding, types
from omq.protocol.amqp_1_0.performatives import Flow, Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import Number, NumberType

from .amqp_1_0_peer import RELEASED, Peer, data, opened
from .conversation import InProcess, eventually, serving
from .dmp_conversation import feed

TTL = 50
"""Seconds that a message may wait: longer than a test takes."""

LATER = 60

EITHER = pytest.mark.parametrize("durable", [True, False], ids=["durable", "ephemeral"])

pytestmark = pytest.mark.usefixtures("patience", "system_time")


def header(ttl: float | None) -> bytes:
    """Return a header with a ttl in seconds."""
    number = None if ttl is None else Number(NumberType.UINT, int(1000 * ttl))
    return b"\x00\x53%c%s" % (Section.HEADER, encoding.write(types.List((True, None, number))))


def properties(expiry: float | None, to: str | None = None) -> bytes:
    """Return properties with the time of expiry, in seconds since the test began."""
    moment = None if expiry is None else Number(NumberType.TIMESTAMP, int(1000 * (START + expiry)))
    fields = types.List((None, None, to, *(None,) * 5, moment))
    return b"\x00\x53%c%s" % (Section.PROPERTIES, encoding.write(fields))


LIMITED = {
    "ttl": header(TTL),
    "absolute": properties(TTL),
    "ttl first": header(TTL) + properties(10 * TTL),
    "absolute first": header(10 * TTL) + properties(TTL),
}
"""The octets before the bodies of messages that may wait for this time."""

BODIES = {"short": data(b"short"), "several frames": data(bytes(100_000)), "long": data(bytes(1 << 20))}


async def declare(host: InProcess, name: bytes = b"q", **options: Any) -> None:
    await host.server.catalogue.declare_queue(name, QueueOptions(**options))


def waiting(host: InProcess, name: bytes = b"q") -> int:
    """Return the number of messages of a queue."""
    return {driver.topic.topic: driver.info().messages for driver in host.server.catalogue}[name]


async def publish(client: Peer, message: bytes, handle: int = 1) -> None:
    await client.accepted(await client.publish_long(message, handle))


@EITHER
@pytest.mark.parametrize("before", LIMITED.values(), ids=LIMITED.keys())
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_a_message_waits_for_its_time_and_no_longer(
    store: Path, clock: MockClock, durable: bool, before: bytes, body: bytes
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await declare(host, durable=durable)
        await client.sender("q")
        await publish(client, before + body)
        await publish(client, data(b"without a limit"))
        await pass_time(clock, TTL / 2, step=TTL / 2)  # and some of the clock, which goes on
        assert waiting(host) == 2
        await pass_time(clock, LATER, step=LATER)
        await eventually(lambda: waiting(host) == 1)
        await client.receiver("q", credit=10)
        assert (await client.message()).octets == data(b"without a limit")


@EITHER
async def test_a_message_in_time_comes_as_it_was(store: Path, clock: MockClock, durable: bool) -> None:
    """Its head has the property expiration beside its sections, and neither of the clients sees that."""
    message = header(TTL) + properties(TTL) + data(b"body")
    async with serving(store) as host, opened(host.port) as client:
        await declare(host, durable=durable)
        await client.sender("q")
        await publish(client, message)
        await pass_time(clock, TTL / 2, step=TTL / 2)
        await client.receiver("q", credit=10)
        assert (await client.message()).octets == message


@pytest.mark.parametrize("before", LIMITED.values(), ids=LIMITED.keys())
async def test_the_time_goes_on_while_the_server_is_stopped(
    store: Path, clock: MockClock, before: bytes
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await declare(host, durable=True)
        await client.sender("q")
        await publish(client, before + data(b"limited"))
        await publish(client, header(10 * TTL) + data(b"longer"))
    clock.jump(LATER)
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q", credit=10, snd=0)
        assert (await client.message()).octets == header(10 * TTL) + data(b"longer")
        await client.settle()
        await pass_time(clock, 10 * TTL, step=10 * TTL)
        await client.told(0, 0, RELEASED)
        await eventually(lambda: waiting(host) == 0)


@EITHER
@pytest.mark.parametrize("before", [header(TTL), properties(TTL)], ids=["ttl", "absolute"])
async def test_an_expired_message_is_a_dead_letter(
    store: Path, clock: MockClock, durable: bool, before: bytes
) -> None:
    """It does not expire again, and its record of the death has the time that it had."""
    clock.rate = 0  # so that the message comes with all of its time
    async with serving(store) as host, opened(host.port) as client:
        await declare(host, b"dead", durable=durable)
        await declare(host, durable=durable, dead_letter_exchange=b"", dead_letter_key=b"dead")
        await client.sender("q")
        await publish(client, before + data(b"limited"))
        clock.rate = 1
        await pass_time(clock, LATER, step=LATER)
        await eventually(lambda: waiting(host, b"dead") == 1)
        assert waiting(host) == 0
        await pass_time(clock, 10 * LATER, step=LATER)
        assert waiting(host, b"dead") == 1
        principal = await host.connect()
        consumer = await feed(host, principal, b"(Get dead From_current)")
        (envelope,) = await consumer.take(1)
        assert envelope.body == b"limited"
        assert envelope.head.properties.expiration is None
        entries = dict((envelope.head.properties.headers or Table()).entries)
        deaths = entries[b"x-death"]
        assert isinstance(deaths, Array)
        (death,) = deaths.values
        assert isinstance(death, Table)
        assert dict(death.entries)[b"reason"] == LongString(b"expired")
        had = dict(death.entries)[b"original-expiration"]
        assert isinstance(had, LongString)
        # The clock runs while pytest begins the test.
        assert 1000 * (TTL - 10) < int(had.octets) <= 1000 * TTL


async def test_a_message_of_the_relay_expires(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await declare(host)
        await client.sender(None)
        for body in BODIES.values():
            await publish(client, header(TTL) + properties(None, "q") + body)
            await publish(client, properties(TTL, "q") + body)
        assert waiting(host) == 2 * len(BODIES)
        await pass_time(clock, LATER, step=LATER)
        await eventually(lambda: waiting(host) == 0)


async def test_a_message_whose_time_is_over_is_delivered_at_once_or_never(
    store: Path, clock: MockClock
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await declare(host)
        await client.sender("q")
        for before in (header(0), properties(0), properties(-TTL)):
            await publish(client, before + data(b"never"))
        await eventually(lambda: waiting(host) == 0)
        await client.receiver("q", credit=1)
        await client.settle()
        await client.publish(header(0) + data(b"once"))
        assert (await client.message()).octets == header(0) + data(b"once")


async def test_a_message_that_is_delivered_within_its_time_is_completed(
    store: Path, clock: MockClock
) -> None:
    """Its time ends while a part of it has been sent. Its consumer decides."""
    message = header(TTL) + data(bytes(4 << 20))
    async with serving(store) as host, opened(host.port) as client, opened(host.port, window=3) as consumer:
        await declare(host)
        await client.sender("q")
        await publish(client, message)
        await consumer.receiver("q", snd=0)
        await consumer.say(Flow(0, 3, 0, 1 << 20, 0, 0, 1))
        octets = b""
        for _ in range(3):
            said, payload = await consumer.next()
            assert isinstance(said, Transfer)
            octets += payload
        await pass_time(clock, LATER, step=LATER)
        assert waiting(host) == 1
        await consumer.say(Flow(3, 1 << 20, 0, 1 << 20))
        more = True
        while more:
            said, payload = await consumer.next()
            assert isinstance(said, Transfer)
            octets, more = octets + payload, said.more
        assert octets == message
        await consumer.told(0, 0, RELEASED)
        await eventually(lambda: waiting(host) == 0)


@pytest.mark.parametrize("address", ["topic://t", "broadcast.t"])
async def test_messages_of_broadcast_topics_do_not_expire(
    store: Path, clock: MockClock, address: str
) -> None:
    async with serving(store, default_persistence="weak") as host, opened(host.port) as client:
        await client.receiver(address)
        await client.sender(address)
        await publish(client, header(TTL) + data(b"body"))
        await pass_time(clock, LATER, step=LATER)
        await client.credit(1)
        assert (await client.message()).octets == header(TTL) + data(b"body")


MALFORMED = {
    "ttl of another type": b"\x00\x53\x70\xc0\x05\x03\x40\x40\x50\x05",
    "a header that is too short": b"\x00\x53\x70\xc0\x03\x03\x40\x40",
    "an expiry of another type": b"\x00\x53\x73\xc0\x0b\x09" + b"\x40" * 8 + b"\x52\x01",
    "properties that are too short": b"\x00\x53\x73\xc0\x09\x09" + b"\x40" * 8,
}


@pytest.mark.parametrize("malformed", MALFORMED.values(), ids=MALFORMED.keys())
async def test_fields_that_make_no_sense_set_no_limit(
    store: Path, clock: MockClock, malformed: bytes
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await declare(host)
        await client.sender("q")
        await publish(client, malformed + data(b"body"))
        await pass_time(clock, LATER, step=LATER)
        await client.receiver("q", credit=1)
        assert (await client.message()).octets == malformed + data(b"body")
