"""The types of AMQP 1.0. `decoding` reads them from octets, and `encoding` writes them.

Values keep their type. They do not keep which of several forms a sender chose: `encoding.write` chooses the
shortest. Code that must pass a value on unchanged keeps its octets, which `decoding.skip` delimits without
looking into them.

Source: AMQP 1.0, part 1, "Types".
"""

from dataclasses import dataclass
from enum import Enum

NULL = b"\x40"


class DecodeError(ValueError):
    """Octets that are no value of AMQP 1.0, or not the value that must be there (`amqp:decode-error`)."""


class NumberType(Enum):
    """The types of a `Number`; the value is the constructor of the form with all octets, and its shape."""

    UBYTE = 0x50, ">B"
    USHORT = 0x60, ">H"
    UINT = 0x70, ">I"
    ULONG = 0x80, ">Q"
    BYTE = 0x51, ">b"
    SHORT = 0x61, ">h"
    INT = 0x71, ">i"
    LONG = 0x81, ">q"
    FLOAT = 0x72, ">f"
    DOUBLE = 0x82, ">d"
    TIMESTAMP = 0x83, ">q"
    """Milliseconds since the epoch, signed."""


class OpaqueType(Enum):
    """The types of an `Opaque`; the value is the constructor, and the number of octets."""

    DECIMAL32 = 0x74, 4
    DECIMAL64 = 0x84, 8
    DECIMAL128 = 0x94, 16
    CHAR = 0x73, 4
    UUID = 0x98, 16


@dataclass(frozen=True, slots=True)
class Number:
    """A number of fixed size; `value` is a float only for FLOAT and DOUBLE."""

    type: NumberType
    value: int | float


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value of fixed size that the server does not calculate with."""

    type: OpaqueType
    octets: bytes


@dataclass(frozen=True, slots=True)
class Binary:
    """A sequence of octets."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name from a constrained domain: ASCII."""

    name: str


@dataclass(frozen=True, slots=True)
class List:
    """A sequence of values of any types."""

    values: "tuple[Value, ...]" = ()


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs of a key and a value, in their order on the wire."""

    entries: "tuple[tuple[Value, Value], ...]" = ()


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of values of one type."""

    values: "tuple[Value, ...]" = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor, which gives its meaning."""

    descriptor: "Value"
    value: "Value"


Value = None | bool | Number | Opaque | Binary | str | Symbol | List | Map | Array | Described
"""None is AMQP's null."""

SHORT_FORMS = {
    NumberType.UINT: (0x52, ">B"),
    NumberType.ULONG: (0x53, ">B"),
    NumberType.INT: (0x54, ">b"),
    NumberType.LONG: (0x55, ">b"),
}
"""The constructor and the shape of the form with one octet, for the types of number that have one."""
