"""AMQP field tables: names with typed values, as in the property `headers` of a message.

A table is `u32 length | entries`, an entry `short string name | u8 type | value`; numbers are big-endian.
Source: 6-DMP, "Message envelope and format" (properties are in AMQP's format); AMQP 0-9, "Field Tables".
OpenAMQ writes only the types S, I, D, T and F. The others are those of AMQP 0-9-1 as its brokers and clients
use them, which for `s` and `l` differs from its specification: `s` is a signed 16-bit number here, and
`l` a signed 64-bit one.

Values keep their type, and names their order and repetition, so that a table that was read encodes to the
same octets again (except for a boolean other than 0 or 1 and the payload bits of a NaN).
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import count
from struct import Struct, error
from typing import assert_never

import msgspec

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.shortstr import FieldError
from omq.protocol.steps import Steps

MAX_NESTING = 32
"""The deepest nesting of tables and arrays, including the outermost."""

_LONGEST_PLACE = 200

_U32 = Struct(">I")
_DECIMAL = Struct(">BI")


class NumberType(Enum):
    """The wire types of a `Number`; the value is the type octet, as a letter."""

    INT8 = "b"
    UINT8 = "B"
    INT16 = "s"
    INT16_OF_SPECIFICATION = "U"
    UINT16 = "u"
    INT32 = "I"
    UINT32 = "i"
    INT64 = "l"
    INT64_OF_SPECIFICATION = "L"
    FLOAT32 = "f"
    FLOAT64 = "d"
    TIMESTAMP = "T"
    """Seconds since the epoch, unsigned 64 bits."""


LONG_STRING, ARRAY, TABLE = b"SAF"
"""The type octets of values with a length in front."""


class Number(msgspec.Struct, frozen=True):
    """A number of fixed size; `value` is a float only for the two FLOAT types."""

    type: NumberType
    value: int | float


class Boolean(msgspec.Struct, frozen=True):
    """Type `t`."""

    value: bool


class Decimal(msgspec.Struct, frozen=True):
    """Type `D`: `value` (unsigned, 32 bits) divided by ten to the power of `scale` (0 to 255)."""

    scale: int
    value: int

    def text(self) -> str:
        """Return the number in decimal digits, with as many after the point as `scale` says."""
        digits = f"{self.value:0{self.scale + 1}d}"
        return f"{digits[: -self.scale]}.{digits[-self.scale :]}" if self.scale else digits


class LongString(msgspec.Struct, frozen=True):
    """Type `S`. OpenAMQ ends these with an octet 0 that their length includes; `octets` includes it too."""

    octets: bytes


class ByteArray(msgspec.Struct, frozen=True):
    """Type `x`."""

    octets: bytes


class Void(msgspec.Struct, frozen=True):
    """Type `V`: an entry without a value."""


class Array(msgspec.Struct, frozen=True):
    """Type `A`."""

    values: "tuple[Value, ...]"


class Table(msgspec.Struct, frozen=True):
    """Type `F`, also the type of `headers`: names of 0 to 255 octets, in their order and repetition on the
    wire.
    """

    entries: "tuple[tuple[bytes, Value], ...]" = ()


Value = Number | Boolean | Decimal | LongString | ByteArray | Void | Array | Table

_NUMBERS = {
    ord(kind.value): (kind, Struct(shape))
    for kind, shape in {
        NumberType.INT8: ">b",
        NumberType.UINT8: ">B",
        NumberType.INT16: ">h",
        NumberType.INT16_OF_SPECIFICATION: ">h",
        NumberType.UINT16: ">H",
        NumberType.INT32: ">i",
        NumberType.UINT32: ">I",
        NumberType.INT64: ">q",
        NumberType.INT64_OF_SPECIFICATION: ">q",
        NumberType.FLOAT32: ">f",
        NumberType.FLOAT64: ">d",
        NumberType.TIMESTAMP: ">Q",
    }.items()
}


# -- reading ------------------------------------------------------------------------------------------------


def read_table(data: bytes, at: int, end: int, what: str = "the table") -> tuple[Table, int]:
    """Read the table whose length is at `data[at]`; return it and its end, which must not exceed `end`.

    Raises `FieldError` for a truncated table, entries that do not fill it exactly, an unknown type, and
    nesting deeper than `MAX_NESTING`.
    """
    return _table(data, at, end, what, MAX_NESTING)


def _table(data: bytes, at: int, end: int, what: str, levels: int) -> tuple[Table, int]:
    at, table_end = _counted(data, at, end, what, levels)
    entries: list[tuple[bytes, Value]] = []
    while at < table_end:
        name, at = shortstr.read(data, at, table_end, f"a name in {what}")
        value, at = _value(data, at, table_end, f"{shown(name)} in {_cut(what)}", levels)
        entries.append((name, value))
    return Table(tuple(entries)), table_end


def _array(data: bytes, at: int, end: int, what: str, levels: int) -> tuple[Array, int]:
    at, array_end = _counted(data, at, end, what, levels)
    values: list[Value] = []
    while at < array_end:
        value, at = _value(data, at, array_end, f"a value of {_cut(what)}", levels)
        values.append(value)
    return Array(tuple(values)), array_end


def read_small_table(data: bytes, at: int, end: int, what: str = "the table") -> tuple[Table, int]:
    """Read a table as `read_table`, but only a small one: see `check_small_table`."""
    check_small_table(data, at, end, what)
    return read_table(data, at, end, what)


def check_small_table(data: bytes, at: int, end: int, what: str = "the table") -> None:
    """Check a table as `checking` does, which must have fewer than VALUES_A_STEP values: others must not wait
    until the values of a larger one are made. Raises `FieldError`.
    """
    if not is_small_table(data, at, end, what):
        raise FieldError(f"{what} has {VALUES_A_STEP} values or more")


def is_small_table(data: bytes, at: int, end: int, what: str = "the table") -> bool:
    """Return whether the table at `data[at]` has fewer than VALUES_A_STEP values.

    Raises `FieldError` as `read_table` does, if it finds an error among the first `VALUES_A_STEP` values.
    """
    for _ in checking(data, at, end, what):  # which pauses after VALUES_A_STEP
        return False
    return True


_SIZES = {kind: shape.size for kind, (_, shape) in _NUMBERS.items()} | {
    ord("t"): 1, ord("D"): _DECIMAL.size, ord("V"): 0,
}  # fmt: skip
"""The sizes of values of fixed size, by type octet."""

VALUES_A_STEP = 512
"""The number of values after which `checking` pauses."""


def bounds(data: bytes, at: int, end: int, what: str = "the table") -> tuple[int, int]:
    """Return the beginning and end of the contents of the table at `data[at]`. Raise `FieldError` if
    truncated.
    """
    return _long(data, at, end, what)


def checking(data: bytes, at: int, end: int, what: str = "the table") -> Steps[int]:
    """Check the table at `data[at]` in steps, without making its values, and return its end.

    Raises `FieldError` as `read_table` does.
    """
    return (yield from _checking(data, at, end, what, MAX_NESTING, True, count(1)))


def names(data: bytes, at: int) -> Iterator[bytes]:
    """Yield the names of the checked table at `data[at]`, without those of tables in it. No value is made."""
    return (name for name, *_ in places(data, at))


def places(data: bytes, at: int, *, is_named: bool = True) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield for each entry of the checked table at `data[at]` its name, where it begins, where the type of
    its value is, and its end. The values of an array have no names. No value is made.
    """
    at, stop = bounds(data, at, len(data))
    name = b""
    while at < stop:
        begin = kind_at = at
        if is_named:
            kind_at += 1 + data[at]
            name = data[at + 1 : kind_at]
        at = kind_at + 1
        size = _SIZES.get(data[kind_at])
        at = bounds(data, at, stop)[1] if size is None else at + size
        yield name, begin, kind_at, at


