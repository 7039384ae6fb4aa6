"""Sentences for values of the configuration that have the wrong type, or are out of bounds.

msgspec says what it expected in the terms of Python. These sentences name the key and the value, and what is
allowed, in the terms of TOML. They are made from the same types that msgspec checks.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from omq.printable import printable
from omq.units import octets_meant, seconds_meant

LONGEST_SHOWN = 60
"""The greatest number of characters of a value that are shown."""

MOST_SAID = 10
"""The greatest number of unknown keys that are named."""

_PATH = re.compile(r"\.(?P<name>[^.\[`]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")


def sentence(problem: msgspec.ValidationError, kind: type, table: dict[str, object]) -> str:
    """Return one line about the error that msgspec found while it converted this table to a `kind`, and about
    all keys that a `kind` does not have: msgspec stops at the first error.
    """
    unknown = list(_unknown_keys(inspect.type_info(kind), table, ""))
    said = [
        f"{_shown_key(where, name)}: there is no such key{_hint(where, name, kind)}"
        for where, name in unknown
    ]
    if len(said) > MOST_SAID:
        said[MOST_SAID:] = [f"and there are {len(said) - MOST_SAID} more"]
    if not str(problem).startswith("Object contains unknown field "):
        said.insert(0, _of_value(str(problem), kind, table))
    return "; ".join(said)


def _unknown_keys(declared: inspect.Type, value: object, where: str) -> Iterator[tuple[str, str]]:
    """Yield the path of a table, and the name, for each of its keys that its type does not have."""
    match declared, value:
        case inspect.StructType(fields=fields), dict():
            known = {field.encode_name: field.type for field in fields}
            for name, inside in value.items():
                if name in known:
                    yield from _unknown_keys(known[name], inside, f"{where}.{name}")
                else:
                    yield where, name
        case inspect.ListType(item_type=inner), list():
            for index, each in enumerate(value):
                yield from _unknown_keys(inner, each, f"{where}[{index}]")
        case _:
            return  # no other type of the configuration has tables with keys of its own


def _of_value(text: str, kind: type, table: dict[str, object]) -> str:
    what, _, where = text.partition(" - at `$")
    where = where.removesuffix("`")
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    if missing is not None:
        return f"{_shown_key(where, missing[1])}: it is required"
    value, allowed = _find(where, kind, table)
    what = "one of its values" if value is _UNKNOWN else _shown_value(where, value)
    return f"{_shown_key(where)}: {what} is not allowed: it must be {allowed}{_meant(where, value)}"


def _meant(where: str, value: object) -> str:
    """Return the end of a sentence with the number for a size or a time that was written with a unit."""
    if not isinstance(value, str):
        return ""
    number = seconds_meant(value) if where.endswith("_seconds") else None
    if "_bytes" in where or where.endswith("_octets"):
        number = octets_meant(value)
    return "" if number is None else f"; {value.strip()} is {number:_}"


class _Unknown:
    """The type of what stands for a value that msgspec does not locate."""


_UNKNOWN = _Unknown()


def _shown_key(where: str, name: str = "") -> str:
    keys = [where.lstrip("."), name] if name else [where.lstrip(".")]
    return printable(".".join(key.removesuffix("[...]") for key in keys if key))


def _hint(where: str, name: str, kind: type) -> str:
    """Return a hint at the probable meaning of an unknown key of the table at `where`."""
    declared: inspect.Type = inspect.type_info(kind)
    if where and name in _keys(declared):
        return f"; {name} stands above the first heading in square brackets"
    for step in _PATH.finditer(where):
        declared = next(_inside(declared, step["name"]))
    near = difflib.get_close_matches(name, _keys(declared), 1)
    return f"; perhaps you mean {near[0]}" if near else ""


def _keys(declared: inspect.Type) -> list[str]:
    if not isinstance(declared, inspect.StructType):
        return []
    return [field.encode_name for field in declared.fields]


def _find(where: str, kind: type, table: object) -> tuple[object, str]:
    """Return the value at a path, and the types that are allowed there."""
    declared: inspect.Type = inspect.type_info(kind)
    value = table
    for step in _PATH.finditer(where):
        declared = next(_inside(declared, step["name"]))
        if isinstance(value, dict) and step["name"]:
            value = value[step["name"]]
        elif isinstance(value, list) and step["index"]:
            value = value[int(step["index"])]
        else:
            value = _UNKNOWN
    return value, _allowed(declared)


def _inside(declared: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """Yield the types of the field of this name, or of elements where there is no name."""
    match declared:
        case inspect.StructType(fields=fields):
            yield from (field.type for field in fields if field.encode_name == name)
        case inspect.ListType(item_type=inner) | inspect.DictType(value_type=inner):
            yield inner
        case inspect.UnionType(types=types):
            for each in types:
                yield from _inside(each, name)
        case _:
            return


def _allowed(declared: inspect.Type) -> str:
    match declared:
        case inspect.IntType():
            return f"an integer{_bounds(declared)}"
        case inspect.FloatType():
            return f"a number{_bounds(declared)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            return "text in quotes"
        case inspect.LiteralType(values=values):
            return _either([f'"{value}"' for value in values])
        case inspect.ListType(item_type=inspect.StructType()):
            return "tables, each below its heading in double square brackets"
        case inspect.ListType(item_type=inner, min_length=least, max_length=most):
            bounds = "" if least is None or most is None else f" of {least} to {most} elements"
            return f"a list{bounds} in square brackets, each {_allowed(inner)}"
        case inspect.UnionType(types=types):
            return _either([_allowed(each) for each in types if not isinstance(each, inspect.NoneType)])
        case _:
            return "a table"


def _bounds(number: inspect.IntType | inspect.FloatType) -> str:
    """Return the bounds of a number, as the end of a phrase."""
    low = [
        f" {word} {limit:g}" if isinstance(limit, float) else f" {word} {limit}"
        for word, limit in (("above", number.gt), ("of at least", number.ge))
        if limit is not None
    ]
    if number.le is None:
        return "".join(low)
    high = f"at most {number.le:g}" if isinstance(number.le, float) else f"at most {number.le}"
    return f"{''.join(low)} and {high}" if low else f" of {high}"


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _shown_value(where: str, value: Any) -> str:
    """Return the value as TOML has it, shortened."""
    if where.endswith(".secret") or ".secret[" in where:
        return "the value"  # it may be the secret itself
    match value:
        case bool():
            shown = "true" if value else "false"
        case str():
            shown = f'"{value}"'
        case dict():
            return "a table"
        case list():
            return "a list"
        case int() if abs(value) >= 10**1000:
            shown = hex(value)  # in decimal, Python refuses to convert a number of thousands of digits
        case _:
            shown = str(value)
    shown = printable(shown)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
