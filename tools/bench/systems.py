"""The interface of a system under measurement: starting its server, and encoding its protocol."""

import os
import shlex
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from processes import cpu_seconds, memory
from workers import BenchFailure, SharedCounters

SOCKET_SECONDS = 30.0
"""The longest time that a load generator waits for one answer."""

CHUNK_OCTETS = 256 * 1024
"""Size of a prepared buffer of publish commands, sent over and over with one system call."""

RECEIVE_OCTETS = 1024 * 1024
"""Size of the buffer that receivers read into."""

WORK_IN_HAND = 1000
"""The number of unacknowledged messages that each worker of a work queue may have."""


class Kind(Enum):
    """The workload of a topic."""

    LIVE = "every message to every subscriber, in memory"
    ROUND_ROBIN = "every message to one subscriber, in memory"
    ROUND_ROBIN_WEAK = "every message to one subscriber, stored until it is done"
    WORK_QUEUE = "every message to one worker, stored until the worker acknowledges it"
    WEAK = "stored, made durable every few seconds"
    STRONG = "stored and durable before it is confirmed"

    @property
    def stored(self) -> bool:
        """Whether every message is stored, so that it can be counted and replayed."""
        return self in (Kind.WEAK, Kind.STRONG)

    @property
    def in_files(self) -> bool:
        """Whether every system writes the messages to files."""
        return self.stored or self is Kind.WORK_QUEUE

    @property
    def shared(self) -> bool:
        """Whether the subscribers share the messages, rather than each getting all of them."""
        return self in (Kind.ROUND_ROBIN, Kind.ROUND_ROBIN_WEAK, Kind.WORK_QUEUE)


@dataclass(frozen=True)
class Chunk:
    """A prepared buffer of publish commands."""

    data: bytes
    messages: int
    size: int
    first: bytes
    last: bytes


@dataclass(frozen=True)
class Taken:
    """The messages that a worker has received: their number, their octets, and the octets that acknowledge
    them.
    """

    messages: int
    octets: int
    answer: bytes


def batches(items: Sequence[bytes], size: int = 500) -> Iterator[Sequence[bytes]]:
    """Yield the items in groups: the requests of a group must fit into the buffers of a socket."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def make_body(number: int, size: int) -> bytes:
    """Return a body of this size: a number and letters, which all protocols take as they are, without
    quotes.
    """
    letter = b"%c" % (ord("a") + number % 26)
    return (b"%012d" % number).ljust(size, letter)


class Publisher:
    """One publishing connection. Systems that acknowledge publications override `send` and `confirm`."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def send(self, data: bytes, messages: int) -> None:
        self.socket.sendall(data)

    def confirm(self, sent: int, held: int | None) -> None:
        """Return after all messages sent here are as safe as the topic promises.

        Stored topics must then hold exactly `held` messages, those of earlier publishers included; None
        where others publish at the same time, and another process counts. Where
        nothing is stored, the server must at least have read everything: a connection that is closed while a
        ping lies unread in it is reset, and what the server has not read by then is lost through our fault.
        """


Sink = Callable[[memoryview], None]
"""Called with every piece of a replay, in check mode only."""


