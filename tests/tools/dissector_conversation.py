"""A conversation with a real server that uses everything, and what the dissector must show of it.

What is expected is what was meant to be said, and what the project's own decoders make of the answers.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import trio
from capture_file import Endpoint, SentOctets
from relay import relaying

from omq import model
from omq.config import Config
from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Array, Boolean, Decimal, LongString, Number, NumberType, Table, Void
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.dmp.envelopes import NULL_MESSAGE, Envelope
from omq.protocol.dmp.reader import EnvelopeReader
from omq.protocol.handshake import DMP_HEADER, hello
from omq.protocol.omq import types
from omq.protocol.omq.commands import sexp_of_command
from omq.protocol.omq.frames import FrameDecoder, FrameType, MessageRun
from omq.server import open_server

PATIENCE_SECONDS = 60

PRICES = b"prices"
JOBS = "jobs, späte".encode()
STRONG = model.Persistent(model.Sync.STRONG)

HEADERS = Table(
    (
        (b"n", Number(NumberType.INT32, -7)),
        (b"s", LongString(b"seven")),
        (b"list", Array((Boolean(True), Decimal(2, 314), Void()))),
        (b"table", Table(((b"inner", Number(NumberType.TIMESTAMP, 1_375_869_662)),))),
    )
)
SHOWN_HEADERS = {
    "n": "-7",
    "s": "seven",
    "list[1]": "true",
    "list[2]": "314 / 10^2",
    "list[3]": "",
    "table.inner": "1375869662 (2013-08-07 10:01:02 UTC)",
}

ALL_PROPERTIES = Properties(
    content_type=b"text/plain",
    content_encoding=b"identity",
    headers=HEADERS,
    delivery_mode=2,
    priority=9,
    correlation_id=b"correlated",
    reply_to=b"me",
    expiration=b"soon",
    message_id=b"17",
    timestamp=1_375_869_662,
    type=b"a type",
    user_id=b"somebody",
    app_id=b"till",
    sender_id=b"\xff\x00",
)

ENVELOPES = [
    Envelope(b"ACME 102", Head(b"stocks", b"acme", Properties(content_type=b"text/plain", priority=7))),
    Envelope(b"\x00\xff\n", Head(properties=ALL_PROPERTIES), mandatory=True),
    Envelope(b"", Head(b"", b"empty"), mandatory=True, immediate=True),
    Envelope("späte Grüße".encode()),
]


@dataclass
class Conversation:
    """The units that the dissector must show of each side of a connection, each as a dictionary of fields."""

    expected: dict[tuple[int, Endpoint], list[dict[str, str]]]
    leases: list[bytes]
    """A sink's that was not used, a feed's and a sink's."""


# -- what is expected ---------------------------------------------------------------------------------------

_LETTERS = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\b": r"\b"}


def shown(octets: bytes) -> str:
    """Return octets as the dissector writes them: UTF-8, and escapes for the rest."""

    def written(character: str) -> str:
        if character in _LETTERS:
            return _LETTERS[character]
        if character.isprintable() or (ord(character) >= 0xA0 and not 0xDC80 <= ord(character) <= 0xDCFF):
            return character
        return "".join(f"\\{octet:03d}" for octet in character.encode(errors="surrogateescape"))

    return "".join(map(written, octets.decode(errors="surrogateescape")))


def _body(octets: bytes) -> dict[str, str]:
    return {"omq.body": shown(octets), "omq.body.octets": octets.hex(":")}


