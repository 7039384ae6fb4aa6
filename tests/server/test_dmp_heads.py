"""Heads of envelopes, kept and given out again; and producers whose messages are stored once."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from omq.protocol.amqp.head import Head
from omq.protocol.amqp.head import encode as head_octets
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import Envelope
from omq.protocol.omq.types import Declared

from .conversation import EVERY, serving
from .dmp_conversation import feed, sink, stored

KEPT = pytest.mark.parametrize("persistence", [b"(Persistent Weak)", b"(Persistent Strong)"])

HEADS = [
    Head(),
    Head(exchange=b"orders", routing_key=b"eu.de"),
    Head(routing_key=b"", properties=Properties(content_type=b"text/plain", priority=7, timestamp=2**40)),
    Head(b"x" * 255, b"y" * 255, Properties(reply_to=b"", correlation_id=b"\x00\xff")),
]


def with_heads(count: int) -> list[Envelope]:
    return [Envelope(b"body %d" % number, HEADS[number % len(HEADS)]) for number in range(count)]


def given_out(envelope: Envelope) -> Envelope:
    """Return the envelope as a feed of topic t sends it: a message without a head has the topic for its
    key.
    """
    return Envelope(envelope.body, Head(routing_key=b"t") if envelope.head == Head() else envelope.head)


@EVERY
@pytest.mark.parametrize("delivery", [b"Broadcast", b"Round_robin"])
async def test_heads_come_out_as_they_went_in(store: Path, delivery: bytes, persistence: bytes) -> None:
    sent = with_heads(500)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t %s %s)" % (delivery, persistence))
        consumer = await feed(host, client)
        connection = await sink(host, client)
        await connection.send(b"".join(map(dmp_writer.encode, sent)))
        assert await stored(connection) == 500
        assert await consumer.take(500) == [given_out(envelope) for envelope in sent]


@KEPT
async def test_heads_are_kept_over_a_restart_beside_messages_without(store: Path, persistence: bytes) -> None:
    sent = with_heads(100)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % persistence)
        connection = await sink(host, client)
        await connection.send(b"".join(map(dmp_writer.encode, sent)))
        assert await stored(connection) == 100
        await client.say(b"(Publish t plain)")
        await client.confirm()
    async with serving(store) as host:
        client = await host.connect()
        consumer = await feed(host, client, b"(Get t (From_message 51))")
        wanted = [given_out(envelope) for envelope in sent[50:]]
        assert await consumer.take(51) == [*wanted, Envelope(b"plain", Head(routing_key=b"t"))]


def numbered_by(producer: bytes, first: int, last: int) -> bytes:
    """Return the messages of a producer, each with its number."""
    return b"".join(
        dmp_writer.encode(
            Envelope(
                b"%s %d" % (producer, number),
                Head(properties=Properties(app_id=producer, message_id=b"%d" % number)),
            )
        )
        for number in range(first, last + 1)
    )


@EVERY
async def test_a_repeated_message_is_confirmed_and_dropped(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        assert isinstance(await client.ask(b"(Declare t Broadcast %s)" % persistence), Declared)
        consumer = await feed(host, client)
        for first, last in ((1, 50), (30, 80), (1, 80), (81, 81)):
            connection = await sink(host, client)
            await connection.send(numbered_by(b"a", first, last) + numbered_by(b"b", first, last))
            assert await stored(connection) == 2 * (last - first + 1)
        bodies = await consumer.bodies(162)
        for producer in (b"a", b"b"):
            wanted = [b"%s %d" % (producer, number) for number in range(1, 82)]
            assert [body for body in bodies if body.startswith(producer)] == wanted
        assert (await host.topics())[b"t"].last == 162


@KEPT
async def test_a_producer_is_known_after_a_restart(store: Path, persistence: bytes) -> None:
    for _ in range(3):
        async with serving(store) as host:
            client = await host.connect()
            await client.ask(b"(Declare t Broadcast %s)" % persistence)
            connection = await sink(host, client)
            await connection.send(numbered_by(b"a", 1, 100))
            assert await stored(connection) == 100
            assert (await host.topics())[b"t"].messages == 100


@KEPT
async def test_a_sink_of_many_new_producers_leaves_others_their_turn(store: Path, persistence: bytes) -> None:
    count = 40_000
    heads = [
        head_octets(Head(properties=Properties(app_id=b"producer %d" % number, message_id=b"1")))
        for number in range(count)
    ]
    seen: list[int] = []
    """The number of stored messages of the sink when a publisher of the same level is confirmed."""
    async with serving(store) as host:
        client, publisher = await host.connect(), await host.connect()
        for topic in (b"t", b"other"):
            await client.ask(b"(Declare %s Broadcast %s)" % (topic, persistence))
        connection = await sink(host, client)

        async def send() -> None:
            await connection.send(dmp_writer.for_sink([b"body"] * count, heads))
            assert await stored(connection) == count

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while not seen or seen[-1] < count:
                await publisher.say(b"(Publish other x)")
                await publisher.confirm(len(seen) + 1)
                seen.append((await publisher.topics())[b"t"].messages)
        # Between two confirmations are few commits, and each has a bounded number of producers.
        assert max(after - before for before, after in pairwise([0, *seen])) < 10_000
        assert (await host.topics())[b"t"].messages == count
