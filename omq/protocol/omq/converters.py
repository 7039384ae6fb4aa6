"""Convert sexps to values as OCaml's derived converters do: strings, integers, constructors and records.

Source: docs/PROTOCOL.md, "Types".
Every function raises ConversionError, whose text states the requirement ("must be an atom").
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from omq.protocol.omq.sexp import Sexp

T = TypeVar("T")


class ConversionError(ValueError):
    """A sexp does not have the required type. The text follows the name of the value: "must be an atom"."""


def string_of_sexp(sexp: Sexp) -> bytes:
    """Read an OCaml `string`: any atom."""
    if isinstance(sexp, bytes):
        return sexp
    raise ConversionError("must be an atom, not a list")


_INTEGER = re.compile(
    rb"([+-]?)(?:(0[xX])([0-9a-fA-F][0-9a-fA-F_]*+)|(0[oO])([0-7][0-7_]*+)|(0[bB])([01][01_]*+)"
    rb"|(0[uU])([0-9][0-9_]*+)|([0-9][0-9_]*+))"
)
_BASES = {3: 16, 5: 8, 7: 2, 9: 10, 10: 10}
_DECIMAL = 10

_LONG = 256
_MANY_DIGITS = 128
"""More digits than any integer has, without leading zeros."""
_BEFORE_DIGITS = re.compile(rb"[+-]?(?:0[xXoObBuU])?")


def integer(atom: bytes, bits: int) -> int:
    """Parse an integer of `bits` bits as OCaml's `of_string` does.

    A plain decimal must be in the signed range. With a prefix (0x, 0o, 0b, 0u) the digits may use every bit,
    and give the value in two's complement: `0xFFFFFFFFFFFFFFFF` is -1 for 64 bits.
    """
    if len(atom) > _LONG:
        atom = _shorter(atom)
    match = _INTEGER.fullmatch(atom) if len(atom) <= _LONG else None
    if match is None:
        raise ConversionError(f"must be an integer of {bits} bits")
    group = match.lastindex
    assert group is not None
    value = int(match[group].replace(b"_", b""), _BASES[group])
    limit = (1 << (bits - 1)) - (match[1] != b"-") if group == _DECIMAL else (1 << bits) - 1
    if value > limit:
        raise ConversionError(f"must be an integer of {bits} bits")
    if match[1] == b"-":
        value = -value
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _shorter(atom: bytes) -> bytes:
    """Drop underscores and leading zeros of a long atom. What is no integer stays none.

    A line may have a million of them. All of this takes half a nanosecond an octet; `_INTEGER` takes more
    than one, and `replace` ten for an underscore.
    """
    found = _BEFORE_DIGITS.match(atom)
    assert found is not None
    begin = found.end()
    if atom[begin : begin + 1] == b"_":
        return atom
    digits = atom[begin:].translate(None, b"_") if b"_" in atom else atom[begin:]
    zeros = len(digits) - _MANY_DIGITS
    if zeros > 0 and digits[:zeros] != b"0" * zeros:
        return atom
    # The two zeros keep `0_x1` from becoming `0x1`.
    return atom[:begin] + b"00" + digits[-_MANY_DIGITS:]


def int64_of_sexp(sexp: Sexp) -> int:
    """Read an OCaml `int64`, as Int64.of_string does."""
    return integer(string_of_sexp(sexp), 64)


def int_of_sexp(sexp: Sexp) -> int:
    """Read an OCaml `int` on a 64-bit machine: 63 bits."""
    return integer(string_of_sexp(sexp), 63)


def constructors(values: Mapping[str, T]) -> dict[bytes, T]:
    """Index `values` by both spellings of their names: exact, and with a lower-case first letter."""
    exact = {name.encode(): value for name, value in values.items()}
    lower = {(name[0].lower() + name[1:]).encode(): value for name, value in values.items()}
    return exact | lower


def fields_of_sexp(sexp: Sexp, names: tuple[bytes, ...]) -> list[Sexp]:
    """Return the values of a record's fields, in the order of `names`; the fields of the record may have any
    order.

    Raises ConversionError for missing, repeated and unknown fields.
    """
    if isinstance(sexp, bytes):
        raise ConversionError("must be a record, not an atom")
    fields: dict[bytes, Sexp] = {}
    for pair in sexp:
        match pair:
            case [bytes() as name, value]:
                if name in fields:
                    raise ConversionError("must not hold a field twice")
                fields[name] = value
            case _:
                raise ConversionError("must be a list of pairs of a field's name and its value")
    if fields.keys() != set(names):
        raise ConversionError("must hold exactly the fields " + b" ".join(names).decode())
    return [fields[name] for name in names]
