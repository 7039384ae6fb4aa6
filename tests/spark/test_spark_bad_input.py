"""Data that cannot be read or written: one clear sentence, and never a short result that looks complete."""

import shutil
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from checkpoint_files import set_boot_id
from made_stores import NOON, Topic, damage, make_store
from ports import reserved_port
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from serving_stores import Serving, serving
from spark_helpers import Log, offsets, reading, spelled
from worker_functions import Restricted, killing

from omq.spark import OmqDataSource
from omq.spark.session import JavaMissing, check_java
from omq_storage.store import FORMAT

BOTH = pytest.mark.parametrize("way", ["server", "store"])


def place(served: Serving, way: str) -> dict[str, str]:
    return {"servers": served.address} if way == "server" else {"path": str(served.store)}


def refusal(spark: SparkSession, **options: object) -> str:
    """Return Spark's message about a read that must fail."""
    with pytest.raises(PySparkException) as caught:
        reading(spark, **options).count()
    return str(caught.value)


# -- options ------------------------------------------------------------------------------------------------

NOWHERE = {"servers": "127.0.0.1:1"}
"""Nobody is asked: the options are wrong before that."""

WRONG = [
    ({"subscribe": "t"}, "omq.servers (HOST:PORT of a server) or path"),
    (NOWHERE | {"path": "/tmp", "subscribe": "t"}, "omq.servers and path exclude each other"),
    (NOWHERE, "give one of subscribe, subscribePattern, assign"),
    (NOWHERE | {"subscribe": "t", "assign": '{"t": [0]}'}, "subscribe and assign exclude each other"),
    (NOWHERE | {"subscribe": "t,"}, "subscribe names ''"),
    (NOWHERE | {"subscribePattern": "("}, "no regular expression"),
    (NOWHERE | {"assign": "t"}, "assign is no JSON"),
    (NOWHERE | {"assign": '{"t": [1]}'}, "a topic of omq is one partition, number 0"),
    ({"servers": "127.0.0.1:99999", "subscribe": "t"}, "'127.0.0.1:99999' is no address"),
    (NOWHERE | {"subscribe": "t", "startingOffset": "earliest"}, "There is no option 'startingOffset'"),
    (
        NOWHERE | {"subscribe": "t", "startingOffsets": "earliest", "startingTimestamp": "1"},
        "startingOffsets and startingTimestamp exclude each other",
    ),
    (NOWHERE | {"subscribe": "t", "startingOffsets": "latest"}, "startingOffsets cannot be 'latest'"),
    (NOWHERE | {"subscribe": "t", "endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest'"),
    (NOWHERE | {"subscribe": "t", "startingOffsets": "first"}, "startingOffsets is no JSON"),
    (
        NOWHERE | {"subscribe": "t", "startingOffsets": '{"t": 0}'},
        "a message id of at least 1 for 't', not 0",
    ),
    (NOWHERE | {"subscribe": "t", "startingOffsets": '{"t": "soon"}'}, "not 'soon'"),
    (NOWHERE | {"subscribe": "t", "startingTimestamp": "noon"}, "startingTimestamp must be a whole number"),
    (
        NOWHERE | {"subscribe": "t", "startingTimestamp": "2", "endingTimestamp": "1"},
        "startingTimestamp 2 is after endingTimestamp 1",
    ),
    (
        NOWHERE | {"subscribe": "t", "minPartitions": "0"},
        "minPartitions must be a whole number of at least 1",
    ),
    (NOWHERE | {"subscribe": "t", "maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger makes no sense here"),
    (NOWHERE | {"subscribe": "t", "minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger makes no sense here"),
    (NOWHERE | {"subscribe": "t", "maxTriggerDelay": "5s"}, "maxTriggerDelay makes no sense here"),
    (
        NOWHERE | {"subscribe": "t", "maxRecordsPerPartition": "0"},
        "maxRecordsPerPartition must be a whole number of at least 1",
    ),
    (
        NOWHERE | {"subscribe": "t", "endingTimestamp": "1", "endingOffsetsByTimestamp": '{"t": 1}'},
        "endingTimestamp and endingOffsetsByTimestamp exclude each other",
    ),
    (
        NOWHERE | {"subscribe": "t", "startingOffsetsByTimestamp": "latest"},
        "startingOffsetsByTimestamp is no JSON",
    ),
    (
        NOWHERE | {"subscribe": "t", "startingOffsetsByTimestamp": '{"t": "noon"}'},
        "startingOffsetsByTimestamp must have milliseconds since the epoch for 't', not 'noon'",
    ),
    (
        NOWHERE | {"subscribe": "t", "endingOffsetsByTimestamp": '{"t": {"0": -1}}'},
        "endingOffsetsByTimestamp must have milliseconds since the epoch for 't', not -1",
    ),
    (
        NOWHERE
        | {
            "subscribe": "t",
            "startingOffsetsByTimestamp": '{"t": 2}',
            "endingOffsetsByTimestamp": '{"t": {"0": 1}}',
        },
        "startingOffsetsByTimestamp 2 is after endingOffsetsByTimestamp 1 for 't'",
    ),
    (NOWHERE | {"subscribe": "t", "failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
    ({"path": "/tmp", "subscribe": "t", "numRetries": "1"}, "it is for omq.servers only"),
    (
        NOWHERE | {"subscribe": "t", "retryIntervalMs": "999999999999999999"},
        "fetchOffset.retryIntervalMs must be at most 86400000, not '999999999999999999'",
    ),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_options_that_make_no_sense(options: dict[str, str], sentence: str) -> None:
    """They are refused where Spark plans, which asks the source just as this does."""
    source = OmqDataSource(spelled(options))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is looked at below
        source.reader(source.schema())
    assert sentence in str(caught.value)


def test_bad_options_are_refused_before_any_task(spark: SparkSession) -> None:
    text = refusal(spark, **NOWHERE, path="/tmp", subscribe="t")
    assert "omq.servers and path exclude each other" in text
    for schema, sentence in (
        ("value int", "The column 'value' is binary or string, not int: cast it later"),
        ("topic binary", "The column 'topic' is string, not binary: cast it later"),
        ("key string not null", "The column 'key' is null for some messages: omit NOT NULL"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.read.format("omq").schema(schema).options(**spelled(NOWHERE)).option(
                "subscribe", "t"
            ).load().count()


# -- topics and places --------------------------------------------------------------------------------------


@BOTH
def test_topics_that_cannot_be_read(spark: SparkSession, tmp_path: Path, way: str) -> None:
    store = make_store(
        tmp_path / "store",
        prices=Topic([5]),
        jobs=Topic([1], delivery="Round_robin"),
        ticks=Topic([], persistence="Transient"),
    )
    with serving(store) as server:
        here = place(server, way)
        assert "There is no topic 'nothing'" in refusal(spark, **here, subscribe="prices,nothing")
        assert "'jobs' cannot be read: it is a round-robin topic" in refusal(spark, **here, subscribe="jobs")
        assert "'ticks' cannot be read: it is transient" in refusal(spark, **here, subscribe="ticks")
        unsaid = refusal(spark, **here, subscribe="prices", startingOffsets='{"news": 1}')
        assert "'prices' is missing; 'news' is not read" in unsaid
        untimed = refusal(spark, **here, subscribe="prices", endingOffsetsByTimestamp='{"news": 1}')
        assert "endingOffsetsByTimestamp must name exactly the topics that are read: 'prices'" in untimed
        backwards = refusal(
            spark, **here, subscribe="prices", startingOffsets='{"prices": 4}', endingOffsets='{"prices": 2}'
        )
        assert "Topic 'prices': it would begin at 4 and end before, at 2" in backwards
        beyond = refusal(spark, **here, subscribe="prices", endingOffsets='{"prices": 9}')
        assert "endingOffsets is 9, but its next message is 6" in beyond
        loose = {"subscribe": "prices", "endingOffsets": '{"prices": 9}', "failOnDataLoss": "false"}
        assert offsets(reading(spark, **here, **loose)) == [1, 2, 3, 4, 5]
        behind = {"subscribe": "prices", "startingOffsets": '{"prices": 9}', "failOnDataLoss": "false"}
        assert offsets(reading(spark, **here, **behind)) == []
        with pytest.raises(PySparkException, match="A column can be there only once"):
            spark.read.schema("value BINARY, value BINARY").format("omq").options(
                **spelled({**here, "subscribe": "prices"})
            ).load().count()
        with pytest.raises(PySparkException, match="The column 'key' is null for some messages"):
            spark.read.schema("key BINARY NOT NULL").format("omq").options(
                **spelled({**here, "subscribe": "prices"})
            ).load().count()
        never_null = spark.read.schema("offset LONG NOT NULL, value BINARY NOT NULL").format("omq")
        found = never_null.options(**spelled({**here, "subscribe": "prices"})).load()
        assert [row.offset for row in found.collect()] == [1, 2, 3, 4, 5]


def test_an_unreachable_server(spark: SparkSession) -> None:
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        text = refusal(spark, servers=address, subscribe="t", numRetries="2", retryIntervalMs="1")
    assert f"The server {address} cannot be reached: Connection refused (3 attempts)" in text


def test_a_server_that_is_none(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400")
                connection.recv(100)

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert f"{address} is no omq server of version 1" in refusal(spark, servers=address, subscribe="t")


def test_a_directory_without_a_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    assert f"There is no store in {tmp_path}" in refusal(spark, path=str(tmp_path), subscribe="t")


def test_a_store_of_a_newer_version(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", prices=Topic([5]))
    (store / "format").write_text(f'{{"format": {FORMAT + 1}}}')
    text = refusal(spark, path=str(store), subscribe="prices")
    assert f"has format {FORMAT + 1}, made by a later version; this one knows {FORMAT}" in text


def test_a_store_that_a_power_failure_left(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", prices=Topic([5]))
    with serving(store) as server:
        server.publish("prices", [b"x"])
        server.kill()
    # Only its process ended: everything is there.
    assert reading(spark, path=str(store), subscribe="prices").count() == 6
    copy = shutil.copytree(store, tmp_path / "copy")
    set_boot_id(copy / "weak", "another start of the machine")
    assert "start omq-server on it once" in refusal(spark, path=str(copy), subscribe="prices")
    with serving(copy):
        assert reading(spark, path=str(copy), subscribe="prices").count() == 5


@pytest.mark.parametrize(
    ("name", "mode", "sentence"),
    [
        ("strong/lock.mdb", 0o444, "needs permission to write"),
        ("strong/data.mdb", 0o000, "needs permission to read"),
        ("format", 0o000, "cannot be read: Permission denied"),
    ],
)
def test_a_store_without_permission(spark: SparkSession, name: str, mode: int, sentence: str) -> None:
    # Not below pytest's own directory, where nobody else may look.
    with TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "store", prices=Topic([5]))
        for path in (Path(folder), store, *store.iterdir(), *store.glob("*/*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (store / name).chmod(mode)
        spark.dataSource.register(Restricted)
        frame = spark.read.format("restricted").option("path", str(store)).option("subscribe", "prices")
        with pytest.raises(PySparkException) as caught:
            frame.load().count()
        assert sentence in str(caught.value)


# -- loss ---------------------------------------------------------------------------------------------------


@BOTH
def test_a_damaged_block(spark: SparkSession, log: Log, tmp_path: Path, way: str) -> None:
    store = make_store(tmp_path / "store", news=Topic([1]), prices=Topic([10, 10, 10]))
    damage(store, 1, 11)
    with serving(store) as server:
        here = place(server, way) | {"subscribe": "prices"}
        text = refusal(spark, **here)
        assert "Topic 'prices': messages 11 to 20 are gone: the store is damaged there" in text
        assert "failOnDataLoss=false" in text
        log.mark()
        kept = offsets(reading(spark, **here, failOnDataLoss="false"))
        assert kept == [*range(1, 11), *range(21, 31)]
        assert "messages 11 to 20 are gone" in log.text()
        assert "Topic 'prices': 10 messages skipped in all" in log.text()
        # Messages elsewhere are read as if nothing was wrong.
        assert offsets(reading(spark, **here, startingOffsets='{"prices": 21}')) == list(range(21, 31))
        by_time = {"startingTimestamp": NOON // 1000 + 15_000}
        assert "messages 11 to 20 are gone" in refusal(spark, **here, **by_time)


@BOTH
def test_ids_that_were_deleted(spark: SparkSession, log: Log, tmp_path: Path, way: str) -> None:
    store = make_store(tmp_path / "store", prices=Topic([10, 10, -5, 10], deleted=11))
    with serving(store) as server:
        here = place(server, way) | {"subscribe": "prices"}
        asked = {"startingOffsets": '{"prices": 3}', "endingOffsets": '{"prices": 21}'}
        text = refusal(spark, **here, **asked)
        assert "Topic 'prices': messages 3 to 10 are gone: they are no longer kept" in text
        log.mark()
        assert offsets(reading(spark, **here, **asked, failOnDataLoss="false")) == list(range(11, 21))
        assert "Topic 'prices': 8 messages skipped in all" in log.text()
        # Without bounds it begins with what is kept. A hole that nobody can ever fill is only told.
        log.mark()
        assert offsets(reading(spark, **here)) == [*range(11, 21), *range(26, 36)]
        assert "messages 21 to 25 are gone: they were lost before they were durable" in log.text()


def test_a_server_that_dies_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", much=Topic([1000] * 60, size=1000))
    with serving(store) as server:
        frame = reading(
            spark, servers=server.address, subscribe="much", numRetries="2", retryIntervalMs="10"
        ).select("offset", "value")
        dying = frame.rdd.mapPartitions(killing(server.running.process.pid, tmp_path / "killed"))
        with pytest.raises(PySparkException) as caught:
            dying.count()
        text = str(caught.value)
        assert (
            f"The server {server.address} cannot be reached: Connection refused (3 attempts); message "
            in text
        )
        assert "of 'much' is the next one." in text


def test_a_server_that_dies_and_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", much=Topic([1000] * 60, size=1000))
    with reserved_port() as port, serving(store, port=port) as server:
        process = server.running.process
        again = threading.Event()
        over = threading.Event()

        def restart() -> None:
            process.wait()
            with serving(store, port=port):
                again.set()
                over.wait()

        keeper = threading.Thread(target=restart)
        keeper.start()
        frame = reading(
            spark, servers=server.address, subscribe="much", numRetries="1000", retryIntervalMs="100"
        )
        whole = (
            frame.select("offset", "value")
            .rdd.mapPartitions(killing(process.pid, tmp_path / "killed"))
            .map(lambda row: row.offset)
        )
        try:
            assert sorted(whole.collect()) == list(range(1, 60_001))
            assert again.is_set()
        finally:
            over.set()
            keeper.join()


def test_a_topic_that_is_another_one_now(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", prices=Topic([10, 10]))
    with serving(store) as server:
        frame = reading(spark, servers=server.address, subscribe="prices")
        loose = reading(spark, servers=server.address, subscribe="prices", failOnDataLoss="false")
        planned, skipping = frame.rdd, loose.rdd  # Spark plans here
        planned.getNumPartitions()
        skipping.getNumPartitions()
        server.delete("prices")
        gone = "Topic 'prices': messages 1 to 20 are gone: the topic was deleted"
        with pytest.raises(PySparkException, match=gone):
            planned.count()
        assert skipping.count() == 0
        server.publish("prices", [b"x"] * 30)
        with pytest.raises(PySparkException, match=gone):
            planned.count()
        assert skipping.count() == 0


# -- tables of SQL ------------------------------------------------------------------------------------------


def test_a_table_is_refused_with_what_to_do_instead(spark: SparkSession, tmp_path: Path) -> None:
    """Spark gives a data source in Python no options of a table."""
    advice = "Spark stores the options of CREATE TABLE .*: use CREATE TEMPORARY VIEW"
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        given = f"`omq.servers` '{server.address}', subscribe 'prices'"
        with pytest.raises(PySparkException, match=f"There can be no table of topics. {advice}"):
            spark.sql(f"CREATE TABLE topics USING omq OPTIONS ({given})")
        spark.sql(f"CREATE TABLE topics (offset BIGINT, value BINARY) USING omq OPTIONS ({given})")
        try:
            with pytest.raises(PySparkException, match=f"Give omq.servers .* For a table: {advice}"):
                spark.table("topics").count()
            with pytest.raises(PySparkException, match=f"A sink needs omq.servers: .* For a table: {advice}"):
                spark.sql("INSERT INTO topics SELECT 1, X'00'")
            query = f"`omq.servers` = '{server.address}', subscribe = 'prices'"
            assert offsets(spark.sql(f"SELECT * FROM topics WITH ({query})")) == list(range(1, 11))
        finally:
            spark.sql("DROP TABLE topics")


# -- Java ---------------------------------------------------------------------------------------------------


def test_java_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        JavaMissing, match=r"^Spark needs Java 17 or later: install .*; there is no java on the PATH.$"
    ):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME is .*, which has no bin/java"):
        check_java()


def test_java_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="found Java 11"):
        check_java()
