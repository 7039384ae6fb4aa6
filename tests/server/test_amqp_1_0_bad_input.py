"""AMQP 1.0 from clients that are wrong, hostile, or never answer."""

from pathlib import Path

import pytest
from measuring import untraced

from omq.protocol.amqp_1_0 import encoding, frames, performatives
from omq.protocol.amqp_1_0.frames import SMALLEST_MAX
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Transfer,
)
from omq.protocol.amqp_1_0.session import MOST_HANDLES, WINDOW

from .amqp_1_0_peer import ACCEPTED, HEADER, Peer, condition, data, opened, peer, source, target
from .conversation import eventually, serving


def nested(levels: int) -> bytes:
    """Return a list in a list, so deep."""
    octets = b"\x45"
    for _ in range(levels):
        octets = encoding.write_list([octets])
    return octets


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (frames.write(0, performatives.write(Begin(None, 0, 9, 9))), "amqp:illegal-state"),
        (frames.write(0, performatives.write(Transfer(0, 0, b"t")), data(b"x")), "amqp:illegal-state"),
        (frames.write(0, performatives.write(Open("x" * SMALLEST_MAX))), "amqp:connection:framing-error"),
        (frames.write(0, b"\x00\x53\x10\xd0\x00\x00\x00\x08\xff\xff\xff\xff\xa1\x01ab"), "amqp:decode-error"),
        (frames.write(0, b"\x00\x53\x10\xc0\x04\x02\xa1\xffa"), "amqp:decode-error"),
        (frames.write(0, b"\x00" * 40), "amqp:decode-error"),
        (frames.write(0, performatives.write(Open("x", max_frame_size=511))), "amqp:invalid-field"),
    ],
)
async def test_the_first_frame(store: Path, octets: bytes, expected: str) -> None:
    async with serving(store) as host, peer(host.port) as client:
        await client.send(HEADER + octets)
        assert await client.header() == HEADER
        assert condition(await client.until(Close)) == expected


