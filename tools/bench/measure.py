"""The measurements: each starts a server with an empty directory, lets it do one kind of work, and counts."""

import os
import resource
import select
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from systems import RECEIVE_OCTETS, SOCKET_SECONDS, Chunk, Kind, System
from work import work
from workers import Begin, BenchFailure, SharedCounters, Span, Task, cpu_seconds, run_beside, run_together

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
    """Yield a running server with an empty directory, which is gone afterwards whatever happens."""
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
    """Yield before each part of N `messages` how many will be sent with it, until the time is over.

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
    """Count what arrives at the subscribers until all that was published is there."""
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


# -- the cases ----------------------------------------------------------------------------------------------


def cores(seconds_used: float, span_seconds: float) -> float:
    return seconds_used / span_seconds if span_seconds > 0 else 0.0


def live(system: System, settings: Settings, size: int, kind: Kind, subscribers: int) -> Sample:
    """Publish until every subscriber (or one, round-robin) has received; measure messages a second."""
    with server(system, kind, settings):
        chunk = system.chunk(kind, TOPIC, size)
        board = SharedCounters()
        spans, used = run_beside(
            system.cpu_seconds,
            {
                "receiver": partial(receive_live, system, kind, chunk, board, subscribers, EVERYTHING),
                "publisher": partial(
                    publish_for, system, kind, chunk, board, settings.seconds, subscribers, EVERYTHING
                ),
            },
            settings.seconds + 3 * SOCKET_SECONDS,
        )
    sent, got = spans["publisher"], spans["receiver"]
    seconds = (got.end - sent.start) / 1e9
    counted = f"{got.messages} deliveries of {sent.messages} published"
    load = cores(sent.cpu_seconds + got.cpu_seconds, seconds)
    value = sent.messages / seconds
    return Sample(value, sent.messages, seconds, counted, cores(used, seconds), load, got.detail)


def ingest(system: System, settings: Settings, size: int, kind: Kind) -> Sample:
    """Publish until all of it is confirmed; measure messages a second."""
    seconds = settings.weak_seconds if kind is Kind.WEAK else settings.seconds
    with server(system, kind, settings) as directory:
        free = shutil.disk_usage(directory).free // 4
        most = min(settings.limit_octets, free) // size
        chunk = system.chunk(kind, TOPIC, size)
        task = partial(publish_stored, system, kind, chunk, seconds, chunk.messages, most, 0)
        spans, used = run_beside(system.cpu_seconds, {"publisher": task}, seconds + 6 * SOCKET_SECONDS)
        span: Span = spans["publisher"]
        files = sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())
    elapsed = (span.end - span.start) / 1e9
    if kind is Kind.WEAK and span.messages >= most:
        raise BenchFailure(f"the bound of {most} messages was reached after {elapsed:.1f} s of {seconds:.1f}")
    counted = f"{span.messages} published, confirmed and held"
    return Sample(
        span.messages / elapsed,
        span.messages,
        elapsed,
        counted,
        cores(used, elapsed),
        cores(span.cpu_seconds, elapsed),
        {"octets in files": float(files)},
    )


def fill(
    system: System, chunk: Chunk, messages: int, held: int = 0, watch: Callable[[], None] | None = None
) -> int:
    """Store more messages (whole chunks) in a Weak topic, confirmed. Return how many it has then."""
    task = partial(publish_stored, system, Kind.WEAK, chunk, 0.0, messages, messages, held)
    span: Span = run_together({"publisher": task}, 10 * SOCKET_SECONDS, watch)["publisher"]
    return held + span.messages


def replay_task(system: System, count: int, last: bytes, begin: Begin) -> Span:
    begin()
    cpu = cpu_seconds()
    start, end = system.replay(TOPIC, count, last, None)
    return Span(start, end, count, cpu_seconds() - cpu, {})


def replay_once(system: System, count: int, last: bytes) -> Sample:
    task: Task = partial(replay_task, system, count, last)
    spans, used = run_beside(system.cpu_seconds, {"reader": task}, 6 * SOCKET_SECONDS)
    span: Span = spans["reader"]
    seconds = (span.end - span.start) / 1e9
    counted = f"{count} stored, {count} replayed"
    load = cores(span.cpu_seconds, seconds)
    return Sample(count / seconds, count, seconds, counted, cores(used, seconds), load)


def write_back(directory: Path, drop: bool) -> None:
    """Have the kernel write the files out; with `drop`, also ask it to forget their pages."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                if drop:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def replay(system: System, settings: Settings, size: int, cold: bool) -> Sample:
    """Read a stored topic from its beginning, messages a second: warm, or cold after a restart."""
    with server(system, Kind.WEAK, settings) as directory:
        chunk = system.chunk(Kind.WEAK, TOPIC, size)
        count = fill(system, chunk, settings.stored_octets // size)
        # The flush that the last messages are still waiting for is not part of a replay.
        time.sleep(min(2.5, 1.25 * settings.weak_flush_seconds))
        if cold:
            system.stop()
            write_back(directory, drop=True)
            system.start(directory, Kind.WEAK)
        else:
            write_back(directory, drop=False)
            replay_once(system, count, chunk.last)
        return replay_once(system, count, chunk.last)


def latency_task(system: System, size: int, rate: int, seconds: float, begin: Begin) -> list[int]:
    """Publish and receive in one process, so that both moments come from one clock; nanoseconds one way."""
    receiver = system.subscribe(Kind.LIVE, [TOPIC])
    publisher = system.publisher(Kind.LIVE, TOPIC)
    begin()
    warm_up = max(10, rate // 10)
    total = warm_up + max(20, int(rate * seconds))
    step = 1_000_000_000 // rate
    taken: list[int] = []
    data = b""
    sent = 0
    begun = time.perf_counter_ns()
    limit = begun + int((total / rate + SOCKET_SECONDS) * 1e9)
    while len(taken) < total:
        now = time.perf_counter_ns()
        if now > limit:
            raise BenchFailure(f"{len(taken)} of {total} messages arrived")
        due = begun + sent * step
        if sent < total and now >= due:
            stamp = b"%020d" % time.perf_counter_ns()
            publisher.send(system.encode(Kind.LIVE, TOPIC, stamp.ljust(size, b"x")), 1)
            sent += 1
            due += step
        wait = max(0.0, (due - time.perf_counter_ns()) / 1e9) if sent < total else 1.0
        if select.select([receiver], [], [], wait)[0]:
            part = receiver.recv(65536)
            arrived = time.perf_counter_ns()
            if not part:
                raise BenchFailure("the subscriber was cut off")
            bodies, used = system.decode(Kind.LIVE, data + part)
            data = (data + part)[used:]
            taken += [arrived - int(body[:20]) for body in bodies]
    if len(taken) != total:
        raise BenchFailure(f"{len(taken)} messages arrived, {total} were published")
    return taken[warm_up:]


def latency(system: System, settings: Settings, size: int, idle: int = 0) -> Sample:
    """Measure from before the publishing system call to after the receiving one, microseconds.

    So many idle connections stand beside.
    """
    allow_descriptors(idle)
    with server(system, Kind.LIVE, settings), ExitStack() as opened:
        for _ in range(idle):
            opened.enter_context(system.idle())
        task = partial(latency_task, system, size, settings.latency_rate, settings.seconds)
        results, used = run_beside(
            system.cpu_seconds, {"client": task}, settings.seconds + 3 * SOCKET_SECONDS
        )
        taken: list[int] = results["client"]
    ordered = sorted(taken)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1000
    median = statistics.median(ordered) / 1000
    seconds = len(taken) / settings.latency_rate
    detail = {"p99": p99, "longest": ordered[-1] / 1000}
    counted = f"{len(taken)} stamped, {len(taken)} arrived"
    return Sample(median, len(taken), seconds, counted, cores(used, seconds), detail=detail)


def allow_descriptors(connections: int) -> None:
    """Raise the limit of open files for this process, and for the server that inherits it."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    if allowed < connections + 100:
        raise BenchFailure(f"this process may open {allowed} files, too few for {connections} connections")


def connections(system: System, count: int, settings: Settings) -> Sample:
    """Measure what each of many connections costs the server that have introduced themselves and do nothing
    more.

    The first ones, for which the server also imports and allocates what all connections share, do not count.
    """
    allow_descriptors(count)
    first = min(10, count // 2)
    with server(system, Kind.LIVE, settings), ExitStack() as opened:
        for _ in range(first):
            opened.enter_context(system.idle())
        time.sleep(0.5)
        before = system.memory()[1]
        for _ in range(count - first):
            opened.enter_context(system.idle())
        time.sleep(0.5)
        resident, anonymous = system.memory()
    each = (anonymous - before) / (count - first)
    detail = {"RSS": float(resident), "RssAnon": float(anonymous)}
    return Sample(each, 0, 0.0, f"{count} connections, RssAnon {anonymous / 2**20:.0f} MiB", detail=detail)


def memory(system: System, settings: Settings, size: int) -> dict[str, Sample]:
    """Measure memory idle, with stored messages, with four times as many, with a subscriber that does not
    read.
    """
    found: dict[str, Sample] = {}
    highest = 0

    def watch() -> None:
        nonlocal highest
        highest = max(highest, system.memory()[1])

    def note(case: str, counted: str) -> None:
        nonlocal highest
        time.sleep(0.5)
        watch()
        resident, anonymous = system.memory()
        detail = {"RSS": float(resident), "RssAnon": float(anonymous), "highest RssAnon": float(highest)}
        # Idle, all that is resident counts; later that would include the files that the server maps.
        value = resident if case == "memory-idle" else anonymous
        found[case] = Sample(float(value), 0, 0.0, counted, detail=detail)
        highest = 0

    with server(system, Kind.WEAK, settings):
        chunk = system.chunk(Kind.WEAK, TOPIC, size)
        note("memory-idle", "no messages")
        once = settings.stored_octets // size
        held = fill(system, chunk, once, 0, watch)
        note("memory-stored", f"{held} messages stored")
        held = fill(system, chunk, 3 * once, held, watch)
        note("memory-stored-4x", f"{held} messages stored")
        stalled = system.stall(TOPIC)
        if stalled is not None:
            with stalled:
                before = held
                held = fill(system, chunk, 2 * once, held, watch)
                note(
                    "memory-stalled",
                    f"{held} messages stored, {held - before} of them not read",
                )
    return found
