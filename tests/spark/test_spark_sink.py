"""Rows to topics, each exactly once."""

import datetime
import decimal
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from ports import reserved_port
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from replay_helpers import stored
from serving_stores import Serving, serving
from spark_helpers import offsets, reading, rows, spelled

from omq.protocol.amqp import head as stored_head

NUMBERING = ("dmp.app-id", "dmp.message-id")
"""The headers that a sink sets."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("sink") / "store") as server:
        yield server


def write(frame: DataFrame, **options: object) -> None:
    frame.write.format("omq").options(**spelled(options)).mode("append").save()


# -- batches ------------------------------------------------------------------------------------------------


def test_rows_become_messages(spark: SparkSession, served: Serving) -> None:
    frame = spark.createDataFrame(
        [
            (
                "first",
                b"1",
                "k1",
                [("lots", bytearray(b"7")), ("dmp.content-type", bytearray(b"text/plain"))],
                1,
            ),
            ("second", b"2", None, None, 2),
            ("first", b"3", "k3", [], 3),
            ("first", b"", None, [("empty", None)], 4),
        ],
        "topic string, value binary, key string, headers array<struct<key:string,value:binary>>, more int",
    ).coalesce(1)
    write(frame, servers=served.address)
    found = reading(spark, servers=served.address, subscribe="first,second", includeHeaders="true")
    assert rows(found, "topic", "offset", "key", "value") == [
        ("first", 1, b"k1", b"1"),
        ("first", 2, b"k3", b"3"),
        ("first", 3, None, b""),
        ("second", 1, None, b"2"),
    ]
    headers = {row.offset: _named(row.headers) for row in found.where("topic = 'first'").collect()}
    assert headers[1].pop("dmp.app-id") == headers[2].pop("dmp.app-id") == headers[3].pop("dmp.app-id")
    assert headers == {
        1: {"lots": b"7", "dmp.content-type": b"text/plain", "dmp.message-id": b"1"},
        2: {"dmp.message-id": b"3"},
        3: {"empty": None, "dmp.message-id": b"4"},
    }


def _named(headers: Any) -> dict[str, bytes | None]:
    return {one.key: None if one.value is None else bytes(one.value) for one in headers}


def test_rows_that_were_read_can_be_written(spark: SparkSession, served: Serving) -> None:
    served.publish("origin", [b"%d" % number for number in range(5000)], sink=True)
    frame = reading(spark, servers=served.address, subscribe="origin", includeHeaders="true")
    write(frame, servers=served.address, topic="copy")
    copied = reading(spark, servers=served.address, subscribe="copy")
    assert rows(copied, "offset", "value") == rows(frame, "offset", "value")


def test_headers_with_names_like_those_of_properties_are_written_back(
    spark: SparkSession, served: Serving
) -> None:
    host, port = served.address.rsplit(":", 1)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("named", durable=True, arguments={"x-queue-type": "stream"})
    own = {"dmp.unknown": "1", "dmp.priority": "high", "dmp.headers.x": "2", "plain": "3"}
    channel.basic_publish("", "named", b"body", pika.BasicProperties(priority=3, headers=own))
    connection.close()
    frame = reading(spark, servers=served.address, subscribe="named", includeHeaders="true")
    write(frame, servers=served.address, topic="named-copy")
    copied = reading(spark, servers=served.address, subscribe="named-copy", includeHeaders="true")
    for found in (frame, copied):
        [row] = found.collect()
        assert len({one.key for one in row.headers}) == len(row.headers)
        headers = {name: value for name, value in _named(row.headers).items() if name not in NUMBERING}
        assert headers == {
            "dmp.priority": b"3",
            "dmp.headers.dmp.unknown": b"1",
            "dmp.headers.dmp.priority": b"high",
            "dmp.headers.dmp.headers.x": b"2",
            "plain": b"3",
        }


def test_headers_are_written_back_with_their_types(spark: SparkSession, served: Serving) -> None:
    host, port = served.address.rsplit(":", 1)
    own = {
        "text": "7",
        "octets": b"\xff",
        "number": 7,
        "large": 2**40,
        "true": True,
        "time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "decimal": decimal.Decimal("12.34"),
        "void": None,
        "array": [1, "two", {"three": 3}],
        "table": {"four": 4},
    }
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("typed", durable=True, arguments={"x-queue-type": "stream"})
        channel.basic_publish("", "typed", b"body", pika.BasicProperties(headers=own))
    frame = reading(spark, servers=served.address, subscribe="typed", includeHeaders="true")
    write(frame, servers=served.address, topic="typed-copy")
    before, after = (
        stored_head.decode(head).properties.headers
        for topic in ("typed", "typed-copy")
        for _, head in stored(served.address, topic)
    )
    assert before is not None
    assert [name.decode() for name, _ in before.entries] == list(own)
    assert after == before


def test_a_batch_with_a_producer_can_be_repeated(spark: SparkSession, served: Serving) -> None:
    frame = spark.range(0, 1000, 1, 3).selectExpr("cast(id as string) as value")
    for _ in range(2):
        write(frame, servers=served.address, topic="once", producer="night-7")
    assert reading(spark, servers=served.address, subscribe="once").count() == 1000
    for _ in range(2):
        write(frame, servers=served.address, topic="twice")
    assert reading(spark, servers=served.address, subscribe="twice").count() == 2000


def test_columns_may_have_names_in_upper_case(spark: SparkSession, served: Serving) -> None:
    """Spark makes no difference by default, so a sink that did would lose keys and headers."""
    frame = spark.sql(
        "select 'a' as Value, 'k' as KEY, 'cased' as Topic, "
        "array(struct('h' as key, cast('b' as binary) as value)) as HEADERS, 1 as more, 2 as MORE"
    )
    write(frame, servers=served.address)
    [row] = reading(spark, servers=served.address, subscribe="cased", includeHeaders="true").collect()
    assert (row.key, row.value, _named(row.headers)["h"]) == (b"k", b"a", b"b")


WRONG = [
    ("id", {"topic": "t"}, "A sink needs a column 'value'; there are id"),
    ("'a' as value, 'b' as VALUE", {"topic": "t"}, "A sink takes only one column 'value'"),
    ("'a' as value, 'b' as key, 'c' as Key", {"topic": "t"}, "A sink takes only one column 'key'"),
    ("id as value", {"topic": "t"}, "The column 'value' must be binary or string, not bigint"),
    ("'a' as value", {}, "A sink needs a column 'topic', or the option topic"),
    ("'a' as value, 'b' as headers", {"topic": "t"}, "The column 'headers' must be array<struct<key:string"),
    ("'a' as value", {"topic": "x" * 256}, "The option topic cannot be"),
    ("'a' as value", {"topic": "t", "path": "/tmp"}, "give omq.servers, and no path"),
    ("'a' as value", {"topic": "t", "subscribe": "t"}, "There is no option 'subscribe'"),
    ("cast(null as string) as value", {"topic": "t"}, "The value of row 1 is null"),
    ("'a' as value, cast(null as string) as topic", {}, "The topic of row 1 is null"),
    ("'a' as value, '' as topic", {}, "A row has the topic ''"),
    (
        "'a' as value, repeat('k', 256) as key",
        {"topic": "t"},
        "the routing key of 256 octets",
    ),
    (
        "'a' as value, array(struct('dmp.colour' as key, cast('b' as binary) as value)) as headers",
        {"topic": "t"},
        "no header is called 'dmp.colour'",
    ),
    (
        "'a' as value, array(struct(cast(null as string) as key, cast('b' as binary) as value)) as headers",
        {"topic": "t"},
        "a header has no key",
    ),
    (
        "'a' as value, array(struct('n' as key, cast('many' as binary) as value), "
        "struct('dmp.header-types' as key, cast('{\"n\": \"I\"}' as binary) as value)) as headers",
        {"topic": "t"},
        "A row cannot be sent: the header 'n' is no value of the type 'I'",
    ),
    (
        "'a' as value, cast(array(null) as array<struct<key:string,value:binary>>) as headers",
        {"topic": "t"},
        "a header has no key",
    ),
]


@pytest.mark.parametrize(("columns", "options", "sentence"), WRONG)
def test_unsuitable_rows_are_refused(
    spark: SparkSession, served: Serving, columns: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(f"select {columns} from range(1)"), servers=served.address, **options)
    assert sentence in str(caught.value)


def test_a_topic_is_only_appended_to(spark: SparkSession, served: Serving) -> None:
    frame = spark.range(1).selectExpr("'a' as value")
    with pytest.raises(PySparkException, match="A topic can only be appended to"):
        frame.write.format("omq").options(**spelled({"servers": served.address, "topic": "t"})).mode(
            "overwrite"
        ).save()


def test_a_server_that_refuses(spark: SparkSession, tmp_path: Path) -> None:
    with (
        serving(tmp_path / "store", "allow_undeclared = false") as server,
        pytest.raises(
            PySparkException, match="there is no such topic, and this server wants topics declared"
        ),
    ):
        write(spark.range(1).selectExpr("'a' as value"), servers=server.address, topic="t")


KILLS = 3


def test_a_server_that_is_restarted_while_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever was in doubt is sent again, and nothing of it is stored twice."""
    store = tmp_path / "store"
    written = threading.Event()
    errors: list[Exception] = []

    def is_time_to_kill(before: int, messages: int) -> bool:
        return messages > before or written.is_set()

    def keep_restarting(port: int) -> None:
        try:
            stored = 0
            for _ in range(KILLS):
                with serving(store, port=port) as server:
                    stored = server.wait_for("t", partial(is_time_to_kill, stored))
                    server.kill()
            with serving(store, port=port):
                written.wait()
        except Exception as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)

    with reserved_port() as port:
        keeper = threading.Thread(target=keep_restarting, args=(port,))
        keeper.start()
        try:
            frame = spark.range(0, 200_000, 1, 2).selectExpr("lpad(cast(id as string), 100, '.') as value")
            write(frame, servers=f"127.0.0.1:{port}", topic="t", numRetries="10000", retryIntervalMs="50")
        finally:
            written.set()
            keeper.join()
    assert errors == []
    with serving(store) as server:
        found = reading(spark, servers=server.address, subscribe="t")
        assert found.count() == 200_000
        assert found.select("value").distinct().count() == 200_000


