"""Values of AMQP 1.0 from octets.

A value is one octet, the constructor, which says its type and form, and the octets after it. A described
value is an octet 0, the descriptor, and the value that it describes. Numbers are big-endian.
Source: AMQP 1.0, part 1, "Types".
"""

from functools import lru_cache
from struct import Struct

from omq.protocol.amqp_1_0.types import (
    SHORT_FORMS,
    Array,
    Binary,
    DecodeError,
    Described,
    List,
    Map,
    Number,
    NumberType,
    Opaque,
    OpaqueType,
    Symbol,
    Value,
)

MAX_NESTING = 32
"""The deepest nesting of lists, maps, arrays and descriptors, including the outermost."""

MOST_VALUES = 1024
"""The greatest number of values that one call of `read` makes. A frame of 64 KiB could say that it has that
many nulls, and each would become an object: reading them would hold up the other connections.
"""

_U32 = Struct(">I")

_NULL, _TRUE, _FALSE, _BOOLEAN = 0x40, 0x41, 0x42, 0x56
_UINT_0, _ULONG_0, _LIST_0 = 0x43, 0x44, 0x45
_DESCRIBED = 0x00

_NUMBERS = {
    constructor: (kind, Struct(shape))
    for kind, (constructor, shape) in (*((kind, kind.value) for kind in NumberType), *SHORT_FORMS.items())
}
_OPAQUES = {kind.value[0]: kind for kind in OpaqueType}
_CONSTANTS: dict[int, Value] = {
    _NULL: None,
    _TRUE: True,
    _FALSE: False,
    _UINT_0: Number(NumberType.UINT, 0),
    _ULONG_0: Number(NumberType.ULONG, 0),
    _LIST_0: List(),
}
_VARIABLE = {0xA0, 0xB0, 0xA1, 0xB1, 0xA3, 0xB3}
_COMPOUND = {0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0}

_WIDTHS = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""The octets after a constructor of fixed width, by its upper four bits."""

_KNOWN = frozenset((*_NUMBERS, *_OPAQUES, *_CONSTANTS, _BOOLEAN, *_VARIABLE, *_COMPOUND))


def skip(octets: bytes, at: int, end: int) -> int:
    """Return the end of the value at `octets[at]`, which must not exceed `end`. Does not look into compounds.

    Raises `DecodeError`.
    """
    for _ in range(MAX_NESTING):
        if at >= end:
            raise DecodeError("a value is missing")
        if octets[at] != _DESCRIBED:
            return _skip_plain(octets, at, end)
        at = skip_descriptor(octets, at, end)
    raise DecodeError(f"values are nested deeper than {MAX_NESTING}")


def skip_descriptor(octets: bytes, at: int, end: int) -> int:
    """Return the index of the value that the descriptor at `octets[at]` describes. Raises `DecodeError`."""
    after = at + 1
    if after < end and octets[after] == _DESCRIBED:
        raise DecodeError("a descriptor has a descriptor")
    return _skip_plain(octets, after, end)


def _skip_plain(octets: bytes, at: int, end: int) -> int:
    if at >= end:
        raise DecodeError("a value is missing")
    constructor = octets[at]
    if constructor not in _KNOWN:
        raise DecodeError(f"there is no type 0x{constructor:02x}")
    return _after(octets, constructor, at + 1, end)


def _after(octets: bytes, constructor: int, at: int, end: int) -> int:
    """Return the end of a value whose constructor is known and whose other octets begin at `at`."""
    width = _WIDTHS.get(constructor >> 4)
    if width is None:
        if constructor >> 4 & 1:  # 0xB, 0xD, 0xF: the size has four octets
            width = 4 + _U32.unpack_from(octets, at)[0] if at + 4 <= end else 4
        else:
            width = 1 + octets[at] if at < end else 1
    after = at + width
    if after > end:
        raise DecodeError(f"a value of type 0x{constructor:02x} has {max(end - at, 0)} of its {width} octets")
    return after


def read(octets: bytes, at: int = 0, end: int | None = None) -> tuple[Value, int]:
    """Read the value at `octets[at]`; return it and its end, which must not exceed `end`.

    Raises `DecodeError`, also for more than `MOST_VALUES` values in one another, and for nesting deeper than
    `MAX_NESTING`.
    """
    return _Reader(octets).read(at, len(octets) if end is None else end, MAX_NESTING)


def read_all(octets: bytes) -> Value:
    """Return the value that these octets are. Raises `DecodeError`, also for octets after the value."""
    if len(octets) <= _SHORT_VALUE:
        return _read_short(octets)
    number = _NUMBERS.get(octets[0])
    if number is not None and len(octets) == 1 + number[1].size:
        return Number(number[0], number[1].unpack_from(octets, 1)[0])
    return _read_all(octets)


_SHORT_VALUE = 2
"""The octets of booleans and small numbers, of which a peer sends the same again and again."""


@lru_cache(maxsize=1024)
def _read_short(octets: bytes) -> Value:
    return _read_all(octets)


def _read_all(octets: bytes) -> Value:
    value, after = read(octets)
    if after != len(octets):
        raise DecodeError(f"{len(octets) - after} octets follow a value")
    return value


class _Reader:
    """One call of `read`, which counts the values."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._left = MOST_VALUES

    def read(self, at: int, end: int, levels: int) -> tuple[Value, int]:
        if at >= end:
            raise DecodeError("a value is missing")
        constructor = self._octets[at]
        if constructor == _DESCRIBED:
            if not levels:
                raise DecodeError(f"values are nested deeper than {MAX_NESTING}")
            descriptor, at = self._descriptor(at + 1, end, levels - 1)
            value, at = self.read(at, end, levels - 1)
            return Described(descriptor, value), at
        if constructor not in _KNOWN:
            raise DecodeError(f"there is no type 0x{constructor:02x}")
        return self._value(constructor, at + 1, end, levels)

    def _descriptor(self, at: int, end: int, levels: int) -> tuple[Value, int]:
        if at < end and self._octets[at] == _DESCRIBED:
            raise DecodeError("a descriptor has a descriptor")
        return self.read(at, end, levels)

    def _value(self, constructor: int, at: int, end: int, levels: int) -> tuple[Value, int]:
        self._left -= 1
        if self._left < 0:
            raise DecodeError(f"a value consists of more than {MOST_VALUES} values")
        octets = self._octets
        after = _after(octets, constructor, at, end)
        if (number := _NUMBERS.get(constructor)) is not None:
            return Number(number[0], number[1].unpack_from(octets, at)[0]), after
        if constructor in _CONSTANTS:
            return _CONSTANTS[constructor], after
        if constructor in _VARIABLE:
            return _variable(constructor, octets[at + (1 if constructor < 0xB0 else 4) : after]), after
        if constructor in _COMPOUND:
            if not levels:
                raise DecodeError(f"values are nested deeper than {MAX_NESTING}")
            return self._compound(constructor, at, after, levels - 1), after
        if constructor == _BOOLEAN:
            if octets[at] > 1:
                raise DecodeError(f"a boolean is 0 or 1, not {octets[at]}")
            return octets[at] == 1, after
        return Opaque(_OPAQUES[constructor], octets[at:after]), after

    def _compound(self, constructor: int, at: int, end: int, levels: int) -> Value:
        count, at = _count(self._octets, constructor, at, end)
        match constructor & 0xEF:
            case 0xC0:
                return List(self._values(at, end, count, levels))
            case 0xC1:
                if count % 2:
                    raise DecodeError("a map has a key without a value")
                values = self._values(at, end, count, levels)
                return Map(tuple(zip(values[::2], values[1::2], strict=True)))
            case _:
                return Array(self._elements(at, end, count, levels))

    def _values(self, at: int, end: int, count: int, levels: int) -> tuple[Value, ...]:
        values = []
        for _ in range(count):
            value, at = self.read(at, end, levels)
            values.append(value)
        if at != end:
            raise DecodeError(f"{end - at} octets of a list or map belong to no value")
        return tuple(values)

    def _elements(self, at: int, end: int, count: int, levels: int) -> tuple[Value, ...]:
        """Read the elements of an array, which share their constructor and descriptor."""
        descriptor: Value = None
        described = at < end and self._octets[at] == _DESCRIBED
        if described:
            descriptor, at = self._descriptor(at + 1, end, levels)
        if at >= end:
            raise DecodeError("an array has no constructor")
        constructor, at = self._octets[at], at + 1
        if constructor not in _KNOWN:
            raise DecodeError(f"there is no type 0x{constructor:02x}")
        values: list[Value] = []
        for _ in range(count):
            value, at = self._value(constructor, at, end, levels)
            values.append(Described(descriptor, value) if described else value)
        if at != end:
            raise DecodeError(f"{end - at} octets of an array belong to no value")
        return tuple(values)


