"""The writing of the head of a dead letter: in steps, and with all headers that do not concern its death."""

from collections.abc import Iterator

import pytest

from omq.drivers.dead_letters import Death
from omq.exchanges.deaths import FIRSTS, DeadMessage, add_death
from omq.protocol.amqp import fields
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import VALUES_A_STEP, Array, LongString, Number, NumberType, Table, Value, Void
from omq.protocol.amqp.head import MAX_HEAD, Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.steps import finished

NOW = 1_800_000_000
Entries = tuple[tuple[bytes, Value], ...]


def headed(*entries: tuple[bytes, Value]) -> bytes:
    return heads.encode(
        Head(b"", b"key", Properties(b"text", headers=Table(entries), expiration=b"5", message_id=b"id"))
    )


def buried(head: bytes, key: bytes | None = None) -> DeadMessage:
    return finished(add_death(head, b"q", b"dlx", key, Death.REJECTED, NOW))


def headers_of(made: DeadMessage) -> Entries:
    headers = heads.decode(made.head).properties.headers
    assert headers is not None
    return headers.entries


def record(queue: bytes, *entries: tuple[bytes, Value]) -> Table:
    return Table(((b"queue", LongString(queue)), (b"reason", LongString(b"rejected")), *entries))


def number(of: int) -> Number:
    return Number(NumberType.INT64, of)


def counted(count: int) -> tuple[bytes, Value]:
    return b"count", number(count)


def deaths(*records: Value) -> tuple[bytes, Value]:
    return b"x-death", Array(records)


def of_others(count: int) -> tuple[Table, ...]:
    """Return records of N (`count`) other queues."""
    return tuple(record(b"%d" % number) for number in range(count))


@pytest.mark.parametrize(
    "entries",
    [
        [(b"", Void())] * 30_000,
        [*[(b"", Void())] * 30_000, deaths(record(b"p"))],
        [deaths(*of_others(1500))],
        [deaths(*[Void()] * 60_000)],
        [deaths(record(b"q", *[(b"", Void())] * 30_000))],
        [deaths(record(b"q", (b"", Array((Void(),) * 60_000))))],
        [(b"CC", Array((LongString(b""),) * 12_000))],
    ],
    ids=["headers", "headers-and-a-death", "deaths", "no-tables", "a-long-record", "an-array", "copies"],
)
def test_the_largest_heads_are_written_in_steps(
    entries: list[tuple[bytes, Value]], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = headed(*entries)
    places, looked_at = fields.places, 0

    def counting(data: bytes, at: int, *, is_named: bool = True) -> Iterator[tuple[bytes, int, int, int]]:
        nonlocal looked_at
        for place in places(data, at, is_named=is_named):
            looked_at += 1
            yield place

    assert MAX_HEAD - 30_000 < len(head) <= MAX_HEAD
    monkeypatch.setattr(fields, "places", counting)
    longest = 0
    steps = add_death(head, b"q", b"dlx", None, Death.REJECTED, NOW)
    while True:
        looked_at = 0
        try:
            next(steps)
        except StopIteration as stop:
            made: DeadMessage = stop.value
            break
        finally:
            longest = max(longest, looked_at)
    assert longest <= 2 * VALUES_A_STEP
    assert made.records[0][:2] == (b"q", b"rejected")
    assert heads.names(made.head) == (b"dlx", b"key")


def test_other_headers_and_properties_stay_as_they_are() -> None:
    entries: Entries = (
        (b"a", Number(NumberType.INT8, 1)),
        (b"twice", Void()),
        (b"table", Table(((b"x-death", Void()), (b"", Void())))),
        (b"twice", LongString(b"x")),
        (b"x-first-death-other", LongString(b"first")),
        (b"CC", LongString(b"no array")),
    )
    made = buried(headed(*entries))
    kept = headers_of(made)
    assert kept[: len(entries)] == entries
    assert [name for name, _ in kept[len(entries) :]] == [*FIRSTS, b"x-death"]
    properties = heads.decode(made.head).properties
    assert (properties.content_type, properties.message_id, properties.expiration) == (b"text", b"id", None)
    again = headers_of(buried(made.head))
    assert again[: len(entries)] == entries
    assert [name for name, _ in again] == [name for name, _ in kept]


@pytest.mark.parametrize(
    ("published", "first"),
    [
        ((), b"q"),
        ((deaths(),), b"mine"),
        ((deaths(record(b"p")),), b"mine"),
        (((b"x-death", LongString(b"[]")),), b"mine"),
    ],
    ids=["without-deaths", "without-records", "with-a-record", "with-no-array"],
)
def test_the_first_death_is_that_of_a_message_without_the_header(published: Entries, first: bytes) -> None:
    """A client that publishes a dead letter again and removes `x-death` has a new first death."""
    made = headers_of(buried(headed((b"x-first-death-queue", LongString(b"mine")), *published)))
    assert [value for name, value in made if name == b"x-first-death-queue"] == [LongString(first)]
    assert (b"x-first-death-reason" in dict(made)) is not bool(published)


def counts(made: DeadMessage) -> list[tuple[bytes | None, Value | None]]:
    """Return the queues and counts of the deaths."""
    read = (fields.read_table(each.octets, 0, len(each.octets))[0] for each in made.records)
    found = [dict(table.entries).get(b"count") for table in read]
    return [(each.queue, count) for each, count in zip(made.records, found, strict=True)]


def test_records_of_the_same_death_are_one() -> None:
    """As with RabbitMQ: only clients publish such ones."""
    more = [record(b"p", counted(2)), record(b"r"), record(b"p", counted(9)), record(b"r"), record(b"q")]
    made = buried(headed(deaths(*more)))
    assert counts(made) == [(b"q", number(2)), (b"p", number(2)), (b"r", number(2))]
    assert counts(buried(made.head)) == [(b"q", number(3)), (b"p", number(2)), (b"r", number(2))]


def test_a_record_without_a_count_gets_one() -> None:
    assert counts(buried(headed(deaths(record(b"q"))))) == [(b"q", number(1))]
    assert counts(buried(headed(deaths(record(b"p"))))) == [(b"q", number(1)), (b"p", None)]


def test_records_of_unknown_queues_differ() -> None:
    odd = [Table(((b"queue", number(each)), (b"reason", LongString(b"rejected")))) for each in (1, 2, 1)]
    assert counts(buried(headed(deaths(*odd, Table(()))))) == [
        (b"q", number(1)),
        (None, number(2)),
        (None, number(1)),
        (None, number(1)),
    ]


@pytest.mark.parametrize(("key", "is_kept"), [(None, True), (b"new", False)])
def test_further_routing_keys_are_told(key: bytes | None, is_kept: bool) -> None:
    copies = (b"CC", Array((LongString(b"one"), Void(), LongString(b"two"))))
    made = buried(headed(copies), key)
    assert made.routing_key == (key or b"key")
    assert (copies in headers_of(made)) is is_kept
    (latest,) = (value for name, value in headers_of(made) if name == b"x-death")
    assert isinstance(latest, Array)
    (table,) = latest.values
    assert isinstance(table, Table)
    keys = Array((LongString(b"key"), LongString(b"one"), LongString(b"two")))
    assert dict(table.entries)[b"routing-keys"] == keys


def test_a_record_with_many_values_is_made_again() -> None:
    many = record(b"q", counted(7), *[(b"", Void())] * VALUES_A_STEP)
    (latest, other) = buried(headed(deaths(many, record(b"p")))).records
    table, _ = fields.read_table(latest.octets, 0, len(latest.octets))
    assert dict(table.entries)[b"count"] == number(1)
    assert other.queue == b"p"
