"""Stored messages as Arrow tables, from a server and from its store."""

import datetime
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install '.[arrow]'")

import pyarrow as pa
from certificates import Authority
from made_stores import NOON, SECOND, Topic, body, damage, make_store
from serving_stores import Secured, Serving, secured, serving

from omq.arrow import (
    BadOptions,
    DataLoss,
    ServerRefused,
    UnknownTopic,
    Unreachable,
    open_reader,
    read_table,
)
from omq.blocking import connect
from omq.bulk.headers import Header
from omq.bulk.headers import head_of as head_with
from omq.protocol.amqp import head as stored_head
from omq_storage.errors import StoreError

NOON_TIME = datetime.datetime.fromtimestamp(NOON // SECOND, datetime.UTC)

HEAD = stored_head.encode(
    head_with(b"a key", [Header("name", b"value"), Header("dmp.content-type", b"text")])
)


HALF_MEBIBYTES = [bytes([n]) * (n % 2 + (1 << 19) - 1) for n in range(5)]
"""Two of them, of different sizes, are almost a mebibyte."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = make_store(
        tmp_path_factory.mktemp("arrow") / "store",
        small=Topic([3] * 5, heads={4: HEAD}),
        empty=Topic([]),
        deleted=Topic([5, 5], deleted=6),
        transient=Topic([], persistence="Transient"),
        work=Topic([1], delivery="Round_robin"),
        damaged=Topic([5, 5, 5]),
    )
    damage(store, 5, 6)
    settings = "fragment_octets = 131_072\n"
    with serving(store, settings) as server:
        server.publish("large", [b"before", bytes(1 << 20), b"after"], sink=True)
        server.publish("half-mebibytes", HALF_MEBIBYTES, sink=True)
        yield server


@pytest.fixture(params=["server", "store"])
def source(request: pytest.FixtureRequest, served: Serving) -> str:
    return served.url if request.param == "server" else str(served.store)


def offsets(table: Any) -> list[int]:
    found: list[int] = table.column("offset").to_pylist()
    return found


def test_all_columns(source: str) -> None:
    table = read_table(source, "small")
    assert table.schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    assert offsets(table) == list(range(1, 16))
    assert table.column("value").to_pylist() == [body(message) for message in range(1, 16)]
    assert table.slice(3, 1).to_pylist() == [
        {
            "key": b"a key",
            "value": b"4",
            "topic": "small",
            "partition": 0,
            "offset": 4,
            "timestamp": NOON_TIME + datetime.timedelta(seconds=4),
            "timestampType": 1,
        }
    ]


def test_headers_of_messages_with_equal_heads(tmp_path: Path) -> None:
    """Equal heads are parsed once, in any order and in any part of a block."""
    red, blue = (stored_head.encode(head_with(b"", [Header("colour", name)])) for name in (b"red", b"blue"))
    heads = {2: red, 3: red, 4: blue, 6: red, 7: blue, 9: red}
    store = make_store(tmp_path / "store", many=Topic([4, 6], heads=heads))
    colours = [None, b"red", b"red", b"blue", None, b"red", b"blue", None, b"red", None]
    expected = [None if colour is None else [{"key": "colour", "value": colour}] for colour in colours]
    for first in range(1, 11):
        for last in range(first, 11):
            table = read_table(store, "many", columns=["headers"], first=first, last=last)
            assert table.column("headers").to_pylist() == expected[first - 1 : last]


def test_selected_columns_in_their_order(source: str) -> None:
    table = read_table(source, "small", columns=["headers", "offset"], first=3, last=4)
    assert table.to_pylist() == [
        {"headers": None, "offset": 3},
        {
            "headers": [{"key": "dmp.content-type", "value": b"text"}, {"key": "name", "value": b"value"}],
            "offset": 4,
        },
    ]
    assert read_table(source, "small", columns=()).num_columns == 0


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, range(1, 16)),
        (5, None, range(5, 16)),
        (None, 5, range(1, 6)),
        (5, 5, range(5, 6)),
        (7, 6, range(0)),
        (0, 10**15, range(1, 16)),
        (1000, None, range(0)),
        (None, 0, range(0)),
    ],
)
def test_bounds_of_ids(source: str, first: int | None, last: int | None, expected: range) -> None:
    assert offsets(read_table(source, "small", first=first, last=last)) == list(expected)


def test_bounds_of_times(source: str) -> None:
    def at(seconds: float) -> datetime.datetime:
        return NOON_TIME + datetime.timedelta(seconds=seconds)

    assert offsets(read_table(source, "small", since=at(4))) == list(range(4, 16))
    assert offsets(read_table(source, "small", until=at(4))) == [1, 2, 3]
    assert offsets(read_table(source, "small", since=at(3.5), until=at(6.5), last=5)) == [4, 5]
    assert offsets(read_table(source, "small", since=at(100))) == []
    local = at(4).astimezone().replace(tzinfo=None)
    assert offsets(read_table(source, "small", since=local)) == list(range(4, 16))


def test_bounds_of_times_that_no_calendar_has_in_utc(source: str) -> None:
    east, west = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (2, -2))
    for since in (datetime.datetime.min, datetime.datetime.min.replace(tzinfo=east)):
        assert offsets(read_table(source, "small", since=since, last=1)) == [1]
    for until in (datetime.datetime.max, datetime.datetime.max.replace(tzinfo=west)):
        assert offsets(read_table(source, "small", until=until, first=15)) == [15]


def test_a_deleted_reader_has_no_connection(served: Serving) -> None:
    with connect(f"omq://{served.address}") as client:

        def readers() -> int:
            return sum(each.client == b"omq.arrow" for each in client.connections())

        reader = open_reader(served.url, "small")
        reader.read_next_batch()
        assert readers() == 1
        del reader
        while readers():
            pass


def test_an_empty_topic(source: str) -> None:
    table = read_table(source, "empty", columns=["value", "headers"])
    assert (table.num_rows, table.column_names) == (0, ["value", "headers"])
    assert list(open_reader(source, "empty")) == []


def test_small_blocks_share_a_batch(source: str) -> None:
    (batch,) = open_reader(source, "small", first=2, last=14)
    batch.validate(full=True)
    assert batch.column("offset").to_pylist() == list(range(2, 15))
    assert batch.column("value").to_pylist() == [body(n) for n in range(2, 15)]
    assert batch.column("key").to_pylist() == [b"a key" if n == 4 else None for n in range(2, 15)]


def test_a_batch_has_at_most_a_mebibyte_of_bodies_or_one_block(source: str) -> None:
    batches = list(open_reader(source, "half-mebibytes", columns=["offset", "value"]))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    for batch in batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(batches)
    assert offsets(table) == [1, 2, 3, 4, 5]
    assert table.column("value").to_pylist() == HALF_MEBIBYTES


def test_a_gap_ends_a_batch(source: str) -> None:
    batches = list(open_reader(source, "damaged", columns=["offset"], fail_on_data_loss=False))
    assert [batch.column("offset").to_pylist() for batch in batches] == [
        [1, 2, 3, 4, 5],
        [11, 12, 13, 14, 15],
    ]


def test_a_reader_may_be_read_in_another_thread(source: str) -> None:
    reader = open_reader(source, "small", columns=["offset"])
    found = [reader.read_next_batch().num_rows]
    thread = threading.Thread(target=lambda: found.extend(batch.num_rows for batch in reader))
    thread.start()
    thread.join()
    assert sum(found) == 15


def test_deleted_messages_are_data_loss_if_asked_for(source: str, caplog: pytest.LogCaptureFixture) -> None:
    assert offsets(read_table(source, "deleted")) == list(range(6, 11))
    with pytest.raises(DataLoss, match=r"messages 1 to 5 are gone: .* With fail_on_data_loss=False"):
        read_table(source, "deleted", first=1)
    with caplog.at_level(logging.WARNING, "omq.arrow"):
        assert offsets(read_table(source, "deleted", first=1, fail_on_data_loss=False)) == list(range(6, 11))
    assert "messages 1 to 5 are gone" in caplog.text
    assert "5 messages skipped in all" in caplog.text


def test_a_damaged_block_is_data_loss(source: str) -> None:
    with pytest.raises(DataLoss, match="damaged"):
        read_table(source, "damaged")
    reader = open_reader(source, "damaged", columns=["offset"])
    assert reader.read_next_batch().num_rows == 5
    with pytest.raises(DataLoss, match="messages 6 to 10"):
        reader.read_next_batch()
    assert offsets(read_table(source, "damaged", first=11)) == list(range(11, 16))
    found = offsets(read_table(source, "damaged", fail_on_data_loss=False))
    assert found == [*range(1, 6), *range(11, 16)]


def test_large_messages(source: str) -> None:
    table = read_table(source, "large", columns=["value"])
    assert [len(value) for value in table.column("value").to_pylist()] == [6, 1 << 20, 5]


def test_unreadable_topics_and_wrong_arguments_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match="no topic 'unknown'"):
        read_table(source, "unknown")
    with pytest.raises(ServerRefused, match="transient"):
        read_table(source, "transient")
    with pytest.raises(ServerRefused, match="round-robin"):
        read_table(source, "work")
    with pytest.raises(BadOptions, match="no column 'body'; there are key, value"):
        read_table(source, "small", columns=["body"])
    with pytest.raises(BadOptions, match="once"):
        read_table(source, "small", columns=["value", "value"])
    for wrong, why in (
        ({"columns": "value"}, "columns must be a list of names, not 'value'"),
        ({"first": "2"}, "first must be the id of a message, an int, not '2'"),
        ({"last": 2.0}, "last must be the id"),
        ({"since": "2024-01-01"}, "since must be a datetime.datetime, not '2024-01-01'"),
        ({"until": 5}, "until must be"),
    ):
        with pytest.raises(BadOptions, match=why):
            read_table(source, "small", **wrong)  # type: ignore[arg-type]  # the names decide the types
    with pytest.raises(BadOptions, match="HOST:PORT"):
        read_table("http://localhost", "small")
    with pytest.raises(BadOptions, match="omqs://"):
        read_table("omq://localhost", "small", ca="a.pem")
    with pytest.raises(BadOptions, match="id must be bytes or str, not int"):
        read_table("omq://localhost", "small", id=5)  # type: ignore[arg-type]  # the wrong type is the test
    with pytest.raises(BadOptions, match="needs no id"):
        read_table(tmp_path, "small", id="name:secret")
    with pytest.raises(StoreError, match="no store"):
        read_table(tmp_path, "small")


def test_a_topic_that_is_deleted_while_it_is_read(served: Serving) -> None:
    for source in (served.url, str(served.store)):
        served.publish("short-lived", [b"x"] * 10)
        reader = open_reader(source, "short-lived")
        skipping = open_reader(source, "short-lived", fail_on_data_loss=False)
        served.delete("short-lived")
        with pytest.raises(DataLoss, match="'short-lived': messages 1 to 10 are gone: the topic was deleted"):
            reader.read_all()
        assert skipping.read_all().num_rows == 0


def test_a_server_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_store(tmp_path / "store", small=Topic([3]))) as server:
        reader = open_reader(server.url, "small")
        server.kill()
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        with pytest.raises(Unreachable):
            reader.read_all()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("guarded")
    security = secured(Authority(folder / "authority"))
    with serving(make_store(folder / "store", prices=Topic([3])), security=security) as server:
        yield server


def test_tls_and_clients(guarded: Serving) -> None:
    assert isinstance(guarded.security, Secured)
    ca = guarded.security.ca
    assert offsets(read_table(guarded.url, "prices", id="reader:sesame", ca=ca)) == [1, 2, 3]
    with pytest.raises(UnknownTopic, match="no right"):
        read_table(guarded.url, "hidden", id=b"reader:sesame", ca=str(ca))
    with pytest.raises(ServerRefused, match="who we are"):
        read_table(guarded.url, "prices", ca=ca)
    with pytest.raises(ServerRefused, match="no client with the name and secret in the given id") as refused:
        read_table(guarded.url, "prices", id="reader:wrong", ca=ca)
    assert "wrong" not in str(refused.value)


def test_without_pyarrow_the_import_says_what_to_install() -> None:
    program = "import sys\nsys.modules['pyarrow'] = None\nimport omq.arrow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "omq.arrow needs PyArrow: pip install '.[arrow]' in the checkout" in done.stderr


@pytest.mark.skipif(find_spec("polars") is None, reason="polars is not installed")
def test_polars(source: str) -> None:
    import polars

    frame = polars.from_arrow(open_reader(source, "small", columns=["offset", "value"]))
    assert isinstance(frame, polars.DataFrame)
    assert frame["offset"].to_list() == list(range(1, 16))


@pytest.mark.skipif(find_spec("duckdb") is None, reason="DuckDB is not installed")
def test_duckdb(source: str) -> None:
    import duckdb

    reader = open_reader(source, "small", columns=["offset", "value"])
    assert duckdb.from_arrow(reader).aggregate('count(*), max("offset")').fetchall() == [(15, 15)]


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_pandas(source: str) -> None:
    frame = read_table(source, "small", columns=["offset", "value"]).to_pandas()
    assert frame["offset"].tolist() == list(range(1, 16))
