"""Heads as headers for Spark, Arrow and replays, and back (`omq/bulk/headers.py`)."""

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omq.bulk.headers import TYPES, Header, head_of, headers_of
from omq.protocol.amqp import head as stored_head
from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    NumberType,
    Table,
    Value,
    Void,
)
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq.protocol.amqp.shortstr import FieldError

VALUES: list[tuple[Value, bytes | None, str]] = [
    (LongString(b"a\xff"), b"a\xff", ""),
    (ByteArray(b"\x00\xff"), b"\x00\xff", "x"),
    (Number(NumberType.INT8, -128), b"-128", "b"),
    (Number(NumberType.UINT8, 255), b"255", "B"),
    (Number(NumberType.INT16, -7), b"-7", "s"),
    (Number(NumberType.INT16_OF_SPECIFICATION, -7), b"-7", "U"),
    (Number(NumberType.UINT16, 65535), b"65535", "u"),
    (Number(NumberType.INT32, -7), b"-7", "I"),
    (Number(NumberType.UINT32, 2**32 - 1), b"4294967295", "i"),
    (Number(NumberType.INT64, -(2**63)), b"-9223372036854775808", "l"),
    (Number(NumberType.INT64_OF_SPECIFICATION, 2**63 - 1), b"9223372036854775807", "L"),
    (Number(NumberType.FLOAT32, 0.5), b"0.5", "f"),
    (Number(NumberType.FLOAT64, -1e300), b"-1e+300", "d"),
    (Number(NumberType.FLOAT64, math.inf), b"inf", "d"),
    (Number(NumberType.TIMESTAMP, 2**64 - 1), b"18446744073709551615", "T"),
    (Boolean(True), b"true", "t"),
    (Boolean(False), b"false", "t"),
    (Decimal(0, 12), b"12", "D"),
    (Decimal(2, 5), b"0.05", "D"),
    (Decimal(255, 2**32 - 1), b"0." + b"4294967295".rjust(255, b"0"), "D"),
    (Void(), None, ""),
    (Table(()), b"\x00\x00\x00\x00", "F"),
    (Table(((b"n", Void()),)), b"\x00\x00\x00\x03\x01nV", "F"),
    (Array((Boolean(True), LongString(b""))), b"\x00\x00\x00\x09\x00t\x01\x00S\x00\x00\x00\x00", "A"),
]


def with_entries(*entries: tuple[bytes, Value]) -> Head:
    return Head(b"", b"key", Properties(headers=Table(entries)))


@pytest.mark.parametrize(("value", "octets", "letter"), VALUES)
def test_a_value_of_each_type(value: Value, octets: bytes | None, letter: str) -> None:
    head = with_entries((b"name", value))
    headers = headers_of(head)
    assert headers[0] == Header("name", octets)
    assert [json.loads(one.value or b"") for one in headers[1:]] == ([{"name": letter}] if letter else [])
    assert head_of(b"key", headers) == head


def test_names_that_occur_several_times_and_those_like_properties() -> None:
    head = with_entries(
        (b"a", Number(NumberType.INT32, 1)),
        (b"dmp.priority", Number(NumberType.INT8, 2)),
        (b"b", LongString(b"3")),
        (b"a", LongString(b"4")),
        (b"a", Void()),
        (b"a", Boolean(True)),
        (b"dmp.header-types", Boolean(False)),
        ("größe".encode(), Boolean(False)),
    )
    headers = headers_of(head)
    assert json.loads(headers[-1].value or b"") == {
        "a": "ISVt",
        "dmp.headers.dmp.priority": "b",
        "dmp.headers.dmp.header-types": "t",
        "größe": "t",
    }
    assert head_of(b"key", headers) == head


def _single(number: float) -> float:
    found: float = struct.unpack(">f", struct.pack(">f", number))[0]
    return found


_SHAPES = {"b": (8, True), "B": (8, False), "s": (16, True), "U": (16, True), "u": (16, False)}
_SHAPES |= {"I": (32, True), "i": (32, False), "l": (64, True), "L": (64, True), "T": (64, False)}


