"""Check on the driver that the Python of Spark's workers can import omq.

Spark starts its Python workers, including those that plan queries, with `PYSPARK_PYTHON` or with the first
`python3` on the PATH, not with the Python of the driver. If omq is not installed there, the first query fails
with a traceback of a worker that names no setting. Registration is the only step on the driver that calls
this data source, so the check is there.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext, SparkFiles

from omq.bulk.errors import OmqError

SETTING = "PYSPARK_PYTHON"

_PROBE = (
    "import importlib, sys\n"
    "try:\n"
    "    for name in sys.argv[1:]:\n"
    "        importlib.import_module(name)\n"
    "except ImportError as error:\n"
    "    print(error)\n"
    "    sys.exit(9)\n"
)
_MODULES = ("omq.arrow.batches", "omq.bulk.local")
"""The modules that import all that a worker needs, except for PySpark: workers get that from Spark itself."""

_SECONDS = 60


class WrongPython(OmqError):
    """The Python of Spark's workers cannot import omq."""


def check_workers(context: SparkContext) -> None:
    """Raise WrongPython, with the setting to make, unless Spark's Python workers can import omq."""
    python: str = context.pythonExec
    found = shutil.which(python)
    # Compare names, not files: the Python of a virtual environment is a link to one that has other packages.
    if found is not None and Path(found).absolute() == Path(sys.executable).absolute():
        return
    problem = (
        "it is not there" if found is None else _problem(python, tuple(sorted(_environment(context).items())))
    )
    if problem is not None:
        source = SETTING if SETTING in os.environ else f"the PATH, since {SETTING} is not set"
        raise WrongPython(
            f"Spark's Python workers run {python!r} (from {source}), which cannot import omq: {problem}. "
            f"Before the session starts, set {SETTING}={sys.executable}, the Python of this driver, or "
            "install omq-server with its extra spark where the workers run."
        )


def _environment(context: SparkContext) -> Mapping[str, str]:
    """Return the environment of the workers, whose path includes the files that were shipped with the job."""
    environment = os.environ | context.environment
    shipped = Path(SparkFiles.getRootDirectory())
    modules = [str(shipped / name) for name in context._python_includes or ()]
    paths = [str(shipped), *modules, context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@functools.cache
def _problem(python: str, environment: tuple[tuple[str, str], ...]) -> str | None:
    """Return the reason why this Python cannot import omq; None if it can."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *_MODULES],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"it gave no answer in {_SECONDS} seconds"
    if done.returncode == 0:
        return None
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[-1] if said else f"it ended with status {done.returncode}"
