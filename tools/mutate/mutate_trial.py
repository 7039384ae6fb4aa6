"""One mutant against the tests: in a copy of the project, with a limit of time."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mutate_mutants import Mutant

LEFT_OUT = shutil.ignore_patterns(".*", "build", "__pycache__", "*.egg-info")
"""What of a checkout is not needed for its tests."""

FOLDERS = ("", "storage")
"""The folders of the copy in which Python looks for packages before it looks for installed ones."""

HANGS_SECONDS = 90
"""A single test that takes longer hangs; without mutants none takes a tenth of that."""

WRONG_USAGE, NO_TESTS = 4, 5
"""The statuses of pytest that tell nothing about a mutant, unless it is what a conftest could not import."""


class Outcome(Enum):
    KILLED = "killed"
    TIMED_OUT = "killed by the limit of time"
    SURVIVED = "survived"


class CannotRun(Exception):
    """The tests could not be run at all."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What the tests said, and how many seconds they took."""

    outcome: Outcome
    seconds: float
    output: str


class Copy:
    """A copy of the project that can be changed while people and other copies use the project.

    The tests import the copy and not the installed packages, in their own process and in those that they
    start, because PYTHONPATH comes before both kinds of installation.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        shutil.copytree(root, folder, ignore=LEFT_OUT, symlinks=True)

    def run(self, tests: Sequence[str], plain: bool, seconds: float | None) -> Trial:
        """Run these tests, in this order, up to the first that fails. Without a limit when `seconds` is None.

        `plain` turns the compiled codec off, so that its plain twin does the work. Raises CannotRun.
        """
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider",
            f"--timeout={HANGS_SECONDS}",
            *tests,
        ]  # fmt: skip
        path = os.pathsep.join(str(self.folder / folder) for folder in FOLDERS)
        environment = os.environ | {
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",  # two mutants in one second would share one .pyc
            "OMQ_PLAIN": "1" if plain else "",
        }
        began = time.monotonic()
        # A file and not a pipe: what a test started and left behind would keep a pipe open.
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
        """End the tests that run in it, if any do: whoever waits for them hears that they failed."""
        if self._running is not None and self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)

    def try_mutant(self, mutant: Mutant, tests: Sequence[str], plain: bool, seconds: float) -> Trial:
        """The same with the mutant in the place of the module."""
        path = self.folder / mutant.module
        path.write_text(mutant.code)
        try:
            return self.run(tests, plain, seconds)
        finally:
            path.write_text(mutant.original)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tests and what they started and left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing is left
    process.wait()
