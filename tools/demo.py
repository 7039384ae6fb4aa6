"""omq with real data: publish, deliver live, kill the server, restart it, continue, replay, compare.

Every flight that left New York in 2013 is a row of a file and becomes a message; every carrier has a topic.
At the end Spark reads the store, and what it finds is compared with the file once more.
"""

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import trio

from omq.client import (
    ConnectionLost,
    Delivery,
    OmqError,
    Persistent,
    Sync,
    connect,
)

# Its modules are not part of the package: they are in the directory beside this file.
sys.path.insert(0, str(Path(__file__).resolve().parent / "flights"))

from flights_file import DemoFailed, Flights, data_directory, read_file, read_flights
from flights_publishing import Publisher
from flights_receiving import Reception
from flights_server import server_in
from flights_table import Line, compare, lines_of, table
from flights_telling import Clock, progress, step, tell

EXIT_DISAGREES = 1
EXIT_INTERRUPTED = 130


async def demonstrate(flights: Flights, directory: Path, sync: Sync) -> list[Line]:
    """Run the demonstration from the first start of the server to its last stop. Return the final table."""
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

        # The server must have as many messages at the end as were published, too.
        async with connect(server.url, id="demo-count") as client:
            publisher.go_on_from(await client.topics())
        # Only now do the live subscribers leave: had one of them received a message twice, it would count.
        subscribers.cancel_scope.cancel()
    return lines_of(flights, publisher.confirmed, live, replay)


async def demonstrate_until_signal(flights: Flights, directory: Path, sync: Sync) -> list[Line] | None:
    """Demonstrate as `demonstrate` does; return None when a signal ended it."""
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
    """Yield the exceptions that a group is made of, however deep."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def run(flights: Flights, directory: Path, sync: Sync) -> int:
    """Run the demonstration and print whether everything agrees. Return an exit status."""
    started = time.perf_counter()
    try:
        lines = trio.run(demonstrate_until_signal, flights, directory, sync)
    except BaseException as error:
        # The first error may have company: the errors that it caused.
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
    tell(f"All agree: each row was stored once, in order, and delivered unchanged: {seconds:.1f} s with omq.")
    return 0


def show_spark(flights: Flights, directory: Path, picture: Path) -> int:
    """Read the store with Spark, compare, and draw; an exit status."""
    # Large, and not needed without Spark.
    import flights_spark

    from omq.spark import local_session
    from omq.spark.session import stderr_to

    tell("\nAnd now with Spark, which reads the store that the server has left:\n")
    clock = Clock()
    names = {topic.decode().rpartition(".")[2]: name for topic, name in flights.names.items()}
    with stderr_to(directory / "spark.log"):
        spark = local_session("omq demo")
    try:
        step(f"started Spark {spark.version}", clock.lap())
        found, daily = flights_spark.delays_from_store(spark, directory / "store")
        step("read, parsed and summed up every row: Spark's first jobs", clock.lap())
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


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C."""
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
        help="persistence of the topics (default weak)",
    )
    made.add_argument(
        "--picture",
        type=Path,
        default=Path("flights.png"),
        metavar="FILE",
        help="file for the picture (default: flights.png in this directory)",
    )
    made.add_argument("--no-spark", action="store_true", help="skip the part with Spark")
    made.add_argument("--keep", action="store_true", help="keep the store, and print its path")
    return made


def main() -> int:
    arguments = parser().parse_args()
    if arguments.rows is not None and arguments.rows < 1:
        parser().error("--rows: at least one row is needed")
    # The demonstration causes lost connections on purpose, and counts and compares their messages.
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
