"""Load on a broker of AMQP 0-9-1: publishers send prepared frames, consumers count octets."""

import itertools
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from amqp_wire import ACK, ACK_IDS, PERSISTENT, TRANSIENT, Connection, ack, publish
from brokers import Running
from systems import CHUNK_OCTETS, RECEIVE_OCTETS, SOCKET_SECONDS
from workers import Begin, BenchFailure, SharedCounters, Task, run_beside

WINDOW_OCTETS = 4 << 20
"""The octets of bodies that publishers may run ahead of consumers: the same for all brokers."""

CONFIRM_WINDOW = 2000
"""The number of messages that may wait for a confirm."""

CONFIRM_CHUNK = 100
"""The number of messages that are sent at once where each is confirmed."""

FINISH_SECONDS = 30.0
"""The greatest number of seconds for the rest after the publisher has ended."""

PREPARED_ACKS = 400_000
"""The number of single acknowledgements that are prepared before a run, so that making them costs no time in
it.
"""


@dataclass(frozen=True)
class Load:
    """The work of one case."""

    size: int = 100
    kind: str = "classic"
    """The type of the queues: classic, quorum or stream."""
    durable: bool = False
    confirm: bool = False
    consumers: int = 1
    """The number of consumers: with `fanout` each gets every message, else they share them."""
    fanout: bool = False
    prefetch: int = 0
    """0 for consumers that do not acknowledge."""
    ack_every: int = 100
    """The number of messages after which to acknowledge with `multiple`; 1: each by itself."""

    @property
    def properties(self) -> bytes:
        return PERSISTENT if self.durable else TRANSIENT


@dataclass(frozen=True)
class Measured:
    """The figures of one run."""

    published: int
    delivered: int
    seconds: float
    cpu_seconds: float
    anonymous: int
    """RssAnon of the broker at the end, in octets."""

    @property
    def rate(self) -> float:
        """Deliveries a second; confirmed messages where nobody reads."""
        return (self.delivered or self.published) / self.seconds

    @property
    def cpu_microseconds(self) -> float:
        """Processor time of the broker for each message that was published."""
        return self.cpu_seconds * 1e6 / self.published


@dataclass(frozen=True)
class _Queues:
    exchange: bytes
    key: bytes
    names: tuple[bytes, ...]
    """The queue of each consumer."""


_numbers = itertools.count(1)


def measure(broker: Running, load: Load, seconds: float) -> Measured:
    """Run a load for some seconds, until every message has arrived."""
    setup = Connection(broker.port)
    queues = _declare(setup, load)
    board = SharedCounters()
    tasks: dict[str, Task] = {
        f"consumer {place + 1}": partial(_consume, broker.port, load, name, place, board)
        for place, name in enumerate(queues.names[: load.consumers])
    }
    tasks["publisher"] = partial(_publish, broker.port, load, queues, board, seconds)
    results, cpu = run_beside(broker.cpu_seconds, tasks, seconds + FINISH_SECONDS)
    anonymous = broker.memory()[1]
    start, end, published = results.pop("publisher")
    delivered = 0
    for count, last in results.values():
        delivered += count
        end = max(end, last)
    expected = published * (load.consumers if load.fanout else min(load.consumers, 1))
    if delivered != expected:
        raise BenchFailure(f"{delivered} deliveries of {published} messages, instead of {expected}")
    for name in set(queues.names):
        setup.delete_queue(name)
    if queues.exchange:
        setup.delete_exchange(queues.exchange)
    setup.close()
    return Measured(published, delivered, end - start, cpu, anonymous)


def _declare(setup: Connection, load: Load) -> _Queues:
    number = next(_numbers)
    if not load.fanout:
        name = b"bench.%d.%d" % (os.getpid(), number)
        setup.declare_queue(name, durable=load.durable, kind=load.kind)
        return _Queues(b"", name, (name,) * max(load.consumers, 1))
    exchange = b"bench.x.%d.%d" % (os.getpid(), number)
    setup.declare_exchange(exchange, b"fanout")
    names = tuple(b"bench.%d.%d.%d" % (os.getpid(), number, place) for place in range(load.consumers))
    for name in names:
        setup.declare_queue(name, durable=load.durable, kind=load.kind)
        setup.bind(name, exchange, b"")
    return _Queues(exchange, b"k", names)