def long_string(data: bytes, type_at: int, end: int) -> bytes | None:
    """Return the octets of the checked value whose type is at `data[type_at]`, if it is a long string."""
    return data[type_at + 1 + _U32.size : end] if data[type_at] == LONG_STRING else None


def _checking(
    data: bytes, at: int, end: int, what: str, levels: int, named: bool, values: Iterator[int]
) -> Steps[int]:
    """Check a table as `checking` does, or an array, whose values have no names."""
    at, stop = _counted(data, at, end, what, levels)
    while at < stop:
        if not next(values) % VALUES_A_STEP:
            yield
        place = at
        if named:
            at += 1 + data[at]
        if at < stop and (size := _SIZES.get(data[at])) is not None and at + 1 + size <= stop:
            at += 1 + size
            continue
        # Anything else is a string, a container, or malformed.
        inner = f"a value of {_cut(what)}"
        if named:
            name, at = shortstr.read(data, place, stop, f"a name in {what}")
            inner = f"{shown(name)} in {_cut(what)}"
        kind = data[at : at + 1] if at < stop else b""
        if kind in (b"A", b"F"):
            at = yield from _checking(data, at + 1, stop, inner, levels - 1, kind == b"F", values)
        else:
            _, at = _value(data, at, stop, inner, levels)
    return stop


