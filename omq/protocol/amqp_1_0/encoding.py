"""Values of AMQP 1.0 to octets, in their shortest forms (`decoding` describes the forms)."""

from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import assert_never

from omq.protocol.amqp_1_0.types import (
    NULL,
    SHORT_FORMS,
    Array,
    Binary,
    Described,
    List,
    Map,
    Number,
    NumberType,
    Opaque,
    Symbol,
    Value,
)

_U8, _U32 = Struct(">B"), Struct(">I")
_ZERO = {NumberType.UINT: b"\x43", NumberType.ULONG: b"\x44"}


def write(value: Value) -> bytes:
    """Encode a value in its shortest form. Raises `ValueError` for a number that its type cannot have."""
    match value:
        case None:
            return NULL
        case bool():
            return b"\x41" if value else b"\x42"
        case Number():
            return _number(value)
        case Opaque(kind, octets):
            constructor, width = kind.value
            if len(octets) != width:
                raise ValueError(f"a value of {kind.name} has {width} octets, not {len(octets)}")
            return _U8.pack(constructor) + octets
        case Binary(octets):
            return _sized(0xA0, octets)
        case str():
            return _sized(0xA1, value.encode())
        case Symbol(name):
            return _sized(0xA3, name.encode("ascii"))
        case List(values):
            return write_list([write(each) for each in values])
        case Map(entries):
            return write_map((write(key), write(each)) for key, each in entries)
        case Array(values):
            return _array(values)
        case Described(descriptor, described):
            return b"\x00" + write(descriptor) + write(described)
        case _:
            assert_never(value)


def uint(number: int) -> bytes:
    """Encode an unsigned number of 32 bits."""
    return b"\x43" if not number else b"\x52%c" % number if number < 256 else b"\x70" + _U32.pack(number)


def write_list(values: Sequence[bytes]) -> bytes:
    """Encode a list of encoded values."""
    return _compound(0xC0, b"".join(values), len(values)) if values else b"\x45"


def write_fields(values: Sequence[bytes]) -> bytes:
    """Encode the fields of a performative or section: as a list, without the nulls at its end."""
    count = len(values)
    while count and values[count - 1] == NULL:
        count -= 1
    return write_list(values[:count])


def write_map(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a map of encoded keys and values."""
    pairs = [key + value for key, value in entries]
    return write_entries(2 * len(pairs), b"".join(pairs))


def write_entries(count: int, contents: bytes) -> bytes:
    """Encode a map of this many encoded keys and values, which are `contents`."""
    return _compound(0xC1, contents, count)


def _compound(constructor: int, contents: bytes, count: int) -> bytes:
    """Encode a list, map or array; `constructor` is that of its short form."""
    size = len(contents) + 1
    if size < 256 and count < 256:
        return b"%c%c%c%s" % (constructor, size, count, contents)
    return b"%c%s%s%s" % (constructor + 0x10, _U32.pack(len(contents) + 4), _U32.pack(count), contents)


def _number(number: Number) -> bytes:
    kind, value = number.type, number.value
    if value == 0 and kind in _ZERO:
        return _ZERO[kind]
    short = SHORT_FORMS.get(kind)
    if short is not None:
        low, high = (0, 255) if kind in _ZERO else (-128, 127)
        if low <= value <= high:
            return b"%c%c" % (short[0], int(value) & 0xFF)
    constructor, shape = kind.value
    try:
        return _U8.pack(constructor) + Struct(shape).pack(value)
    except (error, OverflowError) as problem:  # the latter for floats
        raise ValueError(f"{value} is no {kind.name.lower()}") from problem


def _sized(constructor: int, octets: bytes) -> bytes:
    if len(octets) < 256:
        return b"%c%c%s" % (constructor, len(octets), octets)
    return b"%c%s%s" % (constructor + 0x10, _U32.pack(len(octets)), octets)


def _array(values: tuple[Value, ...]) -> bytes:
    """Encode an array: all elements in the long form of their type, since they share one constructor."""
    if not values:
        return _compound(0xE0, NULL, 0)
    beginnings, contents = set(), []
    for value in values:
        beginning, content = _element(value)
        beginnings.add(beginning)
        contents.append(content)
    if len(beginnings) > 1:
        raise ValueError("the elements of an array have one type")
    return _compound(0xE0, beginnings.pop() + b"".join(contents), len(values))


def _element(value: Value) -> tuple[bytes, bytes]:
    """Return the constructor that all elements of this type have in an array, and the octets after it."""
    match value:
        case None:
            return NULL, b""
        case bool():
            return b"\x56", b"\x01" if value else b"\x00"
        case Number(kind, number):
            constructor, shape = kind.value
            return _U8.pack(constructor), Struct(shape).pack(number)
        case Opaque():
            octets = write(value)
            return octets[:1], octets[1:]
        case Binary(octets):
            return b"\xb0", _U32.pack(len(octets)) + octets
        case str():
            octets = value.encode()
            return b"\xb1", _U32.pack(len(octets)) + octets
        case Symbol(name):
            return b"\xb3", _U32.pack(len(name)) + name.encode("ascii")
        case List(values):
            return b"\xd0", _long(b"".join(write(each) for each in values), len(values))
        case Map(entries):
            contents = b"".join(write(key) + write(each) for key, each in entries)
            return b"\xd1", _long(contents, 2 * len(entries))
        case Array(values):
            octets = _array(values)
            if octets[0] == 0xE0:  # to the long form
                return b"\xf0", _U32.pack(octets[1] + 3) + _U32.pack(octets[2]) + octets[3:]
            return octets[:1], octets[1:]
        case Described(descriptor, described):
            beginning, contents = _element(described)
            return b"\x00" + write(descriptor) + beginning, contents
        case _:
            assert_never(value)


def _long(contents: bytes, count: int) -> bytes:
    return _U32.pack(len(contents) + 4) + _U32.pack(count) + contents
