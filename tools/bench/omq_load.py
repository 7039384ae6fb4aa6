"""omq-server, spoken in protocol one on raw sockets. Shares no code with the server that it measures."""

import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from systems import (
    WORK_IN_HAND,
    Kind,
    Publisher,
    Sink,
    System,
    Taken,
    batches,
    receive_exactly,
    receive_stream,
)
from workers import BenchFailure

_DMP = b"AMQP\x0a\x01\x00\x01"
VERSION_ONE = struct.pack(">q", 1)
_ERROR, _PING, _MESSAGE, _SUBSCRIBED, _DECLARED, _CONFIRMED, _LEASED, _TOPICS = 0, 1, 2, 3, 5, 6, 7, 9
_MESSAGE_HEAD = struct.Struct(">IBQI")
_DECLARATIONS = {
    Kind.LIVE: b"Broadcast Transient",
    Kind.ROUND_ROBIN: b"Round_robin Transient",
    Kind.ROUND_ROBIN_WEAK: b"Round_robin (Persistent Weak)",
    Kind.WORK_QUEUE: b"Round_robin (Persistent Weak)",
    Kind.WEAK: b"Broadcast (Persistent Weak)",
    Kind.STRONG: b"Broadcast (Persistent Strong)",
}
_READY = re.compile(r"omq-server listening on (\S+):(\d+)\n")


def read_frame(connected: socket.socket) -> tuple[int, bytes]:
    """Return the next frame's type and payload; pings are left out, an Error is a failure."""
    while True:
        (length,) = struct.unpack(">I", receive_exactly(connected, 4))
        frame = receive_exactly(connected, length)
        if frame[0] == _ERROR:
            raise BenchFailure(f"omq-server answered: {frame[1:].decode(errors='replace')}")
        if frame[0] != _PING:
            return frame[0], frame[1:]


def expect_frame(connected: socket.socket, kind: int) -> bytes:
    got, payload = read_frame(connected)
    if got != kind:
        raise BenchFailure(f"omq-server sent a frame of type {got} where {kind} was expected")
    return payload


def ask_held(connected: socket.socket) -> int:
    """Return the number of messages in all topics."""
    connected.sendall(b"Topics\n")
    listed = expect_frame(connected, _TOPICS)
    return sum(int(count) for count in re.findall(rb"\(messages (\d+)\)", listed))


def check_held(connected: socket.socket, held: int) -> None:
    """Check that all topics have `held` messages."""
    count = ask_held(connected)
    if count != held:
        raise BenchFailure(f"omq-server holds {count} messages, {held} were published")


def read_response(connected: socket.socket) -> bytes:
    """Return the next response of a DMP connection, which must be a good one."""
    response = receive_exactly(connected, receive_exactly(connected, 1)[0])
    if not response.startswith(b"200 OK "):
        raise BenchFailure(f"omq-server answered: {response.decode(errors='replace')}")
    return response


class SinkPublisher(Publisher):
    """A DMP sink; its end is answered with the number of messages that are as safe as the topic promises."""

    def __init__(self, connected: socket.socket, principal: socket.socket, kind: Kind) -> None:
        super().__init__(connected)
        self._principal = principal
        self._kind = kind

    def confirm(self, sent: int, held: int | None) -> None:
        self.socket.shutdown(socket.SHUT_WR)
        response = read_response(self.socket)
        if response != b"200 OK %d messages stored" % sent:
            raise BenchFailure(f"omq-server answered {response!r} to {sent} messages")
        if self._kind.stored and held is not None:
            check_held(self._principal, held)


class LinePublisher(Publisher):
    """Publish commands have no reply; one Confirm at the end answers for all of them."""

    def __init__(self, connected: socket.socket, kind: Kind) -> None:
        super().__init__(connected)
        self._kind = kind

    def confirm(self, sent: int, held: int | None) -> None:
        self.socket.sendall(b"(Confirm %d)\n" % sent)
        (number,) = struct.unpack(">Q", expect_frame(self.socket, _CONFIRMED))
        if number != sent:
            raise BenchFailure(f"omq-server confirmed {number}, not {sent}")
        if self._kind.stored and held is not None:
            check_held(self.socket, held)


