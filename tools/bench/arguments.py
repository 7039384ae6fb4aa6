"""The options of the command, the cases that they choose, and the rows and units of each case."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from amqp10_command import CASES as AMQP10
from amqp10_command import EPILOG as AMQP10_EPILOG
from amqp_command import CASES as AMQP
from amqp_command import EPILOG as AMQP_EPILOG
from amqp_command import OTHERS as OTHERS_OF_AMQP
from growth import Sweep
from growth_command import EPILOG as GROWTH_EPILOG
from growth_command import add_options, growth_points
from many import CASES as MANY
from many import EPILOG as MANY_EPILOG
from neighbours import NEIGHBOURS
from report import EACH, MICROSECONDS, OCTETS, RATE
from systems import Kind

KINDS = {
    "live-1-1": Kind.LIVE,
    "live-1-8": Kind.LIVE,
    "round-robin-1-4": Kind.ROUND_ROBIN,
    "round-robin-weak-1-4": Kind.ROUND_ROBIN_WEAK,
    "work-queue-1-4": Kind.WORK_QUEUE,
    "ingest-weak": Kind.WEAK,
    "ingest-strong": Kind.STRONG,
    "replay-warm": Kind.WEAK,
    "replay-cold": Kind.WEAK,
    "latency": Kind.LIVE,
    "memory": Kind.WEAK,
    "connections": Kind.LIVE,
}
"""The cases in the order in which they are measured, and the kind of topic of each."""

MEMORY_ROWS = ("memory-idle", "memory-stored", "memory-stored-4x", "memory-stalled")
"""The rows that the memory case makes."""

KINDS_OF_MANY = {name: case.kind for name, case in MANY.items()}

UNITS = {"latency": MICROSECONDS, "memory": OCTETS, "connections": EACH}
"""By the beginnings of the cases; messages a second for the others."""


def rows_of(case: str) -> tuple[str, ...]:
    """Return the names of the rows that a case makes."""
    return MEMORY_ROWS if case == "memory" else (case,)


def unit_of(case: str) -> str:
    """Return the unit of a case."""
    return MANY[case].unit if case in MANY else UNITS.get(case.partition("-")[0], RATE)


EPILOG = """\
cases:
  live-1-1, live-1-8   one publisher; until each of 1 or 8 subscribers has every message
  round-robin-1-4      one publisher, four subscribers, every message to one of them
  round-robin-weak-1-4 the same with messages stored until they are done (of the peers, as above)
  work-queue-1-4       one publisher, four workers, every message stored until its worker acknowledges it
                       (JetStream: a work queue; Redis: a consumer group)
  ingest-weak          published until confirmed, over at least five flush intervals
  ingest-strong        published until confirmed, every confirmation after an fsync
  replay-warm          a stored topic from its beginning, files in the page cache
  replay-cold          the same after a restart with the page cache dropped (best effort)
  latency              one way at a low rate: median and 99th percentile
  memory               idle, with stored messages, and with a subscriber that stops reading
  connections          memory of each of many idle connections

systems:
  omq                  the server as it is built here, published to through DMP sinks
  omq-lines            the same, published to with Publish lines: what is said once a message and system
  omq-plain            the same as omq with the plain Python codec
  nats, redis          nats-server and redis-server
  none                 the generators by themselves
