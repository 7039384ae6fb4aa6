"""AMQP 1.0: long messages of producers, whose bodies go to their places as they come."""

import tracemalloc
from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.performatives import Detach, Rejected, Transfer
from omq_storage import codec

from .amqp_1_0_peer import ACCEPTED, condition, data, opened
from .conversation import serving

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


async def test_a_long_message_is_copied_once(store: Path) -> None:
    """To join the parts of one of 60 MiB keeps all connections waiting for tens of milliseconds."""
    if not codec.COMPILED:
        pytest.skip("the plain codec joins the parts at the end")
    async with serving(store, default_persistence="transient") as host, opened(host.port) as client:
        await client.sender("q")
        octets = data(bytes(16 * MIB))
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
