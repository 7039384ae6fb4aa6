"""The parts of measurements: a server with an empty directory, publishers, and receivers that count."""

import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from systems import RECEIVE_OCTETS, SOCKET_SECONDS, Chunk, Kind, System
from work import work
from workers import Begin, BenchFailure, SharedCounters, Span, cpu_seconds

TOPIC = b"bench"

WINDOW_OCTETS = 4 * 1024 * 1024
"""The octets of bodies that a live publisher may run ahead of its slowest subscriber.

Core NATS and Redis cut off a subscriber that falls behind too far. The same bound for every system keeps all
of them below that, so that nothing is lost and what is counted is what arrived.
"""

QUIET_SECONDS = 0.05
"""The number of seconds that a receiver listens on after the last message, for messages that should not be
there.
"""


@dataclass(frozen=True)
class Settings:
    """The duration and the size of a measurement."""

    seconds: float
    weak_flush_seconds: float
    stored_octets: int
    limit_octets: int
    latency_rate: int
    directory: Path

    @property
    def weak_seconds(self) -> float:
        """A Weak ingest lasts for at least five flush intervals."""
        return max(self.seconds, 5.2 * self.weak_flush_seconds)


@dataclass(frozen=True)
class Due:
    """The messages that each subscriber must get of those that are published.

    It subscribes to `topics`, and gets one of every `every` messages. `ordered` says whether they must come
    in the order of publication, so that the first and the last of them can be compared. Each topic has had
    `before` messages already.
    """

    topics: tuple[bytes, ...] = (TOPIC,)
    every: int = 1
    ordered: bool = True
    before: int = 0


EVERYTHING = Due()
"""The topic there is, and all of its messages."""


@dataclass
class Sample:
    """One run's figure. `counted` says what was compared to be sure that nothing was lost or invented."""

    value: float
    messages: int
    seconds: float
    counted: str
    server_cores: float = 0.0
    load_cores: float = 0.0
    detail: dict[str, float] = field(default_factory=dict)


