"""Batches: what is read, how it is cut, and how little of it."""

import datetime
import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

import pika
import pyspark
from made_stores import NOON, SECOND, Topic, body, make_store
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from serving_stores import Serving, serving
from spark_helpers import offsets, plan_of, reading, rows, spelled
from worker_functions import Light

from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import LongString, Number, NumberType, Table
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.spark.batch import BatchReader
from omq.spark.options import read_options
from omq.spark.reading import TopicPartition
from omq.spark.schema import usual_schema

BOTH = pytest.mark.parametrize("way", ["server", "store"])

HEADS = {
    3: stored_head.encode(
        Head(
            b"stocks",
            b"ACME",
            Properties(
                content_type=b"text/plain",
                headers=Table(((b"desk", LongString(b"nine")), (b"lots", Number(NumberType.INT32, 7)))),
                priority=4,
            ),
        )
    ),
    4: stored_head.encode(Head(b"", b"", Properties(message_id=b"m-4"))),
}

TOPICS = {
    "prices": Topic([10, 20, 30, 40]),
    "news": Topic([5, 5], size=100, heads=HEADS),
    "strong": Topic([4], persistence="Strong"),
    "late": Topic([3, 3, 3], first=11, deleted=14),
    "empty": Topic([]),
    "jobs": Topic([3], delivery="Round_robin"),
    "ticks": Topic([], persistence="Transient"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Yield a store that its server has open: both ways lead to it."""
    with serving(make_store(tmp_path_factory.mktemp("batch") / "store", **TOPICS)) as server:
        yield server


def place(served: Serving, way: str) -> dict[str, str]:
    return {"servers": served.address} if way == "server" else {"path": str(served.store)}


def at(message: int) -> datetime.datetime:
    """Return the time of a message as PySpark gives it: in the zone of this machine."""
    return datetime.datetime.fromtimestamp((NOON + message * SECOND) / 1_000_000)


# -- what is read -------------------------------------------------------------------------------------------


@BOTH
def test_every_column_of_every_message(spark: SparkSession, served: Serving, way: str) -> None:
    frame = reading(spark, **place(served, way), subscribe="prices")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int>"
    )
    found = rows(frame, "offset", "key", "value", "topic", "partition", "timestamp", "timestampType")
    assert found == [(message, None, body(message), "prices", 0, at(message), 1) for message in range(1, 101)]


@BOTH
def test_several_topics_of_each_level_and_deleted_ones(
    spark: SparkSession, served: Serving, way: str
) -> None:
    here = place(served, way)
    frame = reading(spark, **here, subscribe="prices, late,strong,empty")
    counted = {row["topic"]: (row["count"], row["low"]) for row in _counted(frame)}
    assert counted == {"prices": (100, 1), "late": (6, 14), "strong": (4, 1)}
    matched = {row["topic"]: row["count"] for row in _counted(reading(spark, **here, subscribePattern=".*s"))}
    assert matched == {"prices": 100, "news": 10}  # of the others that match, nothing is stored
    assigned = reading(spark, **here, assign='{"late": [0], "strong": [0]}')
    assert {row["topic"]: row["count"] for row in _counted(assigned)} == {"late": 6, "strong": 4}


def _counted(frame: Any) -> list[Any]:
    grouped = frame.groupBy("topic")
    return list(grouped.agg(sql.count("*").alias("count"), sql.min("offset").alias("low")).collect())


@BOTH
def test_topics_without_messages_give_no_rows(spark: SparkSession, served: Serving, way: str) -> None:
    assert reading(spark, **place(served, way), subscribe="empty").count() == 0
    assert reading(spark, **place(served, way), subscribePattern="nobody.*").count() == 0


@BOTH
def test_keys_and_headers(spark: SparkSession, served: Serving, way: str) -> None:
    here = place(served, way) | {"subscribe": "news"}
    keys = dict(rows(reading(spark, **here), "offset", "key"))
    assert keys == dict.fromkeys(range(1, 11)) | {3: b"ACME"}
    frame = reading(spark, **here, includeHeaders="true").orderBy("offset")
    named = [
        None if row.headers is None else [(one.key, one.value and bytes(one.value)) for one in row.headers]
        for row in frame.collect()
    ]
    assert named[2] == [
        ("dmp.exchange", b"stocks"),
        ("dmp.content-type", b"text/plain"),
        ("dmp.priority", b"4"),
        ("desk", b"nine"),
        ("lots", b"7"),
        ("dmp.header-types", b'{"lots":"I"}'),
    ]
    assert named[3] == [("dmp.message-id", b"m-4")]
    assert named[:2] + named[4:] == [None] * 8


@BOTH
def test_columns_are_chosen_by_the_schema(spark: SparkSession, served: Serving, way: str) -> None:
    reader = spark.read.format("omq").schema("timestamp timestamp, offset long")
    options = {"omq.servers": served.address} if way == "server" else {"path": str(served.store)}
    frame = reader.options(**options).option("subscribe", "strong").load()
    assert frame.columns == ["timestamp", "offset"]
    assert rows(frame, "offset", "timestamp") == [(message, at(message)) for message in range(1, 5)]


@BOTH
def test_octets_are_read_as_strings_where_the_schema_says_so(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """With the octets that a cast gives, also where they are not UTF-8; several blocks in one batch."""
    bodies = ["Grüße".encode(), b"", b"\xff\xfe\x00half \xe2\x82", b"x" * 5000]
    heads = {1: stored_head.encode(Head(b"", "Schlüssel".encode(), Properties()))}
    with serving(make_store(tmp_path / "store", texts=Topic([1], heads=heads))) as server:
        for each in bodies:
            server.publish("texts", [each])

        def read(schema: str) -> DataFrame:
            here = spelled({**place(server, way), "subscribe": "texts"})
            return spark.read.format("omq").schema(schema).options(**here).load()

        strings, octets = (
            read("offset LONG, key STRING, value STRING"),
            read("offset LONG, key BINARY, value BINARY"),
        )
        assert strings.schema.simpleString() == "struct<offset:bigint,key:string,value:string>"
        columns = "offset", "cast(key AS BINARY) key", "cast(value AS BINARY) value"
        found = rows(strings.selectExpr(*columns), "offset", "key", "value")
        assert found == rows(octets, "offset", "key", "value")
        assert [row[2] for row in found[1:]] == bodies
        assert found[0][1] == "Schlüssel".encode()
        cast = octets.selectExpr("offset", "cast(key AS STRING) key", "cast(value AS STRING) value")
        assert strings.exceptAll(cast).count() == 0
        assert strings.count() == 5


def test_a_store_is_read_beside_its_server_and_after_it(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", prices=Topic([10]))
    with serving(store) as server:
        assert reading(spark, path=str(store), subscribe="prices").count() == 10
        server.publish("prices", [b"new"] * 1000)
        server.publish("other", [b"x"])
        assert offsets(reading(spark, path=str(store), subscribe="prices")) == list(range(1, 1011))
        assert reading(spark, path=str(store), subscribe="other").count() == 1
    assert reading(spark, path=str(store), subscribe="prices").count() == 1010


def test_messages_of_amqp_have_their_keys_and_headers(spark: SparkSession, tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([1]))) as server:
        host, port = server.address.rsplit(":", 1)
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("readings", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind("readings", "amq.topic", routing_key="sensor.#")
        described = pika.BasicProperties(content_type="text/plain", headers={"unit": "C"})
        channel.basic_publish("amq.topic", "sensor.kitchen", b"20", described)
        connection.close()
        for way in ("server", "store"):
            frame = reading(spark, **place(server, way), subscribe="readings", includeHeaders="true")
            [row] = frame.collect()
            assert (bytes(row.key), bytes(row.value)) == (b"sensor.kitchen", b"20")
            headers = {one.key: bytes(one.value) for one in row.headers}
            assert headers["dmp.exchange"] == b"amq.topic"
            assert (headers["dmp.content-type"], headers["unit"]) == (b"text/plain", b"C")


# -- bounds -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 1, 100),
        ({"startingOffsets": '{"prices": 95}'}, 95, 100),
        ({"startingOffsets": '{"prices": {"0": 11}}', "endingOffsets": '{"prices": {"0": 31}}'}, 11, 30),
        ({"startingOffsets": '{"prices": {"0": -2}}', "endingOffsets": '{"prices": {"0": -1}}'}, 1, 100),
        ({"startingOffsets": '{"prices": "earliest"}', "endingOffsets": '{"prices": 12}'}, 1, 11),
        ({"startingOffsets": '{"prices": 17}', "endingOffsets": '{"prices": 17}'}, 17, 16),
        ({"startingTimestamp": NOON // 1000}, 1, 100),
        ({"startingTimestamp": NOON // 1000 + 11_000}, 11, 100),
        ({"startingTimestamp": NOON // 1000 + 10_001, "endingTimestamp": NOON // 1000 + 30_000}, 11, 29),
        ({"startingTimestamp": NOON // 1000 + 44_500, "endingTimestamp": NOON // 1000 + 99_999_999}, 45, 100),
        ({"startingTimestamp": NOON // 1000 + 100_001}, 101, 100),
        ({"endingTimestamp": NOON // 1000}, 1, 0),
        ({"startingOffsetsByTimestamp": f'{{"prices": {{"0": {NOON // 1000 + 96_000}}}}}'}, 96, 100),
        ({"startingOffsetsByTimestamp": f'{{"prices": {NOON // 1000 + 100_001}}}'}, 101, 100),
        ({"endingOffsetsByTimestamp": f'{{"prices": {{"0": {NOON // 1000 + 12_001}}}}}'}, 1, 12),
        (
            {
                "startingOffsetsByTimestamp": f'{{"prices": {NOON // 1000 + 11_000}}}',
                "endingOffsetsByTimestamp": f'{{"prices": {NOON // 1000 + 14_000}}}',
            },
            11,
            13,
        ),
        ({"startingOffsets": '{"prices": 20}', "endingTimestamp": NOON // 1000 + 31_000}, 20, 30),
    ],
)
def test_bounds(
    spark: SparkSession, served: Serving, way: str, options: dict[str, object], first: int, last: int
) -> None:
    frame = reading(spark, **place(served, way), subscribe="prices", **options)
    assert offsets(frame) == list(range(first, last + 1))


# -- partitions ---------------------------------------------------------------------------------------------


def planned(here: dict[str, str], **options: str) -> list[tuple[str, int, int]]:
    """Return the parts that Spark would be given."""
    return [part for task in tasks(here, **options) for part in task]


def tasks(here: dict[str, str], **options: str) -> list[list[tuple[str, int, int]]]:
    """Return the same by task."""
    given = {"omq.servers": here["servers"]} if "servers" in here else here
    parsed = read_options(given | options, stream=False)
    partitions = BatchReader(parsed, usual_schema(parsed)).partitions()
    return [
        [(part.topic.name, part.start, part.end) for part in partition.parts]
        for partition in partitions
        if isinstance(partition, TopicPartition)
    ]


@BOTH
def test_partitions_are_cut_between_blocks(served: Serving, way: str) -> None:
    here = place(served, way)
    assert planned(here, subscribe="prices") == [("prices", 1, 101)]
    assert planned(here, subscribe="prices", minPartitions="2") == [("prices", 1, 61), ("prices", 61, 101)]
    parts = planned(here, subscribe="prices,late", minPartitions="3")
    assert parts == [("prices", 1, 31), ("prices", 31, 61), ("prices", 61, 101), ("late", 14, 20)]


@BOTH
def test_more_partitions_than_blocks_cut_the_blocks(spark: SparkSession, served: Serving, way: str) -> None:
    here = place(served, way)
    parts = planned(here, subscribe="prices", minPartitions="10")
    assert len(parts) == 10
    assert [start for _, start, _ in parts[1:]] == [end for _, _, end in parts[:-1]]
    frame = reading(spark, **here, subscribe="prices", minPartitions="10")
    assert frame.rdd.getNumPartitions() == len(parts)
    assert offsets(frame) == list(range(1, 101))
    assert len(planned(here, subscribe="strong", minPartitions="100")) == 4


@BOTH
def test_each_topic_has_its_own_time(spark: SparkSession, served: Serving, way: str) -> None:
    times = f'{{"prices": {NOON // 1000 + 99_000}, "late": {{"0": {NOON // 1000 + 18_000}}}}}'
    frame = reading(spark, **place(served, way), subscribe="prices,late", startingOffsetsByTimestamp=times)
    assert rows(frame, "topic", "offset") == [("late", 18), ("late", 19), ("prices", 99), ("prices", 100)]


@BOTH
@pytest.mark.parametrize("most", [1, 3, 7, 10, 11, 29, 30, 31, 60, 99, 100, 1000])
@pytest.mark.parametrize("least", ["1", "4"])
def test_no_partition_has_more_records_than_allowed(served: Serving, way: str, most: int, least: str) -> None:
    """Though partitions otherwise end where blocks end."""
    options = {"subscribe": "prices", "maxRecordsPerPartition": str(most), "minPartitions": least}
    parts = planned(place(served, way), **options)
    assert all(0 < end - start <= most for _, start, end in parts)
    assert len(parts) == max(int(least), -(-100 // most))
    assert [start for _, start, _ in parts] == [1, *(end for _, _, end in parts[:-1])]
    assert parts[-1][2] == 101


@BOTH
def test_small_topics_share_a_task(spark: SparkSession, served: Serving, way: str) -> None:
    here, chosen = place(served, way), {"subscribe": "prices,late,strong"}
    prices, late, strong = ("prices", 1, 101), ("late", 14, 20), ("strong", 1, 5)
    assert tasks(here, **chosen) == [[prices, late, strong]]
    assert tasks(here, **chosen, maxRecordsPerPartition="100") == [[prices], [late, strong]]
    assert [len(task) for task in tasks(here, **chosen, minPartitions="3")] == [1, 1, 1, 1, 1]
    assert tasks(here, **chosen, maxRecordsPerPartition="60") == [
        [("prices", 1, 61)],  # and its second part is not of another topic
        [("prices", 61, 101), late, strong],
    ]
    frame = reading(spark, **here, **chosen)
    assert frame.rdd.getNumPartitions() == 1
    assert {row["topic"]: row["count"] for row in _counted(frame)} == {"prices": 100, "late": 6, "strong": 4}


def test_a_task_of_many_topics_stays_short(tmp_path: Path) -> None:
    big = {f"big-{number}": Topic([4], size=9 << 20) for number in range(4)}
    small = {f"small-{number:03}": Topic([1]) for number in range(200)}
    here = {"path": str(make_store(tmp_path / "store", **big, **small)), "subscribePattern": ".*"}
    counts = [len(task) for task in tasks(here)]
    assert counts == [1, 1, 1, 1, 127, 73]
    assert len(tasks(here, minPartitions="100")) >= 100


# -- filters ------------------------------------------------------------------------------------------------


FILTERS = [
    ("offset = 17", 2),
    ("offset > 90 and offset <= 95", 5),
    ("offset >= 99 or offset < 0", 2),
    ("offset in (1, 50, 100, 1000)", 3),
    ("topic = 'late'", 6),
    ("topic in ('late', 'nothing') and offset < 16", 2),
    ("topic like 'la%' and topic like '%te' and topic like '%at%'", 6),
    ("topic = 'nothing'", 0),
    ("offset between 30 and 20", 0),
    ("timestamp >= timestamp_micros({}) and timestamp < timestamp_micros({})", 10),
    ("timestamp = timestamp_micros({}) and topic = 'prices'", 1),
    ("not (offset < 98) and topic <=> 'prices' and offset is not null", 3),
]


@BOTH
@pytest.mark.parametrize("pushed", [True, False])
def test_filters_reduce_the_read_messages_and_not_the_rows(
    spark: SparkSession, served: Serving, way: str, pushed: bool
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushed).lower())
    try:
        for condition, count in FILTERS if pushed else FILTERS[-3:]:
            # Each with a frame of its own: with the switch on, Spark 4.3 mixes up those of one frame.
            frame = reading(spark, **place(served, way), subscribe="prices,late")
            where = condition.format(NOON + 50 * SECOND, NOON + 60 * SECOND)
            assert frame.where(where).count() == count, where
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_filter_is_pushed_down(spark: SparkSession, served: Serving) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reading(spark, servers=served.address, subscribe="prices", minPartitions="10")
        few = frame.where("offset >= 40 and offset < 50")
        assert "Filter (" not in plan_of(few)
        spread = few.groupBy(sql.spark_partition_id().alias("part")).count().collect()
        assert len(spread) == 10, "the ten messages that are left are cut into ten parts"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_filters_are_left_to_spark_by_default(spark: SparkSession, served: Serving) -> None:
    frame = reading(spark, servers=served.address, subscribe="prices")
    assert (frame.where("offset < 5").count(), frame.count(), frame.where("offset > 50").count()) == (
        4,
        100,
        50,
    )


def test_without_the_switch_spark_filters_all_rows_itself(spark: SparkSession, served: Serving) -> None:
    frame = reading(spark, servers=served.address, subscribe="prices", minPartitions="10")
    few = frame.where("offset >= 40 and offset < 50")
    assert "Filter (" in plan_of(few)
    assert few.rdd.getNumPartitions() == 10
    spread = few.groupBy(sql.spark_partition_id().alias("part")).count().collect()
    assert sum(row["count"] for row in spread) == 10
    assert len(spread) < 10, "the parts are those of the whole topic"


@pytest.mark.skipif(pyspark.__version__ != "4.3.0", reason="it may be mended in other versions of Spark")
def test_spark_reuses_a_plan_with_filter_pushdown(spark: SparkSession, served: Serving) -> None:
    """docs/SPARK.md warns of it: Spark keeps what a reader has planned in the frame's table."""

    def prices() -> DataFrame:
        return reading(spark, servers=served.address, subscribe="prices")

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = prices()
        assert (frame.where("offset < 5").count(), frame.count()) == (4, 4)
        frame = prices()
        both = frame.where("offset < 5").union(frame.where("offset > 90"))
        assert sorted(row.offset for row in both.select("offset").collect()) == sorted([*range(91, 101)] * 2)
        assert (prices().where("offset < 5").count(), prices().count()) == (4, 100)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


# -- the whole of a larger topic ----------------------------------------------------------------------------


@BOTH
def test_a_larger_topic_is_read_as_a_whole(spark: SparkSession, tmp_path: Path, way: str) -> None:
    with serving(tmp_path / "store") as server:
        server.publish("much", [b"%d" % number for number in range(200_000)], sink=True)
        here = place(server, way)
        frame = reading(spark, **here, subscribe="much", minPartitions="4")
        row = frame.agg(
            sql.count("*"),
            sql.countDistinct("offset"),
            sql.sum(sql.col("value").cast("string").cast("long") - sql.col("offset") + 1),
        ).first()
        assert tuple(row) == (200_000, 200_000, 0)


def test_modules_of_workers_are_kept_out_of_garbage_collection(spark: SparkSession, served: Serving) -> None:
    before = gc.get_freeze_count()
    spark.dataSource.register(Light)
    frame = spark.read.format("light").option("omq.servers", served.address).option("subscribe", "prices")
    assert frame.load().count() == sum(TOPICS["prices"].counts)
    assert gc.get_freeze_count() == before, "the driver is somebody else's process"


def test_a_local_session_talks_to_its_workers_through_unix_sockets(spark: SparkSession) -> None:
    told = spark.sparkContext.parallelize([None], 1).map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"])
    assert [said.lower() for said in told.collect()] == ["true"]


def test_the_json_of_bounds_can_be_made_by_a_program(spark: SparkSession, served: Serving) -> None:
    bounds = json.dumps({"prices": 5, "news": 2})
    frame = reading(spark, servers=served.address, subscribe="prices,news", endingOffsets=bounds)
    assert rows(frame, "topic", "offset") == [("news", 1), *[("prices", n) for n in range(1, 5)]]
