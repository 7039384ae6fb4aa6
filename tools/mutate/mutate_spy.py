"""A plugin of pytest: note which lines each test runs and how long it takes, or run chosen tests in order.

pytest loads it in a process of its own (`-p mutate_spy`), so the environment selects its plugins.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

SURVEY, CHOSEN = "OMQ_MUTATE_SURVEY", "OMQ_MUTATE_CHOSEN"
"""Environment variables: the file to write the survey to, and the file with the names of the tests to run."""


STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}
"""The audit events of another process, whose lines cannot be noted."""


class CoverageRecorder:
    """Notes the seconds and the lines of each test, and which tests start other processes."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root
        self._seconds: dict[str, float] = {}
        self._test = ""
        self._failed: set[str] = set()
        self._starting: set[str] = set()
        sys.addaudithook(self._audit)
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(root)])
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "module-not-measured"])
        self._coverage.start()

    def _audit(self, event: str, _: object) -> None:
        if event in STARTS and self._test:
            self._starting.add(self._test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test with its fixtures under its own name."""
        self._coverage.switch_context(item.nodeid)
        self._test = item.nodeid
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - began
            self._test = ""
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that fails."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the notes; for each module the tests of each line."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(file).relative_to(self._root)): {
                line: [name for name in names if name]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        noted = {
            "seconds": self._seconds,
            "failed": sorted(self._failed),
            "starting": sorted(self._starting),
            "lines": lines,
        }
        self._file.write_text(json.dumps(noted))


class NodeSelector:
    """Leaves the chosen tests, in the order in which they were named."""

    def __init__(self, file: Path) -> None:
        names: list[str] = json.loads(file.read_text())
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave only the chosen tests, after all other plugins."""
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins that the environment selects."""
    if file := os.environ.get(SURVEY):
        config.pluginmanager.register(CoverageRecorder(Path(file), config.rootpath))
    if file := os.environ.get(CHOSEN):
        config.pluginmanager.register(NodeSelector(Path(file)))
