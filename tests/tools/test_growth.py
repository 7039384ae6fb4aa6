"""`tools/bench.py --growth` measures the real server, detects missing messages, and draws the figures."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench.py"

TINY = (
    *("--growth", "--seconds=0.05", "--weak-flush-seconds=0.05", "--sizes=20,300", "--subscribers=1,3"),
    *("--topics=1,12", "--stored=500,9000"),
)

PLACES = {
    "size": {20, 300},
    "subscribers": {1, 3},
    "topics-all": {1, 12},
    "topics-one": {1, 12},
    "topics-first": {1, 12},
    "stored-replay": {500, 9000},
    "stored-memory": {500, 9000},
    "stored-start": {500, 9000},
    "stored-start-killed": {500, 9000},
}

MATPLOTLIB = find_spec("matplotlib") is not None

PNG = b"\x89PNG\r\n\x1a\n"


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def run_script(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Return a Python script that can import the bench's modules."""
    environment = {**os.environ, "PYTHONPATH": str(BENCH.with_suffix(""))}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


@dataclass(frozen=True)
class Run:
    """A complete run of the bench with very small parameters, and its output."""

    result: subprocess.CompletedProcess[str]
    report: dict[str, Any]
    plots: Path
    left: list[Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("growth")
    stores, plots, figures = directory / "stores", directory / "made" / "plots", directory / "figures.json"
    stores.mkdir()
    options = ["--runs=1", "--systems=omq,omq-lines", f"--json={figures}", f"--directory={stores}"]
    if MATPLOTLIB:
        options.append(f"--plot={plots}")
    result = run_bench(*TINY, *options)
    assert result.returncode == 0, result.stdout + result.stderr
    return Run(result, json.loads(figures.read_text()), plots, list(stores.iterdir()))


@pytest.mark.long
def test_every_point_has_figures_and_the_published_messages_are_counted(run: Run) -> None:
    points = {(point["figure"], point["at"], point["system"]): point for point in run.report["points"]}
    for figure, places in PLACES.items():
        system = "omq-lines" if figure.startswith("topics") else "omq"
        assert {at for name, at, of in points if (name, of) == (figure, system)} == places
    for (figure, at, _), point in points.items():
        assert point["failure"] is None
        assert point["median"] > 0
        (sample,) = point["samples"]
        published, counted = sample["messages"], sample["counted"]
        match figure:
            case "subscribers":
                assert counted == f"{at * published} deliveries of {published} published"
            case "topics-one":
                assert counted == f"{published // at} deliveries of {published} published"
            case "size" | "topics-all":
                assert counted == f"{published} deliveries of {published} published"
            case _:
                assert published >= at
    assert not run.left, "the bench left something behind"


@pytest.mark.long
def test_contents_are_compared_and_tables_printed(run: Run) -> None:
    compared = run.report["contents compared"]
    assert any("omq-lines, 7 topics: 140 bodies" in text for text in compared)
    assert not any("FAILED" in text for text in compared)
    for title in ("by size", "by number of subscribers", "by number of topics", "by number of stored"):
        assert title in run.result.stdout


@pytest.mark.long
def test_each_figure_is_drawn(run: Run) -> None:
    if not MATPLOTLIB:
        pytest.skip("matplotlib is not installed")
    assert {path.name for path in run.plots.iterdir()} == {f"{name}.png" for name in [*PLACES, "size-volume"]}
    for path in run.plots.iterdir():
        assert path.read_bytes().startswith(PNG)
        assert f"drawn: {path}" in run.result.stderr


def test_unselected_figures_are_not_measured(tmp_path: Path) -> None:
    result = run_bench(*TINY, "--runs=2", "--systems=none", "--only=siz", "--directory", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    for place in ("20", "300"):
        for turn in ("run 1 of 2", "run 2 of 2"):
            assert f"{turn}: {place} octets of a message's body, none: size" in result.stderr
    assert "by size" in result.stdout
    assert "by number of" not in result.stdout


NO_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from command import main
main(["--growth", "--plot", sys.argv[1]])
"""


def test_without_matplotlib_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    result = run_script(NO_MATPLOTLIB, str(tmp_path / "plots"))
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert "--plot draws with matplotlib, which is not installed: pip install '.[bench]'" in line


def test_a_server_that_does_not_start_is_a_failed_figure(tmp_path: Path) -> None:
    options = ("--runs=1", "--systems=omq", "--only=stored", "--server", sys.executable + " -c pass")
    result = run_bench(*TINY, *options, "--directory", str(tmp_path))
    assert result.returncode == 1
    assert "FAILED: 500 stored messages, omq: omq-server said ''" in result.stdout
    assert not list(tmp_path.iterdir())


FAULTY = """
import sys, tempfile
from pathlib import Path
import around, measure
from measure import Settings
from omq_load import LinePublisher, OmqLines
from systems import Kind
from workers import BenchFailure

if sys.argv[1] == "lost":
    measure.SOCKET_SECONDS = 2.0  # nothing else tells that no more will come
FAULTS = {
    "lost": lambda lines: lines[1:],
    "extra": lambda lines: [*lines, lines[-1]],
    "astray": lambda lines: [
        lines[0].replace(b"topic-00000", b"topic-00001"),
        lines[1].replace(b"topic-00001", b"topic-00000"),
        *lines[2:],
    ],
}

class FaultyPublisher(LinePublisher):
    def send(self, data, messages):
        lines = data.splitlines(keepends=True)
        if messages > 12:
            lines = FAULTS[sys.argv[1]](lines)
        super().send(b"".join(lines), messages)

class Faulty(OmqLines):
    def publisher(self, kind, topic):
        return FaultyPublisher(self.connect(), kind)

system = Faulty([sys.executable, "-m", "omq.cli.server"], 1.0)
settings = Settings(0.0, 1.0, 0, 0, 1000, Path(tempfile.gettempdir()))
try:
    if sys.argv[2] == "check":
        print(around.check_topics(system, settings))
    else:
        print(around.around(system, settings, 100, 12, sys.argv[2] == "all"))
except BenchFailure as failure:
    print("noticed:", failure)
"""


@pytest.mark.parametrize(
    ("fault", "where", "words"),
    [
        ("lost", "all", "messages were lost"),
        ("extra", "all", "messages of"),
        ("extra", "one", "messages of"),
        ("astray", "check", "other messages"),
    ],
)
def test_messages_lost_invented_or_astray_fail_the_figure(fault: str, where: str, words: str) -> None:
    result = run_script(FAULTY, fault, where)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("noticed:"), result.stdout
    assert words in result.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--growth", "--only", "nothing"), "nothing that grows begins with 'nothing'"),
        (("--growth", "--topics", "many"), "--topics takes whole numbers"),
        (("--growth", "--topics", "10001"), "--topics ends at 10000"),
        (("--growth", "--subscribers", "65"), "--subscribers ends at 64"),
        (("--growth", "--stored", "0"), "--stored starts at 1"),
        (("--growth", "--sizes", "19"), "--sizes starts at 20"),
        (("--stored", "5"), "--stored goes with --growth"),
        (("--plot", "plots"), "--plot goes with --growth"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], word: str) -> None:
    result = run_bench(*options)
    assert result.returncode == 2
    assert word in result.stderr


DOCUMENT = (BENCH.parents[1] / "docs" / "PERFORMANCE.md").read_text()

PARSED = """
import sys
from arguments import parse_arguments
parse_arguments(sys.argv[1:])
"""


def test_the_commands_in_the_document_are_understood() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    commands = re.findall(r"^\.venv/bin/python tools/bench\.py( .*)?$", DOCUMENT, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        result = run_script(PARSED, *command.split())
        assert result.returncode == 0, result.stderr
