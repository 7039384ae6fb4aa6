"""The round trip of a client with small messages: alone, and beside one heavy or hostile neighbour.

The client publishes to a topic that it is subscribed to, some hundred times a second, and measures how long
each message takes to come back. The neighbours run in processes of their own and never pause, unless their
description says how often they do what they do. For the slowest hundredth of the round trips the table says
what they consisted of (`waiting`).
"""

import itertools
import json
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cases import allow_descriptors
from measure import Settings
from neighbours import NEIGHBOURS, Neighbour, Neighbourhood
from omq_load import expect_frame
from report import machine, print_conditions
from systems import SOCKET_SECONDS, Kind, System
from waiting import Parts, ThreadTimes, mean_of_slowest
from workers import BenchFailure, SharedCounters

_FORK = multiprocessing.get_context("fork")

TOPIC = b"small"
MESSAGE = 2
"""The type of a Message frame."""

PAUSE_SECONDS = 0.003
"""Between two messages of the client."""

WARM_UP_SECONDS = 0.5
"""The number of seconds that the neighbours work before the client measures."""


@dataclass
class Figures:
    """Round trips in milliseconds."""

    trips: list[Parts] = field(default_factory=list, repr=False)

    def share(self, share: float) -> float:
        """Return the time within which this share of the round trips ended."""
        ordered = sorted(parts.whole for parts in self.trips)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    def row(self) -> dict[str, float]:
        return {"p50": self.share(0.5), "p99": self.share(0.99), "max": self.share(1.0)}

    def __str__(self) -> str:
        return ", ".join(f"{number:.2f}" for number in self.row().values())


@dataclass
class Case:
    """The figures of the client beside one neighbour."""

    neighbour: Neighbour
    alone: Figures = field(default_factory=Figures)
    beside: Figures = field(default_factory=Figures)
    work: float = 0.0
    """The work of the neighbours in a second of the last run."""
    failure: str | None = None

    @property
    def ratio(self) -> float:
        """The duration of the 99th percentile of the round trips, as a multiple of that alone."""
        return self.beside.share(0.99) / self.alone.share(0.99)


def round_trips(system: System, seconds: float) -> list[Parts]:
    """Measure round trips for N (`seconds`) seconds."""
    trips: list[Parts] = []
    with (
        system.subscribe(Kind.LIVE, [TOPIC]) as client,
        ThreadTimes(system.pid, system.pid) as server,
        ThreadTimes(os.getpid(), os.getpid()) as here,
    ):
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not trips:
            ran, waited = server.milliseconds()
            _, client_waited = here.milliseconds()
            begun = time.perf_counter()
            client.sendall(b"(Publish %s x)\n" % TOPIC)
            if not expect_frame(client, MESSAGE).endswith(b"x"):
                raise BenchFailure("another message came back")
            whole = (time.perf_counter() - begun) * 1e3
            ran_since, waited_since = server.milliseconds()
            _, client_waited_since = here.milliseconds()
            trips.append(
                Parts(whole, ran_since - ran, waited_since - waited, client_waited_since - client_waited)
            )
            time.sleep(PAUSE_SECONDS)
    return trips


@contextmanager
def working(neighbour: Neighbour, where: Neighbourhood) -> Iterator[SharedCounters]:
    """Run the processes of a neighbour during the block. What each has done stands on the board."""
    board = SharedCounters()

    def run(place: int) -> None:
        for done in itertools.accumulate(neighbour.work(where, place)):
            board.set_received(place, done)

    processes = [
        _FORK.Process(target=run, args=(place,), daemon=True) for place in range(neighbour.processes)
    ]
    try:
        for process in processes:
            process.start()
        yield board
        if not all(process.is_alive() for process in processes):
            raise BenchFailure("a neighbour gave up")
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def measure(case: Case, command: Sequence[str], settings: Settings) -> None:
    """Run once: the client alone, then beside the neighbours, with the same server."""
    neighbour = case.neighbour
    allow_descriptors(1000)
    directory = Path(tempfile.mkdtemp(prefix="omq-bench-", dir=settings.directory))
    where = Neighbourhood(command, settings.weak_flush_seconds, directory, settings.stored_octets, neighbour)
    system = where.system
    try:
        system.start(directory, Kind.LIVE)
        try:
            system.declare(Kind.LIVE, [TOPIC])
            neighbour.prepare(where)
            case.alone.trips += round_trips(system, settings.seconds)
            with working(neighbour, where) as board:
                first = time.monotonic() + SOCKET_SECONDS
                while not all(board.received(neighbour.processes)):
                    if time.monotonic() > first:
                        raise BenchFailure("a neighbour does nothing")
                    time.sleep(0.01)
                time.sleep(min(WARM_UP_SECONDS, settings.seconds))
                begun, before = time.monotonic(), sum(board.received(neighbour.processes))
                case.beside.trips += round_trips(system, settings.seconds)
                done = sum(board.received(neighbour.processes)) - before
                case.work = done / (time.monotonic() - begun)
        except (BenchFailure, OSError) as failure:
            raise BenchFailure(f"{failure}; log of the server: {system.log_tail()}") from failure
    finally:
        system.stop()
        shutil.rmtree(directory)


def measure_fairness(
    command: Sequence[str], settings: Settings, names: Sequence[str], runs: int, file: Path | None
) -> int:
    """Measure these neighbours, print a table, and write the figures to a file; the exit status."""
    cases = [Case(neighbour) for neighbour in NEIGHBOURS if neighbour.name in names]
    for _ in range(runs):
        for case in cases:
            try:
                if (absent := case.neighbour.missing()) is not None:
                    raise BenchFailure(absent)
                measure(case, command, settings)
            except BenchFailure as failure:
                case.failure = str(failure)
    print_conditions(settings.directory)
    print(
        "| neighbour | its work a second | alone: p50, p99, max in ms | beside it | p99 against alone "
        "| of the slowest hundredth: server ran, server waited for a processor, client waited for one, rest |"
    )
    print("|---|---|---|---|---|---|")
    for case in cases:
        what = f"| {case.neighbour.what} |"
        if case.failure is not None:
            print(f"{what} {case.failure} | | | | |")
        else:
            work = f"{case.work:,.3g} {case.neighbour.unit}"
            slowest = mean_of_slowest(case.beside.trips)
            print(f"{what} {work} | {case.alone} | {case.beside} | {case.ratio:.1f} times | {slowest} |")
    if file is not None:
        file.write_text(
            json.dumps({"machine": machine(), "cases": [document(case) for case in cases]}, indent=2)
        )
    return 1 if any(case.failure is not None for case in cases) else 0


def document(case: Case) -> dict[str, object]:
    """Return the figures for programs."""
    shown: dict[str, object] = {"neighbour": case.neighbour.name, "failure": case.failure}
    if case.failure is None:
        shown |= {"alone": case.alone.row(), "beside": case.beside.row(), "p99 against alone": case.ratio}
        shown["slowest hundredth"] = mean_of_slowest(case.beside.trips).row()
        shown |= {"round trips": len(case.beside.trips), "work a second": case.work}
        shown["unit of the work"] = case.neighbour.unit
    return shown
