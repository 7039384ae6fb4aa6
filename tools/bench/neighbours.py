"""Heavy and hostile clients beside the one whose round trips are measured."""

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from omq_load import VERSION_ONE, OmqSystem, expect_frame
from systems import CHUNK_OCTETS, RECEIVE_OCTETS, Kind, batches
from workers import BenchFailure

MIB = 1 << 20
LARGE_OCTETS = 60 * MIB
"""A message near the default of max_message_bytes."""

LINE_OCTETS = MIB - 64
TOPICS = 9_990
"""Just below the number that one client may have by default."""
READERS = 200
STALLED = 8
ATTEMPTS_A_SECOND = 500

_TOPICS_FRAME = 9


class FairSystem(OmqSystem):
    """A server that is configured for one kind of neighbour."""

    client = b"bench:sesame"

    def __init__(self, command: Sequence[str], weak_flush_seconds: float, neighbour: "Neighbour") -> None:
        super().__init__(command, weak_flush_seconds)
        self._neighbour = neighbour
        self.tls_port = 0

    def configuration(self, directory: Path) -> str:
        text = super().configuration(directory) + self._neighbour.settings
        if self._neighbour.needs_tls:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.tls_port = probe.getsockname()[1]
            make_certificate(directory)
            text = (
                f'listen_tls = ["127.0.0.1:{self.tls_port}"]\ntls_cert = "{directory}/server.pem"\n'
                f'tls_key = "{directory}/server.key"\n{text}'
            )
        if self._neighbour.has_clients:
            text += f'\n[[clients]]\nname = "bench"\nsecret = "{self._hash()}"\n'
            text += 'declare = ["*"]\npublish = ["*"]\nsubscribe = ["*"]\n'
        return text

    def _hash(self) -> str:
        command = [*self._command, "--hash-secret"]
        return subprocess.run(
            command, input="sesame\n", capture_output=True, text=True, check=True, env=self.environment()
        ).stdout.strip()


@dataclass(frozen=True)
class Neighbour:
    """One kind of noisy neighbour: work beside which the latency of others is measured."""

    name: str
    what: str
    unit: str
    """The unit of its work."""
    work: Callable[["Neighbourhood", int], Iterator[int]]
    """Works for ever in the process with this number, and yields the amount of its work since the last time.
    """
    processes: int = 1
    prepare: Callable[["Neighbourhood"], None] = lambda _: None
    settings: str = ""
    """Keys of the configuration."""
    has_clients: bool = False
    """Whether clients must have a secret."""
    needs_tls: bool = False

    def missing(self) -> str | None:
        """Return the reason why it cannot be measured here, or None."""
        if self.needs_tls and shutil.which("openssl") is None:
            return "openssl is not installed, which makes the certificate"
        return None


class Neighbourhood:
    """The server that the neighbours use, and the number of messages that they store."""

    def __init__(
        self,
        command: Sequence[str],
        weak_flush_seconds: float,
        directory: Path,
        stored_octets: int,
        neighbour: Neighbour,
    ) -> None:
        self.system = FairSystem(command, weak_flush_seconds, neighbour)
        self.directory = directory
        self.stored_octets = stored_octets


def make_certificate(directory: Path) -> None:
    """Create a key and a certificate that it has signed itself."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", directory / "server.key", "-out", directory / "server.pem", "-days", "2",
         "-subj", "/CN=127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    (directory / "server.key").chmod(0o600)


# -- large messages -----------------------------------------------------------------------------------------


def declare(kind: Kind, *topics: bytes) -> Callable[[Neighbourhood], None]:
    return lambda where: where.system.declare(kind, topics)


def send_large(where: Neighbourhood, place: int) -> Iterator[int]:
    """Publish large messages into a stored topic, one after another."""
    publisher = where.system.publisher(Kind.WEAK, b"large")
    envelope = where.system.encode(Kind.WEAK, b"large", bytes(LARGE_OCTETS))
    view = memoryview(envelope)
    while True:
        for at in range(0, len(view), MIB):
            publisher.socket.sendall(view[at : at + MIB])
            yield 1


def stall_in_large(where: Neighbourhood, place: int) -> Iterator[int]:
    """Publish large messages to subscribers that read nothing; when they are cut off, they come again."""
    publisher = where.system.publisher(Kind.LIVE, b"large")
    envelope = where.system.encode(Kind.LIVE, b"large", bytes(LARGE_OCTETS))
    while True:
        with ExitStack() as stalled:
            for _ in range(STALLED):
                stalled.enter_context(where.system.stall(b"large"))
            for _ in range(4):
                publisher.socket.sendall(envelope)
                yield LARGE_OCTETS // MIB


# -- input that is much work --------------------------------------------------------------------------------


def send_lines(line: bytes) -> Callable[[Neighbourhood, int], Iterator[int]]:
    """Return a client that sends this line again and again, and reads the server's answers."""

    def work(where: Neighbourhood, place: int) -> Iterator[int]:
        with where.system.connect() as connected:
            while True:
                connected.sendall(line)
                connected.setblocking(False)
                with suppress(BlockingIOError):
                    if not connected.recv(RECEIVE_OCTETS):
                        raise BenchFailure("the client with long lines was cut off")
                connected.setblocking(True)
                yield 1

    return work


# -- many topics and subscribers ----------------------------------------------------------------------------


def topic_names() -> list[bytes]:
    return [b"topic-%05d" % number for number in range(TOPICS)]


def publish_round(where: Neighbourhood, place: int) -> Iterator[int]:
    """Publish to each of the topics in turn, and ask for all topics after each round."""
    names = topic_names()
    with where.system.connect() as connected:
        while True:
            for some in batches(names):
                connected.sendall(b"".join([b"(Publish %s 12345678)\n" % name for name in some]))
                yield len(some)
            connected.sendall(b"Topics\n")
            expect_frame(connected, _TOPICS_FRAME)


