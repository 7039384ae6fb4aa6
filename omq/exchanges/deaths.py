"""The deaths in the heads of dead letters: RabbitMQ's headers x-death and x-first-death.

A head may have tens of thousands of headers. So it is written again in steps, and headers that do not change
are copied as octets.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from omq.drivers.dead_letters import Death
from omq.exchanges.types import argument
from omq.protocol.amqp import fields, properties
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import (
    ARRAY,
    TABLE,
    VALUES_A_STEP,
    Array,
    LongString,
    Number,
    NumberType,
    Table,
    Value,
    entries_octets,
    entry_of_tables,
    long_string,
    table_octets,
    table_of_entries,
)
from omq.protocol.amqp.head import MAX_HEAD
from omq.protocol.steps import Steps

DEATHS = b"x-death"
FIRST_DEATH = b"x-first-death-"
FIRSTS = tuple(FIRST_DEATH + what for what in (b"reason", b"queue", b"exchange"))
CC = b"CC"
COUNT = b"count"

MOST_COUNTED = 2**63 - 1
"""The greatest count of a death that the header can have."""


class DeathRecord(NamedTuple):
    """The number of deaths of a message in one queue for one reason."""

    queue: bytes | None
    reason: bytes | None
    octets: bytes
    """The table."""
    has_count: bool = True


class DeadMessage(NamedTuple):
    """A message with a record of its death."""

    routing_key: bytes
    head: bytes
    records: Sequence[DeathRecord]
    """The records of all its deaths, the latest first. The head may have no room for the oldest ones."""


class _Known(NamedTuple):
    """The deaths and copies in the headers of a message."""

    records: list[DeathRecord] | None
    """None without the header."""
    copies: list[bytes]
    """The further routing keys."""
    firsts: bytes
    """The entries about its first death."""
    others: bytes
    """The entries that stay."""


def add_death(
    head: bytes, queue: bytes, exchange: bytes, key: bytes | None, death: Death, now: int
) -> Steps[DeadMessage]:
    """Add a record of a death to a head, and the exchange and routing key of the dead letter. Without a `key`
    it keeps its own.

    The message does not expire again: its expiration is kept in the record only. Raises `FieldError` for a
    routing key that is too long.
    """
    own_exchange, own_key = heads.names(head)
    known = yield from _reading(head, keeps_copies=key is None)
    bare = properties.without_headers(head, heads.names_end(head))
    reason = death.value.encode()
    before = known.records or []
    same = next((each for each in before if (each.queue, each.reason) == (queue, reason)), None)
    latest = _counted(same) if same else None
    if latest is None:
        latest = _record(queue, reason, own_exchange, [own_key, *known.copies], bare.expiration, now)
    others = (each for each in before if each is not same)
    records = [DeathRecord(queue, reason, table_octets(latest)), *others]
    firsts = known.firsts
    if known.records is None:
        told = zip(FIRSTS, map(LongString, (reason, queue, own_exchange)), strict=True)
        firsts = entries_octets(Table(tuple(told)))
    new_key = own_key if key is None else key

    def written(entries: bytes) -> bytes:
        encoded = properties.encode(replace(bare, expiration=None))
        return heads.joined(exchange, new_key, properties.with_headers(encoded, table_of_entries(entries)))

    entries = known.others + firsts
    made = written(entries + _array(records))
    excess = len(made) - MAX_HEAD
    if excess > 0:
        kept = records.copy()
        while excess > 0 and kept:
            excess -= 1 + len(kept.pop().octets)
        # If the first death alone is too much, the message stays as it was published.
        made = written(entries + _array(kept) if excess <= 0 else known.others + known.firsts)
    return DeadMessage(new_key, made, records)


def _reading(head: bytes, *, keeps_copies: bool) -> Steps[_Known]:
    """Read the headers of a checked head. The further routing keys stay if it `keeps_copies`."""
    records: list[DeathRecord] | None = None
    copies: list[bytes] = []
    firsts: list[bytes] = []
    _, table = heads.bounds(head, 0, len(head))
    if table is None:
        return _Known(records, copies, b"", b"")
    others: list[bytes] = []
    begin, stop = fields.bounds(head, table, len(head))
    for count, (name, first, type_at, end) in enumerate(fields.places(head, table), 1):
        if not count % VALUES_A_STEP:
            yield
        if name == CC and head[type_at] == ARRAY:
            found = islice(fields.places(head, type_at + 1, is_named=False), VALUES_A_STEP)
            keys = (long_string(head, at, after) for _, _, at, after in found)
            copies = [key for key in keys if key is not None]
        if name == DEATHS:
            is_array = head[type_at] == ARRAY
            records = (yield from _reading_records(head, type_at + 1)) if is_array else []
        if name in FIRSTS:
            firsts.append(head[first:end])
        if name in (DEATHS, *FIRSTS) or (name == CC and copies and not keeps_copies):
            others.append(head[begin:first])
            begin = end
    others.append(head[begin:stop])
    return _Known(records, copies, b"".join(firsts), b"".join(others))


def _reading_records(head: bytes, at: int) -> Steps[list[DeathRecord]]:
    """Read the tables of the array at `head[at]`. Of those with the same queue and reason, which only a
    publisher can have made, the first one stands for all. Where there are several tables, one without a count
    gets the number of those for which it stands.
    """
    alike: dict[tuple[bytes | None, bytes | None], list[DeathRecord]] = {}
    looked_at = tables = 0
    for _, _, type_at, end in fields.places(head, at, is_named=False):
        found: dict[bytes, bytes] = {}
        is_table = head[type_at] == TABLE
        for name, _, value_at, after in fields.places(head, type_at + 1) if is_table else ():
            looked_at += 1
            if not looked_at % VALUES_A_STEP:
                yield
            if name in (b"queue", b"reason", COUNT):
                found.setdefault(name, head[value_at:after])
                if len(found) == 3:  # of the others only the octets are needed
                    break
        looked_at += 1
        if not looked_at % VALUES_A_STEP:
            yield
        if is_table:
            tables += 1
            queue, reason = found.get(b"queue"), found.get(b"reason")
            record = DeathRecord(_text(queue), _text(reason), head[type_at + 1 : end], COUNT in found)
            alike.setdefault((queue, reason), []).append(record)
    records: list[DeathRecord] = []
    for number, those in enumerate(alike.values(), 1):
        if not number % VALUES_A_STEP:
            yield
        first = those[0]
        if tables > 1 and not first.has_count:
            begin, end = fields.bounds(first.octets, 0, len(first.octets))
            entries = entries_octets(Table(((COUNT, _long(len(those))),))) + first.octets[begin:end]
            first = first._replace(octets=table_of_entries(entries), has_count=True)
        records.append(first)
    return records


def _text(value: bytes | None) -> bytes | None:
    """Return the octets of a value, which has its type in front, if it is a long string."""
    return None if value is None else long_string(value, 0, len(value))


def _array(records: Sequence[DeathRecord]) -> bytes:
    """Return the header with these records."""
    return entry_of_tables(DEATHS, [each.octets for each in records])


def _record(
    queue: bytes, reason: bytes, exchange: bytes, keys: Sequence[bytes], expiration: bytes | None, now: int
) -> Table:
    """Return the record of the first death in a queue for a reason."""
    entries: list[tuple[bytes, Value]] = [
        (COUNT, _long(1)),
        (b"reason", LongString(reason)),
        (b"queue", LongString(queue)),
        (b"time", Number(NumberType.TIMESTAMP, now)),
        (b"exchange", LongString(exchange)),
        (b"routing-keys", Array(tuple(map(LongString, keys)))),
    ]
    if expiration is not None:
        entries.append((b"original-expiration", LongString(expiration)))
    return Table(tuple(entries))


def _counted(record: DeathRecord) -> Table | None:
    """Return the record of a death that happened once more; None for one that nobody else than a publisher
    can have made, with many values.
    """
    if not fields.is_small_table(record.octets, 0, len(record.octets)):
        return None
    table, _ = fields.read_table(record.octets, 0, len(record.octets))
    count = argument(table, COUNT)
    # Clients can publish any record.
    before = count.value if isinstance(count, Number) and isinstance(count.value, int) else 0
    following = _long(min(before + 1, MOST_COUNTED))
    if count is None:
        return Table(((COUNT, following), *table.entries))
    return Table(tuple((name, following if name == COUNT else value) for name, value in table.entries))


def _long(number: int) -> Value:
    return Number(NumberType.INT64, number)
