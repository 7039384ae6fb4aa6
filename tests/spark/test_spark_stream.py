"""Streams out of topics: exact offsets, whatever happens in between."""

import json
import shutil
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

from made_stores import NOON, Topic, body, make_store
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from serving_stores import Serving, serving
from spark_helpers import Log, rows, spelled

from omq.bulk.errors import DataLoss, UnknownTopic
from omq.spark import behind
from omq.spark.options import read_options
from omq.spark.reading import TopicPartition
from omq.spark.schema import usual_schema
from omq.spark.stream import StreamReader, share
from omq_storage.blocks import encode
from omq_storage.levels import Level
from omq_storage.store import Store


def streaming(spark: SparkSession, **options: object) -> DataFrame:
    return spark.readStream.format("omq").options(**spelled(options)).load()


class Query:
    """A query to Parquet files, which can be run again and again."""

    def __init__(self, place: Path) -> None:
        self.output = place / "output"
        self.checkpoint = place / "checkpoint"

    def writer(self, frame: DataFrame) -> Any:
        selected = frame.select("topic", "offset", "value")
        options = {"path": str(self.output), "checkpointLocation": str(self.checkpoint)}
        return selected.writeStream.format("parquet").options(**options)

    def run(self, frame: DataFrame) -> list[int]:
        """Return everything there is now; the rows of each micro-batch."""
        query = self.writer(frame).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    def found(self, spark: SparkSession) -> list[tuple[Any, ...]]:
        return rows(spark.read.parquet(str(self.output)), "topic", "offset")

    def bounds(self, batch: int) -> dict[str, list[int]]:
        """Return the end of a micro-batch as Spark has stored it."""
        return bounds(json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]))

    def forget(self, batch: int) -> None:
        """Remove the records of a micro-batch, as if Spark had ended before it was done."""
        for kept in ("commits", "sources"):
            for name in (str(batch), f".{batch}.crc"):
                (self.checkpoint / kept / name).unlink(missing_ok=True)


def bounds(offsets: Any) -> dict[str, list[int]]:
    return {name: position["bounds"] for name, position in offsets.items()}


def numbered(first: int, last: int, topic: str = "prices") -> list[tuple[str, int]]:
    return [(topic, message) for message in range(first, last + 1)]


def test_all_that_is_there_in_micro_batches_and_on_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([10, 20]), news=Topic([10]))) as server:
        options = {
            "servers": server.address,
            "subscribe": "prices,news",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 16,
        }
        assert query.run(streaming(spark, **options)) == [16, 16, 8]
        assert query.found(spark) == numbered(1, 10, "news") + numbered(1, 30)
        assert query.bounds(0) == {"news": [1, 5], "prices": [1, 13]}  # in proportion to what waits
        server.publish("prices", [b"x"] * 5)
        assert query.run(streaming(spark, **options)) == [5]
        assert sum(query.run(streaming(spark, **options))) == 0
        assert query.found(spark) == numbered(1, 10, "news") + numbered(1, 35)


def test_a_stream_has_strings_where_its_schema_says_so(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([3]))) as server:
        options = {"servers": server.address, "subscribe": "prices", "startingOffsets": "earliest"}
        source = spark.readStream.format("omq").schema("topic STRING, offset LONG, value STRING")
        assert sum(query.run(source.options(**spelled(options)).load())) == 3
    written = spark.read.parquet(str(query.output))
    assert written.schema["value"].dataType.simpleString() == "string"
    assert rows(written, "offset", "value") == [(n, body(n).decode()) for n in (1, 2, 3)]


def test_a_running_query_reads_new_messages(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", **{"prices-1": Topic([10])})) as server:
        frame = streaming(
            spark, servers=server.address, subscribePattern="prices-.*", startingOffsets="earliest"
        )
        running = query.writer(frame).start()
        try:
            running.processAllAvailable()
            assert query.found(spark) == numbered(1, 10, "prices-1")
            server.publish("prices-1", [b"x"] * 3)
            server.publish("prices-2", [b"x"] * 4)  # a topic that is new to the pattern
            running.processAllAvailable()
            assert query.found(spark) == numbered(1, 13, "prices-1") + numbered(1, 4, "prices-2")
        finally:
            running.stop()
        # Stopped between two micro-batches, it goes on behind the last.
        server.publish("prices-2", [b"x"])
        assert query.run(frame) == [1]
        assert query.found(spark) == numbered(1, 13, "prices-1") + numbered(1, 5, "prices-2")


def test_a_micro_batch_that_did_not_complete_is_read_again(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([30]))) as server:
        options = {"path": str(server.store), "subscribe": "prices", "startingOffsets": "earliest"}
        assert query.run(streaming(spark, **options, maxOffsetsPerTrigger=10)) == [10, 10, 10]
        query.forget(2)
        server.publish("prices", [b"x"] * 4)
        # The same end as before, then the rest; the file sink knows that it has the former.
        query.run(streaming(spark, **options))
        assert query.bounds(2) == {"prices": [21, 31]}
        assert query.found(spark) == numbered(1, 34)


