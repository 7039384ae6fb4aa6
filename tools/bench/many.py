"""Loads with thousands of topics, a hundred publishers, or bursts."""

import select
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from around import around, first_round, rounds, topic_names
from cases import confirmation, cores, latency
from in_turn import in_turn
from measure import (
    Due,
    Sample,
    Settings,
    parts_for,
    publish_for,
    publish_stored,
    receive_live,
    server,
    wait_for_room,
)
from report import LOST, MICROSECONDS, MICROSECONDS_EACH, RATE, SECONDS
from systems import CHUNK_OCTETS, RECEIVE_OCTETS, SOCKET_SECONDS, Chunk, Kind, System, make_body
from workers import Begin, BenchFailure, SharedCounters, Span, Task, cpu_seconds, run_beside

IDLE_CONNECTIONS = 1000
"""The number of connections beside the two that latency is measured with."""

BURST_OCTETS = 47 * 10**6
"""Bodies of a burst, from all its publishers together."""

CROWD = 100
"""The number of publishers where there are many."""

WORKERS = 4
"""The number of workers of many round-robin topics."""

STEADY_OCTETS = 64 << 10
STEADY_PAUSE = 0.005
"""The octets that the steady subscriber of a burst reads at a time, and its pause after each read, in
seconds.
"""

GIVE_UP_SECONDS = 3.0
"""The number of seconds without a message after which the subscriber of a burst takes the rest for lost."""


@dataclass(frozen=True)
class Case:
    """The subject of a measurement, the kind of topic, and the unit of the figure."""

    kind: Kind
    unit: str
    take: Callable[[System, Settings, int], Sample]


# -- publishing to many topics ------------------------------------------------------------------------------


def shares(system: System, kind: Kind, connections: int, topics: int, size: int) -> list[Chunk]:
    """Return a buffer for each of N (`connections`) connections: whole rounds of its own `topics` topics."""
    names = topic_names(connections * topics)
    octets = CHUNK_OCTETS // connections
    return [
        rounds(system, names[place * topics : (place + 1) * topics], size, kind, octets, place)
        for place in range(connections)
    ]


