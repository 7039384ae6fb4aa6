"""The view that a consumer of AMQP 1.0 has of a stored head that has more than sections of AMQP 1.0.

A message that came by another protocol has its properties as sections:

content-type, content-encoding, correlation-id, message-id, reply-to, user-id    the properties of that name
routing key                                         subject, and the annotation x-routing-key
exchange                                            the annotation x-exchange
timestamp (seconds)                                 creation-time
expiration (milliseconds, as text)                  ttl
delivery-mode 2, priority                           durable, priority
type, app-id, sender-id          the annotations x-basic-type, x-opt-app-id and x-opt-sender-id
headers with simple values                          application-properties
headers with tables or arrays                       the annotation x-opt-headers, a map
all headers, if they have VALUES_A_STEP values      the annotation x-opt-headers, binary: a field table
or more

A dead letter that came by AMQP 1.0 has its own sections. Only annotations are added: x-routing-key,
x-exchange, and x-opt-headers with the headers of its deaths.

More values are not translated because other connections would wait for that.
"""

from collections.abc import Sequence
from typing import assert_never

from omq.protocol.amqp import fields, head
from omq.protocol.amqp.fields import NumberType as FieldNumber
from omq.protocol.amqp.portions import Portion, Translation
from omq.protocol.amqp.properties import PERSISTENT
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_1_0 import encoding, stored
from omq.protocol.amqp_1_0.number_types import OF_FIELDS
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import PLAIN, BodyFraming, BodyKind
from omq.protocol.amqp_1_0.types import Binary, List, Map, Number, NumberType, Symbol, Value

_MOST_MILLISECONDS = 2**63 - 1


def from_head(octets: bytes, portion: Portion) -> BodyFraming:
    """Return the sections before the body of the message with this head. The body is one data section. The
    work counts in `portion`.
    """
    return _translation.of(portion, octets)


def _from_head(octets: bytes) -> BodyFraming:
    try:
        octets, beyond = _split(octets)
        decoded = head.decode(octets)
    except FieldError:
        return PLAIN  # the store does not look into heads; nothing can be told of this one
    properties = decoded.properties
    own = stored.around_in(decoded)
    ttl = _digits(properties.expiration)
    header: list[Value] = [
        True if properties.delivery_mode == PERSISTENT else None,
        None if properties.priority is None else Number(NumberType.UBYTE, properties.priority),
        None if ttl is None else Number(NumberType.UINT, min(ttl, 2**32 - 1)),
    ]
    annotations: list[tuple[Symbol, Value]] = [
        (Symbol(name), _text(value))
        for name, value in (
            ("x-exchange", decoded.exchange or None),
            ("x-routing-key", decoded.routing_key or None),
            ("x-basic-type", properties.type),
            ("x-opt-app-id", properties.app_id),
            ("x-opt-sender-id", properties.sender_id),
        )
        if value is not None
    ]
    simple: list[tuple[Value, Value]] = []
    nested: list[tuple[Value, Value]] = []
    entries = properties.headers.entries if properties.headers is not None else ()
    for name, value in entries if own is None else entries[1:]:
        found = _value(value)
        is_annotation = own is not None or isinstance(found, Map | List)
        (nested if is_annotation else simple).append((_string(name), found))
    if beyond:
        annotations.append((Symbol("x-opt-headers"), Binary(beyond)))
    elif nested:
        annotations.append((Symbol("x-opt-headers"), Map(tuple(nested))))
    if own is not None:
        return stored.annotated(own, annotations)
    created = properties.timestamp
    said: list[Value] = [
        _text(properties.message_id),
        None if properties.user_id is None else Binary(properties.user_id),
        None,
        _text(decoded.routing_key or None),
        _text(properties.reply_to),
        _text(properties.correlation_id),
        _symbol(properties.content_type),
        _symbol(properties.content_encoding),
        None,
        None if created is None else Number(NumberType.TIMESTAMP, min(created * 1000, _MOST_MILLISECONDS)),
    ]
    before = b"".join(
        (
            _fields(Section.HEADER, header),
            _map(Section.MESSAGE_ANNOTATIONS, annotations),
            _fields(Section.PROPERTIES, said),
            _map(Section.APPLICATION_PROPERTIES, simple),
        )
    )
    return BodyFraming(BodyKind.DATA, before, b"")


def _split(octets: bytes) -> tuple[bytes, bytes]:
    """Split a head with more headers than are translated: return it without them, and their table. What
    belongs to a message of AMQP 1.0 stays. Raises `FieldError`.
    """
    after, table = head.bounds(octets, 0, len(octets))
    if table is None or fields.is_small_table(octets, table, after):
        return octets, b""
    own_end = stored.own_entry_end(octets, table)
    begin, end = fields.bounds(octets, table, after)
    kept = octets[:table] + fields.table_of_entries(octets[begin:own_end]) + octets[end:]
    return kept, fields.table_of_entries(octets[own_end:end])


_translation = Translation(_from_head)


def _fields(section: Section, values: list[Value]) -> bytes:
    if all(value is None for value in values):
        return b""
    return b"\x00\x53%c%s" % (section, encoding.write_fields([encoding.write(value) for value in values]))


def _map(section: Section, entries: Sequence[tuple[Value, Value]]) -> bytes:
    return b"\x00\x53%c%s" % (section, encoding.write(Map(tuple(entries)))) if entries else b""


def _text(octets: bytes | None) -> Value:
    return None if octets is None else _string(octets)


def _string(octets: bytes) -> str | Binary:
    """Return a string, or binary where the octets are no UTF-8."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return Binary(octets)


def _symbol(octets: bytes | None) -> Value:
    return None if octets is None or not octets.isascii() else Symbol(octets.decode("ascii"))


def _digits(octets: bytes | None) -> int | None:
    return int(octets) if octets is not None and octets.isdigit() else None


def _value(value: fields.Value) -> Value:
    match value:
        case fields.Number(FieldNumber.TIMESTAMP, seconds):
            return Number(NumberType.TIMESTAMP, min(int(seconds) * 1000, _MOST_MILLISECONDS))
        case fields.Number(kind, number):
            return Number(OF_FIELDS[kind], number)
        case fields.Boolean(is_true):
            return is_true
        case fields.Decimal(scale, number):
            return Number(NumberType.DOUBLE, number / 10**scale)
        case fields.LongString(octets):
            return _string(octets)
        case fields.ByteArray(octets):
            return Binary(octets)
        case fields.Void():
            return None
        case fields.Array(values):
            return List(tuple(_value(each) for each in values))
        case fields.Table(entries):
            return Map(tuple((_string(name), _value(each)) for name, each in entries))
        case _:
            assert_never(value)