def test_a_micro_batch_is_done_again_in_the_same_parts(spark: SparkSession, tmp_path: Path) -> None:
    """Though its blocks were merged meanwhile. So a sink stores nothing twice."""
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([3] * 13 + [1]))) as server:
        options = {"servers": server.address, "subscribe": "prices", "startingOffsets": "earliest"}
        options |= {"minPartitions": "3", "maxOffsetsPerTrigger": "40"}

        def copy() -> None:
            writer = streaming(spark, **options).select("value").writeStream.format("omq")
            writer = writer.option("omq.servers", server.address).option("topic", "copy")
            writer = writer.option("checkpointLocation", str(query.checkpoint))
            writer.trigger(availableNow=True).start().awaitTermination()

        copy()
        before = query.bounds(0)
        assert len(before["prices"]) == 4
        server.merge("prices")
        query.forget(0)
        copy()
        assert query.bounds(0) == before
        assert server.messages("copy") == 41


def test_a_repeated_micro_batch_has_small_topics_in_the_same_tasks(tmp_path: Path) -> None:
    topics = {"a": Topic([3]), "b": Topic([]), "c": Topic([5]), "d": Topic([2] * 8), "e": Topic([4])}
    with serving(make_store(tmp_path / "store", **topics)) as server:
        options = {"subscribe": "a,b,c,d,e", "startingOffsets": "earliest", "maxRecordsPerPartition": 10}
        stream = reader(server, **options)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        expected = [[("a", 1, 4), ("c", 1, 6)], [("d", 1, 9)], [("d", 9, 17)]]
        found = tasks(stream, start, end)
        assert found[:2] == expected[:2]
        assert [part for task in found[2:] for part in task] == [("d", 9, 17), ("e", 1, 5)]
        assert [name for name, position in end.items() if "joined" in position][:1] == ["c"]
        # With other bounds on the tasks, and more messages, the kept micro-batch is the same.
        for topic in topics:
            server.publish(topic, [b"x"] * 50)
        again = reader(server, **options | {"maxRecordsPerPartition": 1000, "minPartitions": 9})
        kept = json.loads(json.dumps(end))
        assert tasks(again, start, kept) == found
        (first, *_) = again.partitions(start, kept)
        assert sum(batch.num_rows for batch in again.read(first)) == 8
        for one in (stream, again):
            one.stop()


def tasks(stream: StreamReader, start: Any, end: Any) -> list[list[tuple[str, int, int]]]:
    partitions = [each for each in stream.partitions(start, end) if isinstance(each, TopicPartition)]
    return [[(part.topic.name, part.start, part.end) for part in each.parts] for each in partitions]