def entries(octets: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number of keys and values that the map at `octets[at]` says that it has, and the index of
    the first one. Raises `DecodeError`.
    """
    return _count(octets, octets[at], at + 1, end)


def _count(octets: bytes, constructor: int, at: int, end: int) -> tuple[int, int]:
    """Return the number of values that a compound says that it has, and the index of the first one. `at` is
    after its constructor.
    """
    wide = bool(constructor & 0x10)
    at += 4 if wide else 1
    after = at + (4 if wide else 1)
    if after > end:
        raise DecodeError(f"a compound of {end - at} octets has no count")
    count: int = _U32.unpack_from(octets, at)[0] if wide else octets[at]
    if count > end - after and constructor & 0xEF != 0xE0:
        raise DecodeError(f"a compound of {end - after} octets cannot have {count} values")
    return count, after


def _variable(constructor: int, octets: bytes) -> Value:
    match constructor & 0x0F:
        case 0:
            return Binary(octets)
        case 1:
            try:
                return octets.decode()
            except UnicodeDecodeError as problem:
                raise DecodeError("a string is not UTF-8") from problem
        case _:
            return Symbol(_ascii(octets))


def _ascii(octets: bytes) -> str:
    try:
        return octets.decode("ascii")
    except UnicodeDecodeError as problem:
        raise DecodeError("a symbol is not ASCII") from problem


def fields(octets: bytes, at: int, end: int) -> tuple[list[bytes], int]:
    """Read the list at `octets[at]`; return the octets of each of its values, and its end.

    Raises `DecodeError`, also if the list has more than 255 values: no list of the specification has.
    """
    if at >= end:
        raise DecodeError("a list is missing")
    constructor = octets[at]
    if constructor == _LIST_0:
        return [], at + 1
    if constructor not in (0xC0, 0xD0):
        raise DecodeError(f"a list was expected, and not a value of type 0x{constructor:02x}")
    after = _after(octets, constructor, at + 1, end)
    count, at = _count(octets, constructor, at + 1, after)
    if count > 255:
        raise DecodeError(f"a list of the protocol has at most 255 fields, not {count}")
    found = []
    for _ in range(count):
        begin = at
        at = at + 1 if at < after and octets[at] in _CONSTANTS else skip(octets, at, after)
        found.append(octets[begin:at])
    if at != after:
        raise DecodeError(f"{after - at} octets of a list belong to no field")
    return found, after