def publish_crowd(
    system: System,
    kind: Kind,
    chunks: Sequence[Chunk],
    topics: Sequence[bytes],
    board: SharedCounters,
    seconds: float,
    subscribers: int,
    window_octets: int,
    begin: Begin,
) -> Span:
    """Publish the chunks again and again, each on a connection of its own, until the time is over and the
    server has taken everything.

    Without subscribers the topics are stored, and hold everything in the end.
    """
    publishers = [system.publisher(kind, topics[0], place) for place in range(len(chunks))]
    each = sum(chunk.messages for chunk in chunks)
    window = max(2 * each, window_octets // chunks[0].size)
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    for sent in parts_for(seconds, each, board):
        if subscribers:
            wait_for_room(board, kind, subscribers, sent - window)
        for publisher, chunk in zip(publishers, chunks, strict=True):
            publisher.send(chunk.data, chunk.messages)
    for publisher, chunk in zip(publishers, chunks, strict=True):
        publisher.confirm(chunk.messages * (sent // each), None)
    end = time.perf_counter_ns()
    if kind.stored and (held := system.held_in(topics)) != sent:
        raise BenchFailure(f"{held} messages are held, {sent} were published")
    return Span(start, end, sent, cpu_seconds() - cpu, {})


def crowd(system: System, settings: Settings, size: int, kind: Kind, connections: int, topics: int) -> Sample:
    """Publish on many connections, each to topics of its own; measure messages a second.

    Transient: until one subscriber of all topics has everything. Stored: until everything is confirmed.
    """
    names = topic_names(connections * topics)
    subscribers = 0 if kind.stored else 1
    seconds = settings.weak_seconds if kind.stored else settings.seconds
    with server(system, kind, settings, names):
        chunks = shares(system, kind, connections, topics, size)
        board = SharedCounters()
        publish = partial(publish_crowd, system, kind, chunks, names, board, seconds, subscribers, 4 << 20)
        tasks: dict[str, Task] = {"publisher": publish}
        if subscribers:
            due = Due(names, 1, False)
            tasks["receiver"] = partial(receive_live, system, kind, chunks[0], board, 1, due)
        spans, used = run_beside(system.cpu_seconds, tasks, seconds + 6 * SOCKET_SECONDS)
    sent = spans["publisher"]
    elapsed = (max(span.end for span in spans.values()) - sent.start) / 1e9
    load = cores(sum(span.cpu_seconds for span in spans.values()), elapsed)
    counted = f"{sent.messages} published over {connections} connections, all received or held"
    return Sample(sent.messages / elapsed, sent.messages, elapsed, counted, cores(used, elapsed), load)


def queues(system: System, settings: Settings, size: int, kind: Kind, count: int) -> Sample:
    """Publish round many round-robin topics over one connection until WORKERS workers, each of all of them,
    have everything together; measure messages a second.
    """
    topics = topic_names(count)
    due = Due(topics, 1, False)
    with server(system, kind, settings, topics):
        chunk = rounds(system, topics, size, kind)
        board = SharedCounters()
        spans, used = run_beside(
            system.cpu_seconds,
            {
                "receiver": partial(receive_live, system, kind, chunk, board, WORKERS, due),
                "publisher": partial(publish_for, system, kind, chunk, board, settings.seconds, WORKERS, due),
            },
            settings.seconds + 3 * SOCKET_SECONDS,
        )
    sent, got = spans["publisher"], spans["receiver"]
    seconds = (max(sent.end, got.end) - sent.start) / 1e9
    load = cores(sent.cpu_seconds + got.cpu_seconds, seconds)
    counted = f"{got.messages} received of {sent.messages} published"
    return Sample(
        sent.messages / seconds, sent.messages, seconds, counted, cores(used, seconds), load, got.detail
    )


def ingest_round(system: System, settings: Settings, size: int, kind: Kind, count: int) -> Sample:
    """Publish round many stored topics over one connection until confirmed; measure messages a second."""
    topics = topic_names(count)
    seconds = settings.weak_seconds if kind is Kind.WEAK else settings.seconds
    with server(system, kind, settings, topics) as directory:
        free = shutil.disk_usage(directory).free // 4
        most = min(settings.limit_octets, free) // size
        chunk = rounds(system, topics, size, kind)
        task = partial(publish_stored, system, kind, chunk, seconds, chunk.messages, most, 0)
        spans, used = run_beside(system.cpu_seconds, {"publisher": task}, seconds + 6 * SOCKET_SECONDS)
        span: Span = spans["publisher"]
    elapsed = (span.end - span.start) / 1e9
    counted = f"{span.messages} published, confirmed and held"
    load = cores(span.cpu_seconds, elapsed)
    return Sample(span.messages / elapsed, span.messages, elapsed, counted, cores(used, elapsed), load)


def first_messages(system: System, settings: Settings, size: int, count: int) -> Sample:
    """Measure the first message to each of many declared topics, confirmed 500 at a time,
    microseconds each.
    """
    topics = topic_names(count)
    with server(system, Kind.LIVE, settings, topics):
        seconds = first_round(system, topics)
    return Sample(seconds / count * 1e6, count, seconds, f"{count} published and confirmed")


# -- starting, and latency beside idle connections ----------------------------------------------------------


def start(system: System, settings: Settings, size: int) -> Sample:
    """Measure the seconds from the start of the process, on a store that it has made before, to its first
    answer.
    """
    with server(system, Kind.WEAK, settings) as directory:
        system.stop()
        begun = time.perf_counter()
        system.start(directory, Kind.WEAK)
        system.idle().close()
        seconds = time.perf_counter() - begun
    return Sample(seconds, 0, seconds, "started again, and answered")


def latency_beside(system: System, settings: Settings, size: int) -> Sample:
    """Measure latency as that case does, beside many idle connections."""
    return latency(system, settings, size, IDLE_CONNECTIONS)


# -- bursts -------------------------------------------------------------------------------------------------


def receive_burst(
    system: System,
    topics: Sequence[bytes],
    subscribers: int,
    pause: float,
    board: SharedCounters,
    begin: Begin,
) -> Span:
    """Receive as fast as the sockets give, and count afterwards what has arrived at the worst subscriber.

    With a `pause`, receive a little at a time, and pause after it.
    """
    sockets = [system.subscribe(Kind.LIVE, topics) for _ in range(subscribers)]
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    parts: dict[int, list[bytes]] = {each.fileno(): [] for each in sockets}
    by_number = {each.fileno(): each for each in sockets}
    poll = select.epoll()
    for descriptor in by_number:
        poll.register(descriptor, select.EPOLLIN)
    end = start
    quiet_since = time.monotonic()
    while by_number:
        events = poll.poll(0.1)
        now = time.monotonic()
        if not events and board.target and now - quiet_since > GIVE_UP_SECONDS:
            break
        for descriptor, _ in events:
            try:
                part = by_number[descriptor].recv(STEADY_OCTETS if pause else RECEIVE_OCTETS)
            except ConnectionResetError:
                part = b""
            if not part:
                poll.unregister(descriptor)
                by_number.pop(descriptor).close()
                continue
            parts[descriptor].append(part)
            quiet_since = now
            end = time.perf_counter_ns()
            time.sleep(pause)
    used = cpu_seconds() - cpu
    counts = [system.count(b"".join(each)) for each in parts.values()]
    return Span(start, end, min(counts), used, {"cut off": float(subscribers - len(by_number))})


def publish_burst(
    system: System, topics: Sequence[bytes], size: int, board: SharedCounters, begin: Begin
) -> Span:
    """Publish all of a burst over many connections as fast as they take it; each has topics of its own."""
    count = CROWD
    publishers = [system.publisher(Kind.LIVE, topics[0], place) for place in range(count)]
    messages = BURST_OCTETS // size // count
    data = []
    for place in range(count):
        own = topics[place::count] or (topics[place % len(topics)],)
        bodies = [make_body(number, size) for number in range(messages)]
        data.append(
            memoryview(
                b"".join(
                    system.encode(Kind.LIVE, own[number % len(own)], body)
                    for number, body in enumerate(bodies)
                )
            )
        )
    poll = select.epoll()
    places: dict[int, int] = {}
    for place, publisher in enumerate(publishers):
        publisher.socket.setblocking(False)
        places[publisher.socket.fileno()] = place
    begin()
    cpu = cpu_seconds()
    start = time.perf_counter_ns()
    for descriptor in places:
        poll.register(descriptor, select.EPOLLOUT)
    waiting = len(places)
    while waiting:
        for descriptor, _ in poll.poll(SOCKET_SECONDS):
            place = places[descriptor]
            data[place] = data[place][send_some(publishers[place].socket, data[place]) :]
            if not data[place]:
                poll.unregister(descriptor)
                waiting -= 1
    for publisher in publishers:
        publisher.socket.settimeout(SOCKET_SECONDS)
        publisher.confirm(messages, None)
    board.target = messages * count
    return Span(start, time.perf_counter_ns(), messages * count, cpu_seconds() - cpu, {})


def send_some(connected: socket.socket, data: memoryview) -> int:
    """Send the octets that the socket accepts now, at most one buffer."""
    try:
        return connected.send(data[:CHUNK_OCTETS])
    except BlockingIOError:
        return 0


def burst(
    system: System, settings: Settings, size: int, count: int, subscribers: int = 1, pause: float = 0.0
) -> Sample:
    """Return the percentage of a burst that a constantly reading subscriber did not receive: the worst of
    several subscribers.
    """
    topics = topic_names(count)
    with server(system, Kind.LIVE, settings, topics):
        board = SharedCounters()
        spans, used = run_beside(
            system.cpu_seconds,
            {
                "receiver": partial(receive_burst, system, topics, subscribers, pause, board),
                "publisher": partial(publish_burst, system, topics, size, board),
            },
            6 * SOCKET_SECONDS,
        )
    sent, got = spans["publisher"], spans["receiver"]
    seconds = (max(got.end, sent.end) - sent.start) / 1e9
    lost = 100.0 * (sent.messages - got.messages) / sent.messages
    counted = f"{got.messages} of {sent.messages} arrived in {seconds:.1f} s"
    if got.detail["cut off"]:
        counted += f", {got.detail['cut off']:.0f} of {subscribers} cut off"
    load = cores(sent.cpu_seconds + got.cpu_seconds, seconds)
    return Sample(lost, sent.messages, seconds, counted, cores(used, seconds), load)


THOUSANDS = {"1k": 1_000, "10k": 10_000}

CASES: dict[str, Case] = {
    **{
        f"topics-{word}{'-all' if every else '-one'}": Case(
            Kind.LIVE, RATE, partial(around, count=count, subscribed_to_all=every)
        )
        for every in (True, False)
        for word, count in THOUSANDS.items()
    },
    **{
        f"topics-{level}-{word}": Case(kind, RATE, partial(ingest_round, kind=kind, count=count))
        for level, kind in (("weak", Kind.WEAK), ("strong", Kind.STRONG))
        for word, count in THOUSANDS.items()
    },
    **{
        f"queues{level}-{word}": Case(kind, RATE, partial(queues, kind=kind, count=count))
        for level, kind in (("", Kind.ROUND_ROBIN), ("-weak", Kind.ROUND_ROBIN_WEAK))
        for word, count in THOUSANDS.items()
    },
    **{
        f"crowd{level}-{word}": Case(
            kind, RATE, partial(crowd, kind=kind, connections=CROWD, topics=count // CROWD)
        )
        for level, kind in (("", Kind.LIVE), ("-weak", Kind.WEAK))
        for word, count in THOUSANDS.items()
    },
    **{
        f"in-turn-{clients}": Case(Kind.LIVE, RATE, partial(in_turn, clients=clients))
        for clients in (16, 256)
    },
    "burst-1": Case(Kind.LIVE, LOST, partial(burst, count=1)),
    "burst-1-to-8": Case(Kind.LIVE, LOST, partial(burst, count=1, subscribers=8)),
    "burst-100": Case(Kind.LIVE, LOST, partial(burst, count=100)),
    "burst-1k": Case(Kind.LIVE, LOST, partial(burst, count=1_000)),
    "burst-100-steady": Case(Kind.LIVE, LOST, partial(burst, count=100, pause=STEADY_PAUSE)),
    "latency-beside-1k": Case(Kind.LIVE, MICROSECONDS, latency_beside),
    "confirm-strong": Case(Kind.STRONG, MICROSECONDS, confirmation),
    "first-10k": Case(Kind.LIVE, MICROSECONDS_EACH, partial(first_messages, count=10_000)),
    "start": Case(Kind.WEAK, SECONDS, start),
}
"""By their names, in the order in which they are measured."""

EPILOG = """\
many topics and connections (--many):
  topics-N-all, -one   published round N transient topics, one subscriber of all of them, or of one
  topics-weak-N        published round N stored topics until confirmed
  topics-strong-N      the same, every confirmation after an fsync (omq alone, and Redis)
  queues-N             published round N transient round-robin topics; four workers, each of all of them
  queues-weak-N        the same, stored until they are done (the peers do not store)
  crowd-N              100 publishers with transient topics of their own, N together; a subscriber of all
  crowd-weak-N         100 publishers with stored topics of their own, until confirmed
  in-turn-N            N clients, each of which publishes the next message when the last one has arrived
  burst-N              47 MB from 100 publishers to N transient topics, as fast as they are taken: how much
                       of it a subscriber that always reads did not get (-to-8: the worst of 8)
  burst-100-steady     the same to a subscriber that reads 64 KiB every five milliseconds
  latency-beside-1k    the case latency beside 1,000 idle connections
  confirm-strong       one message after another, each confirmed after an fsync: median and 99th percentile,
                       and the median of one flush of the same disk (omq-lines, and Redis)
  first-10k            the first message to each of 10,000 topics
  start                from the start of the process to its first answer
"""
