"""Clients that publish, subscribe and work until the server ends, and record what they receive."""

import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import trio
from coming_and_going import come_and_go
from history import KINDS, PRODUCED, PRODUCER, ROUND, ClientObservations, History, Kind, Safety
from link_load import load_links
from queue_load import declare_amqp, load_amqp

from omq.client import Client, Delivery, OmqError, connect

CONFIGURATION = """\
weak_flush_seconds = {weak}
async_flush_seconds = {asynchronous}
disk_reserve_bytes = 0

[[topics]]
name = "trimmed"
persistence = "weak"
retention_bytes = 200_000
"""

PUBLISHERS = 3
"""The number of connections that publish at a time, each to all topics in turn."""

LARGE = b"large"
"""Begins the bodies of the messages that the server stores in fragments."""

CREDIT = 8

OMQ_KINDS = [kind for kind in KINDS if not kind.is_amqp]
"""The topics that clients of omq use."""

_numbers = itertools.count(1)


logging.getLogger("omq.client").setLevel(logging.ERROR)
"""The server tells of every large message that is given up."""


def bare(body: bytes) -> bytes:
    """Return the part of a body with publisher and number; the rest is padding, which must be whole in a
    large message: otherwise return a text that was never published.
    """
    name = body.partition(b" ")[0]
    if name.startswith(LARGE) and body != large(name, len(body)):
        return b"torn:" + name
    return name


def large(name: bytes, size: int) -> bytes:
    """Return the body of a large message, in which fragments cannot be exchanged unnoticed."""
    lines = b"".join(b" %b %07d" % (name, place) for place in range(0, size, len(name) + 9))
    return (name + lines)[:size]


async def declare_all(port: int, history: History | None = None) -> None:
    """Make the topics of the load."""
    async with connect(f"omq://127.0.0.1:{port}") as client:
        for kind in KINDS:
            delivery = Delivery.ROUND_ROBIN if kind.is_work else Delivery.BROADCAST
            if not kind.is_amqp:
                await client.declare(kind.name, delivery, kind.safety.value)
    await declare_amqp(port, history)


async def load(port: int, history: History, chance: random.Random) -> None:
    """Run until the server ends, or until cancelled."""
    async with trio.open_nursery() as nursery:
        for _ in range(PUBLISHERS):
            nursery.start_soon(_until_it_is_gone, port, partial(_publish, history, chance))
            nursery.start_soon(_until_it_is_gone, port, partial(_publish_round, history, chance))
        nursery.start_soon(_until_it_is_gone, port, partial(_send_large, history, chance))
        for name in PRODUCED:
            nursery.start_soon(_until_it_is_gone, port, partial(_produce, history, name, chance))
        nursery.start_soon(load_amqp, port, history, chance)
        nursery.start_soon(load_links, port, history, chance)
        for kind in KINDS:
            if kind.is_amqp:
                continue
            told = history.topics[kind.name]
            if kind.is_work:
                connecting = partial(connect, f"omq://127.0.0.1:{port}")
                work = partial(_work, kind=kind, told=told, finished=set(), chance=chance)
                for _ in range(2):
                    nursery.start_soon(come_and_go, connecting, work, (OmqError, OSError), chance)
            else:
                nursery.start_soon(_until_it_is_gone, port, partial(_listen, kind, told))


async def _until_it_is_gone(port: int, serve: Callable[[Client], Awaitable[None]]) -> None:
    try:
        async with connect(f"omq://127.0.0.1:{port}") as client:
            await serve(client)
    except* (OmqError, OSError):
        pass  # the server is gone


async def _publish(history: History, chance: random.Random, client: Client) -> None:
    name = b"p%d" % next(_numbers)
    numbers = dict.fromkeys(KINDS, 0)
    while True:
        sent: list[tuple[ClientObservations, list[bytes]]] = []
        for kind in chance.sample(OMQ_KINDS, chance.randint(1, 3)):
            told = history.topics[kind.name]
            count = chance.choice((1, 1, 3, 20, 100))
            first = numbers[kind]
            numbers[kind] += count
            bodies = [b"%b:%d" % (name, number) for number in range(first, first + count)]
            # Some large enough for pages of their own in the store, most of them not.
            filling = b" " + b"." * chance.choice((0, 10, 100, 100, 5000 if count < 20 else 200))
            told.published.update(bodies)
            await client.publish_many(kind.name, [body + filling for body in bodies])
            sent.append((told, bodies))
        await client.confirm()
        now = time.monotonic_ns()
        for told, bodies in sent:
            told.confirmed.update(dict.fromkeys(bodies, now))
        await trio.sleep(chance.random() * 0.01)