@pytest.mark.parametrize(
    ("octets", "expected"),
    [
        (frames.write(0, b"\x00\x53\x12" + nested(60)), "amqp:decode-error"),
        (frames.write(0, b"\x00\x53\x13\xd0\x00\x00\x00\x04\xff\xff\xff\xff"), "amqp:decode-error"),
        (frames.write(0, b"\x00\x53\x99\x45"), "amqp:decode-error"),
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (frames.write(0, performatives.write(Begin(None, 0, 9, 9))), "amqp:illegal-state"),
        (frames.write(9, performatives.write(Flow(0, 9, 0, 9))), "amqp:illegal-state"),
    ],
)
async def test_frames_that_end_the_connection(store: Path, octets: bytes, expected: str) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        await client.send(octets)
        assert condition(await client.until(Close)) == expected
        await other.settle()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([Transfer(7, 0, b"t")], "amqp:session:unattached-handle"),
        ([Detach(7, closed=True)], "amqp:session:unattached-handle"),
        ([Attach("again", 1, False, initial_delivery_count=0)], "amqp:session:handle-in-use"),
        ([Attach("far", MOST_HANDLES, True)], "amqp:not-allowed"),
        ([Attach("no count", 5, False)], "amqp:invalid-field"),
        ([Transfer(0, 0, b"t")], "amqp:not-allowed"),
        ([Transfer(1, None, b"t")], "amqp:invalid-field"),
        ([Transfer(1, 5, b"t", more=True), Transfer(1, 6)], "amqp:not-allowed"),
    ],
)
async def test_frames_that_end_the_session_only(
    store: Path, said: list[performatives.Performative], expected: str
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q")
        await client.sender("q")
        await client.say(*said)
        assert condition(await client.until(End)) == expected
        await client.say(End())
        await client.say(Begin(None, 0, 1 << 20, 1 << 20))
        await client.until(Begin)
        await client.sender("q", 2)
        await client.say(Transfer(2, 0, b"t"), payload=data(b"x"))
        await client.accepted(0)


async def test_a_client_that_ignores_the_window_of_its_session_loses_it(store: Path) -> None:
    """The connection goes on. What came within the window is there."""
    async with serving(store, amqp1_credit=10_000) as host, opened(host.port) as client:
        await client.sender("q")
        said = [performatives.write(Transfer(1, number, b"t", 0, True)) for number in range(40 * WINDOW)]
        await client.send(b"".join(frames.write(0, each, data(b"x")) for each in said))
        assert condition(await client.until(End)) == "amqp:session:window-violation"
        await client.say(End(), Begin(None, 0, 1 << 20, 1 << 20))
        await client.heard(Begin)
        await client.receiver("q", 2, credit=WINDOW)
        for _ in range(WINDOW):
            assert (await client.message()).octets == data(b"x")


async def test_delivery_ids_may_jump_forward_and_not_back(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        for delivery in (2**32 - 2, 2**32 - 1, 0, 7):  # they begin again at 0
            await client.say(Transfer(1, delivery, b"t"), payload=data(b"x"))
            await client.accepted(delivery)
        await client.say(Transfer(1, 7, b"t"), payload=data(b"x"))
        assert condition(await client.until(End)) == "amqp:not-allowed"


async def test_a_run_across_the_end_of_the_delivery_ids(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        ids = [(2**32 - 3 + number) % 2**32 for number in range(6)]
        octets = [frames.write(0, performatives.write(Transfer(1, id, b"t")), data(b"x")) for id in ids]
        await client.send(b"".join(octets))
        told: list[int] = []
        while len(told) < len(ids):
            outcome = await client.outcome()
            assert outcome.state == ACCEPTED
            last = outcome.first if outcome.last is None else outcome.last
            told += [(outcome.first + n) % 2**32 for n in range((last - outcome.first) % 2**32 + 1)]
        assert told == ids


async def test_aborted_messages_are_forgotten(store: Path) -> None:
    async with serving(store, amqp1_credit=4) as host, opened(host.port) as client:
        await client.receiver("q", credit=9)
        await client.sender("q")
        for delivery in range(0, 12, 2):  # more than the credit, which must come back
            await client.say(Transfer(1, delivery, b"t", more=True), payload=data(b"part")[:4])
            await client.say(Transfer(1, aborted=True))
            await client.say(Transfer(1, delivery + 1, b"t"), payload=data(b"%d" % delivery))
            assert (await client.message()).octets == data(b"%d" % delivery)
            await client.settle()
        await eventually(lambda: host.memory_used == 0)


async def test_a_client_that_never_gives_credit_holds_nothing(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as idle, opened(host.port) as client:
        await idle.receiver("q")
        await client.sender("q")
        for _ in range(50):
            last = await client.publish(data(b"x"))
        await client.accepted(last)
        await client.receiver("q", credit=50)
        for _ in range(50):
            await client.message()
        await idle.settle()


async def test_a_client_that_never_settles_gets_its_credit_and_no_more(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        async with opened(host.port) as lazy:
            await lazy.receiver("q", credit=5)
            await client.sender("q")
            for number in range(9):
                last = await client.publish(data(b"%d" % number))
            await client.accepted(last)
            for _ in range(5):
                await lazy.message()
            await lazy.settle()
        await client.receiver("q", credit=9)
        got = [(await client.message()).octets[-1:] for _ in range(9)]
        assert sorted(got) == [b"%d" % number for number in range(9)]


async def test_outcomes_of_unsent_messages_are_ignored(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q")
        await client.say(Disposition(True, 0, 2**32 - 1, True, ACCEPTED))
        await client.say(Disposition(True, 9, 3, True, performatives.write(Modified(True))))
        await client.say(Disposition(False, 0, 5, True, ACCEPTED))
        await client.settle()
        await client.say(Disposition(True, 0, None, True, b"\x41"))
        assert condition(await client.until(Close)) == "amqp:decode-error"


async def begin_and_attach(client: Peer, channel: int, count: int) -> None:
    await client.say(Begin(None, 0, 9, 9), channel=channel)
    await client.until(Begin)
    await attach_many(client, channel, count)


async def attach_many(client: Peer, channel: int, count: int) -> None:
    said = [Attach(f"link-{channel}-{handle}", handle, True, source=source("t")) for handle in range(count)]
    await client.say(*said, channel=channel)
    for _ in range(count):
        await client.until(Attach)


async def test_ten_thousand_links(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await begin_and_attach(client, 1, 1000)
        with untraced():  # the others execute the same lines
            for channel in range(2, 11):
                await begin_and_attach(client, channel, 1000)
        assert host.server.statistics().subscriptions == 10_000
        async with opened(host.port) as other:
            await other.sender("t")
            await other.publish(data(b"x"))
            await other.accepted(0)
            await client.say(Close())
            await client.until(Close)
            await other.settle()
            assert host.server.statistics().subscriptions == 0
            await other.say(Attach("one", 5, False, target=target("t"), initial_delivery_count=0))
            await other.until(Attach)
