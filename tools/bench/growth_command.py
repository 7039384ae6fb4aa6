"""`--growth` on the command line: measure, print the tables, write the files."""

import argparse
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from growth import DEFAULT_POINTS, SIZE, Growth, Sweep
from growth_report import document, tables
from measure import WINDOW_OCTETS, Settings
from report import filesystem, machine, print_conditions
from systems import System
from workers import MAX_SUBSCRIBERS

NO_MATPLOTLIB = (
    "--plot draws with matplotlib, which is not installed: pip install '.[bench]' in the checkout gets it"
)

EPILOG = """\
growing cost (--growth):
  size                 live, one publisher and one subscriber, messages of more and more octets
  subscribers          live, one publisher, more and more subscribers that get everything
  topics               published round more and more topics over one connection, to a subscriber of all
                       of them and to a subscriber of one (omq: Publish lines, a sink leads to one topic)
  stored               start, memory and replay of a store with more and more messages
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--growth",
        action="store_true",
        help="measure how cost grows; --sizes, --subscribers, --topics and --stored say at which points, "
        "and --only which of these four",
    )
    for sweep in (Sweep.SUBSCRIBERS, Sweep.TOPICS, Sweep.STORED):
        points = ",".join(map(str, DEFAULT_POINTS[sweep]))
        parser.add_argument(
            f"--{sweep.value}", metavar="N,...", help=f"{sweep.value} with --growth (default {points})"
        )
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="with --growth: draw the figures there as PNG files"
    )


def growth_points(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> dict[Sweep, tuple[int, ...]]:
    """Return the wanted sweeps of --growth, each with its points in ascending order, after a check of the
    options.
    """
    points: dict[Sweep, tuple[int, ...]] = {}
    wanted = [word for word in arguments.only.split(",") if word]
    for word in wanted:
        if not any(sweep.value.startswith(word) for sweep in Sweep):
            names = ", ".join(sweep.value for sweep in Sweep)
            parser.error(f"nothing that grows begins with {word!r}; there are {names}")
    options = {
        Sweep.SIZE: arguments.sizes,
        Sweep.SUBSCRIBERS: arguments.subscribers,
        Sweep.TOPICS: arguments.topics,
        Sweep.STORED: arguments.stored,
    }
    for sweep, text in options.items():
        name = "--sizes" if sweep is Sweep.SIZE else f"--{sweep.value}"
        try:
            found = (
                DEFAULT_POINTS[sweep]
                if text is None
                else tuple(sorted({int(word) for word in text.split(",")}))
            )
        except ValueError:
            parser.error(f"{name} takes whole numbers, divided by commas")
        if found[0] < 1:
            parser.error(f"{name} starts at 1")
        if arguments.quick and text is None:
            found = found[:3]
        if not wanted or any(sweep.value.startswith(word) for word in wanted):
            points[sweep] = found
    if points.get(Sweep.SIZE, (20,))[0] < 20:
        parser.error("--sizes starts at 20")
    if points.get(Sweep.SUBSCRIBERS, (1,))[-1] > MAX_SUBSCRIBERS:
        parser.error(f"--subscribers ends at {MAX_SUBSCRIBERS}")
    if points.get(Sweep.TOPICS, (1,))[-1] > 10_000:
        parser.error(
            "--topics ends at 10000, the most that one client makes unless the server is configured for more"
        )
    if arguments.plot is not None and find_spec("matplotlib") is None:
        parser.error(NO_MATPLOTLIB)
    return points


def explain(settings: Settings, runs: int) -> str:
    """Describe the measurement of the figures."""
    window = WINDOW_OCTETS // 2**20
    return f"""\
Figures are {count_runs(runs)}. Live figures are of {settings.seconds:g} s,
in which the publisher stays within {window} MiB of bodies of its slowest subscriber. One process receives for
all subscribers, and counts octets. "omq" is published to through a DMP sink and "omq-lines" with Publish
lines; both deliver omq frames. "none" is the generators connected to each other: what they can do without a
server. Stored messages: a file store in JetStream, a stream with an append-only file in Redis. Each store was
filled to one level, started, replayed, killed and started, then filled to the next; a replay is the median of
three."""


def count_runs(runs: int) -> str:
    return "of one run" if runs == 1 else f"medians of {runs} runs, in which the systems took turns"


def measure_growth(
    systems: Sequence[System], settings: Settings, arguments: argparse.Namespace, say: Callable[[str], None]
) -> int:
    """Measure and report; the exit status."""
    growth = Growth(systems, settings, arguments.points, say)
    growth.check()
    if not arguments.check:
        growth.run(arguments.runs)
    print_conditions(settings.directory, systems)
    for text in growth.checks:
        print(f"contents: {text}")
    if growth.points:
        print(f"\n{tables(growth.points)}\n\n{explain(settings, arguments.runs)}")
    if arguments.json is not None:
        shown = {
            "runs": arguments.runs,
            "seconds": settings.seconds,
            "octets of a message": SIZE,
            "window octets": WINDOW_OCTETS,
            "stores on": filesystem(settings.directory),
        }
        arguments.json.write_text(json.dumps(document(growth, shown), indent=2) + "\n")
    if arguments.plot is not None:
        # Only here: it needs matplotlib, which nothing else does.
        from plots import draw_all

        arguments.plot.mkdir(parents=True, exist_ok=True)
        own = machine()
        runs = (
            "one run"
            if arguments.runs == 1
            else f"medians of {arguments.runs} runs, bands from lowest to highest"
        )
        remark = f"{runs}; {own['cores']} cores, {own['processor']}"
        for path in draw_all(growth.points, remark, arguments.plot):
            say(f"drawn: {path}")
    return 1 if growth.failed else 0
