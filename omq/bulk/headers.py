"""Convert DMP properties to headers in the form of the Kafka source, names with octets, and back.

An entry of the message's own headers table keeps its name. The exchange and the properties get names with the
prefix `dmp.`, such as `dmp.content-type`. An entry whose own name has this prefix gets the prefix
`dmp.headers.` before it, so that it is not taken for a property. Numbers are decimal text. The routing key is
not a header, but the column `key`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import assert_never

from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    Table,
    Value,
    Void,
    table_octets,
)
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import NUMBERS, Properties

PREFIX = "dmp."
EXCHANGE = PREFIX + "exchange"
ENTRY = PREFIX + "headers."
"""The prefix of an entry of the headers table whose own name begins with PREFIX."""

_TABLE = "headers"
_NAMES = {
    PREFIX + field.name.replace("_", "-"): field.name for field in fields(Properties) if field.name != _TABLE
}


@dataclass(frozen=True, slots=True)
class Header:
    """A header; `value` is None for one without a value."""

    key: str
    value: bytes | None


def headers_of(head: Head) -> list[Header]:
    """Convert a head, without its routing key: the exchange, then the properties, then its headers table."""
    found = [Header(EXCHANGE, head.exchange)] if head.exchange else []
    for name, attribute in _NAMES.items():
        value = getattr(head.properties, attribute)
        if value is not None:
            found.append(Header(name, value if isinstance(value, bytes) else b"%d" % value))
    if head.properties.headers is not None:
        for octets, entry in head.properties.headers.entries:
            name = octets.decode("utf-8", "backslashreplace")
            found.append(Header(ENTRY + name if name.startswith(PREFIX) else name, _octets(entry)))
    return found


def head_of(key: bytes, headers: Iterable[Header]) -> Head:
    """Make the head with this routing key and these headers; `headers_of` is the inverse.

    Raises ValueError for an unknown `dmp.` name, and for a number that is not decimal text.
    """
    exchange = b""
    properties: dict[str, bytes | int | Table] = {}
    entries: list[tuple[bytes, Value]] = []
    for header in headers:
        if header.key.startswith(ENTRY) or not header.key.startswith(PREFIX):
            value = Void() if header.value is None else LongString(header.value)
            entries.append((header.key.removeprefix(ENTRY).encode(), value))
        elif header.key == EXCHANGE:
            exchange = header.value or b""
        elif header.key in _NAMES:
            attribute = _NAMES[header.key]
            properties[attribute] = _property(header, NUMBERS.get(attribute))
        else:
            raise ValueError(f"no header is called {header.key!r}; there are {EXCHANGE}, {', '.join(_NAMES)}")
    if entries:
        properties[_TABLE] = Table(tuple(entries))
    return Head(exchange, key, Properties(**properties))  # type: ignore[arg-type]  # `_property` returns the type of each


def _property(header: Header, most: int | None) -> bytes | int:
    value = header.value or b""
    if most is None:
        return value
    if not (value.isdigit() and len(value) <= 20 and int(value) <= most):
        raise ValueError(f"the header {header.key!r} must be a number from 0 to {most}, not {value!r}")
    return int(value)


def _octets(value: Value) -> bytes | None:
    match value:
        case LongString(octets) | ByteArray(octets):
            return octets
        case Number(_, number):
            return str(number).encode()
        case Boolean(truth):
            return b"true" if truth else b"false"
        case Decimal():
            return value.text().encode()
        case Void():
            return None
        case Table():
            return table_octets(value)
        case Array(values):
            # Encode it like a table whose entries have empty names.
            return table_octets(Table(tuple((b"", inner) for inner in values)))
        case _:
            assert_never(value)