class System(ABC):
    """A server under measurement, and the octets of its protocol."""

    name: str
    stray_octets: int
    """Size of the one kind of unasked message (a ping) that may stand between delivered messages."""

    def __init__(self) -> None:
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Path | None = None

    # -- the server -------------------------------------------------------------------------------------

    @abstractmethod
    def missing(self) -> str | None:
        """Return the reason why this system cannot be measured here, or None."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def guarantee(self, kind: Kind) -> str:
        """Return the guarantee for this kind of topic, in a few words for the table."""

    def lacks(self, case: str) -> str | None:
        """Return the reason why this system has nothing to compare with in a case, or None."""
        return None

    @abstractmethod
    def start(self, directory: Path, kind: Kind) -> None:
        """Start a server that keeps its files in `directory`, set up for this kind of work."""

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's process."""
        return dict(os.environ)

    def launch(self, command: Sequence[str], directory: Path, *, stdout: int | None = None) -> None:
        """Start the server's process, with its log in the directory, and out of the reach of Ctrl-C."""
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "server.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )

    def launch_on_free_port(self, command: Callable[[int], Sequence[str]], directory: Path) -> None:
        """Start a server at a given port; if another program takes the port in between, try another one."""
        for _ in range(5):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            self.launch(command(self.port), directory)
            assert self.process is not None
            deadline = time.monotonic() + SOCKET_SECONDS
            while self.process.poll() is None and time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                except ConnectionRefusedError:
                    time.sleep(0.02)
                else:
                    return
            self.stop()
        raise BenchFailure(f"{self.name} did not start: {self.log_tail()}")

    def stop(self) -> None:
        """End the server, first with SIGTERM."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def kill(self) -> None:
        """End the server with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.stop()

    def log_tail(self) -> str:
        """Return the last lines that the server logged, for a failure's text."""
        if self.log is None or not self.log.exists():
            return "no log"
        return " / ".join(self.log.read_text(errors="replace").splitlines()[-3:]) or "nothing logged"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def memory(self) -> tuple[int, int]:
        """Return the server's resident memory, all and anonymous, in octets."""
        return memory(self.pid)

    def cpu_seconds(self) -> float:
        """Return the processor time of the server so far, all threads."""
        return cpu_seconds(self.pid)

    def connect_socket(self) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self.port), SOCKET_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    # -- the protocol -----------------------------------------------------------------------------------

    @abstractmethod
    def declare(self, kind: Kind, topics: Sequence[bytes]) -> None: ...

    @abstractmethod
    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        """Return the command that publishes one message."""

    def chunk(self, kind: Kind, topic: bytes, size: int) -> Chunk:
        """Return a buffer full of publish commands, each with a body of its own."""
        count = max(1, CHUNK_OCTETS // len(self.encode(kind, topic, make_body(0, size))))
        bodies = [make_body(number, size) for number in range(count)]
        data = self.encode_all(kind, [(topic, body) for body in bodies])
        return Chunk(data, count, size, bodies[0], bodies[-1])

    def encode_all(self, kind: Kind, messages: Sequence[tuple[bytes, bytes]], place: int = 0) -> bytes:
        """Return the commands that publish these bodies to these topics, for the publisher with this
        number.
        """
        return b"".join([self.encode(kind, topic, body) for topic, body in messages])

    @abstractmethod
    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        """Return a publishing connection; `place` is its number where there are several."""

    @abstractmethod
    def subscribe(self, kind: Kind, topics: Sequence[bytes]) -> socket.socket:
        """Return a connection that gets the messages of the topics from now on; the server has confirmed it.

        Where there are several, their names are equally long: so are their messages then.
        """

    @abstractmethod
    def held(self, topic: bytes) -> int:
        """Return the number of messages in a stored topic, as the server says."""

    def held_in(self, topics: Sequence[bytes]) -> int:
        """Return the number of messages in these topics together, which are all topics."""
        return self.held(topics[0])

    @abstractmethod
    def delivered(self, kind: Kind, topic: bytes, body: bytes, number: int) -> bytes:
        """Return the octets in which a subscriber gets the topic's message with this number (from 1)."""

    def ask(self, kind: Kind, topic: bytes) -> bytes:
        """Return the request for more messages, for systems that do not push them."""
        return b""

    def pull_loop(
        self, sockets: Sequence[socket.socket], topic: bytes, size: int, board: SharedCounters
    ) -> tuple[int, list[int]] | None:
        """Receive round-robin messages where subscribers must ask for them; None: they come by themselves."""
        return None

    @abstractmethod
    def acknowledge(self, connected: socket.socket, topic: bytes, data: bytes) -> Taken:
        """Return the whole messages at the start of what a worker has received, and the octets that
        acknowledge each of them, and that ask for more where a worker must ask.
        """

    @abstractmethod
    def unacknowledged(self, topic: bytes) -> int:
        """Return the number of unacknowledged messages of a work queue, as the server says."""

    @abstractmethod
    def idle(self) -> socket.socket:
        """Return an idle connection after its handshake."""

    def stall(self, topic: bytes) -> socket.socket | None:
        """Subscribe to a stored topic on a connection that is not read; None if this is not measured."""
        return None

    @abstractmethod
    def replay(self, topic: bytes, count: int, last: bytes, sink: Sink | None) -> tuple[int, int]:
        """Read a stored topic from its beginning; the moments of the request and of the last octet.

        It holds `count` messages, all of the size of `last`, the body of the last one.
        """

    @abstractmethod
    def decode(self, kind: Kind, data: bytes) -> tuple[list[bytes], int]:
        """Return the bodies of the whole messages in `data`, and the number of their octets."""

    def count(self, data: bytes) -> int:
        """Return the number of live messages in `data`, also where the server says that others are lost."""
        return len(self.decode(Kind.LIVE, data)[0])


def receive_exactly(connected: socket.socket, count: int) -> bytes:
    """Receive this many octets."""
    parts = []
    while count:
        part = connected.recv(count)
        if not part:
            raise BenchFailure("the server closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive_until(connected: socket.socket, end: bytes) -> bytes:
    """Receive until these octets have arrived; only a ping may follow them."""
    data = b""
    while end not in data:
        part = connected.recv(65536)
        if not part:
            raise BenchFailure(f"the server closed the connection after {data[-200:]!r}")
        data += part
    return data


def receive_stream(
    connected: socket.socket, expected: int, stray_octets: int, last: bytes, sink: Sink | None
) -> int:
    """Count a stream's octets until all expected ones are there; the moment of the last one.

    Pings may stand between the messages: what is over must be whole pings, and the stream must end with the
    last message, or be followed by pings only.
    """
    buffer = bytearray(RECEIVE_OCTETS)
    view = memoryview(buffer)
    received = 0
    tail = b""
    connected.settimeout(SOCKET_SECONDS)
    try:
        while received < expected or last not in tail:
            count = connected.recv_into(buffer)
            if not count:
                raise BenchFailure(f"closed after {received} of {expected} octets, at {tail[-200:]!r}")
            if sink is not None:
                sink(view[:count])
            received += count
            # Only the end needs looking at; before it the octets are counted and nothing else.
            if expected - received < RECEIVE_OCTETS:
                tail = (tail + view[max(0, count - len(last) - 256) : count].tobytes())[-len(last) - 256 :]
    except TimeoutError:
        raise BenchFailure(f"{received} of {expected} octets arrived, then nothing") from None
    end = time.perf_counter_ns()
    over = received - expected
    if over < 0 or over % stray_octets:
        raise BenchFailure(f"{received} octets arrived where {expected} and whole pings were expected")
    return end


def command_version(command: str, *words: str) -> str:
    """Return the version that a program tells, in one line."""
    result = subprocess.run([command, *words], capture_output=True, text=True, check=True)
    return (result.stdout or result.stderr).strip().splitlines()[0]


def split_command(text: str) -> list[str]:
    return shlex.split(text)
