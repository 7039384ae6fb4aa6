"""The refusals of AMQP 1.0: links, messages, and the errors that end a session or a connection."""

from pathlib import Path

import pytest

from omq.protocol.amqp_1_0 import encoding, frames, performatives
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    End,
    Modified,
    Open,
    Transfer,
)
from omq.protocol.amqp_1_0.types import Map, Number, NumberType, Symbol
from omq_storage.batches import Bodies

from .amqp_1_0_peer import ACCEPTED, condition, data, from_filter, opened, source, text
from .conversation import serving

NINE = Number(NumberType.UINT, 9)


async def test_malformed_sections_are_rejected_and_forged_ones_harm_no_consumer(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.publish(b"\x00\x53\x70\x40" + text("x"))  # a header that is no list
        assert isinstance(performatives.read_all((await client.outcome()).state), performatives.Rejected)
        # A client of another protocol writes what it likes into a head.
        forged = b"\x01" + (4).to_bytes(4, "big") + b"\x00\x53\x70\x40"
        table = b"\x08amqp-1.0x" + len(forged).to_bytes(4, "big") + forged
        head = b"\x00\x00\x20\x00" + len(table).to_bytes(4, "big") + table
        driver = host.server.catalogue.lookup(b"q")
        assert driver is not None
        await driver.post(Bodies([b"x"]), [head])
        await client.receiver("q", credit=1)
        state = performatives.write(Modified(delivery_failed=True))
        for count in range(3):
            message = await client.message()
            assert message.octets.endswith(text("x"))
            await client.told(message.delivery, message.delivery, state)
            await client.credit(1, count=count + 1)
        assert host.server.statistics().defects == 0


async def test_messages_before_a_too_long_one_are_kept(store: Path) -> None:
    async with serving(store, max_message_bytes=1000) as host, opened(host.port) as client:
        await client.sender("q")
        good = frames.write(0, performatives.write(Transfer(1, 0, b"a", 0, True)), text("good"))
        bad = frames.write(0, performatives.write(Transfer(1, 1, b"b", 0, True)), text("x" * 2000))
        await client.send(good + bad)
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.receiver("q", credit=1)
        assert (await client.message()).octets == text("good")


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        (Attach("n", 0, True), "amqp:not-found"),
        (Attach("n", 0, True, source=source(None)), "amqp:not-found"),
        (Attach("n", 0, True, source=source("")), "amqp:not-found"),
        (Attach("n", 0, True, source=source("a" * 256)), "amqp:not-found"),
        (Attach("n", 0, True, source=source("$management")), "amqp:not-found"),
        (Attach("n", 0, True, source=performatives.write(performatives.Source(b"\x41"))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("amqp:/_omq/temp.nobody")), "amqp:not-found"),
        (Attach("n", 0, True, source=source("queue", capabilities=("topic",))), "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("topic", capabilities=("queue",))), "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("queue", filter=from_filter("omq:from", "first"))),
         "amqp:precondition-failed"),
        (Attach("n", 0, True, source=source("topic", filter=from_filter("omq:from", "never"))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", filter=b"\x41")), "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", filter=encoding.write(Map(((Symbol("x"), True),))))),
         "amqp:invalid-field"),
        (Attach("n", 0, True, source=source("topic", durable=2, expiry_policy="never")),
         "amqp:not-implemented"),
        (Attach("n", 0, True, source=source("topic", filter=from_filter("omq:from", NINE))),
         "amqp:precondition-failed"),
        (Attach("n", 0, False, target=performatives.write(Coordinator()), initial_delivery_count=0),
         "amqp:not-implemented"),
    ],
)  # fmt: skip
async def test_links_that_are_refused(store: Path, attach: Attach, expected: str) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.say(b"(Declare queue Round_robin Transient)", b"(Declare topic Broadcast Transient)")
        await omq.settle()
        await client.say(attach)
        answer = await client.heard(Attach)
        assert (answer.source if attach.role else answer.target) == b"\x40"
        detach = await client.heard(Detach)
        assert detach.closed
        assert condition(detach) == expected
        await client.say(Detach(0, closed=True))
        await client.sender("q")  # the session goes on
        assert await client.publish(data(b"x")) == 0


async def test_a_topic_that_is_deleted_detaches_its_links(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await client.receiver("q", credit=1)
        await omq.say(b"(Delete q)")
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"
        await client.sender("p")
        await omq.say(b"(Delete p)")
        await omq.settle()
        await client.publish(data(b"x"))
        assert condition(await client.until(Detach)) == "amqp:resource-deleted"


async def test_a_message_that_is_too_long_detaches_its_link(store: Path) -> None:
    async with serving(store, max_message_bytes=1000) as host, opened(host.port) as client:
        await client.sender("q")
        await client.say(Transfer(1, 0, b"t", 0, False, True), payload=b"x" * 600)
        await client.say(Transfer(1, more=True), payload=b"x" * 600)
        assert condition(await client.until(Detach)) == "amqp:link:message-size-exceeded"
        await client.sender("q", handle=2)


async def test_a_malformed_message_is_rejected_and_the_link_goes_on(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        bad = await client.publish(b"\x41")
        outcome = await client.outcome()
        state = performatives.read_all(outcome.state)
        assert outcome.first == bad
        assert isinstance(state, performatives.Rejected)
        good = await client.publish(data(b"x"))
        outcome = await client.outcome()
        assert (outcome.first, outcome.state) == (good, ACCEPTED)


async def test_problems_end_their_session_or_connection(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.say(Begin(None, 0, 10, 10), channel=1)
        await client.heard(Begin)
        await client.say(Transfer(7, 0, b"t"), channel=1)
        assert condition(await client.heard(End)) == "amqp:session:unattached-handle"
        await client.sender("q")
        await client.say(Open("again"))
        assert condition(await client.until(Close)) == "amqp:illegal-state"
        await client.say(Close())
        with pytest.raises(EOFError):
            await client.next()


async def test_a_producer_that_ignores_its_credit_is_detached(store: Path) -> None:
    async with serving(store, amqp1_credit=2) as host, opened(host.port) as client:
        await client.sender("q")
        octets = [Transfer(1, number, b"t", 0, True) for number in range(3)]
        await client.say(*octets, payload=data(b"x"))
        assert condition(await client.until(Detach)) == "amqp:link:transfer-limit-exceeded"