def _counted(data: bytes, at: int, end: int, what: str, levels: int) -> tuple[int, int]:
    """Return the beginning and end of the contents of a table or an array. Raise `FieldError`."""
    if not levels:
        raise FieldError(f"tables are nested more than {MAX_NESTING} deep")
    return _long(data, at, end, what)


def _long(data: bytes, at: int, end: int, what: str) -> tuple[int, int]:
    """Return the beginning and end of the octets after their u32 length at `data[at]`. Raise `FieldError`."""
    start = _room(at, _U32.size, end, what)
    (length,) = _U32.unpack_from(data, at)
    if length > end - start:
        raise FieldError(f"{what} has {end - start} of its {length} octets")
    return start, start + length


def _room(at: int, size: int, end: int, what: str) -> int:
    """Return the end of a field of `size` octets at `at`. Raise `FieldError` if it is truncated."""
    if end - at < size:
        raise FieldError(f"{what} has {end - at} of its {size} octets")
    return at + size


def _value(data: bytes, at: int, end: int, what: str, levels: int) -> tuple[Value, int]:
    """Read the value whose type is at `data[at]`; return it and its end."""
    after = _room(at, 1, end, f"the type of {what}")
    kind = data[at]
    at = after
    if kind in _NUMBERS:
        number, shape = _NUMBERS[kind]
        after = _room(at, shape.size, end, what)
        return Number(number, shape.unpack_from(data, at)[0]), after
    match chr(kind):
        case "S":
            start, after = _long(data, at, end, what)
            return LongString(data[start:after]), after
        case "x":
            start, after = _long(data, at, end, what)
            return ByteArray(data[start:after]), after
        case "t":
            after = _room(at, 1, end, what)
            return Boolean(data[at] != 0), after
        case "D":
            after = _room(at, _DECIMAL.size, end, what)
            return Decimal(*_DECIMAL.unpack_from(data, at)), after
        case "V":
            return Void(), at
        case "A":
            return _array(data, at, end, what, levels - 1)
        case "F":
            return _table(data, at, end, what, levels - 1)
        case _:
            raise FieldError(f"{what} has the type {kind:#04x}, which is not known here")


def _cut(what: str) -> str:
    """Shorten the description of a container for an error, which may have many containers around it."""
    return what if len(what) <= _LONGEST_PLACE else what[: _LONGEST_PLACE - 3] + "..."


def shown(name: bytes) -> str:
    """Return a name for an error's text, shortened when long."""
    return repr(name if len(name) <= 40 else name[:37] + b"...")[1:]


# -- writing ------------------------------------------------------------------------------------------------


def table_octets(table: Table) -> bytes:
    """Encode a table, with its length in front.

    Raises `FieldError` for a name longer than 255 octets and for a number out of range of its type.
    """
    return _with_length(entries_octets(table))


def entries_octets(table: Table) -> bytes:
    """Encode the entries of a table. Raises `FieldError` as `table_octets` does."""
    parts: list[bytes] = []
    for name, value in table.entries:
        parts += (shortstr.write(name, "a name in a table"), _value_octets(value))
    return b"".join(parts)


def table_of_entries(entries: bytes) -> bytes:
    """Return the table with these encoded entries, with its length in front."""
    return _with_length(entries)


def entry_of_tables(name: bytes, tables: Iterable[bytes]) -> bytes:
    """Return the entry of a table whose value is an array of these encoded tables."""
    values = b"".join([b"%c%b" % (TABLE, each) for each in tables])
    return b"%c%b%c%b" % (len(name), name, ARRAY, _with_length(values))


def _value_octets(value: Value) -> bytes:
    match value:
        case Number(kind, number):
            try:
                return kind.value.encode() + _NUMBERS[ord(kind.value)][1].pack(number)
            except (error, OverflowError) as problem:
                raise FieldError(f"{number} is no {kind.name}") from problem
        case Boolean(truth):
            return b"t%c" % truth
        case Decimal(scale, digits):
            try:
                return b"D" + _DECIMAL.pack(scale, digits)
            except error as problem:
                raise FieldError(f"{digits} at scale {scale} is no decimal") from problem
        case LongString(octets):
            return b"S" + _with_length(octets)
        case ByteArray(octets):
            return b"x" + _with_length(octets)
        case Void():
            return b"V"
        case Array(values):
            return b"A" + _with_length(b"".join(map(_value_octets, values)))
        case Table():
            return b"F" + table_octets(value)
        case _:
            assert_never(value)


def _with_length(octets: bytes) -> bytes:
    return _U32.pack(len(octets)) + octets
