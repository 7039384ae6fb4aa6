"""Growth of cost: the same measurement with increasing values of one parameter, every system in turn."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from around import FIRST_ROUND, around, check_topics
from cases import live
from check import check_contents, check_systems
from measure import Sample, Settings
from report import MICROSECONDS, OCTETS, RATE, SECONDS, amount
from stored import MEMORY, REPLAY, START, START_KILLED, grow
from systems import Kind, System
from workers import BenchFailure

SIZE = 100
"""The octets of a message in each sweep that grows something else."""


class Sweep(Enum):
    """The parameter that grows."""

    SIZE = "size"
    SUBSCRIBERS = "subscribers"
    TOPICS = "topics"
    STORED = "stored"


LIKE = {
    Sweep.SIZE: "live-1-1",
    Sweep.SUBSCRIBERS: "live-1-8",
    Sweep.TOPICS: "topics",
    Sweep.STORED: "replay-warm",
}
"""The case that a sweep repeats: a system that lacks it has no part in the sweep."""

DEFAULT_POINTS = {
    Sweep.SIZE: (20, 100, 1024, 4096, 16384, 65536),
    Sweep.SUBSCRIBERS: (1, 2, 4, 8, 16, 32, 64),
    Sweep.TOPICS: (1, 10, 100, 1000, 10000),
    Sweep.STORED: (100_000, 500_000, 2_000_000, 5_000_000),
}

FIRST = "topics-first"


@dataclass(frozen=True)
class Figure:
    """One thing that is measured while another grows."""

    name: str
    sweep: Sweep
    title: str
    setting: str
    axis: str
    unit: str


FIGURES = (
    Figure(
        "size",
        Sweep.SIZE,
        "Throughput by size of message",
        "one publisher, one subscriber, transient topic",
        "octets of a message's body",
        RATE,
    ),
    Figure(
        "subscribers",
        Sweep.SUBSCRIBERS,
        "Deliveries by number of subscribers",
        f"one publisher, every subscriber gets everything, all deliveries counted; {SIZE} octets, transient",
        "subscribers",
        RATE,
    ),
    Figure(
        "topics-all",
        Sweep.TOPICS,
        "Throughput by number of topics, subscribed to all",
        f"one connection publishes to the topics in turn, one subscribes to all; {SIZE} octets, transient",
        "topics",
        RATE,
    ),
    Figure(
        "topics-one",
        Sweep.TOPICS,
        "Throughput by number of topics, subscribed to one",
        f"one connection publishes to the topics in turn, one subscribes to one; {SIZE} octets, transient",
        "topics",
        RATE,
    ),
    Figure(
        FIRST,
        Sweep.TOPICS,
        "First message to a topic by number of topics",
        "one message to each topic over one connection until all are confirmed, for each; transient",
        "topics",
        MICROSECONDS,
    ),
    Figure(
        REPLAY,
        Sweep.STORED,
        "Replay by number of stored messages",
        f"from the beginning, files in the page cache; {SIZE} octets, weak",
        "stored messages",
        RATE,
    ),
    Figure(
        MEMORY,
        Sweep.STORED,
        "Memory by number of stored messages",
        f"RssAnon of a server that was started on the store and replayed it; {SIZE} octets, weak",
        "stored messages",
        OCTETS,
    ),
    Figure(
        START,
        Sweep.STORED,
        "Start by number of stored messages",
        f"from starting the process to its first answer, after an orderly end; {SIZE} octets, weak",
        "stored messages",
        SECONDS,
    ),
    Figure(
        START_KILLED,
        Sweep.STORED,
        "Start after being killed by number of stored messages",
        f"from starting the process to its first answer, after SIGKILL; {SIZE} octets, weak",
        "stored messages",
        SECONDS,
    ),
)


@dataclass
class Point:
    """One system in one figure at one place of the axis; a sample for each run, or why there is none."""

    figure: Figure
    system: str
    at: int
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None


class Growth:
    """The points that come together over the runs. `say` gets a line for every figure."""

    def __init__(
        self,
        systems: Sequence[System],
        settings: Settings,
        points: dict[Sweep, tuple[int, ...]],
        say: Callable[[str], None],
    ) -> None:
        self.systems = systems
        self.settings = settings
        self.wanted = points
        self.points: list[Point] = []
        self.checks: list[str] = []
        self.failed = False
        self._say = say

    def check(self) -> None:
        """Compare contents once with every system before anything is measured."""
        checks, failed = check_systems(self.systems, self._check_one, self._say)
        self.checks += checks
        self.failed |= failed

    def _check_one(self, system: System) -> list[str]:
        found = check_contents(system, self.settings)
        if Sweep.TOPICS in self.wanted and system.lacks(LIKE[Sweep.TOPICS]) is None:
            found.append(check_topics(system, self.settings))
        return found

    def run(self, runs: int) -> None:
        """Run all measurements.

        The systems take turns, so that other load on the machine affects all of them.
        """
        for turn in range(runs):
            for sweep, places in self.wanted.items():
                for system in self.systems:
                    if system.lacks(LIKE[sweep]) is None:
                        self._sweep(sweep, system, places, f"run {turn + 1} of {runs}")

    def _sweep(self, sweep: Sweep, system: System, places: tuple[int, ...], turn: str) -> None:
        figures = {figure.name: figure for figure in FIGURES if figure.sweep is sweep}
        if sweep is Sweep.STORED:
            with closing(grow(system, self.settings, SIZE, places)) as levels:
                for place in places:
                    # The levels are those of one store, which grows no further when one of them fails.
                    if not self._note(figures, system, place, turn, partial(next, levels)):
                        return
            return
        for place in places:
            for name in figures:
                if name == FIRST:
                    continue  # timed in the run of a subscriber of all
                names = (name, FIRST) if name == "topics-all" else (name,)
                made = {each: figures[each] for each in names}
                self._note(made, system, place, turn, partial(self._take, name, system, place))

    def _take(self, name: str, system: System, place: int) -> dict[str, Sample]:
        match name:
            case "size":
                sample = live(system, self.settings, place, Kind.LIVE, 1)
            case "subscribers":
                sample = live(system, self.settings, SIZE, Kind.LIVE, place)
                sample.value *= place
            case _:
                sample = around(system, self.settings, SIZE, place, name == "topics-all")
                if name == "topics-all":
                    seconds = sample.detail[FIRST_ROUND]
                    counted = f"{place} published and confirmed"
                    return {name: sample, FIRST: Sample(seconds / place * 1e6, place, seconds, counted)}
        return {name: sample}

    def _note(
        self,
        figures: dict[str, Figure],
        system: System,
        place: int,
        turn: str,
        take: Callable[[], dict[str, Sample]],
    ) -> bool:
        """Take samples and note them with their points; False, and the points say why, if that failed."""
        where = f"{turn}: {place:,} {next(iter(figures.values())).axis}, {system.name}"
        try:
            found = take()
        except (BenchFailure, OSError) as failure:
            self.failed = True
            self._say(f"{where}: FAILED: {failure}")
            for figure in figures.values():
                self._point(figure, system.name, place).failure = str(failure) or repr(failure)
            return False
        for name, sample in found.items():
            figure = figures[name]
            self._point(figure, system.name, place).samples.append(sample)
            self._say(f"{where}: {name} {amount(sample.value, figure.unit)} ({sample.counted})")
        return True

    def _point(self, figure: Figure, system: str, at: int) -> Point:
        for point in self.points:
            if (point.figure, point.system, point.at) == (figure, system, at):
                return point
        point = Point(figure, system, at)
        self.points.append(point)
        return point
