"""Convert records from and to sexps, as OCaml's derived converters do.

A record is written as a list of its fields, a constructor with an inline record as a list of its name and the
fields, an option as `()` or `(value)`, a tuple as a list.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from omq.protocol.omq.atoms import atom, joined
from omq.protocol.omq.converters import ConversionError, fields_of_sexp, int64_of_sexp, string_of_sexp
from omq.protocol.omq.sexp import Sexp, SexpError, read_one


@dataclass(frozen=True)
class Derived:
    """The converters of a family of types. What is none of these is a constructor of a variant, with an
    inline record.
    """

    records: tuple[type, ...]
    """The types that are records."""
    tuples: tuple[type, ...] = ()
    """The types that are tuples."""
    with_argument: tuple[type, ...] = ()
    """Constructors that have an argument, and no record."""
    readers: Mapping[object, Callable[[Sexp], object]] = field(default_factory=dict)
    """Readers of other types, by their annotations."""

    def sexp(self, value: object) -> Sexp:
        """Convert a value of one of the types to a sexp. Raises TypeError for a value that has none."""
        match value:
            case bool():
                return b"true" if value else b"false"
            case int():
                return b"%d" % value
            case bytes():
                return value
            case tuple():
                return [self.sexp(each) for each in value]
        if not isinstance(value, msgspec.Struct):
            raise TypeError(f"{value!r} has no form on the wire: text is bytes, and a record has a class")
        shape = _fields(type(value))
        parts: list[Sexp] = []
        for name, (_, is_option) in shape.items():
            found = getattr(value, name.decode())
            inner = ([] if found is None else [self.sexp(found)]) if is_option else self.sexp(found)
            parts.append(inner if isinstance(value, self.tuples + self.with_argument) else [name, inner])
        if isinstance(value, self.records + self.tuples):
            return parts
        name = _constructor(type(value))
        return [name, *parts] if parts else name

    def octets(self, value: object) -> bytes:
        """Print a value: the same as `write` prints of its sexp, but several times faster."""
        match value:
            case bool():
                return b"true" if value else b"false"
            case int():
                return b"%d" % value
            case bytes():
                return atom(value)
            case tuple():
                return b"(%s)" % joined([self.octets(each) for each in value])
        assert isinstance(value, msgspec.Struct)
        kind = type(value)
        named = kind not in self.tuples and kind not in self.with_argument
        parts: list[bytes] = []
        for name, found, is_option in _fields_of(value):
            inner = self._field_octets(found, is_option)
            parts.append(b"(%s)" % joined([name, inner]) if named else inner)
        if kind not in self.records and kind not in self.tuples:
            if not parts:
                return _constructor(kind)
            parts.insert(0, _constructor(kind))
        return b"(%s)" % joined(parts)

    def pieces(self, value: object) -> Iterator[bytes]:
        """Yield the octets of a value in pieces: each takes microseconds, however long the lists are.

        The elements of a list must be records or tuples, which need no space between them.
        """
        if isinstance(value, tuple):
            yield b"("
            for each in value:
                yield from self.pieces(each)
            yield b")"
            return
        if not isinstance(value, msgspec.Struct) or type(value) in self.tuples + self.with_argument:
            yield self.octets(value)
            return
        kind = type(value)
        yield b"(" if kind in self.records else b"(" + _constructor(kind)
        for name, found, is_option in _fields_of(value):
            if isinstance(found, tuple):
                yield b"(" + name
                yield from self.pieces(found)
                yield b")"
            else:
                yield b"(%s)" % joined([name, self._field_octets(found, is_option)])
        yield b")"

    def _field_octets(self, found: object, is_option: bool) -> bytes:
        if not is_option:
            return self.octets(found)
        return b"()" if found is None else b"(%s)" % self.octets(found)

    def read_variant(self, kinds: tuple[type, ...], payload: bytes, what: str) -> object:
        """Parse a constructor of these from the payload of a frame. Raises SexpError, which tells `what` it
        should be.
        """
        try:
            return self.variant(kinds, read_one(payload))
        except ConversionError as error:
            raise SexpError(f"{what} {error}") from error

    def read_list(self, kind: type, payload: bytes, what: str) -> tuple[object, ...]:
        """Parse a list of values of this type from the payload of a frame. Raises SexpError."""
        sexp = read_one(payload)
        try:
            if isinstance(sexp, bytes):
                raise ConversionError("must be a list, not an atom")
            return tuple(self._of_sexp(kind, each) for each in sexp)
        except ConversionError as error:
            raise SexpError(f"{what} {error}") from error

    def variant(self, kinds: tuple[type, ...], sexp: Sexp) -> object:
        """Convert a constructor of these. Like those of commands, it may begin with a lower-case letter.

        Raises ConversionError.
        """
        head, rest = (sexp, None) if isinstance(sexp, bytes) else (sexp[0], sexp[1:]) if sexp else (b"", None)
        for kind in kinds:
            name = _constructor(kind)
            if head in (name, name[:1].lower() + name[1:]):
                if (rest is None) is bool(_fields(kind)):
                    how = "with" if rest is None else "without"
                    raise ConversionError(f"must have {name.decode()} {how} fields")
                return kind() if rest is None else self._record(kind, rest)
        raise ConversionError("must be one of " + ", ".join(_constructor(kind).decode() for kind in kinds))

    def _of_sexp(self, kind: Any, sexp: Sexp) -> object:
        if kind in _ATOMS:
            return _ATOMS[kind](sexp)
        if kind in self.readers:
            return self.readers[kind](sexp)
        if get_origin(kind) is tuple:
            if isinstance(sexp, bytes):
                raise ConversionError("must be a list, not an atom")
            return tuple(self._of_sexp(get_args(kind)[0], each) for each in sexp)
        if isinstance(kind, UnionType):
            return self.variant(get_args(kind), sexp)
        return self._record(kind, sexp)

    def _record(self, kind: type, sexp: Sexp) -> object:
        shape = _fields(kind)
        values = []
        if kind not in self.tuples + self.with_argument:
            parts = fields_of_sexp(sexp, tuple(shape))
        elif isinstance(sexp, bytes) or len(sexp) != len(shape):
            raise ConversionError(f"must be a list with {' and '.join(map(bytes.decode, shape))}")
        else:
            parts = sexp
        for (name, (inner, is_option)), found in zip(shape.items(), parts, strict=True):
            try:
                values.append(self._option(inner, found) if is_option else self._of_sexp(inner, found))
            except ConversionError as error:
                raise ConversionError(f"has a field {name.decode()} that {error}") from error
        return kind(*values)

    def _option(self, kind: Any, sexp: Sexp) -> object:
        match sexp:
            case []:
                return None
            case [value]:
                return self._of_sexp(kind, value)
            case _:
                raise ConversionError("must be () or (value)")


def _bool(sexp: Sexp) -> bool:
    if sexp not in (b"true", b"false"):
        raise ConversionError("must be true or false")
    return sexp == b"true"


_ATOMS: dict[object, Callable[[Sexp], object]] = {bytes: string_of_sexp, int: int64_of_sexp, bool: _bool}


def _fields_of(value: msgspec.Struct) -> Iterator[tuple[bytes, object, bool]]:
    """Yield the name and the value of each field, and whether it is an option."""
    for name, (_, is_option) in _fields(type(value)).items():
        yield name, getattr(value, name.decode()), is_option


@lru_cache(maxsize=64)
def _constructor(kind: type) -> bytes:
    """Return the name of a constructor: `List_queues` of the class ListQueues."""
    return re.sub("(?<!^)[A-Z]", lambda letter: "_" + letter[0].lower(), kind.__name__).encode()


@lru_cache(maxsize=64)
def _fields(kind: type) -> dict[bytes, tuple[Any, bool]]:
    """Return the fields of a class: the type of each, and whether it is an option of it."""
    found: dict[bytes, tuple[Any, bool]] = {}
    for name, hint in get_type_hints(kind).items():
        several = get_args(hint) if isinstance(hint, UnionType) else ()
        if NoneType in several:
            (hint,) = (each for each in several if each is not NoneType)
        found[name.encode()] = hint, NoneType in several
    return found