# -- streams ------------------------------------------------------------------------------------------------


def test_a_stream_into_a_topic(spark: SparkSession, served: Serving, tmp_path: Path) -> None:
    def run() -> None:
        source = spark.readStream.format("omq").options(
            **spelled({"servers": served.address, "subscribe": "in", "startingOffsets": "earliest"})
        )
        target = source.load().select("value").writeStream.format("omq")
        target.options(**spelled({"servers": served.address, "topic": "out"})).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination()

    served.publish("in", [b"%d" % number for number in range(1000)])
    run()
    # The micro-batch is done again, as when Spark ended before it could note that it was done.
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    served.publish("in", [b"%d" % number for number in range(1000, 1500)])
    run()
    found = reading(spark, servers=served.address, subscribe="out")
    assert [int(value) for _, value in rows(found, "offset", "value")] == list(range(1500))
    assert offsets(found) == list(range(1, 1501))


def test_a_stream_with_a_new_checkpoint_needs_a_new_producer(
    spark: SparkSession, served: Serving, tmp_path: Path
) -> None:
    def run(checkpoint: str, **options: str) -> int:
        source = spark.readStream.format("omq").options(
            **spelled({"servers": served.address, "subscribe": "again", "startingOffsets": "earliest"})
        )
        target = source.load().select("value").writeStream.format("omq")
        target.options(**spelled({"servers": served.address, "topic": "from-again"} | options)).option(
            "checkpointLocation", str(tmp_path / checkpoint)
        ).trigger(availableNow=True).start().awaitTermination()
        return served.messages("from-again")

    served.publish("again", [b"%d" % number for number in range(100)])
    assert run("first", producer="old") == 100
    assert run("second", producer="old") == 100
    assert run("third", producer="new") == 200
    assert run("fourth") == 300
    assert run("fifth") == 400