def read_all(readers: Sequence[socket.socket]) -> int:
    """Read the input of each of these; return the octets."""
    octets = 0
    for reader in readers:
        with suppress(BlockingIOError):
            octets += len(reader.recv(RECEIVE_OCTETS))
    return octets


def serve_readers(where: Neighbourhood, place: int) -> Iterator[int]:
    """Publish as fast as possible in one process, and read as subscribers of the topic in the others."""
    if place == 0:
        line = b"(Publish crowd %s)\n" % (b"x" * 1000)
        chunk = line * (CHUNK_OCTETS // len(line))
        with where.system.connect() as connected:
            while True:
                connected.sendall(chunk)
                yield CHUNK_OCTETS // len(line)
    with ExitStack() as opened:
        readers = [
            opened.enter_context(where.system.subscribe(Kind.LIVE, [b"crowd"])) for _ in range(READERS // 2)
        ]
        for reader in readers:
            reader.setblocking(False)
        yield 1
        while True:
            if not read_all(readers):
                time.sleep(0.001)


# -- replays ------------------------------------------------------------------------------------------------


def store_messages(where: Neighbourhood) -> None:
    """Fill a topic with messages of a KiB."""
    where.system.declare(Kind.WEAK, [b"stored"])
    publisher = where.system.publisher(Kind.WEAK, b"stored")
    each = where.system.encode(Kind.WEAK, b"stored", bytes(1024))
    count = max(1, where.stored_octets // 1024)
    chunk = each * (CHUNK_OCTETS // len(each))
    full, rest = divmod(count, CHUNK_OCTETS // len(each))
    for _ in range(full):
        publisher.send(chunk, 0)
    publisher.send(each * rest, rest)
    publisher.confirm(count, count)


def replay(where: Neighbourhood, place: int) -> Iterator[int]:
    """Replay all of it, again and again."""
    while True:
        with where.system.connect() as connected:
            connected.sendall(b"(Subscribe stored From_beginning)\n")
            left = where.stored_octets
            while left > 0:
                octets = len(connected.recv(RECEIVE_OCTETS))
                if not octets:
                    raise BenchFailure("the replay was cut off")
                left -= octets
                yield octets


# -- connections --------------------------------------------------------------------------------------------


def at_a_rate(act: Callable[[], None], each_second: float) -> Iterator[int]:
    """Act at this rate; where that is impossible, as often as possible."""
    due = time.monotonic()
    while True:
        due = max(due + 1 / each_second, time.monotonic() - 0.1)
        act()
        yield 1
        time.sleep(max(0.0, due - time.monotonic()))


def guess(where: Neighbourhood, place: int) -> Iterator[int]:
    """Connect with a wrong secret, and do not wait for the answer."""
    waiting: list[socket.socket] = []

    def attempt() -> None:
        connected = where.system.connect_socket()
        connected.sendall(VERSION_ONE + b"(Connect 1 bench:guess-%d)\n" % time.monotonic_ns())
        waiting.append(connected)
        if len(waiting) > ATTEMPTS_A_SECOND:
            waiting.pop(0).close()

    yield from at_a_rate(attempt, ATTEMPTS_A_SECOND)


def shake_hands(where: Neighbourhood, place: int) -> Iterator[int]:
    """Begin a connection with TLS, and end it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    while True:
        with (
            socket.create_connection(("127.0.0.1", where.system.tls_port)) as connected,
            context.wrap_socket(connected) as secured,
        ):
            secured.sendall(VERSION_ONE)
            if secured.recv(8) != VERSION_ONE:
                raise BenchFailure("omq-server does not speak protocol one with TLS")
        yield 1


NEIGHBOURS = (
    Neighbour(
        "large-in", "messages of 60 MiB in, into Weak", "MiB", send_large,
        prepare=declare(Kind.WEAK, b"large"),
        settings="retention_bytes = 268435456\n",
    ),
    Neighbour(
        "large-out", f"messages of 60 MiB to {STALLED} subscribers that read nothing", "MiB", stall_in_large,
        prepare=declare(Kind.LIVE, b"large"),
    ),
    Neighbour("parentheses", "a line of 1 MiB of `(`", "lines", send_lines(b"(" * LINE_OCTETS + b"\n")),
    Neighbour(
        "parentheses-4", "four with lines of 1 MiB of `(`", "lines", send_lines(b"(" * LINE_OCTETS + b"\n"),
        processes=4,
    ),
    Neighbour(
        "deep-list", "a line of 1 MiB of `#;(`", "lines", send_lines(b"#;(" * (LINE_OCTETS // 3) + b"\n")
    ),
    Neighbour(
        "escapes", r"a Publish of 1 MiB of `\z`", "lines",
        send_lines(b'(Publish other "' + rb"\z" * (LINE_OCTETS // 2) + b'")\n'),
    ),
    Neighbour(
        "topics", f"{TOPICS:,} topics, published to in turn, and Topics after each round", "messages",
        publish_round, prepare=lambda where: where.system.declare(Kind.LIVE, topic_names()),
    ),
    Neighbour(
        "subscribers", f"{READERS} subscribers of messages of 1,000 octets", "messages", serve_readers,
        processes=3, prepare=declare(Kind.LIVE, b"crowd"),
    ),
    Neighbour("replay", "a replay of stored messages of 1 KiB", "octets", replay, prepare=store_messages),
    Neighbour(
        "guesses", f"{ATTEMPTS_A_SECOND} connections a second with a wrong secret", "connections", guess,
        has_clients=True,
    ),
    Neighbour("tls", "two that shake hands with TLS", "handshakes", shake_hands, processes=2, needs_tls=True),
)  # fmt: skip
