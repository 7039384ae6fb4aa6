"""Idempotent producers of AMQP 1.0 on a real socket: annotations with a producer and a sequence number."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from quietness import quiet

from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Failure, Reason
from omq.drivers.sequences import Origin
from omq.model import Sync
from omq.protocol.amqp_1_0 import encoding, frames, performatives, types
from omq.protocol.amqp_1_0.performatives import Detach, Disposition, Rejected, Transfer
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import Binary, Map, Number, NumberType, Symbol, Value
from omq.terminals.amqp_1_0.idempotent import read_origins

from .amqp_1_0_peer import ACCEPTED, Peer, condition, data, opened
from .conversation import serving
from .test_amqp_1_0_relay import rejected, relay


def numbered(producer: Value, sequence: Value, body: bytes, more: int = 0, to: str | None = None) -> bytes:
    """Return a message with these annotations and some `more`, for the address `to`."""
    entries = (
        *((Symbol(f"x{number}"), None) for number in range(more)),
        (Symbol("x-opt-omq-producer"), producer),
        (Symbol("x-opt-omq-sequence"), sequence),
    )
    section = b"\x00\x53%c%s" % (Section.MESSAGE_ANNOTATIONS, encoding.write(Map(entries)))
    if to is not None:
        section += b"\x00\x53%c%s" % (Section.PROPERTIES, encoding.write(types.List((None, None, to))))
    return section + data(body)


def ulong(number: int) -> Number:
    """Return an unsigned number of 64 bits."""
    return Number(NumberType.ULONG, number)


async def outcomes(client: Peer, count: int) -> dict[int, bytes]:
    """Return the states of the first messages that a client has sent."""
    found: dict[int, bytes] = {}
    while len(found) < count:
        said = await client.until(Disposition)
        found |= dict.fromkeys(
            range(said.first, (said.first if said.last is None else said.last) + 1), said.state
        )
    return found


@pytest.mark.parametrize("kind", [b"Broadcast (Persistent Strong)", b"Round_robin Transient"])
async def test_a_repeated_message_is_accepted_and_not_stored(store: Path, kind: bytes) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        omq = await host.connect()
        await omq.ask(b"(Declare t %s)" % kind)
        await omq.ask(b"(Subscribe t From_current)")
        for each in (client, other):
            await each.sender("t")
        sent = [
            numbered("p", ulong(1), b"p1"),
            numbered("p", ulong(1), b"p1 again"),
            numbered("p", ulong(7), b"p7"),
            numbered("q", ulong(0), b"q0"),
            numbered("p", ulong(5), b"p5 too late"),
            data(b"plain"),
        ]
        for message in sent:
            await client.publish(message)
        assert set((await outcomes(client, len(sent))).values()) == {ACCEPTED}
        await other.publish(numbered("p", ulong(7), b"p7 again"))
        await other.publish(numbered("p", ulong(8), b"p8"))
        assert set((await outcomes(other, 2)).values()) == {ACCEPTED}
        bodies = [(await omq.message()).body for _ in range(5)]
        assert bodies == [b"p1", b"p7", b"q0", b"plain", b"p8"]


async def test_the_numbers_of_a_stored_topic_outlive_the_server(store: Path) -> None:
    for number in range(2):
        async with serving(store) as host, opened(host.port) as client:
            omq = await host.connect()
            await omq.ask(b"(Declare t Broadcast (Persistent Strong))")
            await client.sender("t")
            await client.publish(numbered("p", ulong(1), b"first"))
            await client.publish(numbered("p", ulong(2 + number), b"next"))
            assert set((await outcomes(client, 2)).values()) == {ACCEPTED}
            await omq.ask(b"(Subscribe t From_beginning)")
            found = [(await omq.message()).body for _ in range(2 + number)]
            assert found == [b"first", b"next", b"next"][: 2 + number]


async def test_values_of_other_types_are_rejected_and_the_link_goes_on(store: Path) -> None:
    bad = [
        numbered(Symbol("p"), ulong(1), b"x"),
        numbered("", ulong(1), b"x"),
        numbered("p" * 256, ulong(1), b"x"),
        numbered(Binary(b"p"), ulong(1), b"x"),
        numbered("p", Number(NumberType.UINT, 1), b"x"),
        numbered("p", "1", b"x"),
        numbered("p", ulong(1), b"x", more=200),
    ]
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q", credit=10)
        await client.sender("q")
        for message in bad:
            await client.publish(message)
        await client.publish(data(b"good"))
        await client.publish(bad[0], settled=True)
        told = await outcomes(client, len(bad) + 1)
        assert told.pop(len(bad)) == ACCEPTED
        for state in told.values():
            rejected = performatives.read_all(state)
            assert isinstance(rejected, Rejected)
            error = performatives.read_all(rejected.error)
            assert isinstance(error, performatives.Error)
            assert error.condition == "amqp:invalid-field"
        await client.publish(numbered("p", ulong(1), b"last"))
        assert (await client.message()).octets == data(b"good")
        assert (await client.message()).octets == numbered("p", ulong(1), b"last")


async def test_the_messages_beside_a_rejected_one_have_one_outcome(store: Path) -> None:
    sent = [numbered("", ulong(1), b"bad"), *(numbered("p", ulong(1 + number), b"x") for number in range(3))]
    transfers = [
        frames.write(0, performatives.write(Transfer(1, number, b"%d" % number, 0)), message)
        for number, message in enumerate(sent)
    ]
    async with serving(store) as host, opened(host.port) as client:
        await client.sender("q")
        await client.send(b"".join(transfers))
        assert rejected((await client.outcome()).state) == "amqp:invalid-field"
        accepted = await client.outcome()
        assert (accepted.first, accepted.last, accepted.state) == (1, 3, ACCEPTED)


async def test_one_annotation_alone_and_a_group_have_no_effect(store: Path) -> None:
    alone = encoding.write(Map(((Symbol("x-opt-omq-sequence"), ulong(1)),)))
    group = encoding.write(types.List(("1", *([None] * 9), "group", Number(NumberType.UINT, 1))))
    messages = [b"\x00\x53\x72" + alone + data(b"a"), b"\x00\x53\x73" + group + data(b"b")]
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q", credit=10)
        await client.sender("q")
        for message in messages * 2:
            await client.publish(message)
        assert [(await client.message()).octets for _ in range(4)] == messages * 2


async def test_a_message_that_cannot_be_stored_ends_its_link(store: Path) -> None:
    """If the link went on, the next number would be stored, and the failed message taken for repeated."""
    async with serving(store) as host, opened(host.port) as client:
        options = QueueOptions(durable=True, max_length=1, overflow=Overflow.REJECT_PUBLISH)
        await host.server.catalogue.declare_queue(b"q", options)
        await client.sender("q")
        await client.publish(numbered("p", ulong(1), b"1"))
        assert set((await outcomes(client, 1)).values()) == {ACCEPTED}
        await client.publish(numbered("p", ulong(2), b"2"))
        said = await client.heard(Disposition)
        assert said.state != ACCEPTED
        assert condition(await client.until(Detach)) == "amqp:resource-limit-exceeded"
        await client.say(Detach(1, closed=True))
        await client.receiver("q", credit=2)
        first = await client.message()
        await client.told(first.delivery, first.delivery)
        await client.settle()
        await client.sender("q", handle=2)
        await client.publish(numbered("p", ulong(2), b"2"), handle=2)
        assert (await client.message()).octets == numbered("p", ulong(2), b"2")


@pytest.mark.parametrize("to", [None, "q"], ids=["link", "relay"])
async def test_a_post_that_is_stored_in_part_ends_its_link_at_once(store: Path, to: str | None) -> None:
    """Even if the queue has room again for the next number before the first ones are stored."""
    messages = [numbered("p", ulong(number), b"%d" % number, to=to) for number in range(3)]
    async with serving(store) as host, opened(host.port) as client:
        options = QueueOptions(durable=True, sync=Sync.STRONG, max_length=1, overflow=Overflow.REJECT_PUBLISH)
        queue = await host.server.catalogue.declare_queue(b"q", options)
        await client.sender(None if to else "q")
        assert queue.writer is not None
        async with queue.writer.paused():
            await client.send(
                b"".join(
                    frames.write(0, performatives.write(Transfer(1, number, b"%d" % number, 0)), message)
                    for number, message in enumerate(messages[:2])
                )
            )
            await quiet()
            await host.server.catalogue.changes.change_queue(b"q", replace(options, max_length=9))
            await client.say(Transfer(1, 2, b"2", 0), payload=messages[2])
            await quiet()
        assert condition(await client.until(Detach)) == "amqp:resource-limit-exceeded"
        await quiet()
        assert queue.ready == 1
        async with opened(host.port) as again:
            await again.sender(None if to else "q")
            for message in messages:
                await again.accepted(await again.publish(message))
            await again.receiver("q", credit=3)
            assert [(await again.message()).octets for _ in messages] == messages


async def test_the_relay_knows_what_is_repeated(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await relay(client)
        await client.receiver("q", credit=10)
        sent = [
            numbered("p", ulong(3), b"q3", to="q"),
            numbered("p", ulong(3), b"q3 again", to="q"),
            numbered("p", ulong(1), b"other topic", to="other"),
            numbered("", ulong(4), b"bad", to="q"),
            numbered("p", ulong(4), b"q4", to="q"),
        ]
        for message in sent:
            await client.publish(message)
        bodies: list[bytes] = []
        told: dict[int, bytes] = {}
        while len(bodies) < 2 or len(told) < len(sent):
            said, payload = await client.next()
            if isinstance(said, Transfer):
                bodies.append(payload)
            elif isinstance(said, Disposition):
                last = said.first if said.last is None else said.last
                told |= dict.fromkeys(range(said.first, last + 1), said.state)
        assert bodies == [sent[0], sent[4]]
        assert rejected(told.pop(3)) == "amqp:invalid-field"
        assert set(told.values()) == {ACCEPTED}
        await client.receiver("other", handle=2, credit=10)
        assert (await client.message()).octets == sent[2]


async def test_the_relay_posts_nothing_behind_a_post_that_fails_while_it_reads_origins(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, may_go_on = trio.Event(), trio.Event()

    async def read_slowly(heads: Sequence[bytes]) -> tuple[list[Origin | None], dict[int, str]]:
        is_reading.set()
        await may_go_on.wait()
        return await read_origins(heads)

    async with serving(store) as host, opened(host.port) as client:
        queue = await host.server.catalogue.declare_queue(b"q", QueueOptions(durable=True))
        await relay(client)
        assert queue.writer is not None
        async with queue.writer.paused():
            await client.publish(numbered("p", ulong(1), b"1", to="q"))
            await quiet()
            monkeypatch.setattr("omq.terminals.amqp_1_0.relay.read_origins", read_slowly)
            await client.publish(numbered("p", ulong(2), b"2", to="q"))
            await is_reading.wait()
            queue.writer.refusal = Failure(Reason.NO_ROOM, "there is no room")
        await quiet()
        queue.writer.refusal = None
        may_go_on.set()
        assert condition(await client.until(Detach)) == "amqp:resource-limit-exceeded"
        await quiet()
        assert queue.ready == 0


async def test_a_message_of_the_relay_that_cannot_be_stored_ends_its_link(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        options = QueueOptions(durable=True, max_length=1, overflow=Overflow.REJECT_PUBLISH)
        await host.server.catalogue.declare_queue(b"q", options)
        await relay(client)
        await client.publish(numbered("p", ulong(1), b"x", to="q"))
        assert (await client.until(Disposition)).state == ACCEPTED
        await client.publish(numbered("p", ulong(2), b"x", to="q"))
        assert rejected((await client.until(Disposition)).state) == "amqp:resource-limit-exceeded"
        assert condition(await client.until(Detach)) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("way", ["address", "dynamic", "relay"])
async def test_a_node_repeats_what_is_repeated(store: Path, way: str) -> None:
    """It remembers nothing: the annotations have no effect, whatever their types, and nothing is refused."""
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        address = "exclusive.node"
        if way == "dynamic":
            address = await other.made()
            await other.credit(9)
        else:
            await other.receiver(address, credit=9)
        await other.settle()
        if way == "relay":
            await relay(client)
        else:
            await client.sender(address)
        to = address if way == "relay" else None
        sent = [numbered("p", number, b"x", to=to) for number in (ulong(7), ulong(7), ulong(1), "no number")]
        for message in sent:
            await client.publish(message)
            arrived = await other.message()
            assert arrived.octets == message
            await other.told(arrived.delivery, arrived.delivery)
        assert set((await outcomes(client, len(sent))).values()) == {ACCEPTED}
