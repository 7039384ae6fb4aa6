"""A local Spark session that starts fast and logs only errors."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from omq.bulk.errors import OmqError
from omq.spark.source import OmqDataSource

LEAST_JAVA = 17

_TO_WORKERS = {"spark.python.unix.domain.socket.enabled": "true", "spark.buffer.size": "262144"}
"""The connection between Java and its Python workers. Over TCP the first small writes of a task wait for
acknowledgements; without a larger buffer all data goes in pieces of 64 KiB.
"""


class JavaMissing(OmqError):
    """No suitable Java was found."""


def local_session(
    name: str = "omq", *, cores: int | str = "*", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a local session with `omq` registered: no user interface, no progress bar, only errors logged.

    `cores`: the number of parallel tasks. `settings`: Spark settings, which override ours. If a session
    exists, return it. Raises JavaMissing.
    """
    check_java()
    # By default the tasks would use the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(f"local[{cores}]")
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        **_TO_WORKERS,
    }
    for key, value in (ours | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(OmqDataSource)
    return session


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Let processes that are started in the block append their standard error to a file."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def check_java() -> None:
    """Raise JavaMissing, with a hint, unless a suitable Java is installed."""
    advice = f"Spark needs Java {LEAST_JAVA} or later: install openjdk-17-jre-headless (Debian, Ubuntu)"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise JavaMissing(f"{advice}, or set JAVA_HOME; {where}.")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < LEAST_JAVA:
        found = version[1] if version else f"something else ({java})"
        raise JavaMissing(f"{advice}, or set JAVA_HOME; found Java {found}.")