def of_command(command: types.Command, line: bytes) -> dict[str, str]:
    fields = {"omq.command": type(command).__name__, "omq.line": shown(line)}
    match command:
        case types.Connect(version, id):
            fields |= {"omq.version": str(version), "omq.client": shown(id)}
        case types.Publish(topic, body):
            fields |= {"omq.topic": shown(topic), **_body(body)}
        case types.Declare(topic, delivery, persistence):
            fields |= {
                "omq.topic": shown(topic),
                "omq.topic.delivery": delivery.value,
                "omq.topic.persistence": "Transient"
                if isinstance(persistence, model.Transient)
                else f"(Persistent {persistence.sync.value})",
            }
        case types.Subscribe(topic, replay) | types.Get(topic, replay):
            fields |= {"omq.topic": shown(topic)}
            match replay:
                case model.FromMessage(id):
                    fields |= {"omq.replay": f"(From_message {id})", "omq.message.id": str(id)}
                case model.FromBeginning():
                    fields |= {"omq.replay": "From_beginning"}
                case model.FromCurrent():
                    fields |= {"omq.replay": "From_current"}
        case types.Confirm(n):
            fields |= {"omq.confirm": str(n)}
        case types.Request(topic, n):
            fields |= {"omq.topic": shown(topic), "omq.credit": str(n)}
        case types.Received(topic, id):
            fields |= {"omq.topic": shown(topic), "omq.message.id": str(id)}
        case types.Put(topic) | types.Delete(topic) | types.Unsubscribe(topic):
            fields |= {"omq.topic": shown(topic)}
        case types.Fetch(topic, first, count) | types.Blocks(topic, first, count):
            fields |= {"omq.topic": shown(topic), "omq.message.id": str(first), "omq.count": str(count)}
        case types.Ack() | types.Topics() | types.Manage():
            pass
        case _:
            assert_never(command)
    return fields


def of_frame(frame: types.Frame, topics: dict[int, bytes]) -> dict[str, str]:
    name = "Topics" if isinstance(frame, types.TopicList) else type(frame).__name__
    fields = {"omq.frame": name, "omq.frame.type": str(FrameType[name.upper()].value)}
    match frame:
        case types.Message(id, topic, body):
            fields |= {
                "omq.message.id": str(id),
                "omq.topic.id": str(topic),
                "omq.topic": shown(topics[topic]),
            }
            fields |= _body(body)
        case types.Error(text):
            fields |= {"omq.error": text.decode()}
        case types.Confirmed(n):
            fields |= {"omq.confirm": str(n)}
        case types.Leased(lease):
            fields |= {"omq.lease": lease.decode()}
        case (
            types.Subscribed(named) | types.Unsubscribed(named) | types.Declared(named) | types.Deleted(named)
        ):
            topics[named.id] = named.topic
            fields |= {"omq.topic.id": str(named.id), "omq.topic": shown(named.topic)}
        case types.Ping() | types.TopicList():
            pass
        case _:
            assert_never(frame)
    return fields


def of_envelope(number: int, envelope: Envelope, topic: bytes) -> dict[str, str]:
    head, body = envelope.head, envelope.body
    fields = {
        "omq.dmp.envelope": str(number),
        "omq.topic": shown(topic),
        "omq.dmp.exchange": shown(head.exchange),
        "omq.dmp.key": shown(head.routing_key),
        "omq.dmp.immediate": str(int(envelope.immediate)),
        "omq.dmp.mandatory": str(int(envelope.mandatory)),
        "omq.dmp.length": str(len(body)),
        **_body(body),
    }
    for name in Properties.__dataclass_fields__:
        value = getattr(head.properties, name)
        if isinstance(value, bytes | int):
            fields[f"omq.dmp.property.{name}"] = shown(value) if isinstance(value, bytes) else str(value)
    return fields


def of_response(response: bytes) -> dict[str, str]:
    return {"omq.dmp.response": shown(response), "omq.dmp.code": response[:3].decode()}


# -- the conversation ---------------------------------------------------------------------------------------


