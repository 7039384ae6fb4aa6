"""nats-server: core publish/subscribe and JetStream, spoken in its text protocol on raw sockets."""

import json
import re
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from systems import (
    WORK_IN_HAND,
    Kind,
    Publisher,
    Sink,
    System,
    Taken,
    batches,
    command_version,
    receive_stream,
    receive_until,
)
from workers import BenchFailure

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"name":"bench"}\r\nPING\r\n'
_ACKS = b"bench.acks"
_DELIVER = b"bench.deliver"
_STREAM = b"bench"

_WORKERS = b"workers"
_MESSAGE = re.compile(rb"MSG \S+ \S+ (\$JS\.ACK\.\S+) \d+\r\n[^\r]*\r\n")
"""A message of a work queue with the subject that acknowledges it. No body has a line end."""

CHUNKS_IN_FLIGHT = 4
"""The number of chunks for which JetStream may owe acknowledgements."""

MOST_WORKERS = 4
"""The greatest number of workers of a work queue: JetStream bounds the unacknowledged messages of all
together.
"""


def digits_up_to(count: int) -> int:
    """Return the number of digits that all the numbers from 1 to count take."""
    total, power = 0, 1
    while power <= count:
        total += count - power + 1
        power *= 10
    return total


class CorePublisher(Publisher):
    """Publishes without acknowledgements; a PING at the end is answered when all before it has been read."""

    def confirm(self, sent: int, held: int | None) -> None:
        self.socket.sendall(b"PING\r\n")
        receive_until(self.socket, b"PONG\r\n")


class JetStreamPublisher(Publisher):
    """Publishes with acknowledgements, a bounded number of them outstanding, and counts them.

    Each chunk asks for one, for its last message: the server takes the messages of a connection in order.
    """

    def __init__(self, connected: socket.socket, nats: "NatsSystem", place: int) -> None:
        super().__init__(connected)
        self._nats = nats
        self._owed = 0
        self._rest = b""
        connected.sendall(b"SUB %s.%d 1\r\nPING\r\n" % (_ACKS, place))
        receive_until(connected, b"PONG\r\n")

    def send(self, data: bytes, messages: int) -> None:
        self.socket.sendall(data)
        self._owed += 1
        while self._owed > CHUNKS_IN_FLIGHT:
            self._read_acks()

    def _read_acks(self) -> None:
        data = self._rest + self.socket.recv(256 * 1024)
        if data == self._rest:
            raise BenchFailure("JetStream closed the publishing connection")
        end = data.rfind(b"\r\n") + 2
        self._rest = data[end:]
        whole = data[:end]
        if b'"error"' in whole or b"-ERR" in whole:
            raise BenchFailure(f"JetStream refused: {whole[-300:]!r}")
        self._owed -= whole.count(b'"seq":')

    def confirm(self, sent: int, held: int | None) -> None:
        while self._owed:
            self._read_acks()
        if held is not None and self._nats.stored() != held:
            raise BenchFailure(f"JetStream holds {self._nats.stored()} messages, {held} were published")


