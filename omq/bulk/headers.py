"""Convert DMP properties to headers in the form of the Kafka source, names with octets, and back.

An entry of the message's own headers table keeps its name. The exchange and the properties get names with the
prefix `dmp.`, such as `dmp.content-type`. An entry whose own name has this prefix gets the prefix
`dmp.headers.` before it, so that it is not taken for a property. Numbers are decimal text. The routing key is
not a header, but the column `key`.

Entries of the headers table have types, and headers here have none. So a head with entries that are no
strings also gets the header `dmp.header-types`, with which such entries get their types back. Its value is
JSON: the letter that is the type's octet in the table, by name. A name that occurs several times has a letter
for each.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import assert_never

import msgspec

from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    NumberType,
    Table,
    Value,
    Void,
    read_table,
    table_octets,
)
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import NUMBERS, Properties
from omq.protocol.amqp.shortstr import FieldError

PREFIX = "dmp."
EXCHANGE = PREFIX + "exchange"
ENTRY = PREFIX + "headers."
"""The prefix of an entry of the headers table whose own name begins with PREFIX."""
TYPES = PREFIX + "header-types"
"""The name of the header with the types of the entries that are no strings."""

_STRING, _VOID = "S", "V"
"""The types of entries that need no mention in TYPES."""

_SHOWN = 100
"""The octets of a value that an error shows."""

_INTEGER = re.compile(rb"-?[0-9]{1,20}")
_DECIMAL = re.compile(rb"([0-9]{1,10})(?:\.([0-9]{1,255}))?")

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
    types: dict[str, str] = {}
    for octets, entry in head.properties.headers.entries if head.properties.headers is not None else ():
        name = octets.decode("utf-8", "backslashreplace")
        key = ENTRY + name if name.startswith(PREFIX) else name
        found.append(Header(key, _octets(entry)))
        types[key] = types.get(key, "") + _type(entry)
    special = {key: letters for key, letters in types.items() if set(letters) - {_STRING, _VOID}}
    if special:
        found.append(Header(TYPES, msgspec.json.encode(special)))
    return found


def head_of(key: bytes, headers: Iterable[Header]) -> Head:
    """Make the head with this routing key and these headers; `headers_of` is the inverse.

    Raises ValueError for an unknown `dmp.` name, and for a value that is not of the type of its property or
    entry.
    """
    exchange = b""
    properties: dict[str, bytes | int | Table] = {}
    entries: list[tuple[bytes, Value]] = []
    given = list(headers)
    types = {name: iter(letters) for name, letters in _types(given).items()}
    for header in given:
        if header.key == TYPES:
            continue
        if header.key.startswith(ENTRY) or not header.key.startswith(PREFIX):
            letter = next(types[header.key], _STRING) if header.key in types else _STRING
            entries.append((header.key.removeprefix(ENTRY).encode(), _entry(header, letter)))
        elif header.key == EXCHANGE:
            exchange = header.value or b""
        elif header.key in _NAMES:
            attribute = _NAMES[header.key]
            properties[attribute] = _property(header, NUMBERS.get(attribute))
        else:
            raise ValueError(
                f"no header is called {header.key!r}; there are {EXCHANGE}, {', '.join(_NAMES)}, {TYPES}"
            )
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


def _type(value: Value) -> str:
    """Return the letter of a value's type."""
    match value:
        case LongString():
            return _STRING
        case ByteArray():
            return "x"
        case Number(kind, _):
            return kind.value
        case Boolean():
            return "t"
        case Decimal():
            return "D"
        case Void():
            return _VOID
        case Table():
            return "F"
        case Array():
            return "A"
        case _:
            assert_never(value)


def _types(headers: Iterable[Header]) -> dict[str, str]:
    """Return the types that the headers contain, by name; those that are not mentioned are strings."""
    found: dict[str, str] = {}
    for header in headers:
        if header.key == TYPES:
            try:
                found |= msgspec.json.decode(header.value or b"", type=dict[str, str])
            except msgspec.DecodeError as error:
                raise ValueError(
                    f"the header {TYPES!r} must be a JSON object with letters, not {header.value!r}: {error}"
                ) from error
    return found


def _entry(header: Header, letter: str) -> Value:
    """Make the value of an entry; `_octets` is the inverse. Raises ValueError."""
    octets = header.value
    if octets is None:
        return Void()
    try:
        return _of_type(octets, letter)
    except (ValueError, FieldError) as error:
        raise ValueError(
            f"the header {header.key!r} is no value of the type {letter!r}, which {TYPES!r} contains for it: "
            f"{octets[:_SHOWN]!r}"
        ) from error


def _of_type(octets: bytes, letter: str) -> Value:
    """Parse the octets of a value. Raises ValueError and FieldError."""
    match letter:
        case "S" | "V":  # a header that had no value before
            return LongString(octets)
        case "x":
            return ByteArray(octets)
        case "t" if octets in (b"true", b"false"):
            return Boolean(octets == b"true")
        case "D" if (found := _DECIMAL.fullmatch(octets)) is not None:
            after = found[2] or b""
            return Decimal(len(after), int(found[1] + after))
        case "f" | "d":
            return Number(NumberType(letter), float(octets))
        case "F":
            return _table(octets)
        case "A":
            return Array(tuple(value for _, value in _table(octets).entries))
        case "t" | "D":
            raise ValueError(octets)
        case _ if _INTEGER.fullmatch(octets):
            return Number(NumberType(letter), int(octets))
        case _:
            raise ValueError(octets)


def _table(octets: bytes) -> Table:
    table, end = read_table(octets, 0, len(octets))
    if end < len(octets):
        raise ValueError("more than a table")
    return table
