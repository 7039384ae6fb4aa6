"""The annotations of AMQP 1.0 messages that are omq's own, on a real socket."""

import time
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import decoding, encoding, sections
from omq.protocol.amqp_1_0.performatives import Attach
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import Binary, Map, Number, NumberType, Symbol, Value

from .amqp_1_0_peer import RELEASED, Peer, data, from_filter, opened, source, target, text
from .conversation import serving

BEGINNING = from_filter("omq:from", Symbol("beginning"))
HEADER = b"\x00\x53\x70\xc0\x02\x01\x41"
PROPERTIES = b"\x00\x53\x73\xd0\x00\x00\x00\x0a\x00\x00\x00\x03\x40\x40\xa1\x02to"
FOOTER = b"\x00\x53\x78\xd1\x00\x00\x00\x04\x00\x00\x00\x00"
OTHERS = b"\xb3\x00\x00\x00\x01x\x56\x01"
"""An annotation in forms that the server would not write."""


def annotations(*entries: tuple[str, Value]) -> bytes:
    """Return a section of annotations."""
    section = encoding.write(Map(tuple((Symbol(name), value) for name, value in entries)))
    return b"\x00\x53%c%s" % (Section.MESSAGE_ANNOTATIONS, section)


def annotations_of(message: bytes) -> dict[Value, Value]:
    """Return the annotations of a message."""
    for place in sections.find(message):
        if place.section is Section.MESSAGE_ANNOTATIONS:
            read = decoding.read_all(message[place.value : place.end])
            assert isinstance(read, Map)
            assert len(dict(read.entries)) == len(read.entries)
            return dict(read.entries)
    return {}


def without_annotations(message: bytes) -> bytes:
    """Return a message without its annotations."""
    places = [p for p in sections.find(message) if p.section is not Section.MESSAGE_ANNOTATIONS]
    return b"".join(message[place.begin : place.end] for place in places)


def is_time(value: Value) -> bool:
    """Return whether this is a time not long ago."""
    if not isinstance(value, Number) or value.type is not NumberType.TIMESTAMP:
        return False
    return -60_000 < time.time() * 1000 - value.value < 60_000


def ulong(number: int) -> Number:
    """Return an unsigned number of 64 bits."""
    return Number(NumberType.ULONG, number)


async def attach(client: Peer, address: str, desired: tuple[str, ...] = (), **fields: object) -> Attach:
    """Attach a consumer with credit for ten messages; return the answer."""
    await client.say(
        Attach(
            "r",
            0,
            True,
            source=source(address, **fields),
            target=target("here"),
            desired_capabilities=desired,
        )
    )
    answer = await client.until(Attach)
    await client.credit(10)
    return answer


MESSAGES = [
    data(b"one"),
    text("two"),
    HEADER + PROPERTIES + data(b"three") + FOOTER,
    HEADER + b"\x00\x53\x72\xc1%c\x02" % (1 + len(OTHERS)) + OTHERS + PROPERTIES + text("four"),
    HEADER + annotations(("x-opt-omq-id", ulong(99)), ("y", "z"), ("x-opt-omq-time", None)) + data(b"five"),
    annotations(*((f"a{number}", ulong(number)) for number in range(200))) + data(b"six"),
]


UNCHANGED = [
    annotations(*((f"a{number}", None) for number in range(128)), ("x-opt-omq-id", ulong(9))) + data(b"x"),
    annotations(("long", Binary(b"x" * 60_000))) + data(b"x"),
]


