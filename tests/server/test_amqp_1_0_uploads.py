"""AMQP 1.0: long messages of producers, whose bodies go to the store or to the spool as they come."""

from pathlib import Path
from typing import Any

import pytest
import trio

from omq.protocol.amqp_1_0.performatives import Detach, Transfer
from omq.protocol.omq.types import Deleted

from .amqp_1_0_peer import ACCEPTED, RELEASED, Peer, condition, data, opened
from .conversation import InProcess, declared, eventually, serving
from .large_messages import MIB, body
from .spooled_messages import (
    LONG,
    MANY,
    MANY_OCTETS,
    SETTINGS,
    emptied,
    spool,
    taking_little_memory,
)
from .test_amqp_1_0_idempotent import numbered, ulong
from .test_amqp_1_0_long_messages import FOOTER, PROPERTIES
from .test_amqp_1_0_relay import rejected, to

KINDS = {
    "stored": b"Broadcast (Persistent Weak)",
    "spooled": b"Broadcast Transient",
    "work": b"Round_robin (Persistent Weak)",
    "spooled work": b"Round_robin Transient",
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> bytes:
    """Return the kind of a topic."""
    types: bytes = request.param
    return types


def is_transient(kind: bytes) -> bool:
    return kind.endswith(b"Transient")


async def begun(client: Peer, octets: bytes, end: int = 2 * MIB) -> Transfer:
    """Send the first octets of a message, up to an index. Return its first transfer."""
    delivery = client.delivery()
    first = Transfer(1, delivery, b"%d" % delivery, 0, False)
    await client.send_part(octets, 0, end, first)
    return first


async def uploaded(host: InProcess, kind: bytes) -> None:
    """Wait until something of a body is on the spool, if it goes there."""
    if is_transient(kind):
        await eventually(lambda: spool(host).used > 0)


async def nothing_left(host: InProcess, kind: bytes) -> None:
    if is_transient(kind):
        await emptied(host)


@pytest.mark.parametrize("is_relayed", [False, True], ids=["own", "relay"])
async def test_messages_that_the_memory_cannot_hold_come_out_as_they_were(
    store: Path, kind: bytes, *, is_relayed: bool
) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        await client.sender(None if is_relayed else "t")
        if is_relayed:
            sent = [to("t", b"before"), to("t", LONG), to("t", b"after")]
        else:
            sent = [data(b"before"), data(LONG), PROPERTIES + data(LONG) + FOOTER, data(b"after")]

        async def publish() -> None:
            for number, octets in enumerate(sent):
                await client.publish_long(octets)
                await client.accepted(number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for octets in sent:
                message = await other.message()
                assert message.octets == octets
                if not message.settled:
                    await other.told(message.delivery, message.delivery)
        await nothing_left(host, kind)


async def test_a_body_of_several_sections_is_held_after_all(store: Path, kind: bytes) -> None:
    """That it goes on is known when its first section is on the disk."""
    settings = {**SETTINGS, "memory_bytes": 64 * MIB, "fragment_octets": 1 << 17}
    first = body(5 * MIB, 3)
    async with serving(store, **settings) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        await client.sender("t")
        octets = data(first) + data(b"more") + data(body(MIB, 4))
        await client.publish_long(octets)
        await client.accepted(0)
        message = await other.message()
        assert message.octets == octets
        await other.told(message.delivery, message.delivery)
        await other.settle()
        assert not is_transient(kind) or spool(host).written >= len(first)
        # Of one that began without a subscriber nothing was kept.
        await other.say(Detach(0, True))
        await client.publish_long(octets)
        await client.accepted(1)


async def test_one_of_several_sections_that_the_memory_cannot_hold_is_refused(
    store: Path, kind: bytes
) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        await client.sender("t")
        octets = data(LONG) + data(b"more")
        await begun(client, octets, len(octets))
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.sender("t", 2)
        await client.publish(data(b"next"), 2)
        assert (await other.message()).octets == data(b"next")
        await nothing_left(host, kind)


@pytest.mark.parametrize("how", ["abort", "detach", "cut"])
async def test_a_producer_that_gives_up_in_the_middle_leaves_nothing(
    store: Path, kind: bytes, how: str
) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        async with opened(host.port) as client:
            await client.sender("t")
            await begun(client, data(LONG))
            await uploaded(host, kind)
            match how:
                case "abort":
                    await client.say(Transfer(1, aborted=True))
                    await client.publish(data(b"next"))
                    await client.accepted(1)
                case "detach":
                    await client.say(Detach(1, True))
                    await client.until(Detach)
                case _:
                    await client.stream.aclose()
        if how != "abort":
            async with opened(host.port) as another:
                await another.sender("t")
                await another.publish(data(b"next"))
                await another.accepted(0)
        assert (await other.message()).octets == data(b"next")
        await nothing_left(host, kind)


async def test_a_topic_that_is_deleted_in_the_middle(store: Path, kind: bytes) -> None:
    """The message is released."""
    async with serving(store, **SETTINGS) as host, opened(host.port) as client, opened(host.port) as other:
        user = await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        await client.sender("t")
        octets = data(LONG)
        first = await begun(client, octets)
        await uploaded(host, kind)
        assert isinstance(await user.ask(b"(Delete t)"), Deleted)
        await client.send_part(octets, 2 * MIB, len(octets), first)
        assert (await client.outcome()).state == RELEASED
        await nothing_left(host, kind)


async def test_a_message_that_the_spool_cannot_hold_is_rejected(store: Path) -> None:
    """The link goes on."""
    settings: dict[str, Any] = {**SETTINGS, "spool_bytes": 5 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, b"Round_robin Transient")
        await client.sender("t")
        await client.publish_long(data(LONG))
        assert rejected((await client.outcome()).state) == "amqp:resource-limit-exceeded"
        await client.publish_long(data(LONG[: 4 * MIB]))
        await client.accepted(1)
        await other.receiver("t", credit=20)
        assert (await other.message()).octets == data(LONG[: 4 * MIB])


async def test_a_link_does_not_wait_for_room_that_another_one_needs(store: Path) -> None:
    """The spool has a part of a message on the other link, whose rest cannot come meanwhile."""
    settings: dict[str, Any] = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, b"Round_robin Transient")
        await client.sender("t")
        await client.sender("t", 2)
        octets = data(LONG)
        first = await begun(client, octets, 4 * MIB)
        await eventually(lambda: spool(host).used > 0)
        delivery = client.delivery()
        await client.send_part(octets, 0, len(octets), Transfer(2, delivery, b"%d" % delivery, 0, False))
        await client.send_part(octets, 4 * MIB, len(octets), first)
        outcomes = [await client.outcome() for _ in range(2)]
        states = {each.first: each.state for each in outcomes}
        assert rejected(states[delivery]) == "amqp:resource-limit-exceeded"
        assert states[0] == ACCEPTED
        await other.receiver("t", credit=20)
        assert (await other.message()).octets == octets


async def test_a_producer_waits_until_a_consumer_has_made_room(store: Path) -> None:
    """One that consumes does not: the room may depend on the outcomes that it tells."""
    settings: dict[str, Any] = {**SETTINGS, "spool_bytes": 8 * MIB, "spool_seconds": 0.05}
    async with serving(store, **settings) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, b"Round_robin Transient")
        await client.sender("t")
        await client.publish_long(data(LONG))
        await client.accepted(0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.publish_long, data(LONG))
            await eventually(lambda: host.server.catalogue.spool.room.waiting == 1)
            await other.receiver("t", credit=1)
            message = await other.message()
            await other.sender("t")
            await other.publish_long(data(LONG))
            assert rejected((await other.outcome()).state) == "amqp:resource-limit-exceeded"
            assert host.server.catalogue.spool.room.waiting == 1
            await other.told(message.delivery, message.delivery)
            await client.accepted(1)
        await other.credit(2, count=1)
        assert (await other.message()).octets == data(LONG)


