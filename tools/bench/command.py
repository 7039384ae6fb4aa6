"""The command: it measures the chosen cases on the chosen systems, and reports the figures."""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from alone import NoServer
from amqp10_brokers import RouterBroker, TransientSystem
from amqp10_command import measure_amqp10
from amqp_command import measure_amqp
from arguments import KINDS, KINDS_OF_MANY, parse_arguments, rows_of, unit_of
from brokers import Broker, OmqBroker, RabbitBroker
from cases import connections, ingest, latency, live, memory, replay
from check import check_contents, check_systems
from fairness import measure_fairness
from growth_command import measure_growth
from many import CASES as MANY
from measure import WINDOW_OCTETS, Sample, Settings
from nats_load import NatsSystem
from omq_load import OmqLines, OmqPlain, OmqSystem
from redis_load import RedisSystem
from report import Row, amount, document, filesystem, machine, print_conditions, table
from steps import print_steps
from systems import Kind, System, split_command
from workers import BenchFailure

_ROOT = Path(__file__).resolve().parents[2]

SERVE = (
    f"import sys; sys.path[:0] = [{str(_ROOT)!r}, {str(_ROOT / 'storage')!r}]; "
    "from omq.cli.start import serve; serve()"
)
"""The code of the command `omq-server` of this checkout, installed or not."""

ONCE = ("memory", "connections")
"""The cases that are not timed: one run says it."""


def take(case: str, system: System, settings: Settings, size: int, count: int) -> dict[str, Sample]:
    """Run one case once; return the figures by the name of their row. `count` is the number of
    connections.
    """
    if case in MANY:
        return {case: MANY[case].take(system, settings, size)}
    match case:
        case "live-1-1":
            return {case: live(system, settings, size, Kind.LIVE, 1)}
        case "live-1-8":
            return {case: live(system, settings, size, Kind.LIVE, 8)}
        case "round-robin-1-4":
            return {case: live(system, settings, size, Kind.ROUND_ROBIN, 4)}
        case "round-robin-weak-1-4":
            return {case: live(system, settings, size, Kind.ROUND_ROBIN_WEAK, 4)}
        case "work-queue-1-4":
            return {case: live(system, settings, size, Kind.WORK_QUEUE, 4)}
        case "ingest-weak" | "ingest-strong":
            return {case: ingest(system, settings, size, KINDS[case])}
        case "replay-warm" | "replay-cold":
            return {case: replay(system, settings, size, cold=case == "replay-cold")}
        case "latency":
            return {case: latency(system, settings, size)}
        case "connections":
            return {case: connections(system, count, settings)}
        case _:
            return memory(system, settings, size)


def say(text: str) -> None:
    """Print progress to standard error, so that standard output holds the report alone."""
    print(text, file=sys.stderr, flush=True)


class Bench:
    """The rows that come together over the runs."""

    def __init__(
        self, systems: Sequence[System], settings: Settings, cases: Sequence[str], connections: int
    ) -> None:
        self.systems = systems
        self.settings = settings
        self.cases = cases
        self.connections = connections
        self.rows: list[Row] = []
        self.checks: list[str] = []
        self.failed = False

    def row(self, case: str, size: int, system: System) -> Row:
        for row in self.rows:
            if (row.case, row.size, row.system) == (case, size, system.name):
                return row
        kind = (KINDS | KINDS_OF_MANY).get(case, Kind.WEAK)
        row = Row(system.name, case, size, unit_of(case), system.guarantee(kind))
        self.rows.append(row)
        return row

    def check(self) -> None:
        """Compare contents once with every system before anything is measured."""
        checks, failed = check_systems(
            self.systems, lambda system: check_contents(system, self.settings), say
        )
        self.checks += checks
        self.failed |= failed

    def run(self, runs: int, sizes: Sequence[int]) -> None:
        """Run all measurements.

        The systems take turns, so that other load on the machine affects all of them.
        """
        for turn in range(runs):
            for case in self.cases:
                if case in ONCE and turn > 0:
                    continue
                for size in sizes[:1] if case == "connections" else sizes:
                    for system in self.systems:
                        self.run_one(case, size, system, f"run {turn + 1} of {runs}")

    def run_one(self, case: str, size: int, system: System, turn: str) -> None:
        absent = system.lacks(case)
        if absent is not None:
            if system.name in ("omq", "nats", "redis"):
                for name in rows_of(case):
                    self.row(name, size, system).absent = absent
            return
        try:
            found = take(case, system, self.settings, size, self.connections)
        except (BenchFailure, OSError) as failure:
            self.failed = True
            for name in rows_of(case):
                self.row(name, size, system).failure = str(failure) or repr(failure)
            say(f"{turn}: {case}, {size} octets, {system.name}: FAILED: {failure}")
            return
        for name, sample in found.items():
            row = self.row(name, size, system)
            row.samples.append(sample)
            value = amount(sample.value, row.unit)
            say(f"{turn}: {name}, {size} octets, {system.name}: {value} ({sample.counted})")


