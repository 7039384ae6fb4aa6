"""Clients of every protocol that do random things which are permitted, and end in every way.

They use the same few topics, queues and exchanges, so they meet in every state of these.
"""

import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from omq.protocol.amqp.fields import LongString, Table
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.frames import FRAME, FrameType, body_frames, header_frame, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_1_0 import encoding, frames, performatives, stored
from omq.protocol.amqp_1_0.connection import HEADER
from omq.protocol.amqp_1_0.frames import FrameReader
from omq.protocol.amqp_1_0.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Flow,
    Open,
    Performative,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
)
from omq.protocol.dmp import writer as dmp_writer
from omq.protocol.omq.frames import FrameDecoder, MessageRun
from omq.protocol.omq.types import Declared, Leased, Subscribed

TYPES = {
    b"t0": b"Broadcast Transient",
    b"t1": b"Round_robin Transient",
    b"t2": b"Broadcast (Persistent Weak)",
    b"t3": b"Round_robin (Persistent Strong)",
    b"t4": b"Broadcast (Persistent Async)",
    b"t5": b"Round_robin (Persistent Weak)",
    b"t6": b"Broadcast (Persistent Strong)",
}
"""The topics that omq clients declare, and their types."""

TOPICS = tuple(TYPES)
QUEUES = tuple(b"q%d" % number for number in range(6))
KINDS = {b"e0": b"direct", b"e1": b"fanout", b"e2": b"topic", b"e3": b"headers"}
"""The exchanges and their types."""

EXCHANGES = tuple(KINDS)

HANDSHAKE = struct.pack(">q", 1) + b"(Connect 1 random)\n"
DMP = b"AMQP\x0a\x01\x00\x01"

MOST_ACTIONS = 60
LARGEST = 65536
WINDOW = 1 << 20
SHORTEST_FRAME = 4096
"""The octets of the longest frame of AMQP 0-9-1 that every server takes."""

ENDS = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
"""The server, or the client itself, ended the connection."""


class Stopped(Exception):
    """The client ends its connection in the middle of what it sends."""