class NatsSystem(System):
    """nats-server as it comes, on loopback."""

    name = "nats"
    stray_octets = len(b"PING\r\n")

    def __init__(self) -> None:
        super().__init__()
        self._command = shutil.which("nats-server")
        self._numbers: dict[bytes, bytes] = {}

    def missing(self) -> str | None:
        return None if self._command else "nats-server is not on the PATH"

    def version(self) -> str:
        return command_version("nats-server", "--version")

    def guarantee(self, kind: Kind) -> str:
        match kind:
            case Kind.LIVE:
                return "core publish/subscribe, at most once"
            case Kind.ROUND_ROBIN | Kind.ROUND_ROBIN_WEAK:
                return "core queue group (a random member each), at most once"
            case Kind.WORK_QUEUE:
                return "JetStream work queue in files, fsync every 2 minutes only; +ACK for each message"
            case Kind.WEAK | Kind.STRONG:
                return "JetStream file store: written, fsync every 2 minutes only"

    def lacks(self, case: str) -> str | None:
        strong = case == "ingest-strong" or case.startswith(("topics-strong", "confirm-strong"))
        return "has no fsync per message (JetStream 2.9)" if strong else None

    def start(self, directory: Path, kind: Kind) -> None:
        assert self._command is not None
        command = self._command
        store = ["-js", "-sd", str(directory / "jetstream")] if kind.in_files else []
        self.launch_on_free_port(
            lambda port: [command, "-a", "127.0.0.1", "-p", str(port), *store], directory
        )

    def connect(self) -> socket.socket:
        connected = self.connect_socket()
        connected.sendall(_CONNECT)
        receive_until(connected, b"PONG\r\n")
        return connected

    def request(self, subject: bytes, body: dict[str, Any]) -> dict[str, Any]:
        """Return one request to the JetStream API, on a connection of its own."""
        with self.connect() as connected:
            payload = json.dumps(body).encode()
            connected.sendall(b"SUB bench.reply 1\r\n")
            connected.sendall(b"PUB %s bench.reply %d\r\n%s\r\n" % (subject, len(payload), payload))
            answer = receive_until(connected, b"}\r\n")
        reply: dict[str, Any] = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])
        if "error" in reply:
            raise BenchFailure(f"JetStream: {reply['error']}")
        return reply

    def stored(self) -> int:
        """Return the number of messages in the stream."""
        return int(self.request(b"$JS.API.STREAM.INFO." + _STREAM, {})["state"]["messages"])

    def declare(self, kind: Kind, topics: Sequence[bytes]) -> None:
        if kind.in_files:
            self.request(
                b"$JS.API.STREAM.CREATE." + _STREAM,
                {
                    "name": _STREAM.decode(),
                    # Names of one part each, which one pattern stands for where they are many.
                    "subjects": [topics[0].decode()] if len(topics) == 1 else ["*"],
                    "storage": "file",
                    "retention": "workqueue" if kind is Kind.WORK_QUEUE else "limits",
                    "discard": "old",
                    "num_replicas": 1,
                },
            )
        if kind is Kind.WORK_QUEUE:
            self.request(
                b"$JS.API.CONSUMER.DURABLE.CREATE.%s.%s" % (_STREAM, _WORKERS),
                {
                    "stream_name": _STREAM.decode(),
                    "config": {
                        "durable_name": _WORKERS.decode(),
                        "deliver_subject": _DELIVER.decode(),
                        "deliver_group": _WORKERS.decode(),
                        "deliver_policy": "all",
                        "ack_policy": "explicit",
                        "max_ack_pending": MOST_WORKERS * WORK_IN_HAND,
                    },
                },
            )

    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (topic, len(body), body)

    def encode_all(self, kind: Kind, messages: Sequence[tuple[bytes, bytes]], place: int = 0) -> bytes:
        """Encode a chunk. If it is stored, its last message asks for the acknowledgement, which confirms all
        before it.

        That is cheaper for JetStream than one acknowledgement per message, and confirms as much as the one
        confirmation per batch that the others give.
        """
        if not kind.in_files:
            return super().encode_all(kind, messages, place)
        topic, body = messages[-1]
        last = b"PUB %s %s.%d %d\r\n%s\r\n" % (topic, _ACKS, place, len(body), body)
        return super().encode_all(kind, messages[:-1], place) + last

    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        connected = self.connect()
        return JetStreamPublisher(connected, self, place) if kind.in_files else CorePublisher(connected)

    def idle(self) -> socket.socket:
        return self.connect()

    def subscribe(self, kind: Kind, topics: Sequence[bytes]) -> socket.socket:
        connected = self.connect()
        if kind is Kind.WORK_QUEUE:
            connected.sendall(b"SUB %s %s 1\r\nPING\r\n" % (_DELIVER, _WORKERS))
            receive_until(connected, b"PONG\r\n")
            return connected
        group = b" workers" if kind.shared else b""
        # Every subscription has a number of its own, all of them equally long: so are the deliveries then.
        first = 10 ** len(str(len(topics))) if len(topics) > 1 else 1
        numbers = range(first, first + len(topics))
        self._numbers = {topic: b"%d" % number for topic, number in zip(topics, numbers, strict=True)}
        for some in batches(topics):
            subscriptions = [b"SUB %s%s %s\r\n" % (topic, group, self._numbers[topic]) for topic in some]
            connected.sendall(b"".join(subscriptions) + b"PING\r\n")
            receive_until(connected, b"PONG\r\n")
        return connected

    def acknowledge(self, connected: socket.socket, topic: bytes, data: bytes) -> Taken:
        answers: list[bytes] = []
        octets = 0
        for message in _MESSAGE.finditer(data):
            answers.append(b"PUB %s 0\r\n\r\n" % message[1])
            octets = message.end()
        return Taken(len(answers), octets, b"".join(answers))

    def unacknowledged(self, topic: bytes) -> int:
        return self.stored()

    def held(self, topic: bytes) -> int:
        return self.stored()

    def delivered(self, kind: Kind, topic: bytes, body: bytes, number: int) -> bytes:
        return b"MSG %s %s %d\r\n%s\r\n" % (topic, self._numbers[topic], len(body), body)

    def replay(self, topic: bytes, count: int, last: bytes, sink: Sink | None) -> tuple[int, int]:
        """Return a push consumer without acknowledgements, made for this replay."""
        with self.connect() as connected:
            connected.sendall(b"SUB " + _DELIVER + b" 1\r\nPING\r\n")
            receive_until(connected, b"PONG\r\n")
            start = time.perf_counter_ns()
            created = self.request(
                b"$JS.API.CONSUMER.CREATE." + _STREAM,
                {
                    "stream_name": _STREAM.decode(),
                    "config": {
                        "deliver_subject": _DELIVER.decode(),
                        "deliver_policy": "all",
                        "ack_policy": "none",
                        "replay_policy": "instant",
                        "mem_storage": True,
                        "num_replicas": 1,
                    },
                },
            )
            # Each message carries a reply subject with its stream and consumer sequence, a time of 19 digits
            # and the number of messages still to come: its octets are known in advance, digit by digit.
            reply = b"$JS.ACK.%s.%s.1..." % (_STREAM, created["name"].encode()) + b"9" * 19 + b"."
            fixed = len(b"MSG %s 1 %s %d\r\n%s\r\n" % (topic, reply, len(last), last))
            pending_digits = digits_up_to(count - 1) + 1
            expected = count * fixed + 2 * digits_up_to(count) + pending_digits
            end_of_last = b".0 %d\r\n%s\r\n" % (len(last), last)
            return start, receive_stream(connected, expected, self.stray_octets, end_of_last, sink)

    def decode(self, kind: Kind, data: bytes) -> tuple[list[bytes], int]:
        bodies = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if line.startswith(b"MSG "):
                size = int(line.rpartition(b" ")[2])
                if len(data) < end + 2 + size + 2:
                    break
                bodies.append(data[end + 2 : end + 2 + size])
                at = end + 2 + size + 2
            elif line == b"PING":
                at = end + 2
            else:
                raise BenchFailure(f"nats-server said {line[:200]!r}")
        return bodies, at