"""


FAIRNESS_EPILOG = "neighbours with --fairness:\n" + "".join(
    f"  {neighbour.name:<20} {neighbour.what}\n" for neighbour in NEIGHBOURS
)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.py",
        description="Measure omq-server, and with --peers nats-server and redis-server at the same work.",
        epilog=f"{EPILOG}\n{MANY_EPILOG}\n{GROWTH_EPILOG}\n{AMQP_EPILOG}\n{AMQP10_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", action="store_true", help="measure nats-server and redis-server as well")
    parser.add_argument(
        "--spark",
        action="store_true",
        help="measure Spark and the replay instead; requires omq-server[spark] and Java",
    )
    parser.add_argument(
        "--steps",
        action="store_true",
        help="measure instead how long the readers of lines and envelopes take for what is most work",
    )
    parser.add_argument(
        "--many",
        action="store_true",
        help="measure instead many topics, many publishers, bursts and starts: see below",
    )
    parser.add_argument(
        "--amqp",
        action="store_true",
        help="measure instead AMQP 0-9-1, beside rabbitmq-server where it is installed: see below",
    )
    parser.add_argument(
        "--amqp10",
        action="store_true",
        help="measure instead AMQP 1.0, beside qdrouterd where it is installed: see below",
    )
    parser.add_argument(
        "--fairness",
        action="store_true",
        help="measure instead the round trip of a client beside heavy and hostile ones: see below",
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each figure (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="time of a run (default 2)")
    parser.add_argument(
        "--sizes", metavar="N,...", help="octets of a message (default 100,1024; at least 20)"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME,...", help="these cases, by name or its beginning"
    )
    parser.add_argument(
        "--systems",
        default="",
        metavar="NAME,...",
        help="of omq, omq-lines, omq-plain, nats, redis, none (default: as --peers says)",
    )
    parser.add_argument(
        "--stored-mib",
        type=float,
        default=200.0,
        metavar="N",
        help="bodies stored for a replay (default 200 MiB)",
    )
    parser.add_argument(
        "--connections", type=int, default=5000, metavar="N", help="idle connections (default 5000)"
    )
    parser.add_argument(
        "--weak-flush-seconds", type=float, default=2.0, metavar="S", help="omq's flush interval (default 2)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short run of everything: figures to look at, not to quote"
    )
    parser.add_argument("--check", action="store_true", help="only compare contents, measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures for programs as well")
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="directory for the stores (default: the temporary directory)",
    )
    parser.add_argument(
        "--server", metavar="CMD", help="command of the omq server (default: this checkout's)"
    )
    add_options(parser)
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.runs = 1
        arguments.seconds = min(arguments.seconds, 0.5)
        arguments.weak_flush_seconds = min(arguments.weak_flush_seconds, 0.2)
        arguments.stored_mib = min(arguments.stored_mib, 20.0)
        arguments.connections = min(arguments.connections, 500)
    if arguments.runs < 1 or arguments.stored_mib <= 0:
        parser.error("runs and stored volume must be positive")
    if arguments.seconds <= 0 or arguments.weak_flush_seconds <= 0:
        parser.error("times must be positive")
    if arguments.growth:
        arguments.points = growth_points(parser, arguments)
    elif not arguments.amqp and not arguments.amqp10:
        parse_cases(parser, arguments)
    if arguments.amqp or arguments.amqp10:
        return parse_amqp_systems(parser, arguments)
    own = "omq,omq-lines,omq-plain,none"
    if arguments.growth or arguments.many:
        own = "omq,omq-lines,none" if arguments.growth else "omq,omq-lines"
    default = own + ",nats,redis" if arguments.peers else own
    arguments.systems = [word for word in (arguments.systems or default).split(",") if word]
    for word in arguments.systems:
        if word not in ("omq", "omq-lines", "omq-plain", "nats", "redis", "none"):
            parser.error(f"there is no system {word!r}")
    if arguments.directory is not None and not arguments.directory.is_dir():
        parser.error(f"there is no directory {arguments.directory}")
    return arguments


def parse_amqp_systems(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """Check the options of `--amqp` and `--amqp10`, and return them."""
    peer = "rabbitmq" if arguments.amqp else "qdrouterd"
    choose_cases(parser, arguments, (*AMQP, *OTHERS_OF_AMQP) if arguments.amqp else AMQP10)
    arguments.systems = [word for word in (arguments.systems or f"omq,{peer}").split(",") if word]
    for word in arguments.systems:
        if word not in ("omq", peer):
            parser.error(f"AMQP has no system {word!r}")
    return arguments


def parse_cases(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Check the options for the cases."""
    for sweep in (Sweep.SUBSCRIBERS, Sweep.TOPICS, Sweep.STORED):
        if getattr(arguments, sweep.value) is not None:
            parser.error(f"--{sweep.value} goes with --growth")
    if arguments.plot is not None:
        parser.error("--plot goes with --growth")
    try:
        sizes = arguments.sizes or ("100" if arguments.many else "100,1024")
        arguments.sizes = [int(word) for word in sizes.split(",")]
    except ValueError:
        parser.error("--sizes takes whole numbers, divided by commas")
    if min(arguments.sizes) < 20:
        parser.error("sizes start at 20")
    cases: Sequence[str] = [*(KINDS_OF_MANY if arguments.many else KINDS)]
    if arguments.fairness:
        cases = [neighbour.name for neighbour in NEIGHBOURS]
    choose_cases(parser, arguments, cases)


def choose_cases(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, cases: Sequence[str]
) -> None:
    """Choose the cases that begin with a word of `--only`; all without it."""
    wanted = [word for word in arguments.only.split(",") if word]
    for word in wanted:
        if not any(case.startswith(word) for case in cases):
            parser.error(f"no case begins with {word!r}; there are {', '.join(cases)}")
    arguments.cases = [case for case in cases if not wanted or any(case.startswith(word) for word in wanted)]
