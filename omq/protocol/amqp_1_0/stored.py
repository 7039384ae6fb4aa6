"""The stored form of a message of AMQP 1.0, and the way back to the same octets.

The body of the stored message is what a subscriber of another protocol wants to read. What stands around it
goes into the stored head, as one entry `amqp-1.0` of the headers table:

    u8 form | u32 n | n octets of sections before the body | octets of the sections after it

The delivery-annotations are left out: they are for the next peer only (part 3, section 3.2.2). All other
octets of a message come out as they came in: signatures and foreign types stay valid.

A message that may wait for a limited time has the property expiration beside it: see `lifetimes`.

The head of a dead letter also has an exchange, a routing key, and the headers of its deaths after this entry.
"""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

import msgspec

from omq.protocol.amqp.fields import ByteArray, Table
from omq.protocol.amqp.fields import bounds as table_bounds
from omq.protocol.amqp.head import Head, bounds, names_end
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_1_0 import decoding, encoding, lifetimes, sections, types
from omq.protocol.amqp_1_0.sections import Section, SectionPlace
from omq.protocol.amqp_1_0.types import DecodeError, Symbol, Value

MOST_AROUND = 60_000
"""The octets around a body that a stored head can hold. A message with more is stored as a whole."""


MOST_ANNOTATIONS = 128
"""The annotations among which `annotated` looks for names: each takes some microseconds."""


class BodyKind(IntEnum):
    """The kind of the body of a stored message."""

    DATA = 0
    """The content of the only data section."""
    TEXT = 1
    """The content of an amqp-value that is a string."""
    BINARY = 2
    """The content of an amqp-value that is binary."""
    SECTIONS = 3
    """The body sections as they came."""
    MESSAGE = 4
    """The whole message."""


WIDE = 16
"""Added to a form whose content had a length of four octets although one was enough."""

WIDE_CONTENT = 0xB0
"""The first of the constructors of contents with a length of four octets."""

_TABLE_AT = 4
_BEGINNING = b"\x00\x00\x20\x00"
"""The first octets of a head with nothing but headers: no exchange, no routing key, and the flags."""
_EXPIRING = b"\x00\x00\x21\x00"
"""The same with the property expiration, which follows the headers."""
_NAME = b"\x08amqp-1.0x"
_FLAGS = (_BEGINNING[2:], _EXPIRING[2:])
_U32 = Struct(">I")
_VALUE_AT = _TABLE_AT + _U32.size + len(_NAME)
_CONTENTS_AT = _VALUE_AT + _U32.size

_CONTENT_FORMS = {
    (Section.DATA, 0xA0): BodyKind.DATA,
    (Section.DATA, 0xB0): BodyKind.DATA,
    (Section.AMQP_VALUE, 0xA1): BodyKind.TEXT,
    (Section.AMQP_VALUE, 0xB1): BodyKind.TEXT,
    (Section.AMQP_VALUE, 0xA0): BodyKind.BINARY,
    (Section.AMQP_VALUE, 0xB0): BodyKind.BINARY,
}
_CODES = {(int(section), constructor): form for (section, constructor), form in _CONTENT_FORMS.items()}
_CONSTRUCTORS = {BodyKind.DATA: (0x75, 0xA0), BodyKind.TEXT: (0x77, 0xA1), BodyKind.BINARY: (0x77, 0xA0)}


class Stored(msgspec.Struct, frozen=True):
    """A message as it is stored."""

    head: bytes
    """Empty for one data section and nothing else: such a message is the same as a Publish."""
    body: bytes


def store(message: bytes) -> Stored:
    """Return the stored form of this message. Raises `types.DecodeError`."""
    return store_sections(message, sections.find(message))


def store_sections(message: bytes, places: list[SectionPlace]) -> Stored:
    """Return the stored form of the message with these sections."""
    before = kept(message, places)
    expiration = lifetimes.expiration(message, places)
    bodies = [place for place in places if Section.DATA <= place.section < Section.FOOTER]
    after = b"".join(message[place.begin : place.end] for place in places if place.section is Section.FOOTER)
    if len(before) + len(after) > MOST_AROUND:
        without = [p for p in places if p.section is not Section.DELIVERY_ANNOTATIONS]
        whole = b"".join(message[place.begin : place.end] for place in without)
        return Stored(_head(BodyKind.MESSAGE, b"", b"", expiration), whole)
    form, content = _content(message, bodies)
    return stored_as(form, before, content, after, expiration)


