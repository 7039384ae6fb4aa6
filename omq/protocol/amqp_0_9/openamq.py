"""OpenAMQ's dialect: in its field tables a time (type `T`) has four octets, and everybody else's has eight.

Its client library names itself in Start-Ok. On its connections the tables are translated in both directions,
so that stored heads have one form, and one OpenAMQ client gets what another one sent.
"""

from collections.abc import Callable
from struct import Struct

from omq.protocol.amqp import properties as stored_properties
from omq.protocol.amqp.fields import MAX_NESTING, LongString, Table
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.frames import CONTENT
from omq.protocol.amqp_0_9.methods import Method
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode

_NAME = b"OpenAMQ"
_U32 = Struct(">I")
_SIZES = {
    kind: size
    for kinds, size in ((b"tbB", 1), (b"sUu", 2), (b"Iif", 4), (b"D", 5), (b"lLd", 8), (b"V", 0))
    for kind in kinds
}
_TIME = ord("T")
_SHORT, _LONG = 4, 8
_LATEST = 2**32 - 1
_HEADERS = 0x2000
_BEFORE_HEADERS = (0x8000, 0x4000)


def is_openamq(client_properties: Table) -> bool:
    """Whether these properties of Start-Ok are those of OpenAMQ's client library."""
    return any(
        name == b"product" and isinstance(value, LongString) and value.octets.startswith(_NAME)
        for name, value in client_properties.entries
    )


def widened_table(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Translate the table at `data[at]` from OpenAMQ's form; return it with its length, and where it ended.

    Raises `FieldError` for octets that are no table.
    """
    return _translated(data, at, end, _SHORT, _LONG, MAX_NESTING, is_named=True)


def narrowed_table(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Translate the table at `data[at]` to OpenAMQ's form; times after 2106 become the last one of it."""
    return _translated(data, at, end, _LONG, _SHORT, MAX_NESTING, is_named=True)


def widened_properties(octets: bytes) -> bytes:
    """Translate property flags and properties from OpenAMQ's form. Raises `FieldError`."""
    return _with_table(octets, widened_table)


def narrowed_properties(octets: bytes) -> bytes:
    """Translate checked property flags and properties to OpenAMQ's form."""
    return _with_table(octets, narrowed_table)


def widened_header(payload: bytes) -> bytes:
    """Translate the payload of a header frame. Raises `ConnectionProblem`."""
    try:
        return payload[: CONTENT.size] + widened_properties(payload[CONTENT.size :])
    except FieldError as problem:
        raise ConnectionProblem(ReplyCode.FRAME_ERROR, str(problem)) from problem


def decode(payload: bytes) -> Method:
    """As `methods.decode`, for a method whose tables have OpenAMQ's form."""
    return methods.decode(payload, widened_table)


def _with_table(octets: bytes, translate: Callable[[bytes, int, int], tuple[bytes, int]]) -> bytes:
    flags = int.from_bytes(octets[:2], "big")
    if not flags & _HEADERS:
        return octets
    at = len(stored_properties.NO_PROPERTIES)
    for flag in _BEFORE_HEADERS:
        if flags & flag:
            if at >= len(octets):
                raise FieldError("a property before the headers is missing")
            at += 1 + octets[at]
    table, end = translate(octets, at, len(octets))
    return octets[:at] + table + octets[end:]


def _translated(
    data: bytes, at: int, end: int, before: int, after: int, levels: int, *, is_named: bool
) -> tuple[bytes, int]:
    """Translate a table, or an array, whose values have no names."""
    if not levels:
        raise FieldError(f"tables are nested more than {MAX_NESTING} deep")
    stop = _end_of_long(data, at, end)
    parts: list[bytes] = []
    at += _U32.size
    begin = at
    while at < stop:
        if is_named:
            at += 1 + data[at]
        if at >= stop:
            raise FieldError("a value in a table is missing")
        kind = data[at]
        at += 1
        if kind == _TIME:
            if stop - at < before:
                raise FieldError(f"a time in a table has {stop - at} of its {before} octets")
            number = int.from_bytes(data[at : at + before], "big")
            parts += (
                data[begin:at],
                min(number, _LATEST if after == _SHORT else number).to_bytes(after, "big"),
            )
            at += before
            begin = at
        elif kind in b"FA":
            inner, inner_end = _translated(
                data, at, stop, before, after, levels - 1, is_named=kind == ord("F")
            )
            parts += (data[begin:at], inner)
            begin = at = inner_end
        elif kind in b"Sx":
            at = _end_of_long(data, at, stop)
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise FieldError(f"a value in a table has the type {kind:#04x}, which is not known here")
    if at != stop:
        raise FieldError("a value exceeds its table")
    parts.append(data[begin:stop])
    whole = b"".join(parts)
    return _U32.pack(len(whole)) + whole, stop


def _end_of_long(data: bytes, at: int, end: int) -> int:
    if end - at < _U32.size:
        raise FieldError(f"a length in a table has {end - at} of its {_U32.size} octets")
    stop: int = at + _U32.size + _U32.unpack_from(data, at)[0]
    if stop > end:
        raise FieldError("a value exceeds its table")
    return stop
