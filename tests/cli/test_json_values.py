"""Message headers as JSON values, with the types that other clients give them."""

import json

import pytest

from omq.cli.json_values import json_table, json_value
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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Number(NumberType.INT64, -(2**63)), -(2**63)),
        (Number(NumberType.TIMESTAMP, 1_700_000_000), 1_700_000_000),
        (Number(NumberType.FLOAT64, 0.5), 0.5),
        (Number(NumberType.FLOAT64, float("inf")), "inf"),
        (Number(NumberType.FLOAT32, float("nan")), "nan"),
        (Boolean(True), True),
        (Decimal(0, 150), "150"),
        (Decimal(2, 150), "1.50"),
        (Decimal(3, 5), "0.005"),
        (LongString("é".encode()), "é"),
        (LongString(b"\xff"), {"base64": "/w=="}),
        (ByteArray(b"plain"), "plain"),
        (Void(), None),
        (Array((Boolean(False), Void())), [False, None]),
        (Table(((b"a", Table(((b"b", Void()),))),)), {"a": {"b": None}}),
    ],
)
def test_values(value: Value, expected: object) -> None:
    assert json_value(value) == expected
    json.dumps(json_value(value), allow_nan=False)


def test_names_need_not_be_text_and_the_last_of_a_name_remains() -> None:
    assert json_table(Table(((b"\xff", Void()), (b"n", Boolean(True)), (b"n", Boolean(False))))) == {
        "\\xff": None,
        "n": False,
    }
