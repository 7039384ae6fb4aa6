"""Message annotations of omq's own. A consumer can ask for the id and the time of a message in its topic; a
producer can give its name and a sequence number (docs/PROTOCOL.md, "Idempotent producers").
"""

from collections.abc import Sequence

from omq.protocol.amqp_1_0 import decoding, sections, stored
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import MOST_ANNOTATIONS, BodyFraming
from omq.protocol.amqp_1_0.types import DecodeError, Number, NumberType, Symbol, Value
from omq_storage.producers import LONGEST_PRODUCER

IDS = "omq:ids"
"""The capability that a client desires to get them."""

_ID = Symbol("x-opt-omq-id")
_TIME = Symbol("x-opt-omq-time")


def with_id(around: BodyFraming, message: int, time: int) -> BodyFraming:
    """Return the octets around a body with the id of the message, and its time in microseconds since the
    epoch.
    """
    added: list[tuple[Symbol, Value]] = [
        (_ID, Number(NumberType.ULONG, message)),
        (_TIME, Number(NumberType.TIMESTAMP, time // 1000)),
    ]
    return stored.annotated(around, added)


_PRODUCER = "x-opt-omq-producer"
_SEQUENCE = "x-opt-omq-sequence"
_NAME = _PRODUCER.encode()

_KEYS = {
    form % (len(name), name.encode()): name
    for name in (_PRODUCER, _SEQUENCE)
    for form in (b"\xa3%c%s", b"\xb3\0\0\0%c%s")
}


def may_have_origins(heads: Sequence[bytes]) -> bool:
    """Return whether any of these stored heads may have the annotations of a producer."""
    return _NAME in b"".join(heads)


def origin(head: bytes) -> tuple[bytes, int] | None:
    """Return the producer and the sequence number in the annotations of a stored head of AMQP 1.0; None if
    one of the two is missing. Raises `DecodeError` for values that are neither.
    """
    if _NAME not in head or (around := stored.around(head)) is None:
        return None
    found: dict[str, Value] = {}
    for place in sections.find(around.before):
        if place.section is Section.MESSAGE_ANNOTATIONS:
            found = _annotations(around.before, place.value, place.end)
    producer = _producer(found[_PRODUCER]) if _PRODUCER in found else None
    sequence = _sequence(found[_SEQUENCE]) if _SEQUENCE in found else None
    return None if producer is None or sequence is None else (producer, sequence)


def _annotations(octets: bytes, at: int, end: int) -> dict[str, Value]:
    """Return the values of the annotations that are in `_KEYS`."""
    count, at = decoding.entries(octets, at, end)
    if count > 2 * MOST_ANNOTATIONS:
        raise DecodeError(f"a message with {_PRODUCER} has at most {MOST_ANNOTATIONS} annotations")
    found: dict[str, Value] = {}
    for _ in range(count // 2):
        value = decoding.skip(octets, at, end)
        after = decoding.skip(octets, value, end)
        name = _KEYS.get(octets[at:value])
        if name is not None:
            found[name] = decoding.read_all(octets[value:after])
        at = after
    return found


def _producer(value: Value) -> bytes:
    name = value.encode() if isinstance(value, str) else b""
    if not 0 < len(name) <= LONGEST_PRODUCER:
        raise DecodeError(f"{_PRODUCER} is a string of 1 to {LONGEST_PRODUCER} octets")
    return name


def _sequence(value: Value) -> int:
    match value:
        case Number(NumberType.ULONG, int(number)):
            return number
        case _:
            raise DecodeError(f"{_SEQUENCE} is a ulong")