def _integers(letter: str) -> st.SearchStrategy[Value]:
    bits, is_signed = _SHAPES[letter]
    least = -(1 << (bits - 1)) if is_signed else 0
    return st.builds(Number, st.just(NumberType(letter)), st.integers(least, least + (1 << bits) - 1))


_scalars: st.SearchStrategy[Value] = st.one_of(
    *map(_integers, _SHAPES),
    st.builds(Number, st.just(NumberType.FLOAT64), st.floats(allow_nan=False)),
    st.builds(Number, st.just(NumberType.FLOAT32), st.floats(allow_nan=False, width=32).map(_single)),
    st.builds(Boolean, st.booleans()),
    st.builds(Decimal, st.integers(0, 255), st.integers(0, 2**32 - 1)),
    st.builds(LongString, st.binary(max_size=9)),
    st.builds(ByteArray, st.binary(max_size=9)),
    st.just(Void()),
)
_names = st.sampled_from([b"", b"a", b"dmp.", b"dmp.headers.a", b"dmp.priority", b"dmp.header-types"])


def _containers(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.lists(inner, max_size=3).map(tuple).map(Array) | _tables(inner)


def _tables(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Table]:
    return st.lists(st.tuples(_names, inner), max_size=4).map(tuple).map(Table)


@given(_tables(st.recursive(_scalars, _containers, max_leaves=6)))
def test_every_table_comes_back(table: Table) -> None:
    head = Head(b"", b"key", Properties(content_type=b"text", headers=table if table.entries else None))
    assert head_of(b"key", headers_of(head)) == head


def test_headers_that_a_program_changed() -> None:
    types = Header(TYPES, b'{"n": "I", "gone": "t", "void": "V"}')
    given_headers = [Header("more", b"1"), Header("n", None), Header("void", b"x"), types]
    assert head_of(b"key", given_headers) == with_entries(
        (b"more", LongString(b"1")), (b"n", Void()), (b"void", LongString(b"x"))
    )
    assert head_of(b"key", [types]) == Head(b"", b"key")
    several = [Header("n", b"1"), Header("m", b"2"), types, Header(TYPES, b'{"m": "l"}')]
    assert head_of(b"key", several) == with_entries(
        (b"n", Number(NumberType.INT32, 1)), (b"m", Number(NumberType.INT64, 2))
    )


@pytest.mark.parametrize("value", [None, b"", b"[]", b'{"n": 1}', b"\xff"])
def test_types_that_are_none(value: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"the header 'dmp.header-types' must be a JSON object with letters"):
        head_of(b"", [Header("n", b"1"), Header(TYPES, value)])


@pytest.mark.parametrize(
    ("letter", "value"),
    [
        *((letter, b"seven") for letter in _SHAPES),
        *((letter, b"seven") for letter in "fd"),
        ("I", b""),
        ("I", b"1.5"),
        ("I", b"9" * 21),
        ("I", "١".encode()),
        ("t", b"True"),
        ("D", b"-1"),
        ("D", b"1."),
        ("F", b""),
        ("F", b"\x00\x00\x00\x01"),
        ("F", b"\x00\x00\x00\x00more"),
        ("A", b"\x00\x00\x00\x02\x00?"),
        ("q", b"1"),
    ],
)
def test_values_that_are_not_of_their_type(letter: str, value: bytes) -> None:
    types = Header(TYPES, json.dumps({"n": letter}).encode())
    with pytest.raises(ValueError, match=f"the header 'n' is no value of the type '{letter}', which"):
        head_of(b"", [Header("n", value), types])


@pytest.mark.parametrize(
    ("letter", "value"), [("b", b"128"), ("B", b"-1"), ("f", b"1e39"), ("D", b"4294967296")]
)
def test_values_out_of_range_of_their_type(letter: str, value: bytes) -> None:
    types = Header(TYPES, json.dumps({"n": letter}).encode())
    with pytest.raises(FieldError):
        stored_head.encode(head_of(b"", [Header("n", value), types]))
