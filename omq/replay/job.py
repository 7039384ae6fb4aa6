"""The part of a replay that uses Spark: filter rows, and write files or topics."""

import json
import logging
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, assert_never

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from omq.bulk.access import StoredTopic
from omq.bulk.errors import BadOptions, DataLoss, OmqError
from omq.bulk.headers import Header, head_of
from omq.bulk.places import ServerPlace, StorePlace
from omq.protocol.amqp import head as stored_head
from omq.protocol.dmp import writer as dmp_writer
from omq.replay.copying import ProducerNames, producers
from omq.replay.declaring import TargetTopics
from omq.replay.envelopes import renamed
from omq.replay.gaps import SKIP_LOST, going_on
from omq.replay.meter import Meter
from omq.replay.pacing import DueMessages, publish
from omq.replay.plan import Plan
from omq.replay.request import Csv, Json, ReplayRequest, Text, ToJson, ToParquet, ToServer
from omq.replay.stopping import cancel_on_interrupt, hold_interrupts, stop_on_interrupt
from omq.spark.options import spelled
from omq.spark.session import local_session, stderr_to
from omq.spark.source import OmqDataSource
from omq_storage.errors import StoreError

PART_MESSAGES = 100_000
"""About the least number of messages of a task, if there are several tasks."""

MOST_PARTS = 16
"""The greatest number of parts, except for large topics: every part makes a file."""

POLL_SECONDS = 0.2

_SKIPPED = re.compile(r"^.*are gone: .*$", re.MULTILINE)
_COUNTED = re.compile(r"^Topic .*: (\d+) messages skipped in all$", re.MULTILINE)

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

OWN = ("topic", "offset", "timestamp", "key", "value", "headers")
TEXT = "text"


class JobFailed(OmqError):
    """The Spark job failed; the message gives the reason."""


@contextmanager
def session(log: Path) -> Iterator[SparkSession]:
    """Return the session of `spark-submit`, or else start a local one, whose processes write their standard
    error to `log`. Raises JavaMissing.
    """
    with ExitStack() as stack:
        with hold_interrupts():
            spark = _started(log)
            stack.callback(spark.stop)
        yield spark


def _started(log: Path) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = SparkSession.builder.appName("omq replay").getOrCreate()
        spark.dataSource.register(OmqDataSource)
        spark.conf.set(PUSHDOWN, "true")
        return spark
    # Silence Spark's own log of rejected queries: we report these errors in one sentence.
    for context in ("SQL", "DataFrame"):
        logging.getLogger(f"{context}QueryContextLogger").setLevel(logging.CRITICAL)
    with stderr_to(log):
        return local_session("omq replay", settings={PUSHDOWN: "true"})


def run(spark: SparkSession, plan: Plan, meter: Meter) -> None:
    """Run a plan.

    Raises BadOptions for a condition or columns that Spark rejects, and JobFailed. Never leaves incomplete
    output that looks complete, even if it is interrupted.
    """
    request = plan.request
    cancel = spark.sparkContext.cancelAllJobs
    with _in_our_words(plan):
        with cancel_on_interrupt(cancel) as interrupted:
            frame = _wanted(spark, plan)
            if interrupted.is_set():
                raise KeyboardInterrupt
        match request.destination:
            case ToServer() as server if request.speed is not None:
                _paced(frame, plan, server, request.speed, meter)
            case destination:
                with cancel_on_interrupt(cancel):
                    _counted(spark, frame, plan, meter, _writing(spark, plan, destination))


def _wanted(spark: SparkSession, plan: Plan) -> DataFrame:
    """Return the rows of a plan. Raise BadOptions."""
    request = plan.request
    frame = _decoded(_frame(spark, plan), request)
    if request.where is None:
        return frame
    try:
        return frame.where(request.where)
    except PySparkException as error:
        raise BadOptions(f"--where: {_first_line(error)}") from error