async def test_repeated_messages_of_a_producer_are_stored_once(store: Path, kind: bytes) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as client, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=20)
        await other.settle()
        await client.sender("t")
        message = numbered("p", ulong(7), LONG)
        await client.publish_long(message)
        assert (await other.message()).octets == message
        await client.accepted(0)
        await client.publish_long(message)
        await client.accepted(1)
        await client.publish(data(b"next"))
        assert (await other.message()).octets == data(b"next")
        await client.accepted(2)
        await client.publish_long(numbered("", ulong(1), LONG))
        assert rejected((await client.outcome()).state) == "amqp:invalid-field"


async def test_a_message_that_ends_within_its_body_is_rejected(store: Path, kind: bytes) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as client:
        await declared(host, kind)
        await client.sender("t")
        await client.publish_long(data(LONG)[:-1])
        assert rejected((await client.outcome()).state) == "amqp:decode-error"
        await client.publish_long(data(LONG))
        assert (await client.outcome()).state == ACCEPTED


async def test_the_attach_tells_the_longest_message(store: Path) -> None:
    async with serving(store, **SETTINGS) as host, opened(host.port) as client:
        await declared(host, b"Round_robin Transient")
        assert (await client.sender("t")).max_message_size == 1 << 30
        assert (await client.sender(None, 2)).max_message_size == 1 << 30
    async with serving(store, **SETTINGS, spool_bytes=0) as host, opened(host.port) as client:
        assert (await client.sender("t")).max_message_size == 4 * MIB


async def test_many_at_once_take_little_memory(store: Path, kind: bytes) -> None:
    async with taking_little_memory(store) as host, opened(host.port) as other:
        await declared(host, kind)
        await other.receiver("t", credit=100)
        await other.settle()

        async def publish(number: int) -> None:
            async with opened(host.port) as client:
                await client.sender("t")
                await client.publish_long(data(bytes([number]) * MANY_OCTETS))
                await client.accepted(0)

        async with trio.open_nursery() as nursery:
            for number in range(MANY):
                nursery.start_soon(publish, number)
            for _ in range(MANY):
                message = await other.message()
                assert len(message.octets) > MANY_OCTETS
                if not message.settled:
                    await other.told(message.delivery, message.delivery)
