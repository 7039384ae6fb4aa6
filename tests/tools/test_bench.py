"""The bench measures the real server, and detects missing messages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # on a busy machine Spark's part takes more than the usual limit

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench.py"

CASES = (
    "live-1-1",
    "live-1-8",
    "round-robin-1-4",
    "round-robin-weak-1-4",
    "work-queue-1-4",
    "ingest-weak",
    "ingest-strong",
    "replay-warm",
    "replay-cold",
    "latency",
    "memory-idle",
    "memory-stored",
    "memory-stored-4x",
    "memory-stalled",
    "connections",
)

COUNTED = {"live-1-1", "live-1-8", "round-robin-1-4", "round-robin-weak-1-4", "work-queue-1-4"}
"""The cases that count what each subscriber got."""


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)


# Each bench has a test of few cases, and a long one of all.
def some(*names: str) -> object:
    return pytest.param(names, id="some")


def every(*names: str) -> object:
    return pytest.param(names, id="all", marks=pytest.mark.long)


@pytest.mark.parametrize("cases", [some("live-1-1", "work-queue-1-4"), every(*CASES)])
def test_every_row_has_a_positive_figure_and_was_counted(cases: tuple[str, ...], tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = tmp_path / "figures.json"
    tiny = ["--runs=1", "--seconds=0.05", "--sizes=100", "--stored-mib=0.5", "--weak-flush-seconds=0.05"]
    tiny += ["--connections=100"]
    systems = {"omq", "omq-lines", "omq-plain", "none"}
    if cases != CASES:
        systems = {"omq"}
        tiny += [f"--only={','.join(cases)}", "--systems=omq"]
    result = run_bench(*tiny, "--json", str(figures), "--directory", str(stores))
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(figures.read_text())
    rows = {row["case"]: row for row in report["rows"] if row["system"] == "omq"}
    assert tuple(rows) == cases
    for case, row in rows.items():
        assert row["failure"] is None, case
        assert row["median"] > 0, case
        assert row["samples"][0]["counted"], case
    for case in set(cases) & COUNTED:
        sample = rows[case]["samples"][0]
        subscribers = sorted(sample["detail"].values())
        whole = subscribers[0] if case.startswith("live") else sum(subscribers)
        assert whole == sample["messages"] > 0
    assert {row["system"] for row in report["rows"]} == systems
    assert len(report["contents compared"]) == 6 * len(systems - {"none"})
    assert not any("FAILED" in text for text in report["contents compared"])
    assert not list(stores.iterdir()), "the bench left something behind"


MANY = {
    "topics-1k-all": "omq-lines",
    "topics-1k-one": "omq-lines",
    "topics-weak-1k": "omq-lines",
    "queues-1k": "omq-lines",
    "queues-weak-1k": "omq-lines",
    "crowd-1k": "omq-lines",
    "crowd-weak-1k": "omq-lines",
    "in-turn-16": "omq-lines",
    "burst-100": "omq-lines",
    "latency-beside-1k": "omq",
    "confirm-strong": "omq-lines",
    "start": "omq",
}


@pytest.mark.long
def test_many_topics_and_publishers_have_figures(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = tmp_path / "figures.json"
    tiny = ["--many", "--runs=1", "--seconds=0.05", "--weak-flush-seconds=0.05", f"--only={','.join(MANY)}"]
    result = run_bench(*tiny, "--json", str(figures), "--directory", str(stores))
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(figures.read_text())["rows"]
    found = {(row["case"], row["system"]): row for row in rows}
    for case, system in MANY.items():
        (sample,) = found[case, system]["samples"]
        assert sample["counted"]
        if not case.startswith("burst"):
            assert sample["value"] > 0, case
    assert not any("-10k" in case for case, _ in found)
    assert not list(stores.iterdir()), "the bench left something behind"


@pytest.mark.long
def test_steps_are_measured_with_each_codec() -> None:
    result = run_bench("--steps", "--runs=1")
    assert result.returncode == 0, result.stderr
    heading, _, *rows = result.stdout.splitlines()
    assert "plain, ns an octet" in heading
    kinds = [row.split(" | ")[0].strip("| ") for row in rows]
    assert len(kinds) == len(set(kinds)) >= 30
    figures = [[float(cell) for cell in row.strip("| ").split(" | ")[-4:]] for row in rows]
    assert all(figure > 0 for row in figures for figure in row), figures


@pytest.mark.long
def test_spark_and_the_replay_have_figures(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")
    from omq.spark.session import JavaMissing, check_java

    try:
        check_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = tmp_path / "figures.json"
    result = run_bench("--spark", "--quick", "--json", str(figures), "--directory", str(stores))
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(figures.read_text())["rows"]
    assert len(rows) == 41
    server = "the server"
    for row in rows:
        # The kernel counts the server's processor time in ticks, and short work may take less than one.
        assert row["values"][0] >= (0 if server in row["figure"] else 1e-9), row
        assert row["figure"] in result.stdout
    assert sum(row["values"][0] for row in rows if server in row["figure"]) > 0
    assert not list(stores.iterdir()), "the bench left something behind"


@pytest.mark.parametrize(("case", "figures"), [("live-1-1", 1), ("memory", 4)])
def test_a_server_that_does_not_start_is_a_failed_figure(tmp_path: Path, case: str, figures: int) -> None:
    options = ["--only", case, "--runs", "1", "--sizes", "100", "--systems", "omq"]
    result = run_bench(*options, "--server", sys.executable + " -c pass", "--directory", str(tmp_path))
    assert result.returncode == 1, result.stderr
    rows = [line for line in result.stdout.splitlines() if "omq  " in line and line.startswith(case)]
    assert len(rows) == figures
    assert all("FAILED" in row and "at start" in row for row in rows)
    assert not list(tmp_path.iterdir())


def test_a_server_of_another_version_imports_its_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    tell = f'{sys.executable} -c \'import os, sys; sys.exit(os.environ.get("PYTHONPATH", "none"))\''
    options = ["--only", "live-1-1", "--runs", "1", "--sizes", "100", "--systems", "omq"]
    result = run_bench(*options, "--server", tell, "--directory", str(tmp_path))
    assert "at start: none" in result.stdout


FAULTY = """
import sys, tempfile
from pathlib import Path
import measure
from alone import NoServer
from cases import live
from measure import Settings
from systems import Kind, Publisher
from workers import BenchFailure

