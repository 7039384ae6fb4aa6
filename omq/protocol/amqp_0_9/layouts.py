"""The layouts of methods of AMQP 0-9-1: dataclasses from and to octets.

A method is `u16 class | u16 method | arguments` in a method frame. The annotations of a field give its form
on the wire, and consecutive `Bit` fields share octets. Arguments without a meaning today, such as tickets,
are skipped and written as 0.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from struct import Struct, error
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_args, get_type_hints

from omq.protocol.amqp import shortstr
from omq.protocol.amqp.fields import Table, read_small_table, table_octets
from omq.protocol.amqp.shortstr import FieldError

Octet = Annotated[int, "B"]
Short = Annotated[int, "H"]
Long = Annotated[int, "I"]
LongLong = Annotated[int, "Q"]
ShortStr = Annotated[bytes, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
Bit = Annotated[bool, "bit"]
Fields = Annotated[Table, "table"]

IDS = Struct(">HH")
"""The class and the method."""

_NUMBERS = {kind: Struct(f">{kind}") for kind in "BHIQ"}
_LENGTH = _NUMBERS["I"]
_BITS_AN_OCTET = 8

NO_FIELDS = Table()

TableReader = Callable[[bytes, int, int], tuple[bytes, int]]
"""Translates the table at an index, up to an end at most; returns its octets, and where it ended."""


class Method(Protocol):
    """A dataclass that `method` has registered."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    CLASS: ClassVar[int]
    METHOD: ClassVar[int]


@dataclass(frozen=True, slots=True)
class MethodLayout:
    """The wire form of a method: names and kinds of its arguments; a reserved one has no name."""

    make: Callable[..., Method]
    head: bytes
    arguments: tuple[tuple[str | None, str], ...]

    def write(self, method: Method) -> bytes:
        """Encode a method of this layout. Raises `FieldError`."""
        parts = [self.head]
        bits, place = 0, 0
        for name, kind in self.arguments:
            if kind == "bit":
                if place == _BITS_AN_OCTET:
                    parts.append(bytes((bits,)))
                    bits, place = 0, 0
                bits |= (name is not None and bool(getattr(method, name))) << place
                place += 1
                continue
            if place:
                parts.append(bytes((bits,)))
                bits, place = 0, 0
            parts.append(_written(kind, _reserved(kind) if name is None else getattr(method, name), name))
        if place:
            parts.append(bytes((bits,)))
        return b"".join(parts)

    def read(self, payload: bytes, translate: TableReader | None) -> Method:
        """Parse the payload of a method of this layout. `translate` makes tables of another dialect ordinary
        ones. Raises `FieldError`.
        """
        values: list[Any] = []
        at, end = IDS.size, len(payload)
        bits, place = 0, _BITS_AN_OCTET
        for name, kind in self.arguments:
            value: Any
            if kind == "bit":
                if place == _BITS_AN_OCTET:
                    if at >= end:
                        raise FieldError("the flags are missing")
                    bits, place = payload[at], 0
                    at += 1
                value = bool(bits >> place & 1)
                place += 1
            else:
                place = _BITS_AN_OCTET
                if kind == "table" and translate is not None:
                    table, at = translate(payload, at, end)
                    value, _ = _read(kind, table, 0, len(table), name)
                else:
                    value, at = _read(kind, payload, at, end, name)
            if name is not None:
                values.append(value)
        if at != end:
            raise FieldError(f"{end - at} octets follow the last argument")
        return self.make(*values)


LAYOUTS: dict[tuple[int, int], MethodLayout] = {}
"""The layouts of the registered methods, by class and method."""

BY_TYPE: dict[type, MethodLayout] = {}
"""The same by their dataclasses."""

M = TypeVar("M", bound=Method)


def method(class_id: int, method_id: int, before: str = "", after: str = "") -> Callable[[type[M]], type[M]]:
    """Register a dataclass as a method. `before` and `after` are the kinds of reserved arguments."""

    def register(made: type[M]) -> type[M]:
        hints = get_type_hints(made, include_extras=True)
        own = [(field.name, get_args(hints[field.name])[1]) for field in fields(made)]
        reserved_before = [(None, kind) for kind in before.split()]
        reserved_after = [(None, kind) for kind in after.split()]
        layout = MethodLayout(made, IDS.pack(class_id, method_id), (*reserved_before, *own, *reserved_after))
        made.CLASS, made.METHOD = class_id, method_id
        LAYOUTS[class_id, method_id] = layout
        BY_TYPE[made] = layout
        return made

    return register


class MethodIds:
    """The numbers of a method, which `method` sets."""

    __slots__ = ()
    CLASS: ClassVar[int]
    METHOD: ClassVar[int]


def _reserved(kind: str) -> Any:
    return 0 if kind in _NUMBERS else b""


def _written(kind: str, value: Any, name: str | None) -> bytes:
    what = (name or "a reserved field").replace("_", "-")
    match kind:
        case "shortstr":
            return shortstr.write(value, what)
        case "longstr":
            return _LENGTH.pack(len(value)) + bytes(value)
        case "table":
            return table_octets(value)
        case _:
            try:
                return _NUMBERS[kind].pack(value)
            except error as problem:
                raise FieldError(f"{what} cannot be {value}") from problem


def _read(kind: str, data: bytes, at: int, end: int, name: str | None) -> tuple[Any, int]:
    what = (name or "a reserved field").replace("_", "-")
    match kind:
        case "shortstr":
            return shortstr.read(data, at, end, what)
        case "longstr":
            start = at + _LENGTH.size
            if start > end:
                raise FieldError(f"{what} has {end - at} of its {_LENGTH.size} octets of length")
            after = start + _LENGTH.unpack_from(data, at)[0]
            if after > end:
                raise FieldError(f"{what} has {end - start} of its {after - start} octets")
            return data[start:after], after
        case "table":
            return read_small_table(data, at, end, what)
        case _:
            number = _NUMBERS[kind]
            if end - at < number.size:
                raise FieldError(f"{what} has {end - at} of its {number.size} octets")
            return number.unpack_from(data, at)[0], at + number.size
