"""The view that a consumer of DMP or AMQP 0-9-1 has of a message of AMQP 1.0: properties and headers.

The opposite of `translation`. The header `amqp-1.0` stays, with all sections as they came. App-id is never
set: together with group-id it would make an idempotent producer.

durable, priority                                    delivery-mode 2, priority
ttl, absolute-expiry-time                            expiration (milliseconds), as it is stored; a dead letter
                                                     has none
message-id, correlation-id                           the properties of that name, as text
reply-to, user-id, content-type, content-encoding    the properties of that name
subject, or else the name of the topic               routing key, unless it is a dead letter
creation-time (milliseconds)                         timestamp (seconds)
application-properties                               headers
"""

from typing import assert_never
from uuid import UUID

from omq.protocol.amqp import fields, head, shortstr
from omq.protocol.amqp.fields import NumberType as FieldNumber
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp.head import MAX_HEAD, Head
from omq.protocol.amqp.portions import Portion, Translation
from omq.protocol.amqp.properties import PERSISTENT, Properties
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_1_0 import decoding, sections, stored
from omq.protocol.amqp_1_0.number_types import FOR_FIELDS
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import (
    Array,
    Binary,
    DecodeError,
    Described,
    List,
    Map,
    Number,
    NumberType,
    Opaque,
    OpaqueType,
    Symbol,
    Value,
)


def expanded(octets: bytes, routing_key: bytes, portion: Portion) -> bytes:
    """Return a stored head as these consumers get it; another protocol's as it is. `routing_key` is for a
    message without a subject. The work counts in `portion`.
    """
    return _expansion.of(portion, octets, routing_key) if stored.is_head(octets) else octets


def _expanded(octets: bytes, routing_key: bytes) -> bytes:
    try:
        kept = head.decode(octets)
        around = stored.around_in(kept)
        if around is None:
            return octets
        made = head.encode(_head(around.before, kept, routing_key))
    except (DecodeError, FieldError):
        return octets  # a publisher of any protocol can write any octets there
    return made if len(made) <= MAX_HEAD else octets


_expansion = Translation(_expanded)


def _head(before: bytes, kept: Head, routing_key: bytes) -> Head:
    """Return the head of a message with these sections before its body. Raise DecodeError and FieldError."""
    found = {place.section: place for place in sections.find(before)}

    def listed(section: Section, count: int) -> list[Value]:
        place = found.get(section)
        values = [] if place is None else decoding.fields(before, place.value, place.end)[0]
        return ([decoding.read_all(value) for value in values] + [None] * count)[:count]

    durable, priority = listed(Section.HEADER, 2)
    id, user, _, subject, reply_to, correlation, content, encoding, _, created = listed(
        Section.PROPERTIES, 10
    )
    place = found.get(Section.APPLICATION_PROPERTIES)
    own = None if place is None else decoding.read_all(before[place.value : place.end])
    reserving = kept.properties.headers or Table()
    reserved = {name for name, _ in reserving.entries}
    headers = tuple(entry for entry in _entries(own) if entry[0] not in reserved)
    time = _integer(created)
    if kept.exchange or kept.routing_key:  # of a dead letter
        routing_key = kept.routing_key
    elif (key := _text(subject)) is not None:
        routing_key = key
    return Head(
        exchange=kept.exchange,
        routing_key=routing_key,
        properties=Properties(
            content_type=_text(content),
            content_encoding=_text(encoding),
            headers=Table((*headers, *reserving.entries)),
            delivery_mode=PERSISTENT if durable is True else None,
            priority=_integer(priority),
            correlation_id=_text(correlation),
            reply_to=_text(reply_to),
            expiration=kept.properties.expiration,
            message_id=_text(id),
            timestamp=None if time is None or time < 0 else time // 1000,
            user_id=_text(user),
        ),
    )


def _text(value: Value) -> bytes | None:
    """Return the text of a value for a property or a name; None where it is too long, or no text."""
    match value:
        case str():
            octets = value.encode()
        case Symbol(name):
            octets = name.encode()
        case Binary(octets):
            pass
        case Number(_, int(number)):
            octets = b"%d" % number
        case Opaque(OpaqueType.UUID, octets):
            octets = str(UUID(bytes=octets)).encode()
        case _:
            return None
    return octets if len(octets) <= shortstr.LONGEST else None


def _integer(value: Value) -> int | None:
    match value:
        case Number(_, int(number)):
            return number
        case _:
            return None


def _entries(value: Value) -> tuple[tuple[bytes, fields.Value], ...]:
    """Return the entries of a map whose names a table can have."""
    if not isinstance(value, Map):
        return ()
    named = ((_text(key), each) for key, each in value.entries)
    return tuple((name, _field(each)) for name, each in named if name is not None)


def _field(value: Value) -> fields.Value:
    match value:
        case None:
            return fields.Void()
        case bool():
            return fields.Boolean(value)
        case Number(NumberType.TIMESTAMP, time) if time >= 0:
            return fields.Number(FieldNumber.TIMESTAMP, int(time) // 1000)
        case Number(kind, number) if kind in FOR_FIELDS:
            return fields.Number(FOR_FIELDS[kind], number)
        case Number(_, number):  # a ulong, or a time before the epoch, for which a table has no type
            return fields.LongString(b"%d" % number)
        case str():
            return fields.LongString(value.encode())
        case Symbol(name):
            return fields.LongString(name.encode())
        case Binary(octets):
            return fields.ByteArray(octets)
        case Opaque(OpaqueType.UUID, octets):
            return fields.LongString(str(UUID(bytes=octets)).encode())
        case Opaque(_, octets):
            return fields.ByteArray(octets)
        case List(values) | Array(values):
            return fields.Array(tuple(_field(each) for each in values))
        case Map():
            return Table(_entries(value))
        case Described(_, described):
            return _field(described)
        case _:
            assert_never(value)
