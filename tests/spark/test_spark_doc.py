"""docs/SPARK.md: its examples, run as they stand and in their order, and what they print compared."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install omq[spark]")

from pyspark.sql import SparkSession
from spark_server import serving

from storage.spark.options import _READ

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "SPARK.md").read_text()


def examples() -> list[tuple[str, str, str | None]]:
    """Language, program, and what it prints where that is shown."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    return [
        (language, text, found[place + 1][1] if found[place + 1 : place + 2][0][0] == "text" else None)
        for place, (language, text) in enumerate(found)
        if language != "text"
    ]


def mask(printed: str) -> str:
    """Without what is not the same each time: times, rates, and octets in the store."""
    printed = re.sub(r"in [\d.]+ s: [\d,]+ messages/s", "in N s: N messages/s", printed)
    return re.sub(r" +[\d.N]+ (k?B)$", r" N \1", printed, flags=re.MULTILINE)


def run_shell(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=os.environ | environment,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


def test_every_example(spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, object] = {}
    with serving(tmp_path / "store") as server:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMQ_SERVER": f"omq://{server.address}",
            "PYSPARK_PYTHON": sys.executable,
        }
        for language, program, shown in examples():
            here = program.replace("127.0.0.1:7730", server.address).replace("/tmp/", f"{tmp_path}/")
            if language == "python":
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(here, "SPARK.md", "exec"), names)
                printed = output.getvalue()
            else:
                printed = run_shell(here, environment)
            expected = (shown or "").replace("127.0.0.1:7730", server.address)
            assert mask(printed).strip() == mask(expected).strip(), program


def test_there_are_examples() -> None:
    assert [language for language, *_ in examples()].count("python") >= 5
    assert [language for language, *_ in examples()].count("sh") >= 3


@pytest.mark.parametrize("option", _READ)
def test_every_option_is_there(option: str) -> None:
    assert f"`{option}`" in DOCUMENT


def test_the_example_of_the_readme(spark: SparkSession, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^## With Spark\n.*?^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    with serving(tmp_path / "store") as server:
        server.publish("greetings", [b"hello", b"hello again"])
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(program.replace("127.0.0.1:7730", server.address), "README.md", "exec"), {})
    shown = [line.split("|") for line in output.getvalue().splitlines()[3:5]]
    assert [[cell.strip() for cell in cells[1:3]] for cells in shown] == [
        ["1", "hello"],
        ["2", "hello again"],
    ]
