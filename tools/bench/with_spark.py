"""Spark and the replay: the cost of scans, bounded reads, writes and copies, compared with Parquet."""

import base64
import gc
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import constant_source
import trio
from omq_load import OmqSystem
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from systems import Kind
from workers import BenchFailure

from omq.bulk.places import NamedTopics, Place, ServerPlace, StorePlace
from omq.bulk.remote import RemoteServer, RetryPolicy, parse_servers
from omq.bulk.sinks import SinkConnection
from omq.client import connect
from omq.protocol.dmp import writer as dmp_writer
from omq.replay.copying import copy
from omq.replay.meter import Meter
from omq.replay.plan import make_plan
from omq.replay.request import Bounds, ReplayRequest, ToServer
from omq.spark import local_session

TOPICS = {"small": (2_000_000, 100), "large": (200_000, 1024)}
"""Messages, and octets of each."""

GOALS = {"small": ("at most 1.0x", "at most 0.8x"), "large": ("at most 0.8x", "at most 0.6x")}
"""The goals for the processor time of a scan against Parquet: through the server, and by path."""

BOUNDED = 10_000
"""Messages that are read by bounds."""

TYPES = ("BINARY", "STRING")
"""The types of the column with the bodies, each compared with Parquet files that have it as well."""

SCANS = 3
"""The number of scans that are measured after one another at full scale, for the same reason as below."""

JOBS = 10
"""The same for jobs of so few messages: one alone is mostly chance."""

PARTS = 2
"""Tasks of a scan: the default number for the topics, and that of the Parquet files."""

WARM_TURNS = 5
"""Turns before those that count, at full scale: Java compiles what is used often, and the processes and the
store get memory that they use again. It holds for what they are compared with, too.
"""

PORTION = 4096
"""Messages that are published together, as a busy publisher does."""

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Figure:
    """One line of the table."""

    what: str
    unit: str
    goal: str
    values: list[float] = field(default_factory=list)


