"""Composite types of AMQP 1.0: dataclasses from and to octets.

A composite type is a described list: the descriptor says which it is, and the list has its fields. The type
hint of a field is its form on the wire. Source: AMQP 1.0, part 1, section 1.4, "Composite Type
Representation".
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from types import NoneType
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, get_args, get_type_hints

from omq.protocol.amqp_1_0 import decoding, encoding
from omq.protocol.amqp_1_0.types import (
    NULL,
    Array,
    Binary,
    DecodeError,
    Number,
    NumberType,
    Symbol,
    Value,
)


def _number(kind: NumberType) -> tuple[Callable[[Value], int], Callable[[Any], bytes]]:
    def parse(value: Value) -> int:
        if isinstance(value, Number) and value.type is kind:
            return int(value.value)
        raise DecodeError(f"not {kind.name.lower()}")

    return parse, lambda number: encoding.write(Number(kind, number))


def _boolean(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    raise DecodeError("not boolean")


def _string(value: Value) -> str:
    if isinstance(value, str):
        return value
    raise DecodeError("not string")


def _symbol(value: Value) -> str:
    if isinstance(value, Symbol):
        return value.name
    raise DecodeError("not symbol")


def _binary(value: Value) -> bytes:
    if isinstance(value, Binary):
        return value.octets
    raise DecodeError("not binary")


def _symbols(value: Value) -> tuple[str, ...]:
    """Return one symbol, or those of an array: fields of the specification that are `multiple`."""
    if isinstance(value, Array):
        return tuple(_symbol(each) for each in value.values)
    return (_symbol(value),)


def _write_symbols(names: tuple[str, ...]) -> bytes:
    return encoding.write(Array(tuple(Symbol(name) for name in names))) if names else NULL


UByteField = Annotated[int, _number(NumberType.UBYTE)]
UShortField = Annotated[int, _number(NumberType.USHORT)]
UIntField = Annotated[int, (_number(NumberType.UINT)[0], encoding.uint)]
ULongField = Annotated[int, _number(NumberType.ULONG)]
BooleanField = Annotated[bool, (_boolean, encoding.write)]
StringField = Annotated[str, (_string, encoding.write)]
SymbolField = Annotated[str, (_symbol, lambda name: encoding.write(Symbol(name)))]
BinaryField = Annotated[bytes, (_binary, lambda octets: encoding.write(Binary(octets)))]
SymbolsField = Annotated[tuple[str, ...], (_symbols, _write_symbols)]
EncodedField = Annotated[bytes, None]
"""A field that stays octets."""


@dataclass(frozen=True, slots=True)
class CompositeField:
    """The codec of one field; `parse` and `write` are None for one that stays octets."""

    name: str
    attribute: str
    parse: Callable[[Value], Any] | None
    write: Callable[[Any], bytes] | None
    default: Any
    """MISSING for a field that must be there, or be null."""
    may_be_null: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The descriptor and the fields of one composite type."""

    make: Callable[..., Any]
    name: str
    code: int
    fields: tuple[CompositeField, ...]


class Composite(Protocol):
    """A dataclass for a composite type."""

    CODE: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


C = TypeVar("C", bound=Composite)

_BY_CODE: dict[int, Layout] = {}
_BY_NAME: dict[str, Layout] = {}
BY_TYPE: dict[type, Layout] = {}


def composite(code: int, name: str) -> Callable[[type[C]], type[C]]:
    """Register a dataclass as the composite type with this descriptor."""

    def register(made: type[C]) -> type[C]:
        hints = get_type_hints(made, include_extras=True)
        found = tuple(_field(field, hints[field.name]) for field in fields(made))
        layout = Layout(made, name, code, found)
        made.CODE = code
        _BY_CODE[code] = _BY_NAME[f"amqp:{name}:list"] = BY_TYPE[made] = layout
        return made

    return register


def _field(field: Field[Any], hint: Any) -> CompositeField:
    for part in (hint, *get_args(hint)):  # the field itself, or the part of `... | None` that has a form
        if getattr(part, "__metadata__", None) is not None:
            form = part.__metadata__[0]
            parse, write = form if form is not None else (None, None)
            name = field.name.rstrip("_").replace("_", "-")
            return CompositeField(name, field.name, parse, write, field.default, NoneType in get_args(hint))
    raise TypeError(f"the field {field.name} has no form on the wire")


def layout_at(octets: bytes, at: int, end: int) -> tuple[Layout, int]:
    """Return the composite type at `octets[at]`, and the place of its list. Raises `DecodeError`."""
    if at + 1 >= end or octets[at]:
        raise DecodeError("a performative was expected: a value with a descriptor")
    # The common form first: a descriptor of one octet.
    if octets[at + 1] == 0x53 and at + 2 < end and (layout := _BY_CODE.get(octets[at + 2])) is not None:
        return layout, at + 3
    after = decoding.skip_descriptor(octets, at, end)
    descriptor = decoding.read_all(octets[at + 1 : after])
    match descriptor:
        case Number(NumberType.ULONG, int(code)) if code in _BY_CODE:
            return _BY_CODE[code], after
        case Symbol(name) if name in _BY_NAME:
            return _BY_NAME[name], after
        case _:
            shown = octets[at + 1 : after][:32].hex(" ")
            raise DecodeError(f"there is no performative with the descriptor {shown}")


def made_of(layout: Layout, found: list[bytes]) -> Any:
    """Return the value of a composite type with these fields, as octets. Raises `DecodeError`."""
    if len(found) > len(layout.fields):
        raise DecodeError(f"{layout.name} has at most {len(layout.fields)} fields, not {len(found)}")
    values: list[Any] = []
    for index, field in enumerate(layout.fields):
        octets = found[index] if index < len(found) else NULL
        if field.parse is None:
            values.append(octets)
        elif octets != NULL:
            try:
                values.append(field.parse(decoding.read_all(octets)))
            except DecodeError as problem:
                raise DecodeError(f"the field {field.name} of {layout.name}: {problem}") from problem
        elif field.default is not MISSING:
            values.append(field.default)
        elif field.may_be_null:
            values.append(None)
        else:
            raise DecodeError(f"the field {field.name} of {layout.name} is missing")
    return layout.make(*values)


def written(field: CompositeField, composite: Composite) -> bytes:
    """Encode one field of a value."""
    value = getattr(composite, field.attribute)
    if field.write is None:
        return bytes(value)
    if value is None or (field.default is not MISSING and value == field.default):
        return NULL
    return field.write(value)
