"""One Spark session for all of these tests: Java takes its time to start."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# A test's own functions run in Spark's processes too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
)

# And the id of a client in a variable must be there when they start.
os.environ["OMQ_TEST_ID"] = "reader:sesame"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_helpers import Log

NEEDED = "these tests need Spark (pip install '.[spark]') and Java 17 or later (openjdk-17-jre-headless)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need Spark or Java where these are missing, with one sentence."""
    try:
        from omq.spark.session import JavaMissing, check_java

        check_java()
    except ImportError:
        pass
    except JavaMissing:
        pass
    else:
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=NEEDED))


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> "Log":
    """Return the log file of Spark's processes: their standard error."""
    from spark_helpers import Log

    return Log(tmp_path_factory.mktemp("spark") / "log")


@pytest.fixture(scope="session")
def spark(log: "Log", tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Yield a session with two cores, whose filters are pushed down."""
    from omq.spark import local_session

    scratch = tmp_path_factory.mktemp("scratch")
    settings = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    with ExitStack() as stack:
        # Java keeps the standard error that it was started with.
        ours = os.dup(2)
        stack.callback(os.close, ours)
        with log.path.open("wb") as file:
            os.dup2(file.fileno(), 2)
            try:
                session = local_session("omq tests", cores=2, settings=settings)
            finally:
                os.dup2(ours, 2)
        stack.callback(session.stop)
        yield session
    shutil.rmtree(scratch, ignore_errors=True)
    sys.stderr.flush()