DRIVER = """
import sys
from omq.spark import local_session

files, address, checkpoint = sys.argv[1:]
spark = local_session("driver", cores=2)
rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(files)
query = (
    rows.writeStream.format("omq")
    .option("omq.servers", address)
    .option("topic", "lines")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
print("started", flush=True)
query.awaitTermination()
print("done", flush=True)
"""


@pytest.mark.long
def test_every_row_once_though_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """File to omq to Parquet: the driver of the first half is killed in the middle of a micro-batch."""
    files = tmp_path / "files"
    files.mkdir()
    expected = set()
    for number in range(3):
        lines = [f"{number}:{line}".ljust(100, ".") for line in range(40_000)]
        (files / f"{number}.txt").write_text("\n".join(lines))
        expected.update(lines)
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    with serving(tmp_path / "store") as server:
        command = [sys.executable, str(script), str(files), server.address, str(tmp_path / "checkpoint")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
            server.wait_for("lines", lambda messages: messages > 0)
            os.killpg(driver.pid, signal.SIGKILL)
        stored = server.messages("lines")
        assert 0 < stored < len(expected)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
        assert "done" in done.stdout
        reading(spark, servers=server.address, subscribe="lines").select("value").write.parquet(
            str(tmp_path / "parquet")
        )
        found = [bytes(row.value).decode() for row in spark.read.parquet(str(tmp_path / "parquet")).collect()]
        assert len(found) == len(expected)
        assert set(found) == expected