async def _publish_round(history: History, chance: random.Random, client: Client) -> None:
    """Publish to many topics in turn. Some messages are so long that the server stores them another way."""
    name = b"r%d" % next(_numbers)
    number = 0
    while True:
        told: list[tuple[ClientObservations, bytes]] = []
        for _ in range(chance.choice((1, 5, 50))):
            number += 1
            for kind in ROUND:
                body = b"%b:%d" % (name, number)
                filling = b" " + b"." * chance.choice(
                    (0, 0, 10, 100, 70_000 if chance.random() < 0.02 else 1)
                )
                history.topics[kind.name].published.add(body)
                await client.publish(kind.name, body + filling)
                told.append((history.topics[kind.name], body))
        await client.confirm()
        now = time.monotonic_ns()
        for topic, body in told:
            topic.confirmed[body] = now
        await trio.sleep(chance.random() * 0.01)


async def _produce(history: History, name: str, chance: random.Random, client: Client) -> None:
    told = history.topics[name]
    while True:
        first = history.produced[name] + 1
        bodies = [b"%b:%d" % (PRODUCER, number) for number in range(first, first + chance.randint(1, 30))]
        told.published.update(bodies)
        async with client.sink(name, producer=PRODUCER, first=first) as sink:
            for body in bodies:
                await sink.publish(body)
        history.produced[name] += len(bodies)
        told.confirmed.update(dict.fromkeys(bodies, time.monotonic_ns()))
        await trio.sleep(chance.random() * 0.02)


async def _send_large(history: History, chance: random.Random, client: Client) -> None:
    """Send messages that are stored in fragments, and give some of them up in their middle."""
    kinds = [kind for kind in OMQ_KINDS if kind.safety is not Safety.TRANSIENT and not kind.is_trimmed]
    while True:
        kind = chance.choice(kinds)
        told = history.topics[kind.name]
        name = b"%b%d:0" % (LARGE, next(_numbers))
        body = large(name, chance.randint(600_000, 2_000_000))
        end = len(body) if chance.random() < 0.7 else chance.randrange(len(body))

        async def pieces(body: bytes = body, end: int = end) -> AsyncIterator[bytes]:
            for begin in range(0, end, 50_000):
                yield body[begin : min(end, begin + 50_000)]
                await trio.sleep(0.001)

        if end == len(body):
            told.published.add(name)
        try:
            async with client.sink(kind.name) as sink:
                await sink.publish_from(pieces(), len(body))
        except ValueError:
            pass  # it was given up
        else:
            told.confirmed[name] = time.monotonic_ns()
        await trio.sleep(chance.random() * 0.2)


async def _listen(kind: Kind, told: ClientObservations, client: Client) -> None:
    async with client.subscribe(kind.name) as messages:
        async for run in messages.runs():
            now = time.monotonic_ns()
            for id, body in zip(run.ids, run.bodies, strict=True):
                told.see(id, bare(body), now)


async def _work(
    client: Client, kind: Kind, told: ClientObservations, finished: set[int], chance: random.Random
) -> None:
    """Work at a topic. `finished` are the ids of the messages that are done, for one run of the server."""
    patience = chance.randint(1, 200)
    acted: list[int] = []
    async with client.subscribe(kind.name, credit=CREDIT) as messages:
        async for message in messages:
            now = time.monotonic_ns()
            told.see(message.id, bare(message.body), now)
            if message.id in finished:
                told.wrong.append(
                    f"message {message.id} was done, and was dealt again without a failure between"
                )
            patience -= 1
            if not patience:
                return
            told.done[bare(message.body)] = time.monotonic_ns()
            await messages.received(message)
            acted.append(message.id)
            if patience % 10 == 0:
                await client.confirm()  # so the server has acted on them
                finished.update(acted)