if sys.argv[1] == "lost":
    measure.SOCKET_SECONDS = 2.0  # nothing else tells that no more will come
FRAME = 117
FAULTS = {
    "lost": lambda data: data[FRAME:],
    "extra": lambda data: data + data[-FRAME:],
    "torn": lambda data: data + b"-",
    "other": lambda data: data[:-1] + b"?",
}

class FaultyPublisher(Publisher):
    def send(self, data, messages):
        super().send(FAULTS[sys.argv[1]](data), messages)

class Faulty(NoServer):
    def publisher(self, kind, topic):
        return FaultyPublisher(self.connect_socket())

settings = Settings(0.0, 1.0, 0, 0, 1000, Path(tempfile.gettempdir()))
try:
    print(live(Faulty(), settings, 100, Kind.LIVE, 1))
except BenchFailure as failure:
    print("noticed:", failure)
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("lost", "of "),
        ("extra", "messages of"),
        ("torn", "no whole messages"),
        ("other", "another first or last message"),
    ],
)
def test_messages_lost_or_invented_fail_the_figure(fault: str, words: str) -> None:
    command = [sys.executable, "-c", FAULTY, fault]
    environment = {**os.environ, "PYTHONPATH": str(BENCH.with_suffix(""))}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)
    assert result.stdout.startswith("noticed:"), result.stdout
    assert words in result.stdout


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--only", "nothing"), "no case begins"),
        (("--sizes", "many"), "--sizes takes whole numbers"),
        (("--sizes", "4"), "sizes start at 20"),
        (("--runs", "0"), "must be positive"),
        (("--systems", "other"), "no system 'other'"),
    ],
)
def test_wrong_options_are_named(options: tuple[str, ...], word: str) -> None:
    result = run_bench(*options)
    assert result.returncode == 2
    assert word in result.stderr


