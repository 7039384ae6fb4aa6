"""`read_table` and `open_reader`."""

import datetime
import os
from collections.abc import Sequence

import pyarrow as pa

from omq.arrow.batches import batches
from omq.arrow.columns import LIST_OF_HEADERS
from omq.bulk.access import Access, StoredTopic
from omq.bulk.credentials import Credentials, HeldId
from omq.bulk.errors import BadOptions
from omq.bulk.places import NamedTopics, Place, ServerPlace, StorePlace
from omq.bulk.ranges import Range, choose, first_since
from omq.bulk.remote import RetryPolicy, parse_servers
from omq.bulk.times import microseconds

StrPath = str | os.PathLike[str]

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": LIST_OF_HEADERS,
}

USUAL_COLUMNS = tuple(name for name in _TYPES if name != "headers")
"""The columns if none are named, as in Spark's data source."""


def read_table(
    source: StrPath,
    topic: str,
    *,
    columns: Sequence[str] = USUAL_COLUMNS,
    first: int | None = None,
    last: int | None = None,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    fail_on_data_loss: bool = True,
    id: str | bytes | None = None,
    ca: StrPath | None = None,
    certificate: StrPath | None = None,
    key: StrPath | None = None,
) -> pa.Table:
    """Read stored messages of a topic into memory, as a `pyarrow.Table`. The arguments and errors are those
    of `open_reader`.
    """
    reader = open_reader(
        source,
        topic,
        columns=columns,
        first=first,
        last=last,
        since=since,
        until=until,
        fail_on_data_loss=fail_on_data_loss,
        id=id,
        ca=ca,
        certificate=certificate,
        key=key,
    )
    return reader.read_all()


def open_reader(
    source: StrPath,
    topic: str,
    *,
    columns: Sequence[str] = USUAL_COLUMNS,
    first: int | None = None,
    last: int | None = None,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    fail_on_data_loss: bool = True,
    id: str | bytes | None = None,
    ca: StrPath | None = None,
    certificate: StrPath | None = None,
    key: StrPath | None = None,
) -> pa.RecordBatchReader:
    """Return a `pyarrow.RecordBatchReader` over stored messages of a topic, which reads one batch at a time:
    a topic may be larger than the memory. A batch has at most 1 MiB of bodies, or one larger block.

    `source` is a server, `omq://host:port` or with TLS `omqs://host:port`; or the path of a store on this
    machine, which a running server may use at the same time. The topic must be persistent and broadcast.

    `columns` selects among `key` (binary: the routing key, or null), `value` (binary: the body), `topic`
    (string), `partition` (int32: 0), `offset` (int64: the message id), `timestamp` (microseconds, UTC: when
    the server accepted the message), `timestampType` (int32: 1, the server's clock) and `headers` (a list of
    `key` and `value`: the properties). Only selected columns are built; `headers` is slow.

    `first` and `last` bound the message ids, inclusive; `since` and `until` bound the times, `until`
    exclusive. A time without a time zone is a local one. Bounds beyond the stored messages select those
    that there are; only a `first` below the oldest stored message is data loss. Messages that are published
    after the call are not read.

    The reader holds a connection to the server until all messages are read, or the reader itself is deleted:
    its method `close` does not end the connection.

    Messages that are stored no longer, damaged, or larger than a block raise DataLoss; with
    `fail_on_data_loss` false the reader skips them, and logs which. Ids that a power failure left unused are
    no data loss.

    `id`, `ca`, `certificate` and `key` are as in `omq.client.connect`.

    Raises UnknownTopic; ServerRefused when the server refuses, or for a topic that cannot be read in bulk;
    Unreachable when the server did not answer after several attempts; BadOptions for unusable arguments; and
    `omq_storage.errors.StoreError` for a store that cannot be read. Reading batches raises the same.
    """
    if isinstance(columns, str):  # the names would be its characters
        raise BadOptions(f"columns must be a list of names, not {columns!r}.")
    unknown = [name for name in columns if name not in _TYPES]
    if unknown:
        raise BadOptions(f"There is no column {unknown[0]!r}; there are {', '.join(_TYPES)}.")
    if len(set(columns)) < len(columns):
        raise BadOptions("A column can be selected only once.")
    for name, number in (("first", first), ("last", last)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise BadOptions(f"{name} must be the id of a message, an int, not {number!r}.")
    for name, time in (("since", since), ("until", until)):
        if time is not None and not isinstance(time, datetime.datetime):
            raise BadOptions(f"{name} must be a datetime.datetime, not {time!r}.")
    place = _place(source, id, ca, certificate, key)
    with place.open() as access:
        found = choose(access, NamedTopics((topic,)))[topic]
        part = _range(access, found, first, last, since, until)
    schema = pa.schema([(name, _TYPES[name]) for name in columns])
    found_batches = batches(
        place,
        part,
        schema,
        fail_on_data_loss=fail_on_data_loss,
        hint="With fail_on_data_loss=False they would be skipped.",
    )
    return pa.RecordBatchReader.from_batches(schema, found_batches)


def _place(
    source: StrPath,
    id: str | bytes | None,
    ca: StrPath | None,
    certificate: StrPath | None,
    key: StrPath | None,
) -> Place:
    if not (isinstance(source, str) and "://" in source):
        if any(given is not None for given in (id, ca, certificate, key)):
            raise BadOptions(
                "A store on this machine needs no id and no certificates; a server is omq://HOST:PORT."
            )
        return StorePlace(os.fspath(source))
    try:
        addresses = parse_servers(source)
    except ValueError as error:
        raise BadOptions(f"{error}.") from None
    if not addresses[0].tls and any(file is not None for file in (ca, certificate, key)):
        raise BadOptions("Certificates are for omqs://, and this address begins with omq://.")
    if not isinstance(id, str | bytes | None):
        raise BadOptions(f"id must be bytes or str, not {type(id).__name__}.")
    held = None if id is None else HeldId(id.encode() if isinstance(id, str) else id)
    credentials = Credentials(_path(ca), _path(certificate), _path(key), held, name=b"omq.arrow")
    return ServerPlace(addresses, RetryPolicy(), credentials)


def _path(file: StrPath | None) -> str | None:
    return None if file is None else os.fspath(file)


def _range(
    access: Access,
    topic: StoredTopic,
    first: int | None,
    last: int | None,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
) -> Range:
    start = topic.first if first is None else max(1, first)
    end = topic.next if last is None else min(last + 1, topic.next)
    if since is not None:
        start = max(start, first_since(access, topic, microseconds(since), begins=True))
    if until is not None:
        end = min(end, first_since(access, topic, microseconds(until), begins=False))
    return Range(topic, start, max(start, end))
