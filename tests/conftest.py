"""Configuration of all tests."""

import gc
import os
import signal
import sys
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
import trio
from hypothesis import HealthCheck, settings
from java_classes import java_options
from measuring import beginning, run, unmeasured, untraced
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import omq
import omq_storage

pytest_plugins = ["ports", "small_disk", "twins"]

# No test of ours is about how fast hypothesis gets on, and on a busy machine it gets on slowly.
settings.register_profile("omq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("omq")

os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())

if sys.gettrace() is not None:
    pytest.MonkeyPatch().setattr(trio, "run", run)

# A shell starts a program in the background with SIGINT ignored. The commands that tests start and interrupt
# would inherit that, and not end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SPARK = TESTS / "spark"
LONGEST = (TESTS / "tools", SPARK, TESTS / "test_packaging.py")
"""The tests that take minutes."""

MEASURED_PROCESSES = (TESTS, TESTS / "amqp_0_9", TESTS / "cli", TESTS / "replay")
"""The folders whose tests start programs for what only these execute. Elsewhere, the tests themselves execute
the same code.
"""


class FilesOfTests(LoadFileScheduling):
    """Each file of tests runs in one process, because its tests may share a server; and all files of tests
    with Spark in the same one, because they share Java, which takes as long as many of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        folder = f"{SPARK.relative_to(TESTS.parent)}/"
        return folder if nodeid.startswith(folder) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)  # pytest-xdist asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesOfTests | None:
    return FilesOfTests(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without looking for garbage, and look only at what is made later: what there is by
    then stays, and is a million objects. Of all that is imported, measure what is measured.
    """
    gc.disable()
    try:
        if sys.gettrace() is not None:
            import_measured()
        with untraced():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


def import_measured() -> None:
    """Import the modules whose coverage counts. Those for Spark do not, and need it."""
    for package in (omq, omq_storage):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("omq.spark"):
                import_module(module.name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Do not measure the process that only distributes tests to others."""
    if session.config.getoption("dist", "no") == "no" or hasattr(session.config, "workerinput"):
        return (yield)
    with untraced():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, where tests run in several processes, as with `tools/test`: no
    process is left with one when the others have ended.
    """
    if hasattr(config, "workerinput"):
        files = {item.path for item in items}
        longest = {file for file in files if any(file.is_relative_to(path) for path in LONGEST)}
        items.sort(key=lambda item: item.path not in longest)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure the processes that tests start in few folders only: each start takes twice as long measured."""
    if item.path.parent in MEASURED_PROCESSES:
        return (yield)
    with unmeasured():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the one of pytest-trio
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with beginning(item.nodeid.partition("[")[0]):
        return (yield)