@pytest.mark.parametrize("which", ["--amqp", "--amqp10"])
@pytest.mark.parametrize(
    ("option", "problem"),
    [("--systems=nats", "AMQP has no system 'nats'"), ("--only=nosuch", "no case begins with 'nosuch'")],
)
def test_amqp_has_cases_and_systems_of_its_own(which: str, option: str, problem: str) -> None:
    result = run_bench(which, option)
    assert result.returncode == 2
    assert problem in result.stderr


def test_amqp_1_0_is_measured(tmp_path: Path) -> None:
    result = run_bench(
        "--amqp10", "--runs=1", "--only=rpc,beside", "--systems=omq", f"--directory={tmp_path}"
    )
    assert result.returncode == 0, result.stderr
    assert "| rpc | omq |" in result.stdout
    (beside,) = (row for row in result.stdout.splitlines() if row.startswith("| beside | omq |"))
    small = re.search(r"small messages ([\d,.]+), median ms ([\d.]+), percentile_99 ms ([\d.]+)", beside)
    assert small is not None
    count, median, percentile = (float(figure.replace(",", "")) for figure in small.groups())
    assert count >= 100
    assert 0 < median <= percentile


NEIGHBOURS = (
    "large-in",
    "large-out",
    "parentheses",
    "parentheses-4",
    "deep-list",
    "escapes",
    "topics",
    "subscribers",
    "replay",
    "guesses",
    "tls",
)


@pytest.mark.parametrize("neighbours", [some("large-in", "topics"), every(*NEIGHBOURS)])
def test_a_client_is_measured_beside_every_neighbour(neighbours: tuple[str, ...], tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = tmp_path / "figures.json"
    tiny = ["--fairness", "--runs=1", "--seconds=0.05", "--stored-mib=0.5", "--weak-flush-seconds=0.05"]
    if neighbours != NEIGHBOURS:
        tiny.append(f"--only={','.join(neighbours)}")
    result = run_bench(*tiny, "--json", str(figures), "--directory", str(stores))
    assert result.returncode == 0, result.stdout + result.stderr
    cases = {case["neighbour"]: case for case in json.loads(figures.read_text())["cases"]}
    assert tuple(cases) == neighbours
    for name, case in cases.items():
        assert case["failure"] is None, name
        assert case["round trips"] > 0
        for figure in (case["alone"], case["beside"]):
            assert 0 < figure["p50"] <= figure["p99"] <= figure["max"]
        assert case["p99 against alone"] == case["beside"]["p99"] / case["alone"]["p99"]
        parts = case["slowest hundredth"]
        assert all(milliseconds >= 0 for milliseconds in parts.values())
        assert sum(parts.values()) >= case["beside"]["p99"]
    # The bench waits until each of them has done something. In the short time in which the client measures,
    # not each of them completes something more, such as a round of all topics.
    assert any(case["work a second"] > 0 for case in cases.values())
    assert not list(stores.iterdir()), "the bench left something behind"


def test_a_neighbour_that_does_not_exist_is_refused() -> None:
    result = run_bench("--fairness", "--only=nobody")
    assert result.returncode == 2
    assert "no case begins with 'nobody'" in result.stderr


AMQP = (
    "transient-ack-each",
    "durable-confirm-ack",
    "stream-confirm-ack",
    "ingest-quorum",
    "fanout-1-8",
    "work-queue-1-4",
    "delay",
    "idle",
    "connections",
)


@pytest.mark.parametrize("cases", [some("durable-confirm-ack", "idle"), every(*AMQP)])
def test_amqp_has_figures(cases: tuple[str, ...], tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    figures = tmp_path / "figures.json"
    tiny = ["--amqp", "--systems=omq", "--runs=1", "--seconds=0.1", "--connections=50"]
    result = run_bench(*tiny, f"--only={','.join(cases)}", "--json", str(figures), "--directory", str(stores))
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {row["case"]: row for row in json.loads(figures.read_text())["rows"]}
    assert tuple(rows) == cases
    for case, row in rows.items():
        assert row["failure"] is None, case
        (measured,) = row["figures"]
        assert all(value > 0 for name, value in measured.items() if name != "load 1 min"), case
        assert f"| {case} | omq |" in result.stdout
    assert not list(stores.iterdir()), "the bench left something behind"