class Connection:
    """One connection, with a random manner of sending, reading and ending."""

    def __init__(self, stream: trio.SocketStream, chance: random.Random, count: Counter[str]) -> None:
        self.stream = stream
        self.chance = chance
        self.count = count
        """The things that happened, by their names."""

    def body(self, most: int = 3_000_000) -> bytes:
        """Return a body: usually short, sometimes longer than what is stored in one piece."""
        least, top = self.chance.choices(
            [(0, 200), (200, 20_000), (20_000, 300_000), (300_000, 3_000_000)], [60, 30, 8, 2]
        )[0]
        return bytes(min(most, self.chance.randint(least, top)))

    async def send(self, octets: bytes) -> None:
        """Send octets, perhaps not to the end. Raises Stopped."""
        if self.chance.random() < 0.004:
            octets = octets[: len(octets) // 2]
            await self._send(octets)
            raise Stopped
        await self._send(octets)
        if self.chance.random() < 0.5:
            await trio.sleep(self.chance.uniform(0, 0.05))

    async def _send(self, octets: bytes) -> None:
        with trio.move_on_after(self.chance.choice([0.05, 1, 3])) as waiting:
            await self.stream.send_all(octets)
        if waiting.cancelled_caught:
            raise Stopped

    async def read(self, take: Callable[[bytes], None]) -> None:
        """Read the octets of the server: at once, slowly, or not at all."""
        manner = self.chance.random()
        if manner < 0.05:
            await trio.sleep_forever()
        try:
            while received := await self.stream.receive_some(self.chance.choice([500, 65536, 1 << 20])):
                take(received)
                if manner < 0.15:
                    await trio.sleep(self.chance.uniform(0, 3))
        except ENDS:
            pass

    async def end(self) -> None:
        """End the connection: reset it, finish sending first, or close it."""
        manner = self.chance.random()
        try:
            if manner < 0.35:
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif manner < 0.7:
                await self.stream.send_eof()
                await trio.sleep(self.chance.random())
        except ENDS:
            pass
        await self.stream.aclose()


Act = Callable[[Connection, trio.Nursery], Awaitable[None]]


async def live(port: int, chance: random.Random, count: Counter[str], act: Act) -> None:
    """Run one client, from its connection to the end of that."""
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError:
        count["refused"] += 1
        return
    connection = Connection(stream, chance, count)
    try:
        async with trio.open_nursery() as nursery:
            await act(connection, nursery)
            nursery.cancel_scope.cancel()
    except* (Stopped, *ENDS):
        count["broken"] += 1
    finally:
        with trio.CancelScope(shield=True):
            await connection.end()


# -- omq and DMP --------------------------------------------------------------------------------------------


async def omq_client(port: int, connection: Connection, nursery: trio.Nursery) -> None:
    """Do random things in the omq protocol; its leases are used at `port`."""
    chance = connection.chance
    names: dict[int, bytes] = {}
    got: deque[tuple[bytes, int]] = deque(maxlen=1000)
    leases: list[bytes] = []
    decoder = FrameDecoder()
    skipped = bytearray()

    def take(received: bytes) -> None:
        if len(skipped) < 8:
            part = received[: 8 - len(skipped)]
            skipped.extend(part)
            received = received[len(part) :]
        for frame in decoder.feed(received):
            connection.count[type(frame).__name__] += 1
            match frame:
                case Subscribed(topic) | Declared(topic):
                    names[topic.id] = topic.topic
                case MessageRun():
                    got.extend((names.get(frame.topic, b"t0"), id) for id in frame.ids)
                case Leased():
                    leases.append(frame.lease)
                case _:
                    pass

    nursery.start_soon(connection.read, take)
    await connection.send(HANDSHAKE + b"".join(b"(Declare %s %s)\n" % declared for declared in TYPES.items()))
    for _ in range(chance.randint(1, MOST_ACTIONS)):
        if leases:
            nursery.start_soon(live, port, chance, connection.count, partial(dmp_client, leases.pop()))
        settled = [got.popleft() for _ in range(min(len(got), chance.randint(0, 10)))]
        received = b"".join(b"(Received %s %d)\n" % each for each in settled)
        await connection.send(received + _line(connection))


def _line(connection: Connection) -> bytes:
    """Return a random command, or a few."""
    chance = connection.chance
    topic, queue, exchange = chance.choice(TOPICS), chance.choice(QUEUES), chance.choice(EXCHANGES)
    body = connection.body(900_000)
    publishes = chance.randint(1, 30) if len(body) < 5000 else 1
    replay = chance.choice([b"From_current", b"From_beginning", b"(From_message 1)"])
    requests = [
        b"(Purge (queue %s))" % queue,
        b"(Peek (queue %s) (first 0) (count 50))" % queue,
        b"(Move (queue %s) (to (%s)) (count 100))" % (queue, chance.choice(QUEUES)),
        b"(Change_queue (queue %s) (changes ((max_length (%d)))))" % (queue, chance.randint(1, 50)),
        b"(Change_queue (queue %s) (changes ((max_length ())(ttl_ms (300)))))" % queue,
        b"(Change_queue (queue %s) (changes ((ttl_ms ())(dead_letter_exchange (e1)))))" % queue,
        b"(Bind (source %s) (destination (Queue %s)) (key a) (arguments ()))" % (exchange, topic),
        b"(Delete_exchange (name %s))" % exchange,
    ]
    lines: list[tuple[bytes, int]] = [
        (b"".join(b'(Publish %s "%s")\n' % (chance.choice(TOPICS), body) for _ in range(publishes)), 30),
        (b"(Declare %s %s)\n" % (topic, TYPES[topic]), 10),
        (b"(Subscribe %s %s)\n" % (topic, replay), 14),
        (b"(Unsubscribe %s)\n" % topic, 5),
        (b"(Request %s %d)\n" % (topic, chance.randint(0, 50)), 6),
        (b"(Confirm %d)\n" % chance.randint(0, 9), 6),
        (b"(Fetch %s 1 %d)\n" % (topic, chance.randint(1, 1000)), 3),
        (b"(Blocks %s 1 100)\n" % topic, 1),
        (b"(Delete %s)\n" % topic, 2),
        (b"(Purge %s)\n" % topic, 1),
        (b"Topics\n(Connections 0)\n(Subscribers %s)\n" % topic, 1),
        (b"(Watch %d)\n" % chance.choice([0, 100, 1000]), 1),
        (b"(Put %s)\n" % topic, 4),
        (b"(Get %s %s)\n" % (topic, replay), 4),
        (b"(Manage %s)\n" % chance.choice(requests), 6),
        (b"(Disconnect %d)\n" % chance.randint(1, 1000), 1),
    ]
    (line,) = chance.choices([line for line, _ in lines], [weight for _, weight in lines])
    return line


async def dmp_client(lease: bytes, connection: Connection, nursery: trio.Nursery) -> None:
    """Use a lease: send messages, which a feed refuses, and read."""
    chance = connection.chance
    nursery.start_soon(connection.read, lambda received: connection.count.update(dmp_reads=1))
    await connection.send(DMP + bytes([len(lease)]) + lease)
    for _ in range(chance.randint(0, 20)):
        await connection.send(dmp_writer.for_sink([connection.body() for _ in range(chance.randint(1, 8))]))


# -- AMQP 0-9-1 ---------------------------------------------------------------------------------------------


class _Amqp:
    """The channels of one client of AMQP 0-9-1, as it knows them."""

    def __init__(self, connection: Connection) -> None:
        self.tags: dict[int, deque[int]] = {}
        self.opened: set[int] = set()
        self.failed: set[int] = set()
        """Channels that the server has closed."""
        self._connection = connection
        self._octets = bytearray()

    def take(self, received: bytes) -> None:
        """Read frames."""
        self._octets += received
        while len(self._octets) >= FRAME.size:
            kind, channel, size = FRAME.unpack_from(self._octets)
            if len(self._octets) < FRAME.size + size + 1:
                return
            payload = bytes(self._octets[FRAME.size : FRAME.size + size])
            del self._octets[: FRAME.size + size + 1]
            if kind != FrameType.METHOD:
                continue
            method = methods.decode(payload)
            self._connection.count[type(method).__name__] += 1
            match method:
                case methods.BasicDeliver() | methods.BasicGetOk():
                    self.tags.setdefault(channel, deque(maxlen=1000)).append(method.delivery_tag)
                case methods.ChannelClose():
                    self.failed.add(channel)
                case _:
                    pass

    def again(self, channel: int) -> list[Method]:
        """Return the methods that open a channel, if it is not open."""
        said: list[Method] = []
        if channel in self.failed:
            said.append(methods.ChannelCloseOk())
            self.closed(channel)
        if channel not in self.opened:
            self.opened.add(channel)
            modes: list[list[Method]] = [[], [methods.ConfirmSelect()], [methods.TxSelect()]]
            said += [methods.ChannelOpen(), *self._connection.chance.choices(modes, [5, 4, 1])[0]]
        return said

    def closed(self, channel: int) -> None:
        """Forget a channel."""
        self.failed.discard(channel)
        self.opened.discard(channel)
        self.tags.pop(channel, None)


def _opening(frame_max: int) -> bytes:
    login = methods.ConnectionStartOk(Table(), b"PLAIN", b"\0random\0", b"en_US")
    begin = (login, methods.ConnectionTuneOk(0, frame_max, 0), methods.ConnectionOpen(b"/"))
    return b"AMQP\0\0\x09\1" + b"".join(method_frame(0, method) for method in begin)


async def prepare(port: int) -> None:
    """Make the exchanges and queues."""
    made: list[Method] = [methods.ExchangeDeclare(name, kind, durable=True) for name, kind in KINDS.items()]
    made += map(_declaration, QUEUES)
    count: Counter[str] = Counter()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        known = _Amqp(Connection(stream, random.Random(), count))
        said = b"".join(method_frame(1, method) for method in (methods.ChannelOpen(), *made))
        await stream.send_all(_opening(SHORTEST_FRAME) + said)
        while count["QueueDeclareOk"] < len(QUEUES):
            known.take(await stream.receive_some())


async def amqp_client(connection: Connection, nursery: trio.Nursery) -> None:
    """Do random things in AMQP 0-9-1."""
    chance = connection.chance
    known = _Amqp(connection)
    nursery.start_soon(connection.read, known.take)
    login = methods.ConnectionStartOk(Table(), b"PLAIN", b"\0random\0", b"en_US")
    begin = (
        login,
        methods.ConnectionTuneOk(0, chance.choice([SHORTEST_FRAME, 131072]), 0),
        methods.ConnectionOpen(b"/"),
    )
    await connection.send(b"AMQP\0\0\x09\1" + b"".join(method_frame(0, method) for method in begin))
    for _ in range(chance.randint(1, MOST_ACTIONS)):
        channel = chance.randint(1, 3)
        said = [*known.again(channel), *_methods(chance, known, channel)]
        if any(isinstance(method, methods.ChannelClose) for method in said):
            known.closed(channel)
        octets = b"".join(method_frame(channel, method) for method in said)
        if chance.random() < 0.3:
            octets += b"".join(_message(connection, channel) for _ in range(chance.randint(1, 20)))
        await connection.send(octets)


def _methods(chance: random.Random, known: _Amqp, channel: int) -> list[Method]:
    """Return random methods of a channel."""
    queue, exchange = chance.choice(QUEUES), chance.choice(EXCHANGES)
    anywhere = chance.choice(QUEUES + TOPICS)
    tags = known.tags.get(channel, deque())
    settled: list[Method] = []
    for _ in range(min(len(tags), chance.randint(0, 15))):
        tag, requeue = tags.popleft(), chance.random() < 0.5
        one: list[Method] = [methods.BasicAck(tag), methods.BasicNack(tag, requeue=requeue)]
        settled.append(chance.choices(one, [3, 1])[0])
    offset = Table(((b"x-stream-offset", LongString(b"first")),)) if chance.random() < 0.2 else Table()
    key = chance.choice([b"", b"a", b"#"])
    others: list[tuple[Method, int]] = [
        (_declaration(queue), 15),
        (methods.ExchangeDeclare(exchange, KINDS[exchange], durable=True), 5),
        (methods.QueueBind(queue, exchange, key), 5),
        (
            methods.BasicConsume(
                anywhere, b"c%d" % chance.randrange(1000), no_ack=chance.random() < 0.5, arguments=offset
            ),
            14,
        ),
        (methods.BasicQos(0, chance.randint(0, 20), is_global=chance.random() < 0.5), 5),
        (methods.BasicGet(queue, no_ack=chance.random() < 0.5), 5),
        (methods.BasicRecover(requeue=True), 2),
        (methods.ChannelFlow(active=chance.random() < 0.5), 2),
        (methods.QueueDelete(queue), 2),
        (methods.QueuePurge(queue), 1),
        (methods.ExchangeDelete(exchange), 1),
        (methods.ChannelClose(200, b"", 0, 0), 2),
    ]
    (other,) = chance.choices([method for method, _ in others], [weight for _, weight in others])
    return [*settled, other]


def _declaration(queue: bytes) -> Method:
    """Return the declaration of a queue: each has options of its own."""
    letters = Table(((b"x-dead-letter-exchange", LongString(b"e0")),))
    declared: list[Method] = [
        methods.QueueDeclare(queue),
        methods.QueueDeclare(queue, durable=True),
        methods.QueueDeclare(b"", exclusive=True),
        methods.QueueDeclare(queue, auto_delete=True),
        methods.QueueDeclare(queue, durable=True, arguments=letters),
        methods.QueueDeclare(queue, arguments=letters),
    ]
    return declared[QUEUES.index(queue)]


def _message(connection: Connection, channel: int) -> bytes:
    """Return a publish."""
    chance = connection.chance
    exchange = chance.choice((b"", b"", b"", *EXCHANGES))
    key = chance.choice(QUEUES + TOPICS) if not exchange else chance.choice([b"a", b"b"])
    body = connection.body(3_000_000 if chance.random() < 0.2 else 100_000)
    head = header_frame(channel, b"\x10\x00%c" % chance.choice([1, 2]), len(body))
    method = methods.BasicPublish(exchange, key, mandatory=chance.random() < 0.5)
    return b"".join([method_frame(channel, method), head, *body_frames(channel, body, SHORTEST_FRAME)])


# -- AMQP 1.0 -----------------------------------------------------------------------------------------------

OUTCOMES = tuple(performatives.write(outcome) for outcome in (Accepted(), Accepted(), Rejected(), Released()))

ADDRESSES = (
    *(name.decode() for name in QUEUES + TOPICS),
    *("openstack.org/om/rpc/anycast/x", "openstack.org/om/rpc/multicast/y", "queue/z"),
)


def _said(*said: Performative, payload: bytes = b"") -> bytes:
    return b"".join(frames.write(0, performatives.write(one), payload) for one in said)


async def amqp_1_0_client(connection: Connection, nursery: trio.Nursery) -> None:
    """Do random things in AMQP 1.0, on one session."""
    chance = connection.chance
    reader = FrameReader()
    reader.max_frame = LARGEST
    arrived: deque[int] = deque(maxlen=1000)
    has_header = False

    def take(received: bytes) -> None:
        nonlocal has_header
        reader.add(received)
        has_header = has_header or reader.header() is not None
        for raw in reader.frames() if has_header else ():
            if not raw.is_heartbeat:
                said, _ = performatives.read(raw.octets, raw.begin, raw.end)
                connection.count[type(said).__name__] += 1
                if isinstance(said, Transfer) and said.delivery_id is not None:
                    arrived.append(said.delivery_id)

    nursery.start_soon(connection.read, take)
    window = chance.choice([5, WINDOW])
    opening = Open(f"random-{chance.getrandbits(64)}", max_frame_size=chance.choice([512, LARGEST]))
    await connection.send(HEADER + _said(opening, Begin(None, 0, window, WINDOW)))
    receivers: list[int] = []
    senders: list[int] = []
    delivery = 0
    for handle in range(chance.randint(1, MOST_ACTIONS)):
        settled = [arrived.popleft() for _ in range(min(len(arrived), chance.randint(0, 10)))]
        outcomes = [Disposition(True, each, each, True, chance.choice(OUTCOMES)) for each in settled]
        address = encoding.write(chance.choice(ADDRESSES))
        octets = _said(*outcomes)
        match chance.choices(["receiver", "sender", "credit", "detach", "publish"], [4, 3, 2, 1, 6])[0]:
            case "receiver":
                source = performatives.write(Source(address))
                octets += _said(Attach(f"r{handle}", handle, True, chance.randint(0, 2), source=source))
                receivers.append(handle)
            case "sender":
                target = performatives.write(Target(address))
                octets += _said(Attach(f"s{handle}", handle, False, target=target, initial_delivery_count=0))
                senders.append(handle)
            case "credit" if receivers:
                flow = Flow(0, WINDOW, 0, WINDOW, chance.choice(receivers), 0, chance.randint(0, 100))
                octets += _said(flow)
            case "detach" if receivers or senders:
                links = chance.choice([each for each in (receivers, senders) if each])
                octets += _said(Detach(links.pop(chance.randrange(len(links))), True))
            case "publish" if senders:
                octets += _transfers(connection, chance.choice(senders), delivery)
                delivery += 1
            case _:
                pass
        await connection.send(octets)


def _transfers(connection: Connection, handle: int, delivery: int) -> bytes:
    """Return a message in frames, which may be aborted at the end."""
    message = stored.message(stored.PLAIN, connection.body())
    is_settled, is_aborted = connection.chance.random() < 0.3, connection.chance.random() < 0.05
    octets = b""
    for begin in range(0, len(message), 60_000):
        more = begin + 60_000 < len(message)
        first = Transfer(handle, delivery, b"%d" % delivery, 0, is_settled, more)
        later = Transfer(handle, more=more, aborted=is_aborted and not more)
        octets += _said(later if begin else first, payload=message[begin : begin + 60_000])
    return octets