def kept(octets: bytes, places: list[SectionPlace]) -> bytes:
    """Return the octets of these sections of a message that are stored from before its body."""
    return b"".join(
        octets[place.begin : place.end]
        for place in places
        if place.section < Section.DATA and place.section is not Section.DELIVERY_ANNOTATIONS
    )


def form_of(code: int, constructor: int) -> BodyKind | None:
    """Return the form of a body whose section and constructor have these codes; None if there is none."""
    return _CODES.get((code, constructor))


def stored_as(
    form: int, before: bytes, content: bytes, after: bytes = b"", expiration: bytes | None = None
) -> Stored:
    """Return the head and the body that store a message of this form. `expiration` is the property."""
    if form == BodyKind.DATA and not before and not after:
        return Stored(b"", content)
    return Stored(_head(form, before, after, expiration), content)


def _content(message: bytes, bodies: list[SectionPlace]) -> tuple[int, bytes]:
    """Return the form of a body, and the part of it that is stored."""
    if len(bodies) == 1:
        place = bodies[0]
        constructor = message[place.value]
        form = _CONTENT_FORMS.get((place.section, constructor))
        plain = message[place.begin : place.value] == b"\x00\x53%c" % place.section
        if form is not None and plain:
            wide = constructor >= WIDE_CONTENT
            content = message[place.value + (5 if wide else 2) : place.end]
            return form + (WIDE if wide and len(content) < 256 else 0), content
    if not bodies:
        return BodyKind.SECTIONS, b""
    return BodyKind.SECTIONS, message[bodies[0].begin : bodies[-1].end]


def _head(form: int, before: bytes, after: bytes, expiration: bytes | None) -> bytes:
    value = b"%c%s%s%s" % (form, _U32.pack(len(before)), before, after)
    table = _NAME + _U32.pack(len(value)) + value
    if expiration is None:
        return _BEGINNING + _U32.pack(len(table)) + table
    return b"%s%s%s%c%s" % (_EXPIRING, _U32.pack(len(table)), table, len(expiration), expiration)


class BodyFraming(msgspec.Struct, frozen=True):
    """The octets around a stored body."""

    form: int
    before: bytes
    after: bytes


def is_head(head: bytes) -> bool:
    """Return whether this is the stored head of a message of AMQP 1.0, which may be a dead letter."""
    if _NAME not in head:
        return False
    try:
        _, table = bounds(head, 0, len(head))
    except FieldError:  # a publisher of any protocol can write any octets there
        return False
    return (
        table is not None
        and head[names_end(head) : table] in _FLAGS
        and head.startswith(_NAME, table + _U32.size)
    )


def around(head: bytes) -> BodyFraming | None:
    """Return the framing that a stored head has for a message of AMQP 1.0 that is no dead letter; None for
    any other head.
    """
    if len(head) < _CONTENTS_AT or head[_TABLE_AT + _U32.size : _VALUE_AT] != _NAME:
        return None
    end = len(head)
    if head.startswith(_EXPIRING):
        end = _TABLE_AT + _U32.size + _U32.unpack_from(head, _TABLE_AT)[0]
        if end >= len(head) or end + 1 + head[end] != len(head):
            return None
    elif not head.startswith(_BEGINNING):
        return None
    if _U32.unpack_from(head, _VALUE_AT)[0] != end - _CONTENTS_AT:
        return None
    return _around(head, _CONTENTS_AT, end)


def around_in(head: Head) -> BodyFraming | None:
    """Return the framing that a parsed head has for a message of AMQP 1.0, which may be a dead letter; None
    for a head of another protocol.
    """
    match head.properties:
        case Properties(headers=Table(((b"amqp-1.0", ByteArray(value)), *_)) as headers) as properties if (
            properties == Properties(headers=headers, expiration=properties.expiration)
        ):
            return _around(value, 0, len(value))
        case _:
            return None


def own_entry_end(head: bytes, table: int) -> int:
    """Return the end of the entry `amqp-1.0` with which the table at `head[table]` begins; the index of the
    entries if it does not. Raises `FieldError` if the entry is truncated.
    """
    at = table + _U32.size
    return table_bounds(head, at + len(_NAME), len(head))[1] if head.startswith(_NAME, at) else at