class OmqSystem(System):
    """The server as it is built here, published to through DMP."""

    name = "omq"
    stray_octets = 9
    client = b"bench"
    """The id of its clients."""

    def __init__(self, command: Sequence[str], weak_flush_seconds: float) -> None:
        super().__init__()
        self._command = command
        self.weak_flush_seconds = weak_flush_seconds
        self._topic_ids: dict[bytes, int] = {}

    def environment(self) -> dict[str, str]:
        """Return an environment in which the server's modules are compiled once, as pip compiles those that
        it installs.
        """
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        result = subprocess.run(
            [*self._command, "--version"], capture_output=True, text=True, check=False, env=self.environment()
        )
        lines = result.stdout.strip().splitlines()
        return lines[0] if result.returncode == 0 and lines else "omq-server (tells no version)"

    def lacks(self, case: str) -> str | None:
        if case.startswith("confirm"):
            return "a sink is confirmed at its end: measured with Publish lines"
        many = case.startswith(("topics", "queues", "crowd", "burst", "first"))
        return "a sink leads to one topic: measured with Publish lines" if many else None

    def guarantee(self, kind: Kind) -> str:
        match kind:
            case Kind.LIVE:
                return "Broadcast Transient, at most once"
            case Kind.ROUND_ROBIN:
                return "Round_robin Transient, plain subscribers, at most once"
            case Kind.ROUND_ROBIN_WEAK:
                return f"Round_robin (Persistent Weak), fsync every {self.weak_flush_seconds:g} s"
            case Kind.WORK_QUEUE:
                return (
                    f"Round_robin (Persistent Weak), fsync every {self.weak_flush_seconds:g} s, "
                    "a Received for each message"
                )
            case Kind.WEAK:
                return f"Broadcast (Persistent Weak), fsync every {self.weak_flush_seconds:g} s"
            case Kind.STRONG:
                return "Broadcast (Persistent Strong), fsync before it is confirmed"

    def start(self, directory: Path, kind: Kind) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "omq.toml"
        config.write_text(self.configuration(directory))
        options = ["--listen", "127.0.0.1:0", "--store", str(directory / "store"), "--config", str(config)]
        self.launch([*self._command, *options], directory, stdout=subprocess.PIPE)
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        ready = _READY.fullmatch(line)
        if ready is None:
            self.stop()
            raise BenchFailure(f"omq-server said {line!r} at start: {self.log_tail()}")
        self.port = int(ready[2])

    def configuration(self, directory: Path) -> str:
        """Return the configuration of a server with its files in `directory`."""
        return f"weak_flush_seconds = {self.weak_flush_seconds}\n"

    def connect(self) -> socket.socket:
        connected = self.connect_socket()
        connected.sendall(VERSION_ONE)
        if receive_exactly(connected, 8) != VERSION_ONE:
            raise BenchFailure("omq-server does not speak protocol one")
        connected.sendall(b"(Connect 1 %s)\n" % self.client)
        return connected

    def declare(self, kind: Kind, topics: Sequence[bytes]) -> None:
        with self.connect() as connected:
            for some in batches(topics):
                connected.sendall(
                    b"".join([b"(Declare %s %s)\n" % (each, _DECLARATIONS[kind]) for each in some])
                )
                for _ in some:
                    expect_frame(connected, _DECLARED)

    def idle(self) -> socket.socket:
        connected = self.connect()
        connected.sendall(b"(Confirm 0)\n")
        expect_frame(connected, _CONFIRMED)
        return connected

    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        # Size, no names, no properties, no options and the length of the body.
        return struct.pack(">III", 8 + len(body), 0, len(body)) + body

    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        principal = self.connect()
        principal.sendall(b"(Put %s)\n" % topic)
        lease = expect_frame(principal, _LEASED)
        connected = self.connect_socket()
        connected.sendall(_DMP + bytes([len(lease)]) + lease)
        read_response(connected)
        read_response(connected)
        return SinkPublisher(connected, principal, kind)

    def subscribe(self, kind: Kind, topics: Sequence[bytes]) -> socket.socket:
        connected = self.connect()
        if kind is Kind.WORK_QUEUE:
            credit = [b"(Request %s %d)\n" % (topic, WORK_IN_HAND) for topic in topics]
            connected.sendall(b"".join(credit))
        for some in batches(topics):
            self._subscribe(connected, some, b"From_current")
        return connected

    def acknowledge(self, connected: socket.socket, topic: bytes, data: bytes) -> Taken:
        answers: list[bytes] = []
        octets = 0
        while len(data) - octets >= 4:
            (length,) = struct.unpack_from(">I", data, octets)
            if len(data) - octets < 4 + length:
                break
            if data[octets + 4] == _MESSAGE:
                _, _, id, _ = _MESSAGE_HEAD.unpack_from(data, octets)
                answers.append(b"(Received %s %d)\n" % (topic, id))
            elif data[octets + 4] != _PING:
                raise BenchFailure(f"omq-server sent {data[octets : octets + 200]!r}")
            octets += 4 + length
        return Taken(len(answers), octets, b"".join(answers))

    def unacknowledged(self, topic: bytes) -> int:
        return self.held(topic)

    def _subscribe(self, connected: socket.socket, topics: Sequence[bytes], replay: bytes) -> None:
        connected.sendall(b"".join([b"(Subscribe %s %s)\n" % (topic, replay) for topic in topics]))
        for topic in topics:
            answer = expect_frame(connected, _SUBSCRIBED)
            found = re.fullmatch(rb"\(\(id (\d+)\)\(topic %s\)\)" % re.escape(topic), answer)
            if found is None:
                raise BenchFailure(f"omq-server answered Subscribe with {answer!r}")
            self._topic_ids[topic] = int(found[1])

    def held(self, topic: bytes) -> int:
        with self.connect() as connected:
            return ask_held(connected)

    def stall(self, topic: bytes) -> socket.socket:
        connected = self.connect()
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._subscribe(connected, [topic], b"From_current")
        return connected

    def delivered(self, kind: Kind, topic: bytes, body: bytes, number: int) -> bytes:
        return _MESSAGE_HEAD.pack(13 + len(body), _MESSAGE, number, self._topic_ids[topic]) + body

    def replay(self, topic: bytes, count: int, last: bytes, sink: Sink | None) -> tuple[int, int]:
        with self.connect() as connected:
            start = time.perf_counter_ns()
            self._subscribe(connected, [topic], b"From_beginning")
            last_frame = self.delivered(Kind.WEAK, topic, last, count)
            expected = count * len(last_frame)
            return start, receive_stream(connected, expected, self.stray_octets, last_frame, sink)

    def decode(self, kind: Kind, data: bytes) -> tuple[list[bytes], int]:
        bodies = []
        at = 0
        while at + 5 <= len(data):
            length, frame_type = struct.unpack_from(">IB", data, at)
            if at + 4 + length > len(data):
                break
            if frame_type == _MESSAGE:
                bodies.append(data[at + 17 : at + 4 + length])
            elif frame_type != _PING:
                raise BenchFailure(f"omq-server sent {data[at : at + 4 + min(length, 200)]!r}")
            at += 4 + length
        return bodies, at

    def count(self, data: bytes) -> int:
        count = at = 0
        while at + 5 <= len(data):
            length, frame_type = struct.unpack_from(">IB", data, at)
            at += 4 + length
            count += frame_type == _MESSAGE and at <= len(data)
        return count


class OmqLines(OmqSystem):
    """Published to with Publish lines: compared where these make the difference."""

    name = "omq-lines"

    def lacks(self, case: str) -> str | None:
        by_lines = ("latency", "topics", "queues", "crowd", "in-turn", "burst", "first", "confirm")
        measured = case == "live-1-1" or case.startswith(by_lines)
        return None if measured else "measured with messages through DMP"

    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        return b"(Publish %s %s)\n" % (topic, body)

    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        return LinePublisher(self.connect(), kind)


class OmqPlain(OmqSystem):
    """The server with the plain Python codec, as where there was no C compiler when it was installed."""

    name = "omq-plain"

    def lacks(self, case: str) -> str | None:
        return None if case.startswith(("live", "round-robin")) else "measured with the compiled codec"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "OMQ_PLAIN": "1"}
