"""The sections of a message of AMQP 1.0, found without reading their contents.

A message is sections in this order: header, delivery-annotations, message-annotations, properties,
application-properties, the body, footer. Each is a described value. The body is one section `amqp-value`, or
any number of sections `data`, or of `amqp-sequence`.
Source: AMQP 1.0, part 3, section 3.2, "Message Format".
"""

from dataclasses import dataclass
from enum import IntEnum

from omq.protocol.amqp_1_0 import decoding, types
from omq.protocol.amqp_1_0.types import DecodeError, Number, NumberType, Symbol


class Section(IntEnum):
    """The sections; the value is the code of their descriptor."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    AMQP_SEQUENCE = 0x76
    AMQP_VALUE = 0x77
    FOOTER = 0x78


_NAMES = {
    "amqp:header:list": Section.HEADER,
    "amqp:delivery-annotations:map": Section.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": Section.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": Section.PROPERTIES,
    "amqp:application-properties:map": Section.APPLICATION_PROPERTIES,
    "amqp:data:binary": Section.DATA,
    "amqp:amqp-sequence:list": Section.AMQP_SEQUENCE,
    "amqp:amqp-value:*": Section.AMQP_VALUE,
    "amqp:footer:map": Section.FOOTER,
}
_CODES = {section.value: section for section in Section}

_BODY = (Section.DATA, Section.AMQP_SEQUENCE, Section.AMQP_VALUE)

_LIST, _MAP = frozenset((0x45, 0xC0, 0xD0)), frozenset((0xC1, 0xD1))
_ANY = frozenset(range(256))
_FORMS = {
    Section.HEADER: _LIST,
    Section.DELIVERY_ANNOTATIONS: _MAP,
    Section.MESSAGE_ANNOTATIONS: _MAP,
    Section.PROPERTIES: _LIST,
    Section.APPLICATION_PROPERTIES: _MAP,
    Section.DATA: frozenset((0xA0, 0xB0)),
    Section.AMQP_SEQUENCE: _LIST,
    Section.FOOTER: _MAP,
}
"""The constructors of the values of sections."""

MOST_SECTIONS = 1024
"""The greatest number of sections of a message: finding each is a step in Python."""


@dataclass(frozen=True, slots=True)
class SectionPlace:
    """The place of a section in the octets of its message."""

    section: Section
    begin: int
    value: int
    """The index at which the value after the descriptor begins."""
    end: int


def find(octets: bytes) -> list[SectionPlace]:
    """Find the sections of a message, in their order.

    Raises `DecodeError` for octets that are no sections, for sections in another order, for one that comes
    twice, and for a body of sections of several kinds. A message may have no body.
    """
    places: list[SectionPlace] = []
    at, end = 0, len(octets)
    last: Section | None = None
    while at < end:
        if len(places) == MOST_SECTIONS:
            raise DecodeError(f"a message has at most {MOST_SECTIONS} sections")
        section, value = _descriptor(octets, at, end)
        if last is not None and not _may_follow(section, last):
            raise DecodeError(f"the section {_name(section)} cannot follow {_name(last)}")
        after = decoding.skip(octets, value, end)
        if octets[value] not in _FORMS.get(section, _ANY):
            raise DecodeError(f"the section {_name(section)} cannot be a value of type 0x{octets[value]:02x}")
        places.append(SectionPlace(section, at, value, after))
        at, last = after, section
    return places


def body_at(octets: bytes) -> int:
    """Return the index of the body in the first octets of a message; -1 if they do not show it. Raises
    `DecodeError`.
    """
    at, end = 0, len(octets)
    last: Section | None = None
    while at < end:
        section, value = _descriptor(octets, at, end)
        if last is not None and not _may_follow(section, last):
            raise DecodeError(f"the section {_name(section)} cannot follow {_name(last)}")
        if section in _BODY:
            return at
        at, last = decoding.skip(octets, value, end), section
    return -1


_TO = 2
"""The place of the field `to` in the properties."""


def to(octets: bytes, places: list[SectionPlace]) -> bytes:
    """Return the field `to` of the properties of a message, as it is encoded. Raises `DecodeError`."""
    for place in places:
        if place.section is Section.PROPERTIES:
            values, _ = decoding.fields(octets, place.value, place.end)
            return values[_TO] if len(values) > _TO else types.NULL
    return types.NULL


def _may_follow(section: Section, last: Section) -> bool:
    if section is last:
        return section in (Section.DATA, Section.AMQP_SEQUENCE)
    if section in _BODY and last in _BODY:
        return False
    return section > last


def _descriptor(octets: bytes, at: int, end: int) -> tuple[Section, int]:
    # The common form first: a descriptor of one octet.
    if at + 2 < end and not octets[at] and octets[at + 1] == 0x53 and (known := _CODES.get(octets[at + 2])):
        return known, at + 3
    if octets[at]:
        raise DecodeError("a section was expected: a value with a descriptor")
    value = decoding.skip_descriptor(octets, at, end)
    match decoding.read_all(octets[at + 1 : value]):
        case Number(NumberType.ULONG, int(code)) if code in _CODES:
            return _CODES[code], value
        case Symbol(name) if name in _NAMES:
            return _NAMES[name], value
        case _:
            raise DecodeError(
                f"there is no section with the descriptor {octets[at + 1 : value][:32].hex(' ')}"
            )


def _name(section: Section) -> str:
    return section.name.lower().replace("_", "-")
