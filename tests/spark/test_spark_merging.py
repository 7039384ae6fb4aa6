"""Blocks that are merged while they are read: nothing comes twice, and nothing of a block is kept."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install '.[spark]'")

import pyarrow as pa
from made_stores import Topic, body, make_store
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from serving_stores import Serving, serving
from spark_helpers import reading

from omq.arrow.columns import Columns
from omq.bulk.places import Place, ServerPlace, StorePlace
from omq.bulk.remote import RemoteServer, RetryPolicy, parse_servers
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.spark.options import read_options
from omq.spark.schema import usual_schema
from omq_storage.blocks import FRAME_HEADER, Block, encode, merge
from omq_storage.heads import Heads

MESSAGES = 40


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Serving]:
    with serving(make_store(tmp_path / "store", small=Topic([3] * 13 + [1]))) as server:
        yield server


def place(served: Serving, way: str) -> Place:
    if way == "store":
        return StorePlace(str(served.store))
    return ServerPlace(parse_servers(served.address), RetryPolicy(retries=3, seconds=0.01))


def bodies(block: Block, messages: range) -> list[tuple[int, bytes]]:
    return [(message, bytes(block.frame(message)[FRAME_HEADER:])) for message in messages]


@pytest.mark.parametrize("way", ["server", "store"])
@pytest.mark.parametrize("taken", [1, 7])
def test_no_message_comes_twice_when_blocks_are_merged_meanwhile(
    served: Serving, way: str, taken: int
) -> None:
    with place(served, way).open() as access:
        topic = access.topics()["small"]
        reading = access.fetch(topic, 1, topic.next, bodies)
        found = [next(reading) for _ in range(taken)]
        served.merge("small")
        if isinstance(access, RemoteServer):
            access.close()  # as when the connection breaks: what was sent already is gone
        found += reading
    messages = list(chain.from_iterable(part for part in found if isinstance(part, list)))
    assert len(found) == taken + 1, "the rest came in one block"
    assert messages == [(n, body(n)) for n in range(1, MESSAGES + 1)]


def test_a_record_batch_keeps_nothing_of_its_block() -> None:
    head = stored_head.encode(Head(b"stocks", b"ACME", Properties(content_type=b"text/plain")))
    together = [encode(7, 1, [b"one", b"two"], 1000, [head, b""]), encode(7, 3, [b"three"], 2500, [head])]
    block = merge(together)
    assert block.deltas is not None
    assert block.heads is not None
    memory = [bytearray(part) for part in (block.frames, block.offsets, block.deltas)]
    in_heads = [bytearray(part) for part in (block.heads.offsets, block.heads.octets)]
    frames, offsets, deltas = memory
    view = msgspec.structs.replace(
        block, frames=frames, offsets=offsets, deltas=deltas, heads=Heads(*in_heads)
    )
    options = read_options({"path": "a store", "subscribe": "t", "includeHeaders": "true"}, stream=False)
    columns = Columns(to_arrow_schema(usual_schema(options), timezone="UTC"), "t")
    assert columns.add(block.copy(), range(1, 4)) == []
    (expected,) = columns.take()
    assert columns.add(view, range(1, 4)) == []
    (made,) = columns.take()
    assert made.num_rows == 3
    assert made == expected
    for part in memory + in_heads:
        part[:] = b"\xff" * len(part)
    assert made == expected
    made.validate(full=True)
    assert pa.Table.from_batches([made]).column("value").to_pylist() == [b"one", b"two", b"three"]


def test_a_batch_through_one_partition_can_be_repeated(spark: SparkSession, served: Serving) -> None:
    """docs/SPARK.md, "Write": into whichever parts the topic is cut."""

    def copy() -> None:
        bounds = {"endingOffsets": f'{{"small": {MESSAGES + 1}}}', "minPartitions": "3"}
        rows = reading(spark, servers=served.address, subscribe="small", **bounds).select("value").coalesce(1)
        to = {"omq.servers": served.address, "topic": "copy", "producer": "copying"}
        rows.write.format("omq").options(**to).mode("append").save()

    copy()
    served.merge("small")
    copy()
    found = reading(spark, servers=served.address, subscribe="copy").orderBy("offset").collect()
    assert [bytes(row.value) for row in found] == [body(n) for n in range(1, MESSAGES + 1)]
