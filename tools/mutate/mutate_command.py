"""The command line, the workers, and the report."""

import argparse
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mutate_area import Area
from mutate_areas import AREAS
from mutate_mutants import Mutant, sample
from mutate_survey import Survey
from mutate_trial import CannotRun, Copy, Outcome, Trial

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).resolve().parent / "equivalent.toml"

LIMIT_SECONDS = 30
"""The least limit of seconds for a mutant."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A change that no test can detect, because it has no visible effect."""

    module: str
    before: str
    after: str | None
    """None for every change of these lines."""
    reason: str

    def is_there(self, root: Path) -> bool:
        """Return whether the line is still there that it is about."""
        path = root / self.module
        return path.exists() and self.before in map(str.strip, path.read_text().splitlines())

    def fits(self, mutant: Mutant) -> bool:
        before, after = mutant.changed
        return (self.module, self.before) == (mutant.module, before) and self.after in (None, after)


@dataclass(frozen=True, slots=True)
class Task:
    """A mutant, and the tests that should kill it."""

    mutant: Mutant
    area: Area


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when all mutants were killed, 1 when some survived, 2 when no test passes without one."""
    parser = argparse.ArgumentParser(prog="tools/mutate.py", description=__doc__)
    parser.add_argument(
        "--area", action="append", choices=[*AREAS], help="mutate this area; may be repeated (default: all)"
    )
    parser.add_argument(
        "--module", action="append", metavar="PATH", help="mutate this module only; may be repeated"
    )
    parser.add_argument(
        "--sample", type=int, default=20, metavar="N",
        help="how many places of each area, 0 for all (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=1, metavar="S", help="seed of the random sample (default %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="mutants at a time (default %(default)s)"
    )
    parser.add_argument(
        "--root", type=Path, default=ROOT, help="the project (default: the one that this tool belongs to)"
    )
    parser.add_argument(
        "--tests", nargs="+", metavar="TEST", help="run these tests instead of those of the area"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, metavar="S",
        help="limit the tests of a mutant to this total time, the fastest first",
    )  # fmt: skip
    parser.add_argument(
        "--patience", type=float, default=3, metavar="N",
        help="how many times as long as without a mutant the tests may take, beyond some seconds (default "
        "%(default)s); more on a busy machine, where tests are slow without hanging",
    )  # fmt: skip
    parser.add_argument(
        "--surveys", type=Path, default=None, metavar="FOLDER",
        help="store in this file which test runs which line, and reuse it if it exists",
    )  # fmt: skip
    parser.add_argument(
        "--nearest", action="store_true",
        help="run the test files nearest to each module, without an earlier run; a test that fails without a "
        "mutant is not detected then",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the mutants of the sample, and run nothing")
    options = parser.parse_args(arguments)
    equivalents = _equivalents(EQUIVALENT)
    for one in equivalents:
        if not one.is_there(ROOT):
            print(f"{EQUIVALENT.name}: {one.module} has no such line any more: {one.before}", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the tests are ended too
    try:
        survivors = [_try_area(name, area, options, equivalents) for name, area in _chosen(options)]
    except CannotRun as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if any(survivors) else 0


def _chosen(options: argparse.Namespace) -> list[tuple[str, Area]]:
    """Return the areas, or one of our own where tests are named."""
    if options.tests:
        return [("these", Area("", tuple(options.tests)))]
    if options.module:
        return [(name, area) for name, area in AREAS.items() if any(map(area.has, options.module))]
    return [(name, AREAS[name]) for name in options.area or AREAS]


def _equivalents(path: Path) -> list[Equivalent]:
    found: list[dict[str, Any]] = tomllib.loads(path.read_text())["equivalent"]
    return [
        Equivalent(one["module"], one["before"], one.get("after"), one["reason"])
        for one in found
    ]  # fmt: skip


def _try_area(name: str, area: Area, options: argparse.Namespace, equivalents: list[Equivalent]) -> int:
    """Try a sample of the mutants, print the report, and return the number of survivors."""
    modules = [module for module in options.module or area.modules(options.root) if area.has(module)]
    mutants = list(sample(options.root, modules, options.sample or None, options.seed))
    tried = [mutant for mutant in mutants if not any(one.fits(mutant) for one in equivalents)]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.module}:{mutant.line}\n{mutant.diff}\n")
        return 0
    counted: Counter[Outcome] = Counter()
    for mutant, trial in _outcomes(area, tried, options):
        counted[trial.outcome] += 1
        by = "" if trial.failed is None else f" (by {trial.failed})"
        print(
            f"{trial.outcome.value} in {trial.seconds:.0f} s{by}: {mutant.module}:{mutant.line}", flush=True
        )
        if trial.outcome is Outcome.SURVIVED:
            print(f"{mutant.diff}\n", flush=True)
    survived = counted[Outcome.SURVIVED]
    killed = len(tried) - survived
    share = f"{100 * killed / len(tried):.0f} %" if tried else "nothing to try"
    print(
        f"== {name}: {killed} of {len(tried)} killed ({share}), {counted[Outcome.TIMED_OUT]} of these by the "
        f"limit of time; {len(mutants) - len(tried)} known to change nothing; seed {options.seed}",
        flush=True,
    )
    return survived


def _outcomes(
    area: Area, mutants: list[Mutant], options: argparse.Namespace
) -> Iterator[tuple[Mutant, Trial]]:
    """Yield each mutant with the result of its tests, in the order in which they end."""
    if not mutants:
        return
    with (
        tempfile.TemporaryDirectory(prefix="omq-mutate-") as made,
        ThreadPoolExecutor(options.workers) as threads,
    ):
        copies = [Copy(options.root, Path(made) / str(number)) for number in range(options.workers)]
        free: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            free.put(copy)

        def try_one(mutant: Mutant) -> tuple[Mutant, Trial]:
            copy = free.get()  # waits until a worker is free
            try:
                for plain in area.codecs(mutant.module):
                    trial = try_with_codec(copy, mutant, plain)
                    if trial.outcome is not Outcome.SURVIVED:
                        break
                return mutant, trial
            finally:
                free.put(copy)

        def try_with_codec(copy: Copy, mutant: Mutant, plain: bool) -> Trial:
            if options.nearest:
                return copy.try_files(mutant, area.nearest_to(mutant.module), plain)
            tests = surveys[plain].chosen(mutant, area.tests_of(mutant.module), options.seconds)
            limit = options.patience * sum(map(surveys[plain].seconds.__getitem__, tests)) + LIMIT_SECONDS
            return copy.try_mutant(mutant, tests, plain, limit)

        try:
            surveys = {} if options.nearest else _surveys(area, mutants, copies[0], options.surveys)
            for done in as_completed([threads.submit(try_one, mutant) for mutant in mutants]):
                yield done.result()
        finally:
            # Also when it is interrupted: no more trials begin, and the running ones are ended.
            threads.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.end()


def _surveys(area: Area, mutants: list[Mutant], copy: Copy, kept: Path | None) -> dict[bool, Survey]:
    """Run the tests without a mutant, without and with the plain codec. Raises CannotRun."""
    surveys = {}
    for plain in {plain for mutant in mutants for plain in area.codecs(mutant.module)}:
        modules = [module for module in area.modules(copy.folder) if plain in area.codecs(module)]
        tests = tuple(dict.fromkeys(chain.from_iterable(map(area.tests_of, modules)))) or area.tests
        name = f"{area.folder.replace('/', '-')}-{'plain' if plain else 'compiled'}.json"
        surveys[plain] = survey = copy.survey(tests, plain, None if kept is None else kept / name)
        for test in survey.failed:
            print(f"not used, because it fails without a mutant: {test}", file=sys.stderr)
    return surveys