def _frame(spark: SparkSession, plan: Plan) -> DataFrame:
    request = plan.request
    options: dict[str, str] = {
        "assign": json.dumps({part.topic.name: [0] for part in plan.parts}),
        "startingOffsets": json.dumps({part.topic.name: part.start for part in plan.parts}),
        "endingOffsets": json.dumps({part.topic.name: part.end for part in plan.parts}),
        "minPartitions": str(min(MOST_PARTS, plan.messages // PART_MESSAGES) or 1),
        "failOnDataLoss": "false" if request.skip_lost else "true",
        "includeHeaders": "true",
    }
    match request.source:
        case ServerPlace() as place:
            options |= spelled(place)
        case StorePlace(path):
            options["path"] = str(Path(path).resolve())
        case _:
            assert_never(request.source)
    return spark.read.format("omq").options(**options).load().select(*OWN)


def _decoded(frame: DataFrame, request: ReplayRequest) -> DataFrame:
    text = frame.withColumn(TEXT, F.try_validate_utf8(F.col("value").cast("string")))
    match request.decoding:
        case Text():
            return text
        case Csv(columns):
            decoded = F.from_csv(F.col(TEXT), columns, {})
        case Json(columns):
            decoded = F.from_json(F.col(TEXT), columns, {})
        case _:
            assert_never(request.decoding)
    try:
        found = text.withColumn("decoded", decoded).select(*OWN, TEXT, "decoded.*")
    except PySparkException as error:
        raise BadOptions(f"--decode: {_first_line(error)}") from error
    for name in found.columns[len(OWN) + 1 :]:
        if name.lower() in (*OWN, TEXT):
            raise BadOptions(f"--decode: a column cannot be called {name!r}, as one of the message's own is.")
    return found


def read_log(log: Path, meter: Meter) -> None:
    """Report the messages that local tasks have skipped, from their log."""
    text = log.read_text(errors="replace")
    for line in _SKIPPED.findall(text):
        meter.say(line)
    meter.skipped += sum(map(int, _COUNTED.findall(text)))


# -- writing ------------------------------------------------------------------------------------------------

Write = Callable[[DataFrame], None]


def _writing(spark: SparkSession, plan: Plan, destination: ToParquet | ToJson | ToServer) -> Write:
    match destination:
        case ToParquet(path):
            return _files(spark, path, _write_parquet)
        case ToJson(path):
            return _files(spark, path, _write_json)
        case ToServer() as server:
            return lambda rows: _write_topics(rows, plan, server)
        case _:
            assert_never(destination)


def _write_parquet(frame: DataFrame, path: str) -> None:
    frame.select(*(name for name in frame.columns if name != TEXT)).write.parquet(path)


def _write_json(frame: DataFrame, path: str) -> None:
    """Write JSON: octets as text if they are UTF-8, else as base64 under another name; omit null members."""
    own = ["topic", "offset", "timestamp", *_texts("key"), *_texts("value")]
    headers = F.expr(
        "transform(headers, h -> named_struct('key', h.key, "
        "'value', try_validate_utf8(cast(h.value as string)), "
        "'value_base64', if(try_validate_utf8(cast(h.value as string)) is null, base64(h.value), null)))"
    ).alias("headers")
    decoded = frame.columns[len(OWN) + 1 :]
    to_the_microsecond = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
    frame.select(*own, headers, *decoded).write.json(path, timestampFormat=to_the_microsecond)


def _texts(name: str) -> list[Any]:
    text = F.try_validate_utf8(F.col(name).cast("string"))
    return [
        text.alias(name),
        F.when(text.isNull(), F.base64(F.col(name))).alias(f"{name}_base64"),
    ]


def _write_topics(frame: DataFrame, plan: Plan, destination: ToServer) -> None:
    with destination.place.open() as server:
        server.ask(TargetTopics(plan, destination).declare_all)
    rows = frame.select("topic", "key", "value", "headers")
    writer = rows.write.format("omq").options(**spelled(destination.place))
    if destination.topic is not None:
        writer = writer.option("topic", destination.topic)
    writer.mode("append").save()


def _files(spark: SparkSession, path: str, write: Callable[[DataFrame, str], None]) -> Write:
    """Write files to a temporary directory, and rename it when it is complete.

    This applies to local directories. Elsewhere Spark's rules apply: a directory without `_SUCCESS` is
    incomplete.
    """
    if "://" in path or not (spark.conf.get("spark.master") or "").startswith("local"):
        return lambda frame: write(frame, path)
    whole = Path(path.removeprefix("file:")).absolute()

    def written(frame: DataFrame) -> None:
        partial = whole.with_name(f".{whole.name}.partial-{uuid.uuid4().hex[:8]}")
        try:
            write(frame, str(partial))
            partial.rename(whole)
        except OSError as error:
            raise JobFailed(f"{whole}: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    return written


# -- counting -----------------------------------------------------------------------------------------------


def _counted(spark: SparkSession, frame: DataFrame, plan: Plan, meter: Meter, write: Write) -> None:
    """Write rows, and count them by topic in the meter."""
    names = [part.topic.name for part in plan.parts if len(part)]
    observation = Observation()
    measures = []
    for number, name in enumerate(names):
        is_its = F.col("topic") == name
        measures.append(F.count_if(is_its).alias(f"count{number}"))
        measures.append(F.sum(F.when(is_its, F.octet_length("value"))).alias(f"octets{number}"))
    if not measures:
        write(frame)
        return
    with _shown(spark, plan, meter):
        write(frame.observe(observation, *measures))
    found: Mapping[str, int | None] = observation.get
    for number, name in enumerate(names):
        meter.add(name, found[f"count{number}"] or 0, found[f"octets{number}"] or 0)


@contextmanager
def _shown(spark: SparkSession, plan: Plan, meter: Meter) -> Iterator[None]:
    """Show the progress in the block. Spark reports completed tasks only."""
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = sum(stage.numTasks for stage in stages if stage is not None)
            done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if tasks:
                meter.show(plan.messages * done // tasks)

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- at a given speed ---------------------------------------------------------------------------------------


def _paced(frame: DataFrame, plan: Plan, destination: ToServer, speed: float, meter: Meter) -> None:
    """Publish rows in the order of their timestamps from this process, fetching one partition at a time."""
    topics = {part.topic.name: part.topic for part in plan.parts}
    names = producers(destination)
    ordered = frame.select(
        "topic", "offset", F.unix_micros("timestamp").alias("time"), "key", "value", "headers"
    )
    rows = ordered.sort("time", "topic", "offset").toLocalIterator()
    dues = (_due(row, names, topics[row.topic]) for row in rows)
    with stop_on_interrupt() as stop:
        publish(dues, plan, destination, speed, meter, stop)


def _due(row: Any, names: ProducerNames, topic: StoredTopic) -> DueMessages:
    headers = [Header(one.key, None if one.value is None else bytes(one.value)) for one in row.headers or ()]
    head = stored_head.encode(head_of(bytes(row.key or b""), headers))
    body = bytes(row.value)
    made = dmp_writer.for_sink([body], [renamed(head, row.offset, names.of(topic))])
    return DueMessages(row.time, row.topic, range(row.offset, row.offset + 1), len(body), made)


# -- errors -------------------------------------------------------------------------------------------------


@contextmanager
def _in_our_words(plan: Plan) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise JobFailed(_with_way(_first_line(error), plan)) from error
    except Py4JJavaError as error:  # a Java exception that PySpark does not convert
        raise JobFailed(_with_way(_sentence(error.java_exception.toString()), plan)) from error


_MODULES = "|".join(re.escape(kind.__module__) for kind in (OmqError, DataLoss, StoreError))
_OURS = re.compile(rf"^(?:{_MODULES})\.\w+: (.+)$", re.MULTILINE)
"""One of our errors in the traceback of a task, as Spark's exception contains it."""


_LOST = re.compile(r"Topic (.+): messages [0-9]+ to ([0-9]+) are gone: ")


def _with_way(sentence: str, plan: Plan) -> str:
    """Return a sentence about lost messages, with where a replay after them begins; other sentences
    unchanged.
    """
    lost = _LOST.match(sentence)
    for part in plan.parts:
        if lost is not None and lost[1] == repr(part.topic.name):
            return sentence.replace(SKIP_LOST, f"{SKIP_LOST}{going_on(part, int(lost[2]) + 1)}")
    return sentence


def _first_line(error: PySparkException) -> str:
    """Return the sentence of our error in Spark's exception, or else the first line of the exception."""
    return _sentence(str(error))


def _sentence(text: str) -> str:
    """Return the sentence of our error in the text of an exception, or else the first line of the text."""
    ours = _OURS.findall(text)
    if not ours:
        return text.strip().splitlines()[0]
    # Name the command's option instead of the data source's.
    return str(ours[-1]).replace("With failOnDataLoss=false they would be skipped", SKIP_LOST)
