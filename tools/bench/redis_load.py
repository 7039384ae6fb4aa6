"""redis-server: publish/subscribe, streams with the append-only file, and lists, in its own protocol."""

import re
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from systems import (
    RECEIVE_OCTETS,
    SOCKET_SECONDS,
    Kind,
    Publisher,
    Sink,
    System,
    Taken,
    batches,
    command_version,
    receive_exactly,
    receive_until,
)
from work import arriving
from workers import BenchFailure, SharedCounters

REPLAY_COUNT = 5000
"""Entries asked for with one XRANGE."""

POP_COUNT = 512
"""Most messages that a round-robin subscriber takes with one BLMPOP."""


_GROUP = b"workers"
_ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nb\r\n\$\d+\r\n[^\r]*\r\n")
"""An entry of a stream with its id. No body has a line end."""

_GROUP_REPLY = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]*\r\n\*(\d+)\r\n")
"""The beginning of an answer to XREADGROUP for one stream, with the number of its entries."""


def command(*words: bytes) -> bytes:
    """Return a command in Redis' own encoding."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


Reply = bytes | int | list["Reply"] | None


class Incomplete(Exception):
    """The reply is not complete yet."""


def parse_reply(data: bytes, at: int) -> tuple[Reply, int]:
    """Return one reply, and where it ends."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    first, text, after = data[at : at + 1], data[at + 1 : end], end + 2
    match first:
        case b"+":
            return text, after
        case b":":
            return int(text), after
        case b"$":
            size = int(text)
            if size < 0:
                return None, after
            if len(data) < after + size + 2:
                raise Incomplete
            return data[after : after + size], after + size + 2
        case b"*":
            if int(text) < 0:
                return None, after
            items: list[Reply] = []
            for _ in range(int(text)):
                item, after = parse_reply(data, after)
                items.append(item)
            return items, after
        case _:
            raise BenchFailure(f"redis-server said {data[at : at + 200]!r}")


class RedisPublisher(Publisher):
    """Publishes with replies switched off, the cheapest way there is, and counts at the end."""

    def __init__(self, connected: socket.socket, kind: Kind, redis: "RedisSystem") -> None:
        super().__init__(connected)
        self._kind = kind
        self._redis = redis
        connected.sendall(command(b"CLIENT", b"REPLY", b"OFF"))

    def confirm(self, sent: int, held: int | None) -> None:
        self.socket.sendall(command(b"CLIENT", b"REPLY", b"ON") + command(b"PING"))
        receive_until(self.socket, b"+PONG\r\n")
        if self._kind.stored and held is not None:
            found = self._redis.held_in(self._redis.topics)
            if found != held:
                raise BenchFailure(f"redis-server holds {found} messages, {held} were published")


