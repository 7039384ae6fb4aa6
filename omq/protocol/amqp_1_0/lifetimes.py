"""The time that a message may wait: the fields ttl and absolute-expiry-time.

Queues look at the property expiration of stored heads. So the head of a message with one of these fields has
that property, too. Messages without them cost nothing.
Source: AMQP 1.0, part 3, sections 3.2.1, "Header", and 3.2.4, "Properties".
"""

import time
from collections.abc import Iterable
from contextlib import suppress

from omq.protocol.amqp_1_0 import decoding
from omq.protocol.amqp_1_0.sections import Section, SectionPlace
from omq.protocol.amqp_1_0.types import DecodeError, Number, NumberType, Value

_TTL = 2
_ABSOLUTE_EXPIRY_TIME = 8

_EMPTY_LIST, _NULL = 0x45, 0x40
_NUMBERS = frozenset((0x43, 0x52, 0x70, 0x83))
"""The constructors of a uint and a timestamp."""


def expiration(octets: bytes, places: Iterable[SectionPlace]) -> bytes | None:
    """Return the milliseconds from now for which the message with these sections may wait, as the property
    expiration has them; None for a message without a limit. Fields that make no sense set none.
    """
    limits: list[int] = []
    for place in places:
        with suppress(DecodeError):
            match place.section:
                case Section.HEADER:
                    milliseconds = ttl(octets, place.value, place.end)
                case Section.PROPERTIES:
                    milliseconds = _left(octets, place.value, place.end)
                case _:
                    continue
            if milliseconds is not None:
                limits.append(milliseconds)
    return b"%d" % min(limits) if limits else None


def ttl(octets: bytes, at: int, end: int) -> int | None:
    """Return the field ttl of the header at `octets[at]`, in milliseconds. Raises `DecodeError`."""
    match _number(octets, *_field(octets, at, end, _TTL)):
        case Number(NumberType.UINT, int(milliseconds)):
            return milliseconds
        case _:
            return None


def _left(octets: bytes, at: int, end: int) -> int | None:
    match _number(octets, *_field(octets, at, end, _ABSOLUTE_EXPIRY_TIME)):
        case Number(NumberType.TIMESTAMP, int(moment)):
            return max(0, moment - time.time_ns() // 1_000_000)
        case _:
            return None


def has_absolute_expiry_time(octets: bytes, at: int, end: int) -> bool:
    """Return whether the properties at `octets[at]` have a value there. Raises `DecodeError`."""
    begin, after = _field(octets, at, end, _ABSOLUTE_EXPIRY_TIME)
    return begin < after and octets[begin] != _NULL


def _field(octets: bytes, at: int, end: int, number: int) -> tuple[int, int]:
    """Return the begin and the end of a field of the list at `octets[at]`. They are equal if the list ends
    before it. Raises `DecodeError`.
    """
    if at >= end:
        raise DecodeError("a list is missing")
    if octets[at] == _EMPTY_LIST:
        return end, end
    count, at = decoding.entries(octets, at, end)
    if count <= number:
        return end, end
    for _ in range(number):
        at = decoding.skip(octets, at, end)
    return at, decoding.skip(octets, at, end)


def _number(octets: bytes, begin: int, end: int) -> Value:
    """Return the value of a field; None for one that is no time."""
    is_number = begin < end and octets[begin] in _NUMBERS
    return decoding.read_all(octets[begin:end]) if is_number else None