class SparkBench:
    """All of it, with one server and one session."""

    def __init__(self, system: OmqSystem, directory: Path, scale: float, say: Callable[[str], None]) -> None:
        self._system = system
        self._directory = directory
        self._scale = scale
        self._warm_turns, self._scans, self._jobs = (WARM_TURNS, SCANS, JOBS) if scale >= 1 else (0, 1, 1)
        self._say = say
        self._figures: dict[str, Figure] = {}
        self._copies = 0

    def run(self, runs: int) -> None:
        """Run the case. Raise BenchFailure when a count is wrong."""
        directory = Path(tempfile.mkdtemp(prefix="omq-bench-spark-", dir=self._directory))
        spark: SparkSession | None = None
        try:
            self._system.start(directory, Kind.WEAK)
            self._fill()
            spark = local_session("omq bench", cores=2, settings={"spark.local.dir": str(directory)})
            register_pickle_by_value(constant_source)  # type: ignore[no-untyped-call]  # cloudpickle has no types
            spark.dataSource.register(constant_source.ConstantSource)
            for topic, type_ in product(TOPICS, TYPES):
                rows = self._scan(spark, topic, self._served(), type_)
                rows.write.parquet(str(directory / f"{topic}-{type_}.parquet"))
            for turn in range(-self._warm_turns, runs):
                self._say("warming up" if turn < 0 else f"run {turn + 1} of {runs}")
                self._turn(spark, directory, warm=turn >= 0)
        finally:
            if spark is not None:
                spark.stop()
            self._system.stop()
            shutil.rmtree(directory, ignore_errors=True)

    def table(self) -> str:
        lines = [f"{'figure':<58}{'median':>12}{'min - max':>26}  {'goal'}"]
        for figure in self._figures.values():
            low, middle, high = (
                amount(value, figure.unit)
                for value in (min(figure.values), statistics.median(figure.values), max(figure.values))
            )
            lines.append(f"{figure.what:<58}{middle:>12}{f'{low} - {high}':>26}  {figure.goal}".rstrip())
        return "\n".join(lines)

    def document(self) -> list[dict[str, Any]]:
        """Return the same for programs."""
        return [
            {"figure": each.what, "unit": each.unit, "goal": each.goal, "values": each.values}
            for each in self._figures.values()
        ]

    # -- one turn ------------------------------------------------------------------------------------------

    def _turn(self, spark: SparkSession, directory: Path, *, warm: bool) -> None:
        def note(what: str, unit: str, value: float, goal: str = "") -> None:
            if warm:
                self._figures.setdefault(what, Figure(what, unit, goal)).values.append(value)
                self._say(f"  {what}: {amount(value, unit)}")

        for topic, type_ in product(TOPICS, TYPES):
            server_goal, path_goal = GOALS[topic]
            size, count = TOPICS[topic][1], self._count(topic)
            parquet = partial(spark.read.parquet, str(directory / f"{topic}-{type_}.parquet"))
            constant = partial(self._constant, spark, topic, type_)
            title = f"{size} octets, {type_.lower()}"
            theirs = self._cost(partial(_made, drain, parquet), self._scans)
            theirs_hashed = self._cost(partial(_made, hash_all, parquet), self._scans)
            note(f"{title}, Parquet: processor time", "µs a row", theirs.cpu / count * 1e6)
            floor = self._cost(partial(_made, drain, constant), self._scans)
            note(f"{title}, a source that does nothing: processor time", "µs a row", floor.cpu / count * 1e6)
            note(f"{title}, a source that does nothing: against Parquet", "x", floor.cpu / theirs.cpu)
            for way, where, goal in (
                ("server", self._served(), server_goal),
                ("path", {"path": str(directory / "store")}, path_goal),
            ):
                scan = partial(self._scan, spark, topic, where, type_)
                ours = self._cost(partial(_made, drain, scan), self._scans)
                hashed = self._cost(partial(_made, hash_all, scan), self._scans)
                name = f"{title}, {way}"
                note(f"{name}: processor time", "µs a row", ours.cpu / count * 1e6)
                if way == "server":
                    note(f"{name}: the server's part of it", "µs a row", ours.server / count * 1e6)
                note(f"{name}: against Parquet", "x", ours.cpu / theirs.cpu, goal)
                note(f"{name}, each row hashed: against Parquet", "x", hashed.cpu / theirs_hashed.cpu)
                note(f"{name}: wall clock", "rows/s", count / ours.wall)
                if type_ != TYPES[0]:
                    continue
                with Peak() as peak:  # by itself: looking at all processes takes time too
                    drain(scan())
                note(
                    f"{size} octets, {way}: largest Python worker", "MiB", peak.octets / 2**20, "a few blocks"
                )
                if topic == "small":
                    end = min(count, BOUNDED) + 1
                    bounded = self._cost(partial(self._bounded, spark, topic, where, end), self._jobs)
                    few = f"{end - 1} of {count} by offsets, {way}"
                    note(f"{few}: of the scan's time", "x", bounded.wall / ours.wall, "below 0.1x")
                    note(f"{few}: wall clock of a job", "ms", bounded.wall * 1e3)
        idle = self._cost(lambda: drain(spark.range(0, PARTS, 1, PARTS)), self._jobs)
        note("a job of Spark without any source: wall clock", "ms", idle.wall * 1e3)
        self._copies += 1
        count = self._count("small")
        for name, title in (("arrow", "republished through Spark"), ("copy", "replay, server to itself"),
                            ("store", "replay, store to server")):  # fmt: skip
            target = f"{name}-{self._copies}"
            if name == "arrow":
                cost = self._cost(partial(self._republish, spark, target))
                goal = "400,000 rows/s"
            else:
                place: Place = self._place() if name == "copy" else StorePlace(str(directory / "store"))
                cost = self._cost(partial(self._replay, place, target))
                goal = "3,000,000 rows/s"
            self._check(target, count)
            note(f"{title}: wall clock", "rows/s", count / cost.wall, goal)
            if name != "arrow":
                note(f"{title}: processor time of the replay alone", "µs a row", cost.own / count * 1e6)
            note(f"{title}: processor time of the server", "µs a row", cost.server / count * 1e6)
            # Its pages are used again by the next: else memory that is new to the system is measured too.
            trio.run(self._delete, target)

    def _count(self, topic: str) -> int:
        return max(1, int(TOPICS[topic][0] * self._scale))

    def _place(self) -> ServerPlace:
        return ServerPlace(parse_servers(f"127.0.0.1:{self._system.port}"), RetryPolicy())

    def _fill(self) -> None:
        place = self._place()
        for topic in TOPICS:
            count, size = self._count(topic), TOPICS[topic][1]
            with (
                RemoteServer(place.addresses, place.retry_policy) as server,
                SinkConnection(server, topic.encode()) as sink,
            ):
                for first in range(0, count, PORTION):
                    bodies = [make_text(n, size) for n in range(first, min(count, first + PORTION))]
                    sink.send(dmp_writer.for_sink(bodies))
                sink.finish(count)

    def _served(self) -> dict[str, str]:
        """Return the options of the way through the server."""
        return {"omq.servers": f"127.0.0.1:{self._system.port}"}

    def _scan(
        self, spark: SparkSession, topic: str, place: dict[str, str], type_: str = TYPES[0], **more: object
    ) -> DataFrame:
        options = {**place, "subscribe": topic, **more}
        return (
            spark.read.format("omq")
            .options(**{name: str(value) for name, value in options.items()})
            .schema(f"offset LONG, value {type_}")
            .load()
        )

    def _constant(self, spark: SparkSession, topic: str, type_: str) -> DataFrame:
        options = {"rows": str(self._count(topic)), "octets": str(TOPICS[topic][1]), "parts": str(PARTS)}
        return spark.read.format("constant").options(**options).schema(f"offset LONG, value {type_}").load()

    def _bounded(self, spark: SparkSession, topic: str, place: dict[str, str], end: int) -> None:
        drain(self._scan(spark, topic, place, endingOffsets=f'{{"{topic}": {end}}}'))

    def _republish(self, spark: SparkSession, target: str) -> None:
        rows = self._scan(spark, "small", self._served()).select("value")
        rows.write.format("omq").option("omq.servers", f"127.0.0.1:{self._system.port}").option(
            "topic", target
        ).mode("append").save()

    def _replay(self, place: Place, target: str) -> None:
        to = ToServer(self._place(), "the server", target, None)
        request = ReplayRequest(place, "the source", NamedTopics(("small",)), Bounds(), to)
        with place.open() as access:
            plan = make_plan(access, request)
        with Meter(plan.messages) as meter:
            copy(plan, to, meter, threading.Event())

    async def _delete(self, topic: str) -> None:
        async with connect(f"omq://127.0.0.1:{self._system.port}") as client:
            await client.delete(topic)

    def _check(self, topic: str, count: int) -> None:
        """Check that all of it is there."""
        place = self._place()
        with RemoteServer(place.addresses, place.retry_policy) as server:
            found = server.topics()[topic]
        if found.next - found.first != count:
            raise BenchFailure(f"{topic}: {found.next - found.first} messages are stored, {count} were sent")

    def _cost(self, work: Callable[[], None], times: int = 1) -> "Cost":
        """Return the cost of the work, measured over several repetitions."""
        gc.collect()
        server = self._system.cpu_seconds()
        own, below = time.process_time(), _descendants(os.getpid(), self._system.pid)
        start = time.perf_counter()
        for _ in range(times):
            work()
        wall = time.perf_counter() - start
        own = time.process_time() - own
        server = self._system.cpu_seconds() - server
        cpu = own + server + _growth(below, _descendants(os.getpid(), self._system.pid))
        return Cost(wall / times, own / times, server / times, cpu / times)


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    wall: float
    own: float
    """Processor time of this process."""
    server: float
    cpu: float
    """Processor time of all: this process, Spark's Java, its Python workers, and the server."""