def _publish(
    port: int, load: Load, queues: _Queues, board: SharedCounters, seconds: float, begin: Begin
) -> tuple[float, float, int]:
    """Publish for some seconds; return the first and the last moment, and the number of messages."""
    connection = Connection(port)
    one = publish(queues.exchange, queues.key, b"x" * load.size, load.properties)
    per = CONFIRM_CHUNK if load.confirm else max(1, CHUNK_OCTETS // len(one))
    chunk = one * per
    window = max(2 * per, WINDOW_OCTETS // load.size)
    confirms = _Confirms(connection) if load.confirm else None
    begin()
    sent = 0
    start = time.monotonic()
    end = start + seconds
    while not sent or time.monotonic() < end:
        if confirms is not None:
            confirms.wait(sent + per - CONFIRM_WINDOW)
        while load.consumers and sent - _passed(load, board) > window:
            time.sleep(0.0002)
            if time.monotonic() > end + FINISH_SECONDS:
                raise BenchFailure(f"{_passed(load, board)} of {sent} messages arrived, then nothing")
        connection.socket.sendall(chunk)
        sent += per
    board.target = sent
    if confirms is not None:
        confirms.wait(sent)
    last = time.monotonic()
    # In order, or a broker may drop octets that it has not read.
    connection.rest = b""
    connection.close()
    return start, last, sent


def _passed(load: Load, board: SharedCounters) -> int:
    """Return the number of messages that have passed the slowest consumer, or all together."""
    received = board.received(load.consumers)
    return min(received) if load.fanout else sum(received)


class _Confirms:
    """Counts the confirms of one publisher."""

    def __init__(self, connection: Connection) -> None:
        connection.confirm()
        self._socket = connection.socket
        self._rest = connection.rest
        self._up_to = 0
        self._single: set[int] = set()

    def wait(self, count: int) -> None:
        """Wait until N (`count`) messages are confirmed."""
        while self._up_to + len(self._single) < count:
            try:
                received = self._socket.recv(65536)
            except TimeoutError:
                raise BenchFailure(f"only {self._up_to} messages were confirmed") from None
            if not received:
                raise BenchFailure("the broker closed the connection of the publisher")
            data = self._rest + received
            whole = len(data) // ACK.size * ACK.size
            self._rest = data[whole:]
            for _, _, _, class_id, method_id, tag, multiple, _ in ACK.iter_unpack(data[:whole]):
                if (class_id, method_id) != ACK_IDS:
                    raise BenchFailure(f"method {class_id}.{method_id} instead of a confirm")
                if multiple:
                    self._up_to = max(self._up_to, tag)
                else:
                    self._single.add(tag)
            if self._single:
                self._single = {tag for tag in self._single if tag > self._up_to}
                while self._up_to + 1 in self._single:
                    self._up_to += 1
                    self._single.discard(self._up_to)


class _Acks:
    """Acknowledges deliveries in order."""

    def __init__(self, load: Load) -> None:
        self._every = load.ack_every
        self._acked = 0
        # Two single acknowledgements differ only in their tags.
        prepared = b"".join(ack(tag, multiple=False) for tag in range(1, PREPARED_ACKS + 1))
        self._single = memoryview(prepared if load.ack_every == 1 else b"")

    def due(self, received: int) -> "bytes | memoryview":
        """Return the octets to send when N (`received`) messages were received."""
        before = self._acked
        if self._every > 1:
            self._acked = received - received % self._every
            tags = range(before + self._every, self._acked + 1, self._every)
            return b"".join([ack(tag, multiple=True) for tag in tags])
        self._acked = received
        if received <= PREPARED_ACKS:
            return self._single[ACK.size * before : ACK.size * received]
        return b"".join([ack(tag, multiple=False) for tag in range(before + 1, received + 1)])

    def last(self, received: int) -> bytes:
        """Return the octets to send at the end."""
        return ack(received, multiple=True) if received > self._acked else b""


def _consume(
    port: int, load: Load, queue: bytes, place: int, board: SharedCounters, begin: Begin
) -> tuple[int, float]:
    """Receive until all messages have arrived; return the number that came here, and the moment of the last
    one.
    """
    connection = Connection(port)
    is_stream = load.kind == "stream"
    connection.consume(queue, prefetch=load.prefetch, no_ack=not load.prefetch, is_stream=is_stream)
    acks = _Acks(load) if load.prefetch else None
    begin()
    buffer = bytearray(RECEIVE_OCTETS)
    connected = connection.socket
    size = connection.first_delivery()
    octets = len(connection.rest)
    count = 0
    last = time.monotonic()
    connected.settimeout(0.02)
    deadline = last + FINISH_SECONDS + 3600
    while True:
        received = octets // size
        if received != count:
            count = received
            board.set_received(place, count)
            last = time.monotonic()
            if acks is not None and (due := acks.due(count)):
                connected.settimeout(FINISH_SECONDS)
                connected.sendall(due)
                connected.settimeout(0.02)
        target = board.target
        if target:
            deadline = min(deadline, time.monotonic() + FINISH_SECONDS / 2)
            arrived = count if load.fanout else sum(board.received(load.consumers))
            if arrived >= target:
                break
            if time.monotonic() > deadline:
                raise BenchFailure(f"{arrived} of {target} messages arrived, then nothing")
        try:
            found = connected.recv_into(buffer)
        except TimeoutError:
            continue
        if not found:
            raise BenchFailure("the broker closed the connection of a consumer")
        octets += found
    if octets % size:
        raise BenchFailure(f"{octets} octets are no whole number of deliveries of {size}")
    connected.settimeout(SOCKET_SECONDS)
    if acks is not None:
        connected.sendall(acks.last(count))
    connection.rest = b""
    connection.close()
    return count, last


@dataclass(frozen=True)
class Delays:
    """One message at a time: microseconds."""

    median: float
    percentile_99: float
    ping_pong: float
    """The median without a pause between two messages."""


def measure_delays(broker: Running, rate: int, seconds: float) -> Delays:
    """Measure from publishing on one connection to receiving on another one, in one process."""
    publisher, consumer = Connection(broker.port), Connection(broker.port)
    queue = b"bench.delay.%d.%d" % (os.getpid(), next(_numbers))
    publisher.declare_queue(queue, durable=False, kind="classic")
    consumer.consume(queue, prefetch=0, no_ack=True, is_stream=False)
    one = publish(b"", queue, b"x" * 100, TRANSIENT)
    publisher.socket.sendall(one)
    size = consumer.first_delivery()
    if len(consumer.rest) != size:
        raise BenchFailure("more than one delivery of one message")
    consumer.rest = b""
    paced = _delays(publisher, consumer, one, size, seconds, 1 / rate)
    at_once = _delays(publisher, consumer, one, size, seconds / 2, 0.0)
    consumer.socket.settimeout(0.1)
    with suppress(TimeoutError):
        raise BenchFailure(f"{consumer.socket.recv(100)!r} follows the last message")
    publisher.delete_queue(queue)
    publisher.close()
    consumer.socket.close()
    return Delays(paced[len(paced) // 2], paced[len(paced) * 99 // 100], at_once[len(at_once) // 2])


def _delays(
    publisher: Connection, consumer: Connection, one: bytes, size: int, seconds: float, pause: float
) -> list[float]:
    """Return the sorted delays in microseconds."""
    found = []
    buffer = bytearray(size)
    turn = time.perf_counter()
    end = turn + seconds
    while turn < end:
        turn += pause
        while pause and time.perf_counter() < turn:
            time.sleep(max(0.0, turn - time.perf_counter() - 0.0001))
        start = time.perf_counter()
        publisher.socket.sendall(one)
        missing = size
        while missing:
            missing -= consumer.socket.recv_into(buffer, missing)
        found.append((time.perf_counter() - start) * 1e6)
        if not pause:
            turn = time.perf_counter()
    return sorted(found)


def measure_connections(broker: Running, count: int) -> float:
    """Return the octets of anonymous memory for each idle connection with one channel."""
    before = broker.memory()[1]
    connections = [Connection(broker.port) for _ in range(count)]
    time.sleep(1.0)
    after = broker.memory()[1]
    for connection in connections:
        connection.socket.close()
    return (after - before) / count