def _around(octets: bytes, at: int, end: int) -> BodyFraming | None:
    begin = at + 1 + _U32.size
    if end < begin:
        return None
    after = begin + _U32.unpack_from(octets, at + 1)[0]
    return BodyFraming(octets[at], octets[begin:after], octets[after:end]) if after <= end else None


PLAIN = BodyFraming(BodyKind.DATA, b"", b"")
"""The octets around the body of a message without a head."""


def message(around: BodyFraming, body: bytes) -> bytes:
    """Return the message of AMQP 1.0 that was stored so."""
    beginning, end = frame_of(around, len(body))
    return beginning + body + end


def frame_of(around: BodyFraming, size: int) -> tuple[bytes, bytes]:
    """Return the octets before and after a body of this size, which need not be in memory."""
    form = around.form & ~WIDE
    if form not in _CONSTRUCTORS:
        return around.before, around.after
    code, constructor = _CONSTRUCTORS[BodyKind(form)]
    if size < 256 and not around.form & WIDE:
        return b"%s\x00\x53%c%c%c" % (around.before, code, constructor, size), around.after
    return b"%s\x00\x53%c%c%s" % (around.before, code, constructor + 0x10, _U32.pack(size)), around.after


def annotated(around: BodyFraming, annotations: Sequence[tuple[Symbol, Value]]) -> BodyFraming:
    """Return it with these message-annotations, which replace those of the same names. The other octets of
    the section stay as they are.

    As in `redelivered`, a whole message and sections that make no sense stay as they are. So does a message
    with one of these names among more than MOST_ANNOTATIONS.
    """
    if around.form & ~WIDE == BodyKind.MESSAGE:
        return around
    before, names = around.before, [name for name, _ in annotations]
    count, known = 0, b""
    begin = end = 0
    try:
        for place in sections.find(before):
            match place.section:
                case Section.HEADER:
                    begin = end = place.end
                case Section.MESSAGE_ANNOTATIONS:
                    begin, end = place.begin, place.end
                    count, known = _without(names, before, place)
                case _:
                    pass
    except DecodeError:
        return around
    added = b"".join([encoding.write(name) + encoding.write(value) for name, value in annotations])
    entries = encoding.write_entries(count + 2 * len(annotations), known + added)
    section = b"\x00\x53%c%s" % (Section.MESSAGE_ANNOTATIONS, entries)
    return BodyFraming(around.form, before[:begin] + section + before[end:], around.after)


def _without(names: Sequence[Symbol], octets: bytes, place: SectionPlace) -> tuple[int, bytes]:
    """Return the number and the octets of the keys and values of a section, without entries of these names.
    Raises `DecodeError`, also if looking for them would take too long.
    """
    count, at = decoding.entries(octets, place.value, place.end)
    contents = octets[at : place.end]
    if not any(name.name.encode() in contents for name in names):
        return count, contents  # the usual case takes no step for each entry
    if count > 2 * MOST_ANNOTATIONS:
        raise DecodeError("there are too many annotations")
    kept: list[bytes] = []
    for _ in range(count // 2):
        value = decoding.skip(octets, at, place.end)
        end = decoding.skip(octets, value, place.end)
        if decoding.read_all(octets[at:value]) not in names:
            kept.append(octets[at:end])
        at = end
    return 2 * len(kept), b"".join(kept)


def redelivered(around: BodyFraming, deliveries: int) -> BodyFraming:
    """Return it with a header that has the number of earlier deliveries (part 3, section 3.2.1).

    A message that is stored as a whole stays as it is, and so does one whose sections make no sense: a
    publisher of any protocol can write any octets there.
    """
    if around.form & ~WIDE == BodyKind.MESSAGE:
        return around
    values: list[bytes] = []
    rest = around.before
    try:
        places = sections.find(around.before)
        if places and places[0].section is Section.HEADER:
            values, _ = decoding.fields(around.before, places[0].value, places[0].end)
            rest = around.before[places[0].end :]
    except DecodeError:
        return around
    values = (values + [types.NULL] * _HEADER_FIELDS)[:_HEADER_FIELDS]
    values[3], values[4] = encoding.write(False), encoding.uint(deliveries)
    header = b"\x00\x53%c%s" % (Section.HEADER, encoding.write_fields(values))
    return BodyFraming(around.form, header + rest, around.after)


_HEADER_FIELDS = 5
"""durable, priority, ttl, first-acquirer, delivery-count."""