@dataclass
class _Conversation:
    """One connection, and what the dissector must show of it."""

    stream: trio.SocketStream
    from_client: list[dict[str, str]] = field(default_factory=list)
    from_server: list[dict[str, str]] = field(default_factory=list)
    _decoder: FrameDecoder = field(default_factory=FrameDecoder)
    _frames: list[types.Frame] = field(default_factory=list)
    _topics: dict[int, bytes] = field(default_factory=dict)

    async def octets(self, count: int) -> bytes:
        octets = b""
        while len(octets) < count:
            more = await self.stream.receive_some(count - len(octets))
            assert more, "the server closed"
            octets += more
        return octets

    # omq

    async def connect(self, id: bytes) -> None:
        await self.stream.send_all(hello())
        assert await self.octets(8) == hello()
        self.from_client.append({"omq.version": "1"})
        self.from_server.append({"omq.version": "1"})
        await self.say(types.Connect(1, id))

    async def say(self, *commands: types.Command) -> None:
        lines = list(map(sexp_of_command, commands))
        self.from_client += map(of_command, commands, lines)
        await self.stream.send_all(b"".join(line + b"\n" for line in lines))

    async def frame(self) -> types.Frame:
        """Return the next frame, whatever it is."""
        while not self._frames:
            octets = await self.stream.receive_some(65_536)
            assert octets, "the server closed"
            for found in self._decoder.feed(octets):
                self._frames += found.messages() if isinstance(found, MessageRun) else [found]
        frame = self._frames.pop(0)
        self.from_server.append(of_frame(frame, self._topics))
        return frame

    async def frames(self, *kinds: type[types.Frame]) -> list[types.Frame]:
        """Return the next frames of these kinds, in any order; there may be pings between them."""
        wanted = list(kinds)
        found = []
        while wanted:
            frame = await self.frame()
            if type(frame) in wanted:
                wanted.remove(type(frame))
                found.append(frame)
            else:
                assert isinstance(frame, types.Ping), frame
        return found

    async def lease(self, command: types.Command) -> bytes:
        await self.say(command)
        (leased,) = await self.frames(types.Leased)
        assert isinstance(leased, types.Leased)
        return leased.lease

    # DMP

    async def show(self, lease: bytes) -> None:
        self.from_client += [{"omq.dmp.header": "AMQP 10.1.0.1"}, {"omq.lease": shown(lease)}]
        await self.stream.send_all(DMP_HEADER + shortstr.write(lease, "the lease"))
        await self.response()

    async def response(self) -> bytes:
        response = await self.octets((await self.octets(1))[0])
        self.from_server.append(of_response(response))
        return response

    async def publish(self, envelopes: Sequence[Envelope], topic: bytes) -> None:
        """Send the envelopes, and null messages around them."""
        self.from_client.append({"omq.dmp.null": ""})
        self.from_client += [of_envelope(number, sent, topic) for number, sent in enumerate(envelopes, 1)]
        self.from_client.append({"omq.dmp.null": ""})
        octets = b"".join(map(dmp_writer.encode, envelopes))
        await self.stream.send_all(NULL_MESSAGE + octets + NULL_MESSAGE)

    async def take(self, count: int, topic: bytes) -> list[Envelope]:
        """Return N envelopes of a feed, and the null messages between them."""
        reader, taken = EnvelopeReader(), list[Envelope]()
        while len(taken) < count:
            octets = await self.octets(4)
            size = int.from_bytes(octets, "big")
            if size == 0:
                self.from_server.append({"omq.dmp.null": ""})
                continue
            taken += reader.feed(octets + await self.octets(size)).envelopes()
            self.from_server.append(of_envelope(len(taken), taken[-1], topic))
        return taken

    async def end(self) -> None:
        """Half-close, and see what there still is of frames."""
        await self.stream.send_eof()
        async for octets in self.stream:
            for found in self._decoder.feed(bytes(octets)):
                self._frames += found.messages() if isinstance(found, MessageRun) else [found]
        while self._frames:
            await self.frame()


@asynccontextmanager
async def serving(store: Path) -> AsyncIterator[int]:
    """Yield a server for the conversation; the port it listens on. It sends a ping soon."""
    config = Config(listen=["127.0.0.1:0"], store=str(store), ping_seconds=0.2, missed_pings=0)
    async with open_server(config) as server:
        yield server.port


