"""Replays with Spark: filters, files, topics, and what an interrupted one leaves (`omq/replay/job.py`)."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from made_stores import Topic, damage, make_store
from made_stores import body as made_body
from pyspark.sql import SparkSession
from replay_helpers import Counting, bodies, request, stored, types
from serving_stores import Serving, serving

from omq.bulk.errors import BadOptions
from omq.model import Delivery
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import ByteArray, Number, NumberType, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.replay import job
from omq.replay.plan import make_plan

SECTIONS = Table(((b"amqp-1.0", ByteArray(b"\x00\x00\x00\x00\x00")), (b"n", Number(NumberType.INT8, 7))))
"""Headers such as those of a message that came by AMQP 1.0."""

TYPED = stored_head.encode(Head(properties=Properties(headers=SECTIONS)))

KEYED = stored_head.encode(Head(b"", b"\xffkey", Properties(content_type=b"text/plain")))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = make_store(
        tmp_path_factory.mktemp("source") / "store",
        numbers=Topic((50, 50)),
        headed=Topic((4,), heads={2: KEYED}),
        typed=Topic((2,), heads={2: TYPED}),
        safe=Topic((3,), persistence="Strong"),
    )
    with serving(store) as server:
        server.publish("csv", [b"1,ab,2.5", b"2,cd,x", b"no number,ef,1", b"\xff"], sink=True)
        yield server


def run(spark: SparkSession, source: Serving, *words: str) -> Counting:
    wanted = request("--server", f"omq://{source.address}", *words)
    assert wanted.needs_spark
    with wanted.source.open() as access:
        plan = make_plan(access, wanted)
    meter = Counting()
    job.run(spark, plan, meter)
    return meter


def lines(directory: Path) -> list[dict[str, Any]]:
    found = [
        json.loads(line) for file in directory.glob("part-*.json") for line in file.read_text().splitlines()
    ]
    return sorted(found, key=lambda each: (each["topic"], each["offset"]))


def test_parquet(spark: SparkSession, source: Serving, tmp_path: Path) -> None:
    words = ("numbers", "headed", "--where", "offset <= 3", "--first", "2")
    meter = run(spark, source, *words, "--to", f"parquet:{tmp_path}/files")
    assert meter.counts == {"numbers": 2, "headed": 2}
    assert meter.octets == {"numbers": 2, "headed": 2}
    frame = spark.read.parquet(f"{tmp_path}/files")
    assert frame.columns == ["topic", "offset", "timestamp", "key", "value", "headers"]
    found = sorted((row.topic, row.offset, bytes(row.value), row.key) for row in frame.collect())
    assert found == [
        ("headed", 2, b"2", bytearray(b"\xffkey")),
        ("headed", 3, b"3", None),
        ("numbers", 2, b"2", None),
        ("numbers", 3, b"3", None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_json_lines_and_what_is_no_text(spark: SparkSession, source: Serving, tmp_path: Path) -> None:
    words = ("headed", "csv", "--where", "offset in (2, 4)")
    run(spark, source, *words, "--to", f"jsonl:{tmp_path}/files")
    two, four, keyed, plain = lines(tmp_path / "files")
    assert (two["value"], four["value_base64"]) == ("2,cd,x", "/w==")
    assert "value" not in four
    assert keyed["key_base64"] == "/2tleQ=="
    assert keyed["headers"] == [{"key": "dmp.content-type", "value": "text/plain"}]
    assert plain["value"] == "4"
    assert set(plain) == {"topic", "offset", "timestamp", "value"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)", plain["timestamp"])


def test_decoded_columns(spark: SparkSession, source: Serving, tmp_path: Path) -> None:
    words = ("csv", "--decode", "csv:number INT, name STRING, size DOUBLE")
    run(spark, source, *words, "--where", "number > 0 and name <> 'x'", "--to", f"jsonl:{tmp_path}/files")
    assert [(each["number"], each["name"], each.get("size")) for each in lines(tmp_path / "files")] == [
        (1, "ab", 2.5),
        (2, "cd", None),
    ]


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_filtered_into_a_topic(spark: SparkSession, source: Serving, tmp_path: Path, pace: list[str]) -> None:
    with serving(tmp_path / "store") as target:
        words = ("headed", "numbers", *pace, "--to", f"omq://{target.address}")
        meter = run(spark, source, *words, "--where", "cast(text as int) % 2 = 0")
        assert meter.counts == {"numbers": 50, "headed": 2}
        assert sorted(bodies(target.address, "numbers"), key=int) == [
            made_body(number) for number in range(2, 101, 2)
        ]
        first = stored_head.decode(stored(target.address, "headed")[0][1])
        assert (first.routing_key, first.properties.content_type) == (b"\xffkey", b"text/plain")


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_a_filtered_topic_has_the_types_of_its_source(
    spark: SparkSession, source: Serving, tmp_path: Path, pace: list[str]
) -> None:
    store = make_store(tmp_path / "kept", kept=Topic((), persistence="Async"))
    with serving(store, 'default_delivery = "round-robin"') as target:
        for to in ("safe", "kept"):
            words = ("safe", *pace, "--to", f"omq://{target.address}/{to}", "--where", "offset > 1")
            assert run(spark, source, *words).counts == {"safe": 2}
        assert types(target.address) == {
            "kept": (Delivery.BROADCAST, "async"),
            "safe": (Delivery.BROADCAST, "strong"),
        }


@pytest.mark.parametrize("pace", [[], ["--speed", "100000"]])
def test_filtered_headers_keep_their_types(
    spark: SparkSession, source: Serving, tmp_path: Path, pace: list[str]
) -> None:
    with serving(tmp_path / "store") as target:
        run(spark, source, "typed", *pace, "--to", f"omq://{target.address}", "--where", "offset > 1")
        [(_, head)] = stored(target.address, "typed")
        assert stored_head.decode(head).properties.headers == SECTIONS


def test_a_range_without_messages_copies_nothing(
    spark: SparkSession, source: Serving, tmp_path: Path
) -> None:
    words = ("numbers", "--until", "2000-01-01")
    assert run(spark, source, *words, "--to", f"parquet:{tmp_path}/files").counts == {}
    assert spark.read.parquet(f"{tmp_path}/files").count() == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--where", "ofset = 1"), "--where: .*`ofset` cannot be resolved"),
        (("--where", "offset ="), "--where: "),
        (("--decode", "csv:a NOTYPE", "--where", "true"), "--decode: "),
        (("--decode", "json:Offset INT"), "--decode: a column cannot be called 'Offset'"),
    ],
)
def test_conditions_and_columns_that_cannot_be(
    spark: SparkSession, source: Serving, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(BadOptions, match=sentence):
        run(spark, source, "csv", *words, "--to", f"parquet:{tmp_path}/files")
    assert list(tmp_path.iterdir()) == []


def test_the_command_reports_a_wrong_option_in_one_sentence(source: Serving, tmp_path: Path) -> None:
    program = "from omq.cli.start import main; main()"
    words = ("--decode", "csv:a NOTYPE", "--to", f"jsonl:{tmp_path}/files")
    done = subprocess.run(
        [sys.executable, "-c", program, "--server", f"omq://{source.address}", "replay", "csv", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("omq: --decode: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_files_where_none_can_be(spark: SparkSession, source: Serving, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(job.JobFailed, match=r"^org\.[^\n]*: Parent path is not a directory: [^\n]*$"):
        run(spark, source, "numbers", "--to", f"parquet:{tmp_path}/file/files")
    with pytest.raises(job.JobFailed, match=r"^org\.[^\n]*: Mkdirs failed to create file:/proc/[^\n]*$"):
        run(spark, source, "numbers", "--to", "parquet:/proc/files")  # only the tasks notice it


def test_messages_lost_in_spark_are_reported_in_words_of_the_replay(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "store", hurt=Topic([5, 5]))
    damage(store, 0, 1)
    with serving(store) as server:
        words = ("hurt", "--to", f"parquet:{tmp_path}/files")
        with pytest.raises(
            job.JobFailed, match=r"is wrong\)\. With --skip-lost they are left out; (.+)\.$"
        ) as lost:
            run(spark, server, *words)
        assert "; a replay of 'hurt' with --first 6 begins after them." in str(lost.value)
        assert run(spark, server, *words, "--first", "6").counts == {"hurt": 5}
        shutil.rmtree(tmp_path / "files")
        assert run(spark, server, *words, "--skip-lost").counts == {"hurt": 5}


def test_interrupted_it_leaves_no_files(spark: SparkSession, source: Serving, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not list(tmp_path.glob(".files.partial-*")):  # Spark has begun to write
            if over.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    over = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    slow = "reflect('java.lang.Thread', 'sleep', 200L) is not null"
    try:
        with pytest.raises(KeyboardInterrupt):
            run(spark, source, "numbers", "--where", slow, "--to", f"parquet:{tmp_path}/files")
    finally:
        over.set()
        thread.join()
    assert list(tmp_path.iterdir()) == []
    assert run(spark, source, "numbers", "--to", f"parquet:{tmp_path}/files").counts == {"numbers": 100}


def test_interrupted_while_spark_starts_it_leaves_nothing_running(source: Serving, tmp_path: Path) -> None:
    program = "from omq.cli.start import main; main()"
    words = ("--server", f"omq://{source.address}", "replay", "numbers", "--to", f"jsonl:{tmp_path}/files")
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not (started := [pid for pid, words in below(process.pid) if b"SparkSubmit" in words]):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        try:
            printed = process.communicate(timeout=60)
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    # Java has the standard output too: that it ended means that Java has.
    assert printed == ("", "omq: interrupted; no files are left\n")
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []


def below(process: int) -> list[tuple[int, bytes]]:
    """Return the processes that a process has started, and their command lines."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            parent = (directory / "stat").read_text().rpartition(") ")[2].split()[1]
            if int(parent) == process:
                found.append((int(directory.name), (directory / "cmdline").read_bytes()))
    return found