@contextmanager
def server(
    system: System, kind: Kind, settings: Settings, topics: Sequence[bytes] = (TOPIC,)
) -> Iterator[Path]:
    """Yield a running server with an empty directory, which is always removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="omq-bench-", dir=settings.directory))
    try:
        system.start(directory, kind)
        try:
            system.declare(kind, topics)
            yield directory
        except BenchFailure as failure:
            process = system.process
            ended = process is not None and process.poll() is not None
            state = "the server has ended" if ended else "the server runs"
            raise BenchFailure(f"{failure} ({state}; its log: {system.log_tail()})") from failure
    finally:
        system.stop()
        shutil.rmtree(directory)


# -- publishing ---------------------------------------------------------------------------------------------


def publish_for(
    system: System,
    kind: Kind,
    chunk: Chunk,
    board: SharedCounters,
    seconds: float,
    subscribers: int,
    due: Due,
    begin: Begin,
) -> Span:
    """Publish chunk after chunk to live subscribers, never more than the window ahead of them."""
    publisher = system.publisher(kind, TOPIC)
    window = max(2 * chunk.messages, WINDOW_OCTETS // chunk.size)
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    for sent in parts_for(seconds, chunk.messages, board):
        wait_for_room(board, kind, subscribers, (sent - window) // due.every)
        publisher.send(chunk.data, chunk.messages)
    publisher.confirm(sent, sent if kind.stored else None)
    return Span(start, time.perf_counter_ns(), sent, cpu_seconds() - cpu, {})


def parts_for(seconds: float, messages: int, board: SharedCounters) -> Iterator[int]:
    """Yield before each part of N `messages` the number of messages sent with it, until the time is over.

    Receivers are told the sum before the last part is sent, so that they know it before the end can reach
    them.
    """
    deadline = time.perf_counter_ns() + int(seconds * 1e9)
    sent, is_last = 0, False
    while not is_last:
        sent += messages
        is_last = time.perf_counter_ns() >= deadline
        if is_last:
            board.target = sent
        yield sent


def wait_for_room(board: SharedCounters, kind: Kind, subscribers: int, needed: int) -> None:
    """Wait until the slowest subscriber has this many messages, or all together where they share them."""
    best, since = -1, time.monotonic()
    while True:
        received = board.received(subscribers)
        slowest = sum(received) if kind.shared else min(received)
        if slowest >= needed:
            return
        if slowest > best:
            best, since = slowest, time.monotonic()
        elif time.monotonic() - since > SOCKET_SECONDS:
            raise BenchFailure(f"subscribers stopped at message {slowest}; {needed} were due")
        time.sleep(0.0001)


def publish_stored(
    system: System, kind: Kind, chunk: Chunk, seconds: float, least: int, most: int, held: int, begin: Begin
) -> Span:
    """Publish for a time, at `least` and at `most` N messages; the end is the confirmation of all.

    `held` is how many messages the topic has already.
    """
    publisher = system.publisher(kind, TOPIC)
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    deadline = start + int(seconds * 1e9)
    sent = 0
    while sent < least or (sent < most and time.perf_counter_ns() < deadline):
        publisher.send(chunk.data, chunk.messages)
        sent += chunk.messages
    publisher.confirm(sent, held + sent)
    return Span(start, time.perf_counter_ns(), sent, cpu_seconds() - cpu, {})


# -- receiving ----------------------------------------------------------------------------------------------


def receive_live(
    system: System, kind: Kind, chunk: Chunk, board: SharedCounters, subscribers: int, due: Due, begin: Begin
) -> Span:
    """Count the messages that arrive at the subscribers until all published ones are there."""
    sockets = [system.subscribe(kind, due.topics) for _ in range(subscribers)]
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    if kind is Kind.WORK_QUEUE:
        end, shares = work(system, TOPIC, board, sockets)
    elif kind.shared and (pulled := system.pull_loop(sockets, TOPIC, chunk.size, board)) is not None:
        end, shares = pulled
    else:
        end, shares = count_frames(system, kind, chunk, board, sockets, due)
    used = cpu_seconds() - cpu
    detail = {f"subscriber {place + 1}": float(share) for place, share in enumerate(shares)}
    return Span(start, end, sum(shares), used, detail)


def count_frames(
    system: System,
    kind: Kind,
    chunk: Chunk,
    board: SharedCounters,
    sockets: Sequence[socket.socket],
    due: Due,
) -> tuple[int, list[int]]:
    """Read and count octets only: every message takes equally many. Then look at both ends of each stream.

    Returns the moment at which everything was there, and how many messages each subscriber got.
    """
    first = system.delivered(kind, due.topics[0], chunk.first, due.before + 1)
    size = len(first)
    subscribers = len(sockets)
    view = memoryview(bytearray(RECEIVE_OCTETS))
    octets = [0] * subscribers
    heads = [b""] * subscribers
    tails = [b""] * subscribers
    places = {each.fileno(): place for place, each in enumerate(sockets)}
    poll = select.epoll()
    for descriptor in places:
        poll.register(descriptor, select.EPOLLIN)
    end = 0
    finished_at = 0.0
    last_progress = time.monotonic()

    while True:
        events = poll.poll(0.02)
        now = time.monotonic()
        if finished_at and not events and now - finished_at > QUIET_SECONDS:
            break
        for descriptor, _ in events:
            place = places[descriptor]
            count = sockets[place].recv_into(view)
            if not count and finished_at:
                # Everything was there already, as when the other end has no more to do.
                poll.unregister(descriptor)
                continue
            if not count:
                got = octets[place] // size
                raise BenchFailure(
                    f"a subscriber was cut off with {got} of {board.target // due.every or 'more'} messages"
                )
            last_progress = now
            if octets[place] < size:
                heads[place] += view[: min(count, size)].tobytes()
            octets[place] += count
            board.set_received(place, octets[place] // size)
            if board.target:
                # Near the end: keep the last octets of each stream, to compare them below.
                tails[place] = (tails[place] + view[max(0, count - 2 * size) : count].tobytes())[-2 * size :]
        target = board.target // due.every
        if target and not finished_at:
            counts = [each // size for each in octets]
            if (sum(counts) if kind.shared else min(counts)) >= target:
                end = time.perf_counter_ns()
                finished_at = now
        if now - last_progress > SOCKET_SECONDS:
            shown = tails[octets.index(min(octets))][-200:]
            counted = [each // size for each in octets]
            raise BenchFailure(
                f"messages were lost: {counted} arrived of {target}, the last octets {shown!r}"
            )

    counts = [each // size for each in octets]
    for place, each in enumerate(octets):
        # The excess must be whole pings, and few of them.
        if (each % size) % system.stray_octets:
            raise BenchFailure(
                f"subscriber {place + 1} got {each} octets, which are no whole messages of {size}"
            )
    if kind.shared:
        if sum(counts) != target:
            raise BenchFailure(f"{sum(counts)} messages arrived, {target} were published")
        return end, counts
    last = system.delivered(kind, due.topics[0], chunk.last, due.before + target)
    for place in range(subscribers):
        if counts[place] != target:
            raise BenchFailure(f"subscriber {place + 1} got {counts[place]} messages of {target}")
        if not due.ordered:
            continue
        if not heads[place].startswith(first) or last not in tails[place]:
            raise BenchFailure(f"subscriber {place + 1} got another first or last message than was published")
    return end, counts
