"""The sexps of Manage and Managed, derived from the types of `omq.management` (docs/PROTOCOL.md, "Manage").

A value is written as by OCaml's derived converters: a record as a list of its fields, a constructor with an
inline record as a list of its name and the fields, an option as `()` or `(value)`, a tuple as a list.
Arguments and changes are pairs, and constructors of small variants have an argument instead of a record: a
command has at most 100 atoms and parentheses.
"""

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from omq import management
from omq.management import Answer, Request
from omq.protocol.omq.converters import ConversionError, fields_of_sexp, int64_of_sexp, string_of_sexp
from omq.protocol.omq.sexp import Sexp, SexpError, read, write

_RECORDS = (
    management.QueueInfo, management.ExchangeInfo, management.BindingInfo, management.MessageInfo,
)  # fmt: skip
"""The types that are records."""

_TUPLES = (management.Argument, management.Change)
"""The types that are tuples. The other classes are constructors of a variant."""

_WITH_ARGUMENT = (
    management.Queue, management.Exchange,
    management.String, management.Int, management.Bool, management.Other,
)  # fmt: skip
"""Constructors that have an argument, and no record."""

_REQUESTS: tuple[type, ...] = get_args(Request)
_ANSWERS: tuple[type, ...] = get_args(Answer)


def request_of_sexp(sexp: Sexp) -> Request:
    """Convert the argument of a Manage. Raises ConversionError."""
    return cast(Request, _variant(_REQUESTS, sexp))


def sexp_of_request(request: Request) -> Sexp:
    """Convert a request to the argument of a Manage."""
    return _sexp(request)


def answer_octets(answer: Answer) -> bytes:
    """Encode the payload of a Managed frame."""
    return write(_sexp(answer))


def read_answer(payload: bytes) -> Answer:
    """Parse the payload of a Managed frame. Raises SexpError."""
    sexp = read(payload)
    if sexp is None:
        raise SexpError("there is no sexp")
    try:
        return cast(Answer, _variant(_ANSWERS, sexp))
    except ConversionError as error:
        raise SexpError(f"an answer {error}") from error


# -- writing ------------------------------------------------------------------------------------------------


def _sexp(value: object) -> Sexp:
    match value:
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case bytes():
            return value
        case tuple():
            return [_sexp(each) for each in value]
    assert is_dataclass(value)
    shape = _fields(cast(type, type(value)))
    parts: list[Sexp] = []
    for name, (_, is_option) in shape.items():
        found = getattr(value, name.decode())
        inner = ([] if found is None else [_sexp(found)]) if is_option else _sexp(found)
        parts.append(inner if isinstance(value, _TUPLES + _WITH_ARGUMENT) else [name, inner])
    if isinstance(value, _RECORDS + _TUPLES):
        return parts
    name = _constructor(cast(type, type(value)))
    return [name, *parts] if parts else name


# -- reading ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _constructor(kind: type) -> bytes:
    """Return the name of a constructor: `List_queues` of the class ListQueues."""
    return re.sub("(?<!^)[A-Z]", lambda letter: "_" + letter[0].lower(), kind.__name__).encode()


@lru_cache(maxsize=64)
def _fields(kind: type) -> dict[bytes, tuple[Any, bool]]:
    """Return the fields of a class: the type of each, and whether it is an option of it."""
    hints = get_type_hints(kind)
    found: dict[bytes, tuple[Any, bool]] = {}
    for field in fields(kind):
        hint = hints[field.name]
        several = get_args(hint) if isinstance(hint, UnionType) else ()
        if NoneType in several:
            (hint,) = (each for each in several if each is not NoneType)
        found[field.name.encode()] = hint, NoneType in several
    return found


def _of_sexp(kind: Any, sexp: Sexp) -> object:
    if kind in _ATOMS:
        return _ATOMS[kind](sexp)
    if get_origin(kind) is tuple:
        if isinstance(sexp, bytes):
            raise ConversionError("must be a list, not an atom")
        return tuple(_of_sexp(get_args(kind)[0], each) for each in sexp)
    if isinstance(kind, UnionType):
        return _variant(get_args(kind), sexp)
    return _record(kind, sexp)


def _bool(sexp: Sexp) -> bool:
    if sexp not in (b"true", b"false"):
        raise ConversionError("must be true or false")
    return sexp == b"true"


_ATOMS: dict[object, Callable[[Sexp], object]] = {bytes: string_of_sexp, int: int64_of_sexp, bool: _bool}


def _record(kind: type, sexp: Sexp) -> object:
    shape = _fields(kind)
    values = []
    if kind not in _TUPLES + _WITH_ARGUMENT:
        parts = fields_of_sexp(sexp, tuple(shape))
    elif isinstance(sexp, bytes) or len(sexp) != len(shape):
        raise ConversionError(f"must be a list with {' and '.join(map(bytes.decode, shape))}")
    else:
        parts = sexp
    for (name, (inner, is_option)), found in zip(shape.items(), parts, strict=True):
        try:
            values.append(_option(inner, found) if is_option else _of_sexp(inner, found))
        except ConversionError as error:
            raise ConversionError(f"has a field {name.decode()} that {error}") from error
    return kind(*values)


def _option(kind: Any, sexp: Sexp) -> object:
    match sexp:
        case []:
            return None
        case [value]:
            return _of_sexp(kind, value)
        case _:
            raise ConversionError("must be () or (value)")


def _variant(kinds: tuple[type, ...], sexp: Sexp) -> object:
    """Convert a constructor of these. Like those of commands, it may begin with a lower-case letter."""
    head, rest = (sexp, None) if isinstance(sexp, bytes) else (sexp[0], sexp[1:]) if sexp else (b"", None)
    for kind in kinds:
        name = _constructor(kind)
        if head in (name, name[:1].lower() + name[1:]):
            if (rest is None) is bool(_fields(kind)):
                how = "with" if rest is None else "without"
                raise ConversionError(f"must have {name.decode()} {how} fields")
            return kind() if rest is None else _record(kind, rest)
    raise ConversionError("must be one of " + ", ".join(_constructor(kind).decode() for kind in kinds))