def test_the_earliest_of_the_first_micro_batch_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Also when retention has deleted it before the batch was done: that is told."""
    query = Query(tmp_path)
    store = make_store(tmp_path / "store", prices=Topic([10, 10]))
    options = {"subscribe": "prices", "startingOffsets": "earliest"}
    with serving(store) as server:
        assert query.run(streaming(spark, servers=server.address, **options)) == [20]
    query.forget(0)
    shutil.rmtree(query.output)  # which would know that it has it all
    add_and_trim(store, 21, 5, before=11)
    with (
        serving(store) as server,
        pytest.raises(PySparkException, match="messages 1 to 10 are gone: they are no longer kept"),
    ):
        query.run(streaming(spark, servers=server.address, **options))


def test_retention_that_overtakes_a_stream(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    query = Query(tmp_path)
    store = make_store(tmp_path / "store", prices=Topic([10, 10, 10]))
    options = {"subscribe": "prices", "startingOffsets": "earliest"}
    with serving(store) as server:
        assert query.run(streaming(spark, servers=server.address, **options)) == [30]
    add_and_trim(store, 31, 15, before=36)
    with serving(store) as server:
        with pytest.raises(PySparkException, match="messages 31 to 35 are gone: they are no longer kept"):
            query.run(streaming(spark, servers=server.address, **options))
        log.mark()
        query.run(streaming(spark, servers=server.address, **options, failOnDataLoss="false"))
        assert query.found(spark) == numbered(1, 30) + numbered(36, 45)
        assert "Topic 'prices': 5 messages skipped in all" in log.text()


def add_and_trim(store: Path, first: int, count: int, before: int) -> None:
    """Add messages in blocks of five, and delete the oldest."""
    with Store.open(store) as opened:
        environment = opened.level(Level.WEAK)
        (record,) = opened.catalogue.topics()
        for message in range(first, first + count, 5):
            environment.append([encode(record.id, message, [b"x"] * 5, 1_800_000_000_000_000)])
        environment.trim(record.id, before)


# -- the reader by itself: what Spark asks, in any order ----------------------------------------------------


def reader(server: Serving, now: Callable[[], float] = time.monotonic, **options: object) -> StreamReader:
    given = {"omq.servers": server.address, "subscribe": "prices"} | spelled(options)
    spelled_out = {name: str(value) for name, value in given.items() if value is not None}
    parsed = read_options(spelled_out, stream=True)
    return StreamReader(parsed, usual_schema(parsed), now)


def test_lost_messages_take_no_room_in_micro_batches(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", prices=Topic([100] * 10, deleted=900))
    given = {"path": str(store), "subscribe": "prices", "startingOffsets": '{"prices": 1}'}
    options = read_options(given | {"failOnDataLoss": "false"}, stream=True)
    reader = StreamReader(options, usual_schema(options))
    kept = reader.reportLatestOffset()["prices"]["bounds"][-1]
    reader.prepareForTriggerAvailableNow()
    start, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(50))) != start:
        parts = reader.partitions(start, end)
        counts.append(sum(batch.num_rows for part in parts for batch in reader.read(part)))
        start = end
    assert start["prices"]["bounds"][-1] == kept
    assert counts == [50] * len(counts)
    reader.stop()


def test_the_first_batch_of_a_stream_from_the_latest_is_empty(tmp_path: Path) -> None:
    """Were it cut off, nobody would know any more where it began."""
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        stream = reader(server)
        start = stream.initialOffset()
        assert bounds(start) == {"prices": [11]}
        server.publish("prices", [b"x"] * 5)
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        end = stream.latestOffset(start, ReadAllAvailable())
        assert bounds(end) == {"prices": [11, 16]}
        # Started again before the first batch was done, Spark asks for a new beginning, behind the kept end.
        again = reader(server)
        later = again.initialOffset()
        assert bounds(later) == {"prices": [16]}
        assert again.partitions(later, start) == []
        (partition,) = again.partitions(start, end)
        assert sum(batch.num_rows for batch in again.read(partition)) == 5
        for one in (stream, again):
            one.stop()


def test_available_now_has_an_end_that_does_not_move(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        stream = reader(server, startingOffsets="earliest", maxOffsetsPerTrigger=7)
        limit = stream.getDefaultReadLimit()
        assert limit == ReadMaxRows(7)
        stream.prepareForTriggerAvailableNow()
        server.publish("prices", [b"x"] * 100)
        offsets = [stream.initialOffset()]
        for _ in range(3):
            offsets.append(stream.latestOffset(offsets[-1], limit))
        found = [bounds(each)["prices"] for each in offsets]
        assert found == [[1], [1, 8], [8, 11], [8, 11]]
        assert bounds(stream.reportLatestOffset()) == {"prices": [111]}
        stream.stop()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("most", "delay", "seconds"), [(None, None, 900), (7, "90s", 90), (None, "2500", 2.5), (7, "2MIN", 120)]
)
def test_a_micro_batch_waits_for_enough_messages(
    tmp_path: Path, most: int | None, delay: str | None, seconds: float
) -> None:
    """But no longer than the delay after the previous one; the first one does not wait."""
    options: dict[str, object] = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5}
    options |= {} if most is None else {"maxOffsetsPerTrigger": most}
    options |= {} if delay is None else {"maxTriggerDelay": delay}
    with serving(make_store(tmp_path / "store", prices=Topic([2]))) as server:
        clock = Clock()
        stream = reader(server, clock, **options)
        limit = stream.getDefaultReadLimit()
        assert limit == (ReadMinRows(5) if most is None else ReadMaxRows(7))
        at = stream.latestOffset(stream.initialOffset(), limit)
        assert bounds(at) == {"prices": [1, 3]}
        server.publish("prices", [b"x"] * 4)
        clock.seconds += seconds - 1
        assert stream.latestOffset(at, limit) == at
        server.publish("prices", [b"x"])
        at = stream.latestOffset(at, limit)
        assert bounds(at) == {"prices": [3, 8]}, "there are enough"
        server.publish("prices", [b"x"])
        clock.seconds += seconds - 1
        assert stream.latestOffset(at, limit) == at, "the delay begins with the previous micro-batch"
        # A trigger that reads all there is does not wait.
        assert bounds(stream.latestOffset(at, ReadAllAvailable())) == {"prices": [8, 9]}
        clock.seconds += seconds
        at = stream.latestOffset(at, limit)
        assert bounds(at) == {"prices": [8, 9]}, "the delay is over"
        assert stream.latestOffset(at, limit) == at
        server.publish("prices", [b"x"])
        assert stream.latestOffset(at, limit) == at
        stream.prepareForTriggerAvailableNow()
        assert bounds(stream.latestOffset(at, limit)) == {"prices": [9, 10]}
        stream.stop()


def test_limits_of_a_stream_that_contradict_each_other(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([2]))) as server:
        with pytest.raises(ValueError, match="minOffsetsPerTrigger 8 is greater than maxOffsetsPerTrigger 7"):
            reader(server, minOffsetsPerTrigger=8, maxOffsetsPerTrigger=7)
        with pytest.raises(ValueError, match="maxTriggerDelay makes no sense here: it bounds the time that"):
            reader(server, maxTriggerDelay="1s")
        with pytest.raises(ValueError, match="maxTriggerDelay must be a number with one of the units"):
            reader(server, minOffsetsPerTrigger=8, maxTriggerDelay="2 weeks")


def test_a_stream_from_a_time_in_partitions_of_bounded_size(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10, 20]))) as server:
        times = f'{{"prices": {{"0": {NOON // 1000 + 5_000}}}}}'
        stream = reader(server, startingOffsetsByTimestamp=times, maxRecordsPerPartition=10)
        start = stream.initialOffset()
        assert bounds(start) == {"prices": [5]}
        end = stream.latestOffset(start, ReadAllAvailable())
        assert len(stream.partitions(start, end)) == 3
        found = bounds(end)["prices"]
        assert (found[0], found[-1]) == (5, 31)
        assert all(0 < after - before <= 10 for before, after in pairwise(found))
        stream.stop()


def test_progress_says_how_far_behind_a_stream_is(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(tmp_path)
    with serving(make_store(tmp_path / "store", prices=Topic([10, 10]), news=Topic([4]))) as server:
        options = {"subscribe": "prices,news", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 12}
        frame = streaming(spark, servers=server.address, **options)
        running = query.writer(frame).trigger(availableNow=True).start()
        running.awaitTermination()
        progresses = [progress for progress in running.recentProgress if progress.numInputRows]
        assert [behind(progress) for progress in progresses] == [
            {"prices": 10, "news": 2},
            {"prices": 0, "news": 0},
        ]
        (source,) = progresses[0].sources
        ends = json.loads(source.endOffset)
        ends["prices"]["id"] += 100  # as if the topic had been created again meanwhile
        source["endOffset"] = json.dumps(ends)
        assert behind(progresses[0]) == {"prices": 20, "news": 2}
        for other in ("null", "17", '{"prices": {"0": 5}}'):  # nothing yet, and the offsets of other formats
            source["latestOffset"] = other
            assert behind(progresses[0]) == {}


def test_a_topic_that_goes_away(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]), news=Topic([3]))) as server:
        strict = reader(server, startingOffsets='{"prices": 11}')
        loose = reader(server, failOnDataLoss="false")
        everything = ReadAllAvailable()
        before = strict.initialOffset()
        assert bounds(before) == {"prices": [11]}
        for count in (4, 10, 30):  # fewer than there were, as many, and more
            server.delete("prices")
            server.publish("prices", [b"x"] * count)
            with pytest.raises(DataLoss, match="message 11 comes next, but it was deleted and created again"):
                strict.latestOffset(before, everything)
            after = loose.latestOffset(before, everything)
            assert bounds(after) == {"prices": [1, count + 1]}
            (partition,) = loose.partitions(before, after)
            assert sum(batch.num_rows for batch in loose.read(partition)) == count
        server.delete("prices")
        server.publish("prices", [b"x"] * 40)
        with pytest.raises(DataLoss, match="it was deleted and created again; the messages to read are lost"):
            strict.partitions(before, after)
        assert loose.partitions(before, after) == []
        server.delete("prices")
        with pytest.raises(UnknownTopic, match="There is no topic 'prices'"):
            strict.latestOffset(after, everything)
        assert loose.latestOffset(after, everything) == {}
        assert loose.partitions(before, after) == []
        for one in (strict, loose):
            one.stop()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"subscribe": "prices,news"}, {"subscribe": "prices"}),
        ({"subscribe": None, "subscribePattern": ".*s"}, {"subscribe": None, "subscribePattern": "p.*"}),
    ],
)
def test_a_topic_that_the_options_select_no_more(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]), news=Topic([3]))) as server:
        wide = reader(server, startingOffsets="earliest", **before)
        start = wide.initialOffset()
        end = wide.latestOffset(start, ReadAllAvailable())
        strict, loose = reader(server, **after), reader(server, failOnDataLoss="false", **after)
        sentence = "checkpoint contains the topic 'news', and its options do not select it any more"
        with pytest.raises(DataLoss, match=sentence):
            strict.latestOffset(end, ReadAllAvailable())
        with pytest.raises(DataLoss, match=sentence):
            strict.partitions(start, end)
        assert bounds(loose.latestOffset(end, ReadAllAvailable())) == {"prices": [11]}
        assert len(loose.partitions(start, end)) == 1
        for one in (wide, strict, loose):
            one.stop()


@pytest.mark.parametrize("way", ["server", "store"])
def test_a_topic_that_goes_away_while_a_micro_batch_is_read(tmp_path: Path, way: str) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]), news=Topic([3]))) as server:
        place = {"omq.servers": server.address} if way == "server" else {"path": str(server.store)}

        def at(failing: str) -> StreamReader:
            given = place | {"subscribe": "prices,news", "startingOffsets": "earliest"}
            options = read_options(given | {"failOnDataLoss": failing}, stream=True)
            return StreamReader(options, usual_schema(options))

        strict, loose = at("true"), at("false")
        start = strict.initialOffset()
        (partition,) = strict.partitions(start, strict.latestOffset(start, ReadAllAvailable()))
        server.delete("prices")
        for _ in range(2):
            with pytest.raises(DataLoss, match="messages 1 to 10 are gone: the topic was deleted"):
                list(strict.read(partition))
            assert [batch.num_rows for batch in loose.read(partition)] == [3]
            server.publish("prices", [b"x"] * 20)  # the second time there is another one
        for one in (strict, loose):
            one.stop()


def test_a_checkpoint_of_something_else(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        stream = reader(server)
        for offsets in ({"prices": 5}, {"prices": {"id": 1, "bounds": []}}, {"prices": {"0": 5}}):
            with pytest.raises(
                ValueError, match=r"The query's checkpoint is not one of omq: it has .* for 'prices'"
            ):
                stream.latestOffset(offsets, ReadAllAvailable())
        stream.stop()


def test_the_options_of_a_stream(tmp_path: Path) -> None:
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        with pytest.raises(ValueError, match="endingOffsets makes no sense here: a stream has no end"):
            reader(server, endingOffsets="latest")
        one = reader(server, startingOffsets='{"prices": 4}')
        assert bounds(one.initialOffset()) == {"prices": [4]}
        behind = reader(server, startingOffsets='{"prices": 40}')
        with pytest.raises(DataLoss, match="message 40 comes next, but it has only got to 11"):
            behind.latestOffset(behind.initialOffset(), ReadAllAvailable())
        behind.stop()
        one.stop()


def test_a_stream_that_is_ahead_of_its_topic_reads_only_what_is_new(tmp_path: Path) -> None:
    """A topic is behind a stream if its store was restored from a backup, or if the query starts there."""
    with serving(make_store(tmp_path / "store", prices=Topic([10]))) as server:
        stream = reader(server, startingOffsets='{"prices": 40}', failOnDataLoss="false")
        start = stream.initialOffset()
        assert bounds(start) == {"prices": [40]}
        end = stream.latestOffset(start, ReadAllAvailable())
        assert bounds(end) == {"prices": [11]}
        assert stream.partitions(start, end) == []
        server.publish("prices", [b"x"] * 5)
        assert bounds(stream.latestOffset(end, ReadAllAvailable())) == {"prices": [11, 16]}
        stream.stop()


@pytest.mark.parametrize(
    ("begins", "ends", "most", "expected"),
    [
        ({"a": 1, "b": 1}, {"a": 5, "b": 5}, 100, {"a": 5, "b": 5}),
        ({"a": 1, "b": 1}, {"a": 91, "b": 11}, 10, {"a": 10, "b": 2}),
        ({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2}, 2, {"a": 2, "b": 2, "c": 1}),
        ({"a": 7}, {"a": 7}, 1, {"a": 7}),
        ({}, {}, 1, {}),
    ],
)
def test_sharing_out(
    begins: dict[str, int], ends: dict[str, int], most: int, expected: dict[str, int]
) -> None:
    assert share(begins, ends, most) == expected