async def test_a_message_with_too_many_annotations_comes_as_it_is(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await attach(client, "q", ("omq:ids",))
        for message in UNCHANGED:
            await client.publish_long(message)
            assert (await client.message()).octets == message


@pytest.mark.parametrize("way", ["filter", "capability"])
async def test_a_consumer_gets_the_id_and_the_time_of_a_message(store: Path, way: str) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare t Broadcast (Persistent Weak))")
        await omq.settle()
        await client.sender("t")
        if way == "capability":
            answer = await attach(client, "t", ("omq:ids", "other"))
            assert answer.offered_capabilities == ("omq:ids",)
        for message in MESSAGES:
            last = await client.publish(message)
        if way == "filter":
            await client.accepted(last)
            answer = await attach(client, "t", filter=BEGINNING)
            assert answer.offered_capabilities == ()
        for number, message in enumerate(MESSAGES, 1):
            arrived = await client.message()
            assert without_annotations(arrived.octets) == without_annotations(message)
            found = annotations_of(arrived.octets)
            assert found.pop(Symbol("x-opt-omq-id")) == ulong(number)
            assert is_time(found.pop(Symbol("x-opt-omq-time")))
            before = annotations_of(message)
            before.pop(Symbol("x-opt-omq-id"), None)
            before.pop(Symbol("x-opt-omq-time"), None)
            assert found == before
            if OTHERS in message:
                assert OTHERS in arrived.octets


async def test_a_consumer_that_does_not_ask_gets_every_octet(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare t Broadcast (Persistent Weak))")
        await omq.settle()
        await client.sender("t")
        for message in MESSAGES:
            last = await client.publish(message)
        await client.accepted(last)
        replay = from_filter("rabbitmq:stream-offset-spec", "first")
        assert (await attach(client, "t", ("other",), filter=replay)).offered_capabilities == ()
        assert [(await client.message()).octets for _ in MESSAGES] == MESSAGES


async def test_a_queue_tells_ids_also_of_messages_that_are_delivered_again(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await attach(client, "q", ("omq:ids",))
        await client.publish(text("x"))
        first = await client.message()
        await client.told(first.delivery, first.delivery, RELEASED)
        again = await client.message()
        assert first.tag == again.tag == b"1"
        for message in (first, again):
            assert annotations_of(message.octets)[Symbol("x-opt-omq-id")] == ulong(1)


async def test_messages_of_several_frames_have_ids(store: Path) -> None:
    bodies = [bytes([number]) * 300_000 for number in range(3)]
    async with serving(store) as host, opened(host.port, max_frame=4096) as client:
        await client.sender("q")
        await attach(client, "q", ("omq:ids",))
        for body in bodies:
            await client.publish_long(data(body), settled=True)
        for number, body in enumerate(bodies, 1):
            message = await client.message()
            assert annotations_of(message.octets)[Symbol("x-opt-omq-id")] == ulong(number)
            place = sections.find(message.octets)[-1]
            assert decoding.read_all(message.octets[place.value : place.end]) == Binary(body)


async def test_a_stalled_consumer_gets_the_rest_of_messages_with_ids(store: Path) -> None:
    """The beginning and the rest of a message are framed at different times."""
    bodies = [bytes([number]) * 3_000_000 for number in range(4)]
    async with serving(store) as host, opened(host.port) as client, opened(host.port, max_frame=8192) as slow:
        await client.sender("q")
        for body in bodies:
            await client.publish_long(data(body), settled=True)
        await client.settle()
        await attach(slow, "q", ("omq:ids",))
        for number, body in enumerate(bodies, 1):
            message = await slow.message()
            assert annotations_of(message.octets)[Symbol("x-opt-omq-id")] == ulong(number)
            assert without_annotations(message.octets) == data(body)


async def test_a_node_has_no_ids(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        assert (await attach(client, "exclusive.node", ("omq:ids",))).offered_capabilities == ()
        await client.sender("exclusive.node")
        await client.publish(data(b"x"))
        assert (await client.message()).octets == data(b"x")


async def test_a_message_that_is_read_in_pieces_has_its_time(store: Path) -> None:
    body = bytes(20_000_000)
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare t Broadcast (Persistent Weak))")
        await omq.settle()
        await client.sender("t")
        await client.publish_long(data(body))
        await client.accepted(0)
        await attach(client, "t", filter=BEGINNING)
        message = await client.message()
        found = annotations_of(message.octets)
        assert found.pop(Symbol("x-opt-omq-id")) == ulong(1)
        assert is_time(found.pop(Symbol("x-opt-omq-time")))
        assert not found
        assert without_annotations(message.octets) == data(body)
