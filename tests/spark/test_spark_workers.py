"""Another Python in Spark's workers than in the driver: found when the format is registered."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from pyspark.sql import SparkSession

from omq.spark import OmqDataSource
from omq.spark.workers import WrongPython


def other_python(place: Path, program: str) -> str:
    """Return a Python that is another file than the one of these tests."""
    python = place / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    return str(python)


def register(spark: SparkSession, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register in a session that was started with this `PYSPARK_PYTHON`."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
    monkeypatch.setenv("PYSPARK_PYTHON", python)
    spark.dataSource.register(OmqDataSource)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        # Without the folder of installed packages, as in an environment where omq is not installed.
        (f'cd / && exec {sys.executable} -S "$@"', "No module named 'omq'"),
        ("exit 3", "it ended with status 3"),
        ("echo broken >&2; exit 1", "broken"),
        (None, "it is not there"),
    ],
)
def test_a_python_without_omq_is_found_at_registration(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | None,
    problem: str,
) -> None:
    python = str(tmp_path / "nothing") if program is None else other_python(tmp_path, program)
    expected = (
        rf"Spark's Python workers run '{re.escape(python)}' \(from PYSPARK_PYTHON\), which cannot "
        rf"import omq: {problem}\. Before the session starts, "
        rf"set PYSPARK_PYTHON={re.escape(sys.executable)}, "
    )
    with pytest.raises(WrongPython, match=expected):
        register(spark, python, monkeypatch)


def test_the_search_path_is_named_if_nothing_is_set(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", other_python(tmp_path, "exit 4"))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with pytest.raises(WrongPython, match=r"\(from the PATH, since PYSPARK_PYTHON is not set\)"):
        spark.dataSource.register(OmqDataSource)


def test_another_python_with_omq_is_no_problem(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = other_python(tmp_path, f'exec {sys.executable} "$@"')
    try:
        register(spark, python, monkeypatch)
    finally:
        monkeypatch.undo()
        spark.dataSource.register(OmqDataSource)