_TEXT = base64.b64encode(random.Random(7).randbytes(1 << 20))


def make_text(number: int, size: int) -> bytes:
    """Return a number and letters without a pattern: compressible text would make Parquet look good."""
    at = number * 7919 % (len(_TEXT) - size)
    return b"%012d" % number + _TEXT[at : at + size - 12]


def _made(use: Callable[[DataFrame], None], make: Callable[[], DataFrame]) -> None:
    """Use a frame that is made for it: planning it is part of the work."""
    use(make())


def drain(rows: DataFrame) -> None:
    """Make every row, and drop it."""
    rows.write.format("noop").mode("overwrite").save()


def hash_all(rows: DataFrame) -> None:
    """Look at every octet: Parquet's reader need not do that when rows are only dropped."""
    rows.selectExpr("bit_xor(xxhash64(offset, value))").collect()


def amount(value: float, unit: str) -> str:
    match unit:
        case "rows/s":
            return f"{value:,.0f}/s"
        case "MiB":
            return f"{value:,.0f} MiB"
        case "ms":
            return f"{value:,.0f} ms"
        case "x":
            return f"{value:.2f}x"
        case _:
            return f"{value:.3f} µs"


# -- processes ----------------------------------------------------------------------------------------------


class Process(NamedTuple):
    id: int
    started: int
    """The time of its start, because a later process may get the id of one that has ended."""


def _processes() -> Iterator[tuple[Process, int, float]]:
    """Yield each process, its parent, and its processor time with that of the children it has waited for."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        yield Process(int(entry.name), int(fields[19])), int(fields[1]), sum(map(int, fields[11:15])) / _TICK


def _descendants(root: int, but: int) -> dict[Process, float]:
    """Return the processor time of each process below another one, without one child of it."""
    children: dict[int, list[Process]] = {}
    used: dict[Process, float] = {}
    for process, parent, seconds in _processes():
        children.setdefault(parent, []).append(process)
        used[process] = seconds
    found: dict[Process, float] = {}
    left = [child for child in children.get(root, []) if child.id != but]
    while left:
        process = left.pop()
        found[process] = used[process]
        left += children.get(process.id, [])
    return found


def _growth(before: dict[Process, float], after: dict[Process, float]) -> float:
    """Return the processor time between two looks.

    Processes that have ended meanwhile count as nothing. No process waits for Spark's Python workers, so the
    time of those that Spark ends, because they were idle for a minute, is in no sum afterwards.
    """
    return sum(seconds - before.get(process, 0) for process, seconds in after.items())


class Peak:
    """The largest memory of its own that a Python worker of Spark has while the block runs."""

    def __init__(self) -> None:
        self.octets = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        while not over:  # it looks once more afterwards: the workers stay, and the work may be short
            over = self._over.wait(0.1)
            for process in _descendants(os.getpid(), 0):
                with _gone():
                    if b"pyspark" in Path(f"/proc/{process.id}/cmdline").read_bytes().partition(b"-m\0")[2]:
                        self.octets = max(self.octets, _anonymous(process.id))


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except OSError:
        pass  # it ended meanwhile


def _anonymous(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
