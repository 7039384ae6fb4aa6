"""AMQP 1.0: long messages of producers, whose bodies go to their places as they come."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.performatives import Detach, Rejected, Transfer
from omq_storage import codec

from .amqp_1_0_peer import ACCEPTED, condition, data, opened
from .conversation import eventually, serving
from .test_amqp_1_0_idempotent import numbered, ulong
from .test_amqp_1_0_relay import rejected, to

MIB = 1 << 20

BODY = bytes(range(256)) * 1200
"""Longer than one frame, and than what counts as long."""

PROPERTIES = b"\x00\x53\x73\xc0\x04\x01\xa1\x01i"
FOOTER = b"\x00\x53\x78\xc1\x01\x00"

WHOLE = [
    data(BODY),
    PROPERTIES + data(BODY) + FOOTER,
    data(BODY) + data(b"more"),
    b"\x00\x53\x77\xb1" + len(BODY).to_bytes(4, "big") + b"x" * len(BODY),
]


@pytest.mark.parametrize("address", ["q", "exclusive.q"])
async def test_long_messages_come_out_as_they_were(store: Path, address: str) -> None:
    """Also between small ones, which stay in order."""
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await other.receiver(address, credit=20)
        await other.settle()
        await client.sender(address)
        sent: list[bytes] = []
        for message in WHOLE:
            for octets in (data(b"before"), message, data(b"after")):
                await client.publish_long(octets)
                sent.append(octets)
        assert [(await other.message()).octets for _ in sent] == sent


@pytest.mark.parametrize("address", ["q", "exclusive.q"])
async def test_long_messages_of_the_relay_come_out_as_they_were(store: Path, address: str) -> None:
    """In the order in which they came, also those that the server reads together."""
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await other.receiver(address, credit=20)
        await other.settle()
        await client.sender(None)
        sent: list[bytes] = []
        octets = b""
        for number, body in enumerate((b"a", BODY, b"b", b"c", BODY, BODY + BODY, b"d")):
            sent.append(to(address, body) + (FOOTER if number % 2 else b""))
            first = Transfer(1, number, b"%d" % number, 0, number == 2, True)
            parts = [sent[-1][at : at + 60_000] for at in range(0, len(sent[-1]), 60_000)]
            for at, part in enumerate(parts):
                more = at + 1 < len(parts)
                said = replace(first, more=more) if not at else Transfer(1, more=more)
                octets += frames.write(0, performatives.write(said), part)
        await client.send(octets)
        for number in range(len(sent)):
            message = await other.message()
            assert message.octets == sent[number]
            if not message.settled:
                await other.told(message.delivery, message.delivery)
        told: set[int] = set()
        while told != set(range(len(sent))) - {2}:
            outcome = await client.outcome()
            assert outcome.state == ACCEPTED
            told |= set(range(outcome.first, (outcome.last or outcome.first) + 1))


async def test_long_messages_of_the_relay_that_are_rejected(store: Path) -> None:
    """Each has an outcome of its own, and the link goes on."""
    async with serving(store) as host, opened(host.port) as client:
        await client.sender(None)
        message = to("q", BODY)
        await client.publish_long(message[:-1])
        assert rejected((await client.outcome()).state) == "amqp:decode-error"
        await client.publish_long(to("$management", BODY))
        assert rejected((await client.outcome()).state) == "amqp:not-found"
        await client.publish_long(numbered("", ulong(1), BODY, to="q"))
        assert rejected((await client.outcome()).state) == "amqp:invalid-field"
        for body in (BODY, BODY + b"x"):
            await client.publish_long(numbered("p", ulong(7), body, to="q"))
            await client.accepted(3 if body is BODY else 4)
        await client.receiver("q", credit=9)
        assert (await client.message()).octets == numbered("p", ulong(7), BODY, to="q")
        await client.publish_long(message)
        assert (await client.message()).octets == message


async def test_a_long_message_that_ends_within_its_body_is_rejected(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        for octets in (data(BODY)[:-1], data(BODY) + b"x", data(BODY)):
            await client.publish_long(octets)
        states = [performatives.read_all((await client.outcome()).state) for _ in range(2)]
        assert all(isinstance(state, Rejected) for state in states)
        assert (await client.outcome()).state == ACCEPTED


async def test_a_message_whose_first_frame_says_that_it_is_too_long_is_refused_at_once(store: Path) -> None:
    async with serving(store, max_message_bytes=MIB) as host, opened(host.port) as client:
        await client.sender("q")
        await client.say(Transfer(1, 0, b"t", 0, False, True), payload=data(bytes(MIB))[:100])
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.sender("q", 2)
        await client.say(Transfer(2, 1, b"t", 0, False, True), payload=data(BODY)[:60_000])
        await client.say(Transfer(2, aborted=True))
        await client.say(Transfer(2, 2, b"t"), payload=data(b"x"))
        await client.accepted(2)


@pytest.mark.parametrize("is_relayed", [False, True])
async def test_a_long_message_is_copied_once(store: Path, is_relayed: bool) -> None:
    """To join the parts of one of 60 MiB keeps all connections waiting for tens of milliseconds."""
    if not codec.COMPILED:
        pytest.skip("the plain codec joins the parts at the end")
    async with serving(store, default_persistence="transient") as host, opened(host.port) as client:
        await client.sender(None if is_relayed else "q")
        octets = to("q", bytes(16 * MIB)) if is_relayed else data(bytes(16 * MIB))
        await client.say(Transfer(1, 0, b"t", 0, False, True), payload=octets[:60_000])
        tracemalloc.start()
        try:
            for begin in range(60_000, len(octets), 60_000):
                part = octets[begin : begin + 60_000]
                await client.say(Transfer(1, more=begin + len(part) < len(octets)), payload=part)
            await client.accepted(0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 24 * MIB


async def test_a_link_that_ends_within_a_message_holds_no_memory(store: Path) -> None:
    async with serving(store, default_persistence="transient") as host, opened(host.port) as client:
        await client.sender("q")
        unfinished = host.server.memory.unfinished
        parts = [data(BODY)[begin : begin + 60_000] for begin in range(0, 240_000, 60_000)]
        for number, part in enumerate(parts):
            begun = Transfer(1, more=True) if number else Transfer(1, 0, b"0", 0, False, True)
            await client.say(begun, payload=part)
        await eventually(lambda: unfinished.used >= 240_000)
        await client.say(Detach(1, closed=True))
        await client.until(Detach)
        await eventually(lambda: unfinished.used == 0)