class RedisSystem(System):
    """redis-server with its defaults, apart from the settings that a measurement names."""

    name = "redis"
    stray_octets = 1 << 62
    """Redis sends nothing unasked: no multiple of this but 0 can occur."""

    def __init__(self) -> None:
        super().__init__()
        self._command = shutil.which("redis-server")
        self.topics: Sequence[bytes] = ()

    def missing(self) -> str | None:
        return None if self._command else "redis-server is not on the PATH"

    def version(self) -> str:
        return " ".join(command_version("redis-server", "--version").split()[:3])

    def guarantee(self, kind: Kind) -> str:
        match kind:
            case Kind.LIVE:
                return "PUBLISH, at most once"
            case Kind.ROUND_ROBIN | Kind.ROUND_ROBIN_WEAK:
                return f"list: RPUSH, and BLMPOP of up to {POP_COUNT}, at most once"
            case Kind.WORK_QUEUE:
                return f"consumer group: XREADGROUP of up to {POP_COUNT}, XACK of each; fsync every second"
            case Kind.WEAK:
                return "stream in memory, append-only file with fsync every second"
            case Kind.STRONG:
                return "stream in memory, append-only file with fsync before the reply"

    def lacks(self, case: str) -> str | None:
        if case.startswith("queues"):
            return "a worker would have to ask for thousands of lists with each command"
        return "keeps everything in memory" if case == "replay-cold" else None

    def start(self, directory: Path, kind: Kind) -> None:
        assert self._command is not None
        server = self._command
        options = ["--bind", "127.0.0.1", "--dir", str(directory), "--save", "", "--loglevel", "warning"]
        if kind.in_files:
            sync = "always" if kind is Kind.STRONG else "everysec"
            # No rewriting of the file in the middle of a measurement, to its advantage.
            options += ["--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]
        self.launch_on_free_port(lambda port: [server, "--port", str(port), *options], directory)
        # After a restart it reads its file first, and answers only with errors until then.
        with self.connect_socket() as connected:
            deadline = time.monotonic() + SOCKET_SECONDS
            while time.monotonic() < deadline:
                connected.sendall(command(b"PING"))
                if receive_until(connected, b"\r\n") == b"+PONG\r\n":
                    return
                time.sleep(0.05)
        raise BenchFailure(f"redis-server did not start: {self.log_tail()}")

    def declare(self, kind: Kind, topics: Sequence[bytes]) -> None:
        self.topics = topics
        if kind is Kind.WORK_QUEUE:
            with self.connect_socket() as connected:
                for topic in topics:
                    connected.sendall(command(b"XGROUP", b"CREATE", topic, _GROUP, b"0", b"MKSTREAM"))
                    receive_until(connected, b"+OK\r\n")

    def encode(self, kind: Kind, topic: bytes, body: bytes) -> bytes:
        match kind:
            case Kind.LIVE:
                return command(b"PUBLISH", topic, body)
            case Kind.ROUND_ROBIN | Kind.ROUND_ROBIN_WEAK:
                return command(b"RPUSH", topic, body)
            case Kind.WORK_QUEUE | Kind.WEAK | Kind.STRONG:
                return command(b"XADD", topic, b"*", b"b", body)

    def publisher(self, kind: Kind, topic: bytes, place: int = 0) -> Publisher:
        return RedisPublisher(self.connect_socket(), kind, self)

    def idle(self) -> socket.socket:
        connected = self.connect_socket()
        connected.sendall(command(b"PING"))
        receive_until(connected, b"+PONG\r\n")
        return connected

    def subscribe(self, kind: Kind, topics: Sequence[bytes]) -> socket.socket:
        connected = self.connect_socket()
        if kind is Kind.WORK_QUEUE:
            (topic,) = topics
            connected.sendall(_read_group(connected, topic))
            return connected
        if kind.shared:
            (topic,) = topics
            connected.sendall(self.ask(Kind.ROUND_ROBIN, topic))
            return connected
        count = 0
        for some in batches(topics):
            connected.sendall(command(b"SUBSCRIBE", *some))
            for topic in some:
                count += 1
                answer = b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:%d\r\n" % (len(topic), topic, count)
                if receive_exactly(connected, len(answer)) != answer:
                    raise BenchFailure("redis-server did not answer SUBSCRIBE as expected")
        return connected

    def acknowledge(self, connected: socket.socket, topic: bytes, data: bytes) -> Taken:
        at = 0
        while data.startswith(b":", at):  # the answer to an XACK
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            at = end + 2
        head = _GROUP_REPLY.match(data, at)
        if head is None:
            if len(data) - at > 100 or data.startswith(b"-", at):
                raise BenchFailure(f"redis-server said {data[at : at + 200]!r}")
            return Taken(0, at, b"")
        entries = list(_ENTRY.finditer(data, head.end()))
        if len(entries) < int(head[1]):
            return Taken(0, at, b"")
        done = command(b"XACK", topic, _GROUP, *[entry[1] for entry in entries])
        return Taken(len(entries), entries[-1].end(), done + _read_group(connected, topic))

    def unacknowledged(self, topic: bytes) -> int:
        with self.connect_socket() as connected:
            connected.sendall(command(b"XINFO", b"GROUPS", topic) + command(b"PING"))
            reply, _ = parse_reply(receive_until(connected, b"+PONG\r\n"), 0)
        match reply:
            case [[*words]]:
                found = dict(zip(words[::2], words[1::2], strict=True))
            case _:
                raise BenchFailure(f"redis-server said {reply!r}")
        pending, lag = found.get(b"pending"), found.get(b"lag")
        if not isinstance(pending, int) or not isinstance(lag, int):
            raise BenchFailure(f"redis-server does not count what is not acknowledged: {found!r}")
        return pending + lag

    def held(self, topic: bytes) -> int:
        with self.connect_socket() as connected:
            connected.sendall(command(b"XLEN", topic))
            reply, _ = parse_reply(receive_until(connected, b"\r\n"), 0)
        assert isinstance(reply, int)
        return reply

    def held_in(self, topics: Sequence[bytes]) -> int:
        total = 0
        with self.connect_socket() as connected:
            for some in batches(topics):
                connected.sendall(b"".join([command(b"XLEN", topic) for topic in some]))
                answer = b""
                while answer.count(b"\r\n") < len(some):
                    answer += receive_until(connected, b"\r\n")
                total += sum(int(line[1:]) for line in answer.split(b"\r\n")[:-1])
        return total

    def delivered(self, kind: Kind, topic: bytes, body: bytes, number: int) -> bytes:
        if kind.shared:
            return b"$%d\r\n%s\r\n" % (len(body), body)
        return b"*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(topic), topic, len(body), body)

    def ask(self, kind: Kind, topic: bytes) -> bytes:
        if not kind.shared:
            return b""
        return command(b"BLMPOP", b"0", b"1", topic, b"LEFT", b"COUNT", b"%d" % POP_COUNT)

    def pull_loop(
        self, sockets: Sequence[socket.socket], topic: bytes, size: int, board: SharedCounters
    ) -> tuple[int, list[int]] | None:
        """Keep one BLMPOP of each subscriber waiting; `subscribe` has sent the first."""
        request = self.ask(Kind.ROUND_ROBIN, topic)
        element = len(self.delivered(Kind.ROUND_ROBIN, topic, b"x" * size, 1))
        before = b"*2\r\n$%d\r\n%s\r\n*" % (len(topic), topic)
        view = memoryview(bytearray(RECEIVE_OCTETS))
        received = [0] * len(sockets)
        missing = [0] * len(sockets)
        heads = [b""] * len(sockets)
        end = 0
        for place in arriving(sockets, board, received):
            count = sockets[place].recv_into(view)
            if not count:
                raise BenchFailure("redis-server closed a subscriber's connection")
            if not missing[place]:
                # A new reply: its head tells how many elements follow, and all have the same size.
                heads[place] += view[: min(count, 256)].tobytes()
                if heads[place].startswith(before) and b"\r\n" in heads[place][len(before) :]:
                    number, _, _ = heads[place][len(before) :].partition(b"\r\n")
                    had = len(heads[place]) - min(count, 256)
                    missing[place] = len(before) + len(number) + 2 + int(number) * element - had
                    received[place] += int(number)
                elif heads[place].startswith(before[: len(heads[place])]):
                    continue
                else:
                    raise BenchFailure(f"redis-server said {heads[place]!r}")
            missing[place] -= count
            if missing[place] < 0:
                raise BenchFailure("redis-server sent more than was asked for")
            if not missing[place]:
                heads[place] = b""
                end = time.perf_counter_ns()
                board.set_received(place, received[place])
                sockets[place].sendall(request)
        if any(missing):
            raise BenchFailure("messages were counted that have not arrived whole")
        return end, received

    def replay(self, topic: bytes, count: int, last: bytes, sink: Sink | None) -> tuple[int, int]:
        """Send XRANGE with a cursor. A PING after each one marks the end of its reply."""
        view = memoryview(bytearray(RECEIVE_OCTETS))
        mark = b"+PONG\r\n"
        asked = b"%d" % REPLAY_COUNT
        cursor = b"-"
        total = 0
        keep = len(last) + 256
        tail = b""
        with self.connect_socket() as connected:
            start = time.perf_counter_ns()
            while total < count:
                connected.sendall(command(b"XRANGE", topic, cursor, b"+", b"COUNT", asked) + command(b"PING"))
                head = tail = b""
                while not tail.endswith(mark):
                    received = connected.recv_into(view)
                    if not received:
                        raise BenchFailure("redis-server closed the connection")
                    if sink is not None:
                        sink(view[:received])
                    if len(head) < 32:
                        head += view[: min(32, received)].tobytes()
                    tail = (tail + view[max(0, received - keep) : received].tobytes())[-keep:]
                number = int(head[1 : head.index(b"\r\n")])
                total += number
                if not number:
                    break
                # The last entry starts with its id: array of two, id, array of two, field, body.
                entry = tail.rindex(b"*2\r\n$1\r\nb\r\n")
                cursor = b"(" + tail[:entry].split(b"\r\n")[-2]
            end = time.perf_counter_ns()
        if total != count or last not in tail:
            raise BenchFailure(f"redis-server replayed {total} of {count} messages")
        return start, end

    def decode(self, kind: Kind, data: bytes) -> tuple[list[bytes], int]:
        bodies: list[bytes] = []
        at = 0
        while at < len(data):
            try:
                reply, at = parse_reply(data, at)
            except Incomplete:
                break
            match reply:
                case [b"message", _, bytes(body)]:
                    bodies.append(body)
                case [[bytes(), [*entries]]] if kind is Kind.WORK_QUEUE:
                    bodies += _bodies_of(entries)
                case [bytes(), [*several]] if kind.shared:
                    bodies += [body for body in several if isinstance(body, bytes)]
                case [*entries] if kind.stored:
                    bodies += _bodies_of(entries)
                case b"PONG" | int():
                    pass
                case _:
                    raise BenchFailure(f"redis-server said {reply!r}")
        return bodies, at


def _bodies_of(entries: Sequence[Reply]) -> Iterator[bytes]:
    """Yield the bodies of entries of a stream."""
    for entry in entries:
        match entry:
            case [bytes(), [b"b", bytes(body)]]:
                yield body
            case _:
                raise BenchFailure(f"redis-server said {entry!r}")


def _read_group(connected: socket.socket, topic: bytes) -> bytes:
    """Return the request for more messages of the worker with this connection."""
    worker = b"worker-%d" % connected.fileno()
    count = b"%d" % POP_COUNT
    words = (b"GROUP", _GROUP, worker, b"COUNT", count, b"BLOCK", b"0", b"STREAMS", topic, b">")
    return command(b"XREADGROUP", *words)
