"""The fourteen properties of a message: sixteen flags that mark the present properties, then these in order.

Source: 6-DMP, "Message envelope and format" (header flags and properties in AMQP's format). The layout is
that of OpenAMQ: one flag word, with content-type as its highest bit; the lowest two bits have no meaning and
are 0.
"""

from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from struct import Struct, error
from typing import assert_never

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Table, checking, read_table, table_octets
from omq.protocol.amqp.fields import bounds as table_bounds
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.steps import Steps, finished

NO_PROPERTIES = b"\x00\x00"
"""The octets of `Properties()`."""

PERSISTENT = 2
"""The `delivery_mode` of a persistent message."""


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties; None for an absent one, which differs from an empty one.

    `delivery_mode` and `priority` are 0 to 255, `timestamp` is 0 to 2^64-1 (seconds since the epoch, if the
    sender follows AMQP). Octets have a length of 0 to 255.
    """

    content_type: bytes | None = None
    content_encoding: bytes | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None
    message_id: bytes | None = None
    timestamp: int | None = None
    type: bytes | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None
    sender_id: bytes | None = None


class _Kind(Enum):
    """The wire types of properties."""

    STRING = "short string"
    TABLE = "table"
    OCTET = "u8"
    LONG = "u64"


_FLAGS = Struct(">H")
_LONG = Struct(">Q")

_KINDS = {
    "headers": _Kind.TABLE,
    "delivery_mode": _Kind.OCTET,
    "priority": _Kind.OCTET,
    "timestamp": _Kind.LONG,
}
_GREATEST = {_Kind.OCTET: 2**8 - 1, _Kind.LONG: 2**64 - 1}

NUMBERS = {name: _GREATEST[kind] for name, kind in _KINDS.items() if kind in _GREATEST}
"""The properties that are numbers, with their greatest values."""

_FIELDS = tuple(
    (
        0x8000 >> place,
        field.name,
        f"the property {field.name.replace('_', '-')}",
        _KINDS.get(field.name, _Kind.STRING),
    )
    for place, field in enumerate(fields(Properties))
)
"""The flag, attribute name, name in errors and wire type of each property, in the order on the wire."""

_FLAG_OF = {name: flag for flag, name, *_ in _FIELDS}

HEADERS = _FLAG_OF["headers"]
REPLY_TO = _FLAG_OF["reply_to"]
EXPIRATION = _FLAG_OF["expiration"]
MESSAGE_ID = _FLAG_OF["message_id"]
USER_ID = _FLAG_OF["user_id"]
APP_ID = _FLAG_OF["app_id"]
"""The flags of some properties."""

_BEFORE_HEADERS = tuple(flag for flag, *_ in _FIELDS if flag > HEADERS)
"""The flags of the properties that precede the headers: short strings."""

_MEANINGLESS = 0xFFFF & ~sum(flag for flag, *_ in _FIELDS)


@lru_cache(maxsize=256)
def _present(flags: int) -> tuple[tuple[str, str, _Kind], ...]:
    """Return the properties that the flags mark as present. Raise `FieldError` for a flag without a
    meaning.
    """
    if flags & _MEANINGLESS:
        raise FieldError(f"the property flags {flags:#06x} have bits set that stand for no property")
    return tuple((name, what, kind) for flag, name, what, kind in _FIELDS if flags & flag)


def _flagged(data: bytes, at: int, end: int) -> tuple[tuple[tuple[str, str, _Kind], ...], int]:
    if end - at < _FLAGS.size:
        raise FieldError(f"the property flags have {max(end - at, 0)} of their {_FLAGS.size} octets")
    return _present(_FLAGS.unpack_from(data, at)[0]), at + _FLAGS.size


def flags_of(octets: bytes, at: int = 0) -> int:
    """Return the property flags at `octets[at]`."""
    return int.from_bytes(octets[at : at + _FLAGS.size], "big")


def headers_at(octets: bytes, at: int = 0) -> int:
    """Return the index at which the headers table begins, or would begin, if the property flags are at
    `octets[at]`.

    Raises `FieldError` if a property before it is missing.
    """
    flags = flags_of(octets, at)
    at += _FLAGS.size
    for flag in _BEFORE_HEADERS:
        if flags & flag:
            if at >= len(octets):
                raise FieldError("a property before the headers is missing")
            at += 1 + octets[at]
    return at


def skip(data: bytes, at: int, end: int) -> int:
    """Check the properties whose flags are at `data[at]`, headers included, and return their end.

    Raises `FieldError` as `read` does.
    """
    return checked_end(data, bounds(data, at, end))


def checked_end(data: bytes, found: tuple[int, int | None]) -> int:
    """Check the headers table that `bounds` found, if there is one, and return the end that it found."""
    after, table = found
    if table is not None:
        finished(check_headers(data, table, after))
    return after


def bounds(data: bytes, at: int, end: int) -> tuple[int, int | None]:
    """Find the end of the properties whose flags are at `data[at]`, and the position of their headers table.

    Raises `FieldError` as `read` does, but does not check the contents of the table: use `check_headers`.
    """
    present, at = _flagged(data, at, end)
    table: int | None = None
    string = _Kind.STRING
    for _, what, kind in present:
        if kind is string:
            # A complete string needs no call; for a truncated one, `shortstr.skip` raises the error.
            after = at + 1 + data[at] if at < end else end + 1
            at = after if after <= end else shortstr.skip(data, at, end, what)
        elif kind is _Kind.TABLE:
            table = at
            _, at = table_bounds(data, at, end, what)
        else:
            _, at = _read_other(data, at, end, what, kind)
    return at, table


def check_headers(data: bytes, at: int, end: int) -> Steps[None]:
    """Check the headers table at `data[at]`, in steps. Raises `FieldError` as `read` does."""
    yield from checking(data, at, end, "the property headers")


def strings(data: bytes, at: int) -> dict[str, bytes]:
    """Read the short strings among the checked properties whose flags are at `data[at]`."""
    end = len(data)
    present, at = _flagged(data, at, end)
    found: dict[str, bytes] = {}
    for name, what, kind in present:
        if kind is _Kind.STRING:
            found[name], at = shortstr.read(data, at, end, what)
        elif kind is _Kind.TABLE:
            _, at = table_bounds(data, at, end, what)
        else:
            _, at = _read_other(data, at, end, what, kind)
    return found


def read(data: bytes, at: int, end: int) -> tuple[Properties, int]:
    """Read the properties whose flags are at `data[at]`; return them and their end, which must not exceed
    `end`.

    Raises `FieldError` for a flag without a meaning, a missing or truncated property, and malformed headers.
    """
    present, at = _flagged(data, at, end)
    values: dict[str, bytes | int | Table] = {}
    for name, what, kind in present:
        if kind is _Kind.STRING:
            values[name], at = shortstr.read(data, at, end, what)
        else:
            values[name], at = _read_other(data, at, end, what, kind)
    return Properties(**values), at  # type: ignore[arg-type]  # each kind has its type


def _read_other(data: bytes, at: int, end: int, what: str, kind: _Kind) -> tuple[int | Table, int]:
    if kind is _Kind.TABLE:
        return read_table(data, at, end, what)
    size = 1 if kind is _Kind.OCTET else _LONG.size
    if end - at < size:
        raise FieldError(f"{what} has {end - at} of its {size} octets")
    return int.from_bytes(data[at : at + size], "big"), at + size


def decode(octets: bytes) -> Properties:
    """Parse octets as properties, from the flags to the last property.

    Raises `FieldError` as `read` does, and for octets after the last property.
    """
    properties, end = read(octets, 0, len(octets))
    if end != len(octets):
        raise FieldError(f"{len(octets) - end} octets follow the last property")
    return properties


def without_headers(octets: bytes, at: int) -> Properties:
    """Parse the checked properties whose flags are at `octets[at]`, except for the headers."""
    flags, table = flags_of(octets, at), headers_at(octets, at)
    end = table_bounds(octets, table, len(octets))[1] if flags & HEADERS else table
    return decode(_FLAGS.pack(flags & ~HEADERS) + octets[at + _FLAGS.size : table] + octets[end:])


def with_headers(octets: bytes, table: bytes) -> bytes:
    """Add the octets of a headers table to properties that have none."""
    at = headers_at(octets)
    return _FLAGS.pack(flags_of(octets) | HEADERS) + octets[_FLAGS.size : at] + table + octets[at:]


def encode(properties: Properties) -> bytes:
    """Encode the flags, and the properties that are not None.

    Raises `FieldError` for a value out of range.
    """
    flags = 0
    parts: list[bytes] = []
    for flag, name, what, kind in _FIELDS:
        value = getattr(properties, name)
        if value is not None:
            flags |= flag
            parts.append(_octets(value, what, kind))
    return _FLAGS.pack(flags) + b"".join(parts)


def _octets(value: bytes | int | Table, what: str, kind: _Kind) -> bytes:
    match value:
        case bytes():
            return shortstr.write(value, what)
        case Table():
            return table_octets(value)
        case int():
            try:
                return _LONG.pack(value) if kind is _Kind.LONG else b"%c" % value
            except (error, OverflowError) as problem:
                raise FieldError(f"{what} cannot be {value}") from problem
        case _:
            assert_never(value)