def explain(settings: Settings, runs: int) -> str:
    """Describe the measurement of the figures."""
    window = WINDOW_OCTETS // 2**20
    return f"""\
Figures are medians of {runs} runs of {settings.seconds:g} s: messages/s where no unit stands, MB/s of bodies.
"to better peer" is above 1 where omq is better. "server" and "load" are the processor cores that the server
and the generators used: a server well below one core (omq is one thread) was not what limited the figure.
The system "none" is the generators connected to each other: what they can do without a server.

All systems get the same load: one connection that sends prepared messages, 256 KiB at a time (envelopes to a
DMP sink for omq; for omq-lines, NATS and Redis one command each), and receivers that read and count octets.
In live and round-robin cases the publisher stays within {window} MiB of bodies of the slowest subscriber
(round-robin: of all together), for all systems alike, so that none has a reason to drop; a missing message,
a cut connection or a message too many fails the figure. In the round-robin cases the peers never store: their
figures stand beside both of omq's. In the case work-queue all systems store, and each worker acknowledges
every message by its number. In Redis, acknowledged entries stay in the stream.
How many messages are stored is asked from the server.

Ingest into Weak: omq flushes every {settings.weak_flush_seconds:g} s and \
a run lasts {settings.weak_seconds:g} s.
JetStream does not fsync within the run (every 2 minutes), Redis does every second. Into Strong: Redis with
fsync before each reply, one for everything that it read together; JetStream has nothing like it.
JetStream acknowledges the last message of every 256 KiB, which confirms those before it; omq and Redis
confirm once at the end (Redis publishes with replies switched off, and its count is asked for). Redis keeps
all messages in memory.

Replay: omq From_beginning, JetStream a push consumer without acknowledgements, Redis XRANGE with a cursor.
Cold: server stopped, files synced, POSIX_FADV_DONTNEED, server started. That is best effort: the kernel may
keep pages nevertheless, and a disk below a virtual machine may have a cache of its own."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt the measurement once: a second Ctrl-C must not interrupt the cleanup."""
    for each in STOPPING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGTERM and SIGHUP are handled as Ctrl-C is: everything is cleaned up."""


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if words is None else words)
    for each in STOPPING:
        signal.signal(each, interrupt)
    if arguments.steps:
        return print_steps(arguments.runs)
    settings = Settings(
        seconds=arguments.seconds,
        weak_flush_seconds=arguments.weak_flush_seconds,
        stored_octets=int(arguments.stored_mib * 2**20),
        limit_octets=8 * 2**30,
        latency_rate=1000,
        directory=arguments.directory or Path(tempfile.gettempdir()),
    )
    command = split_command(arguments.server) if arguments.server else [sys.executable, "-c", SERVE]
    available: dict[str, System] = {
        "omq": OmqSystem(command, settings.weak_flush_seconds),
        "omq-lines": OmqLines(command, settings.weak_flush_seconds),
        "omq-plain": OmqPlain(command, settings.weak_flush_seconds),
        "nats": NatsSystem(),
        "redis": RedisSystem(),
        "none": NoServer(),
    }
    if arguments.amqp or arguments.amqp10:
        return amqp(arguments, settings, command)
    if arguments.fairness:
        return measure_fairness(command, settings, arguments.cases, arguments.runs, arguments.json)
    if arguments.spark:
        return measure_spark(arguments, settings, command)
    systems: list[System] = []
    for name in arguments.systems:
        reason = available[name].missing()
        if reason is None:
            systems.append(available[name])
        else:
            say(f"{name} is left out: {reason}")
    try:
        if arguments.growth:
            return measure_growth(systems, settings, arguments, say)
        bench = Bench(systems, settings, arguments.cases, arguments.connections)
        bench.check()
        if not arguments.check:
            bench.run(arguments.runs, arguments.sizes)
    except KeyboardInterrupt:
        say("interrupted; everything is cleaned up")
        return 130
    report(bench, arguments)
    return 1 if bench.failed else 0


def amqp(arguments: argparse.Namespace, settings: Settings, command: list[str]) -> int:
    brokers: list[Broker] = []
    make, peer, run = (
        (OmqSystem, RabbitBroker(), measure_amqp)
        if arguments.amqp
        else (TransientSystem, RouterBroker(), measure_amqp10)
    )
    for each in (OmqBroker(make(command, settings.weak_flush_seconds)), peer):
        reason = each.missing()
        if each.name in arguments.systems and reason is None:
            brokers.append(each)
        elif each.name in arguments.systems:
            say(f"{each.name} is left out: {reason}")
    try:
        return run(brokers, arguments, settings.directory, say)
    except KeyboardInterrupt:
        say("interrupted; everything is cleaned up")
        return 130


def measure_spark(arguments: argparse.Namespace, settings: Settings, command: list[str]) -> int:
    # PySpark is only needed here.
    from with_spark import SparkBench

    scale = 0.02 if arguments.quick else 1.0
    bench = SparkBench(OmqSystem(command, settings.weak_flush_seconds), settings.directory, scale, say)
    try:
        bench.run(arguments.runs)
    except KeyboardInterrupt:
        say("interrupted; everything is cleaned up")
        return 130
    except BenchFailure as failure:
        say(f"FAILED: {failure}")
        return 1
    print_conditions(settings.directory)
    print(bench.table())
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"machine": machine(), "rows": bench.document()}, indent=2) + "\n"
        )
    return 0


def report(bench: Bench, arguments: argparse.Namespace) -> None:
    order = [row for case in (*KINDS, *MANY) for row in rows_of(case)]
    rows = sorted(bench.rows, key=lambda row: (order.index(row.case), arguments.sizes.index(row.size)))
    print_conditions(bench.settings.directory, bench.systems)
    for text in bench.checks:
        print(f"contents: {text}")
    if rows:
        print()
        print(table(rows))
        print()
        print(explain(bench.settings, arguments.runs))
    if arguments.json is not None:
        shown: dict[str, Any] = {
            "runs": arguments.runs,
            "seconds": bench.settings.seconds,
            "weak seconds": bench.settings.weak_seconds,
            "weak flush seconds": bench.settings.weak_flush_seconds,
            "stored octets": bench.settings.stored_octets,
            "window octets": WINDOW_OCTETS,
            "latency messages a second": bench.settings.latency_rate,
            "stores on": filesystem(bench.settings.directory),
        }
        text = json.dumps(document(rows, bench.systems, shown, bench.checks), indent=2)
        arguments.json.write_text(text + "\n")
