"""The order itself: nothing of a Strong message leaves on any socket, and no answer that confirms it, before
it is on the disk, in the journal or in a checkpoint.

A recorded server is talked to over both protocols. In the recording everything stands in the order in which
it happened; the messages are looked for by their bodies, in writes to the store and in what was sent.
"""

import os
import random
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import trio
from recording import Entry, Kind, build, entries, recorded
from server import Server
from tally import Outcome

from omq.client import Delivery, Persistent, Sync, connect

TOPIC = "ordered"
DATA = "strong/data.mdb"
CHECKPOINT = "strong/checkpoint"
JOURNAL = "strong/journal"
"""The beginning of the names of the journal's files."""

TOKEN_OCTETS = 16
VERSION = bytes(7) + b"\1"
PUBLISHERS = 3
GROUP = 20

_HEXADECIMAL = re.compile(rb"[0-9a-f]{%d,}" % TOKEN_OCTETS)


@dataclass(slots=True)
class ConfirmedPublishes:
    """The published messages, and the answer that confirms them."""

    tokens: set[bytes] = field(default_factory=set)
    confirmed_by: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Octets that a server sends, and the tokens of the messages that they confirm."""


async def order(directory: Path, count: int, chance: random.Random, done: Callable[[], None]) -> Outcome:
    """Exchange N (`count`) messages. Raise NoCompiler."""
    said = ConfirmedPublishes()
    log = directory / "order.record"
    store = directory / "order"
    with Server(store, "", "this-boot", recorded(build(directory), store, log)) as server:
        port = await server.ready()
        await _talk(port, count, said, chance)
        server.stop()
    outcome = Outcome(too_early(entries(log), said), len(said.tokens))
    for _ in range(count):
        done()
    return outcome


async def _talk(port: int, count: int, said: ConfirmedPublishes, chance: random.Random) -> None:
    url = f"omq://127.0.0.1:{port}"
    async with connect(url) as client, trio.open_nursery() as listeners:
        await client.declare(TOPIC, Delivery.BROADCAST, Persistent(Sync.STRONG))
        async with client.subscribe(TOPIC) as messages, client.feed(TOPIC) as feed:
            heard: dict[str, set[bytes]] = {"omq": set(), "dmp": set()}
            all_heard = trio.Event()

            def hear(way: str, token: bytes) -> None:
                heard[way].add(token)
                if all(len(tokens) >= count for tokens in heard.values()):
                    all_heard.set()

            async def listen() -> None:
                async for message in messages:
                    hear("omq", message.body[:TOKEN_OCTETS])

            async def be_fed() -> None:
                async for envelope in feed:
                    hear("dmp", envelope.body[:TOKEN_OCTETS])

            listeners.start_soon(listen)
            listeners.start_soon(be_fed)
            shares = [count // PUBLISHERS] * PUBLISHERS
            shares[0] += count - sum(shares)
            async with trio.open_nursery() as publishers:
                for number, share in enumerate(shares):
                    publish = _publish_by_dmp if number == 0 else _publish
                    publishers.start_soon(publish, port, number, share, said, chance)
            await all_heard.wait()
            listeners.cancel_scope.cancel()


def _bodies(count: int, said: ConfirmedPublishes, chance: random.Random) -> list[bytes]:
    tokens = [os.urandom(TOKEN_OCTETS // 2).hex().encode() for _ in range(count)]
    said.tokens.update(tokens)
    return [token + b"." * chance.choice((0, 100, 3000)) for token in tokens]


async def _publish(
    port: int, number: int, count: int, said: ConfirmedPublishes, chance: random.Random
) -> None:
    """Publish and confirm in groups, with octets of our own, so that each answer is known."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(VERSION + b"(Connect 1 order)\n")
        received = b""
        sent = 0
        while sent < count:
            bodies = _bodies(min(count - sent, chance.randint(1, GROUP)), said, chance)
            sent += len(bodies)
            name = number << 32 | sent
            answer = b"\0\0\0\x09\x06" + struct.pack(">Q", name)
            said.confirmed_by[answer] = [body[:TOKEN_OCTETS] for body in bodies]
            lines = b"".join(b"(Publish %b %b)\n" % (TOPIC.encode(), body) for body in bodies)
            await stream.send_all(lines + b"(Confirm %d)\n" % name)
            while answer not in received:
                received += await stream.receive_some()


async def _publish_by_dmp(
    port: int, number: int, count: int, said: ConfirmedPublishes, chance: random.Random
) -> None:
    bodies = _bodies(count, said, chance)
    said.confirmed_by[b"200 OK %d messages stored" % count] = [body[:TOKEN_OCTETS] for body in bodies]
    async with connect(f"omq://127.0.0.1:{port}") as client, client.sink(TOPIC) as sink:
        for body in bodies:
            await sink.publish(body)


@dataclass(slots=True)
class _File:
    """A file of the level, and the tokens in it."""

    name: str
    written: set[bytes] = field(default_factory=set)
    """Those that no sync has begun to make durable."""
    syncing: set[bytes] = field(default_factory=set)
    """Those that the running sync makes durable."""


def too_early(log: Iterable[Entry], said: ConfirmedPublishes) -> list[str]:
    """Return a sentence for each message or answer that was sent before it was durable, or never was
    durable.

    A message is durable when a record of the journal with it is on the disk; or when it is on the disk in the
    data file, and after that a checkpoint is, which leads to it.
    """
    files: dict[int, _File] = {}
    stored: set[bytes] = set()  # on the disk in the data file
    durable: set[bytes] = set()
    answers = dict(said.confirmed_by)
    found: list[str] = []
    for entry in log:
        file = files.get(entry.file)
        match entry.kind:
            case Kind.OPENED if entry.path in (DATA, CHECKPOINT) or entry.path.startswith(JOURNAL):
                name = JOURNAL if entry.path.startswith(JOURNAL) else entry.path
                if file is None or file.name != name:
                    files[entry.file] = _File(name)
            case Kind.WRITTEN if file is not None:
                file.written |= stored if file.name == CHECKPOINT else _tokens(entry.data, said.tokens)
            case Kind.SYNCING if file is not None:
                file.syncing, file.written = file.written, set()
            case Kind.SYNCED if file is not None:
                if file.name == DATA:
                    stored |= file.syncing
                else:
                    durable |= file.syncing
            case Kind.SENDING:
                early = _tokens(entry.data, said.tokens) - durable
                if early:
                    found.append(
                        f"{len(early)} messages were sent before they were durable, as {min(early)!r}"
                    )
                for answer in [answer for answer in answers if answer in entry.data]:
                    early = set(answers.pop(answer)) - durable
                    if early:
                        found.append(f"{len(early)} messages were confirmed before they were durable")
            case _:
                pass
    if len(durable) != len(said.tokens):
        found.append(f"only {len(durable)} of {len(said.tokens)} messages were seen to become durable")
    if answers:
        found.append(f"{len(answers)} of {len(said.confirmed_by)} answers were not seen")
    return found


def _tokens(data: bytes, tokens: set[bytes]) -> set[bytes]:
    """Return those of the tokens that are in the data."""
    found: set[bytes] = set()
    for run in _HEXADECIMAL.findall(data):
        found.update(run[at : at + TOKEN_OCTETS] for at in range(len(run) - TOKEN_OCTETS + 1))
    return found & tokens
