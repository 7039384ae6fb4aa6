"""One mutant against the tests: in a copy of the project, with a limit of time."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mutate_mutants import Mutant
from mutate_survey import Survey

LEFT_OUT = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info")
"""Parts of a checkout that its tests do not need."""

MODULES = Path(__file__).resolve().parent
"""The folder of the plugin mutate_spy."""

SURVEY, CHOSEN = "OMQ_MUTATE_SURVEY", "OMQ_MUTATE_CHOSEN"
"""The variables that mutate_spy reads: the file to write the survey to, and the file with the names of the
tests to run.
"""

FOLDERS = ("", "storage")
"""The folders of the copy in which Python looks for packages before it looks for installed ones."""

HANGS_SECONDS = 90
"""A single test that takes longer hangs; without mutants none takes a tenth of that."""

WRONG_USAGE, NO_TESTS = 4, 5
"""The statuses of pytest that tell nothing about a mutant, unless a conftest could not import the mutant."""


class Outcome(Enum):
    KILLED = "killed"
    TIMED_OUT = "killed by the limit of time"
    SURVIVED = "survived"


class CannotRun(Exception):
    """The tests could not be run at all."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome and the output of the tests, and the seconds that they took."""

    outcome: Outcome
    seconds: float
    output: str

    @property
    def failed(self) -> str | None:
        """The name of the test that failed, if one did."""
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", self.output, re.MULTILINE)
        return None if found is None else found[1]


class Copy:
    """A copy of the project that can be changed while people and other copies use the project.

    The tests import the copy and not the installed packages, in their own process and in those that they
    start, because PYTHONPATH comes before both kinds of installation.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        shutil.copytree(root, folder, ignore=LEFT_OUT, symlinks=True)

    def survey(self, tests: Sequence[str], plain: bool, kept: Path | None) -> Survey:
        """Run these tests without a mutant, and note their results; or read the results that are kept.

        Raises CannotRun.
        """
        if kept is not None and kept.exists():
            return Survey.read(kept)
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "survey.json"
            trial = self._run(tests, plain, None, {SURVEY: str(file)})
            survey = Survey.read(file) if file.exists() else None
            if survey is None or not survey.seconds:
                raise CannotRun(f"no test passes without a mutant:\n{trial.output}")
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, kept)
            return survey

    def _run(self, tests: Sequence[str], plain: bool, seconds: float | None, spy: Mapping[str, str]) -> Trial:
        """Run the tests in these files, up to the first that fails unless this is a survey. Without a limit
        when `seconds` is None.

        `plain` turns the compiled codec off, so that its plain twin does the work; `spy` says what mutate_spy
        does. Raises CannotRun.
        """
        command = [
            sys.executable, "-m", "pytest", *([] if SURVEY in spy else ["-x"]), "-q", "--no-header",
            "--tb=short", "-p", "no:cacheprovider",
            "-p", "mutate_spy",
            f"--timeout={HANGS_SECONDS}",
            *tests,
        ]  # fmt: skip
        path = os.pathsep.join([*(str(self.folder / folder) for folder in FOLDERS), str(MODULES)])
        environment = os.environ | {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutants in one second would share one .pyc
            "OMQ_PLAIN": "1" if plain else "",
            **spy,
        }
        began = time.monotonic()
        # A file and not a pipe: a process that a test left behind would keep a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            self._running = process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                return Trial(Outcome.TIMED_OUT, time.monotonic() - began, "")
            finally:
                _end(process)
            said.seek(0)
            output = said.read()
        took = time.monotonic() - began
        status = process.returncode
        if status in (WRONG_USAGE, NO_TESTS) and "ImportError while loading conftest" not in output:
            raise CannotRun(f"pytest ended with {status}:\n{output}")
        return Trial(Outcome.KILLED if status else Outcome.SURVIVED, took, output)

    def end(self) -> None:
        """End the running tests, if any; a waiting caller gets a failure."""
        if self._running is not None and self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], plain: bool, seconds: float) -> Trial:
        """Put the mutant in the place of the module, and run the tests with these names in this order."""
        with tempfile.NamedTemporaryFile("w") as chosen:
            json.dump(tests, chosen)
            chosen.flush()
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            return self._run_mutant(mutant, files, plain, seconds, {CHOSEN: chosen.name})

    def try_files(self, mutant: Mutant, files: Sequence[str], plain: bool) -> Trial:
        """Put the mutant in the place of the module, and run all tests in these files. Each test has a limit
        of time, but not all of them together.
        """
        return self._run_mutant(mutant, files, plain, None, {})

    def _run_mutant(
        self,
        mutant: Mutant,
        files: Sequence[str],
        plain: bool,
        seconds: float | None,
        spy: Mapping[str, str],
    ) -> Trial:
        path = self.folder / mutant.module
        path.write_text(mutant.code)
        try:
            return self._run(files, plain, seconds, spy)
        finally:
            path.write_text(mutant.original)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests and the processes that they left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left
    process.wait()