async def hold(port: int) -> Conversation:
    """Hold it with the server at this port."""
    talks: list[_Conversation] = []

    async def open_talk() -> _Conversation:
        talks.append(_Conversation(await trio.open_tcp_stream("127.0.0.1", port)))
        return talks[-1]

    with trio.fail_after(PATIENCE_SECONDS):
        leases = await _speak(open_talk)
        for talk in talks:
            await talk.stream.aclose()
    sides = {(number, Endpoint.CLIENT): talk.from_client for number, talk in enumerate(talks)}
    sides |= {(number, Endpoint.SERVER): talk.from_server for number, talk in enumerate(talks)}
    return Conversation(sides, leases)


async def recorded(store: Path) -> tuple[list[SentOctets], Conversation]:
    """Return the conversation, and what a relay between its clients and the server saw."""
    async with serving(store) as port, relaying(port) as relay:
        conversation = await hold(relay.port)
    return relay.said, conversation


async def _speak(open_talk: Callable[[], Awaitable[_Conversation]]) -> list[bytes]:
    alice = await open_talk()
    await alice.connect(b"alice")
    await alice.say(types.Declare(PRICES, model.Delivery.BROADCAST, STRONG))
    await alice.frames(types.Declared)
    await alice.say(types.Subscribe(PRICES, model.FromCurrent()))
    await alice.frames(types.Subscribed)
    bodies = (b"ACME 101.5", b"\xff\x00\n", b"", 'größer "(ACME)"'.encode())
    await alice.say(*(types.Publish(PRICES, body) for body in bodies), types.Confirm(7))
    await alice.frames(*(types.Message for _ in bodies), types.Confirmed)
    await alice.say(types.Topics(), types.Delete(b"nope"))
    await alice.frames(types.TopicList, types.Error)
    while not isinstance(await alice.frame(), types.Ping):
        pass
    await alice.say(types.Ack(1_375_869_662_123_456))

    bob = await open_talk()
    await bob.connect(b"bob")
    await bob.say(types.Subscribe(PRICES, model.FromBeginning()))
    await bob.frames(types.Subscribed, *(types.Message for _ in bodies))
    await bob.say(types.Unsubscribe(PRICES))
    await bob.frames(types.Unsubscribed)
    await bob.say(types.Subscribe(PRICES, model.FromMessage(4)))
    await bob.frames(types.Subscribed, types.Message)
    await bob.end()

    worker = await open_talk()
    await worker.connect(b"worker")
    await worker.say(types.Declare(JOBS, model.Delivery.ROUND_ROBIN, model.Transient()))
    await worker.frames(types.Declared)
    await worker.say(types.Request(JOBS, 1), types.Subscribe(JOBS, model.FromCurrent()))
    await worker.frames(types.Subscribed)
    await alice.say(types.Publish(JOBS, b"one"), types.Publish(JOBS, b"two"))
    await worker.frames(types.Message)
    await worker.say(types.Received(JOBS, 1))
    await worker.frames(types.Message)
    await worker.say(types.Received(JOBS, 2))
    await worker.end()

    put = await alice.lease(types.Put(JOBS))
    get = await alice.lease(types.Get(PRICES, model.FromMessage(2)))
    into_prices = await alice.lease(types.Put(PRICES))

    sink = await open_talk()
    await sink.show(into_prices)
    assert await sink.response() == b"200 OK Sink 'prices' ready"
    await sink.publish(ENVELOPES, PRICES)
    await sink.stream.send_eof()
    assert await sink.response() == b"200 OK 4 messages stored"

    feed = await open_talk()
    await feed.show(get)
    assert await feed.response() == b"200 OK Feed 'prices' ready"
    taken = await feed.take(3 + len(ENVELOPES), PRICES)
    assert [envelope.body for envelope in taken] == [*bodies[1:], *(sent.body for sent in ENVELOPES)]

    refused = await open_talk()
    await refused.show(put[::-1])
    assert (await refused.response()).startswith(b"402 BAD-LEASE ")

    await alice.frames(*(types.Message for _ in ENVELOPES))
    await alice.end()
    return [put, get, into_prices]
