"""A Spark session on this machine that starts quickly and says little."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from omq.blocking.errors import OmqError
from omq.spark.source import OmqDataSource

LEAST_JAVA = 17

_TO_WORKERS = {"spark.python.unix.domain.socket.enabled": "true", "spark.buffer.size": "262144"}
"""How Java and its Python workers talk. Over TCP the small writes with which a task begins wait, one for
another, to be acknowledged; and without a larger buffer all goes in pieces of 64 KiB.
"""


class JavaMissing(OmqError):
    """There is no Java that Spark could run on."""


def local_session(
    name: str = "omq", *, cores: int | str = "*", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session in this process with `omq` registered: no user interface, no progress bar, errors only.

    `cores`: how many tasks run at once. `settings`: more of Spark's own, which go before ours. A session that
    is there already is taken as it is. Raises JavaMissing.
    """
    check_java()
    # Else the tasks would run on whatever python3 is first on the PATH.
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


def check_java() -> None:
    """Raises JavaMissing, whose sentence says what to do."""
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
