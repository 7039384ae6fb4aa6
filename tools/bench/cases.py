"""The measurements: each starts a server with an empty directory, lets it do one kind of work, and counts."""

import os
import resource
import select
import shutil
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measure import (
    EVERYTHING,
    TOPIC,
    Sample,
    Settings,
    publish_for,
    publish_stored,
    receive_live,
    server,
)
from systems import SOCKET_SECONDS, Chunk, Kind, System
from workers import Begin, BenchFailure, SharedCounters, Span, Task, cpu_seconds, run_beside, run_together

_FLUSHED = 4 << 20
"""Octets of the file whose flushes are compared with confirmations."""


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
    """Store more messages (whole chunks) in a Weak topic, confirmed. Return the new number of stored
    messages.
    """
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
    """Return the microseconds from before the publishing system call to after the receiving one, while N
    (`idle`) other connections are open.
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


def confirm_task(
    system: System, size: int, seconds: float, directory: Path, begin: Begin
) -> tuple[list[int], list[int]]:
    """Publish a message, wait for its confirmation, and flush a file, in turns; nanoseconds of the two.

    The file has all its blocks, so that a flush writes the octets alone.
    """
    publisher = system.publisher(Kind.STRONG, TOPIC)
    encoded = system.encode(Kind.STRONG, TOPIC, b"x" * size)
    with (directory / "flushed").open("w+b", buffering=0) as file:
        file.write(bytes(_FLUSHED))
        os.fsync(file.fileno())
        begin()
        confirmed: list[int] = []
        flushed: list[int] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(confirmed) < 10:
            began = time.perf_counter_ns()
            publisher.send(encoded, 1)
            publisher.confirm(len(confirmed) + 1, None)
            confirmed.append(time.perf_counter_ns() - began)
            began = time.perf_counter_ns()
            os.pwrite(file.fileno(), encoded, len(flushed) * 4096 % _FLUSHED)
            os.fdatasync(file.fileno())
            flushed.append(time.perf_counter_ns() - began)
    return confirmed, flushed


def confirmation(system: System, settings: Settings, size: int) -> Sample:
    """Measure from before the system call that publishes a message to its confirmation, microseconds, and the
    time that one flush of the same disk takes.
    """
    with server(system, Kind.STRONG, settings) as directory:
        task = partial(confirm_task, system, size, settings.seconds, directory)
        results, used = run_beside(
            system.cpu_seconds, {"client": task}, settings.seconds + 3 * SOCKET_SECONDS
        )
    confirmed, flushed = (sorted(each) for each in results["client"])
    count = len(confirmed)
    detail = {
        "p99": confirmed[count * 99 // 100] / 1000,
        "longest": confirmed[-1] / 1000,
        "flush": statistics.median(flushed) / 1000,
    }
    seconds = sum(confirmed) / 1e9
    counted = f"{count} published, {count} confirmed"
    return Sample(
        statistics.median(confirmed) / 1000, count, seconds, counted, cores(used, seconds), detail=detail
    )


def allow_descriptors(connections: int) -> None:
    """Raise the limit of open files for this process, and for the server that inherits it."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    if allowed < connections + 100:
        raise BenchFailure(f"this process may open {allowed} files, too few for {connections} connections")


def connections(system: System, count: int, settings: Settings) -> Sample:
    """Measure the server's cost of each of many idle connections. They only introduce themselves.

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
