"""`--amqp`: omq beside RabbitMQ as brokers of AMQP 0-9-1, case by case."""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amqp_load import Load, Measured, measure, measure_connections, measure_delays
from brokers import Broker, Running
from report import machine, print_conditions
from workers import BenchFailure

DELAYS_A_SECOND = 1000

EPILOG = """\
cases of --amqp (100 octets where no size is named; ingest: nobody reads):
  transient-no-ack, transient-ack-100, transient-ack-each
  durable-confirm-no-ack, durable-confirm-ack, quorum-confirm-ack, stream-confirm-ack
  ingest-durable, ingest-quorum, ingest-stream
  fanout-1-8, work-queue-1-4, size-1k, size-16k
  delay (one way at 1,000/s, and without a pause), idle, connections
"""


@dataclass(frozen=True)
class Case:
    """A load, and the number of messages a second that omq must reach."""

    load: Load
    must: int


CASES = {
    "transient-no-ack": Case(Load(), 1_500_000),
    "transient-ack-100": Case(Load(prefetch=1000), 700_000),
    "transient-ack-each": Case(Load(prefetch=1000, ack_every=1), 250_000),
    "durable-confirm-no-ack": Case(Load(durable=True, confirm=True), 400_000),
    "durable-confirm-ack": Case(Load(durable=True, confirm=True, prefetch=1000), 300_000),
    "quorum-confirm-ack": Case(Load(kind="quorum", durable=True, confirm=True, prefetch=1000), 300_000),
    "stream-confirm-ack": Case(Load(kind="stream", durable=True, confirm=True, prefetch=1000), 500_000),
    "ingest-durable": Case(Load(durable=True, confirm=True, consumers=0), 500_000),
    "ingest-quorum": Case(Load(kind="quorum", durable=True, confirm=True, consumers=0), 500_000),
    "ingest-stream": Case(Load(kind="stream", durable=True, confirm=True, consumers=0), 500_000),
    "fanout-1-8": Case(Load(consumers=8, fanout=True), 1_000_000),
    "work-queue-1-4": Case(Load(consumers=4, prefetch=100, ack_every=10), 400_000),
    "size-1k": Case(Load(size=1024), 300_000),
    "size-16k": Case(Load(size=16384), 20_000),
}

OTHERS = ("delay", "idle", "connections")
"""The cases that are no throughputs."""


@dataclass
class Row:
    """One broker in one case."""

    case: str
    broker: str
    must: str
    figures: list[dict[str, float]] = field(default_factory=list)
    failure: str | None = None

    def median(self, name: str) -> float:
        return statistics.median(figures[name] for figures in self.figures)


class AmqpBench:
    """Runs the cases, with the brokers in turns, so that other load on the machine affects all of them."""

    def __init__(
        self, brokers: Sequence[Broker], directory: Path, seconds: float, connections: int,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._brokers = brokers
        self._directory = directory
        self._seconds = seconds
        self._connections = connections
        self._say = say
        self.rows: list[Row] = []

    def run(self, cases: Sequence[str], runs: int) -> None:
        """Measure every case with every broker, `runs` times."""
        for turn in range(runs):
            for case in cases:
                for broker in self._brokers:
                    self._run_one(case, broker, f"run {turn + 1} of {runs}")

    @property
    def failed(self) -> bool:
        return any(row.failure is not None for row in self.rows)

    def _run_one(self, case: str, broker: Broker, turn: str) -> None:
        row = self._row(case, broker)
        with tempfile.TemporaryDirectory(
            prefix="omq-bench-", dir=self._directory, ignore_cleanup_errors=True
        ) as made:
            try:
                # Every run has a broker of its own, so that none starts with the memory of another one.
                with broker.running(Path(made)) as running:
                    figures = self._take(case, running)
            except (BenchFailure, OSError) as failure:
                row.failure = str(failure) or repr(failure)
                self._say(f"{turn}: {case}, {broker.name}: FAILED: {row.failure}")
                return
        figures["load 1 min"] = os.getloadavg()[0]
        row.figures.append(figures)
        words = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        self._say(f"{turn}: {case}, {broker.name}: {words}")

    def _take(self, case: str, running: Running) -> dict[str, float]:
        match case:
            case "delay":
                delays = measure_delays(running, DELAYS_A_SECOND, self._seconds)
                return {f"{name} us": value for name, value in asdict(delays).items()}
            case "idle":
                resident, anonymous = running.memory()
                return {"RSS MiB": resident / 2**20, "RssAnon MiB": anonymous / 2**20}
            case "connections":
                each = measure_connections(running, self._connections)
                return {"KiB each": each / 1024}
            case _:
                measured: Measured = measure(running, CASES[case].load, self._seconds)
                return {
                    "messages/s": measured.rate,
                    "CPU us": measured.cpu_microseconds,
                    "RssAnon MiB": measured.anonymous / 2**20,
                }

    def _row(self, case: str, broker: Broker) -> Row:
        for row in self.rows:
            if (row.case, row.broker) == (case, broker.name):
                return row
        must = f"{CASES[case].must:,}/s" if case in CASES else ""
        row = Row(case, broker.name, must)
        self.rows.append(row)
        return row

    def table(self) -> str:
        """Return the medians, as a table of Markdown."""
        lines = ["| case | broker | figures | must |", "|---|---|---|---|"]
        for row in self.rows:
            if row.failure is not None:
                what = f"FAILED: {row.failure}"
            else:
                names = [name for name in row.figures[0] if name != "load 1 min"]
                what = ", ".join(f"{name} {row.median(name):,.1f}" for name in names)
            lines.append(f"| {row.case} | {row.broker} | {what} | {row.must} |")
        return "\n".join(lines)

    def document(self) -> list[dict[str, Any]]:
        """Return the rows for programs."""
        return [asdict(row) for row in self.rows]


def measure_amqp(
    brokers: Sequence[Broker], arguments: argparse.Namespace, directory: Path, say: Callable[[str], None]
) -> int:
    """Measure, and print the report."""
    bench = AmqpBench(brokers, directory, arguments.seconds, min(arguments.connections, 1000), say)
    bench.run(arguments.cases, arguments.runs)
    print_conditions(directory, brokers)
    print(bench.table())
    if arguments.json is not None:
        shown = {"machine": machine(), "rows": bench.document()}
        arguments.json.write_text(json.dumps(shown, indent=2) + "\n")
    return 1 if bench.failed else 0
