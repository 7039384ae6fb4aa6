"""Octets and message headers as JSON values."""

import base64
import math
from typing import assert_never

from omq.protocol.amqp.fields import (
    Array,
    Boolean,
    ByteArray,
    Decimal,
    LongString,
    Number,
    Table,
    Value,
    Void,
)


def json_table(table: Table) -> dict[str, object]:
    """Return headers as a JSON object. Of entries with the same name, the last one remains."""
    return {name.decode("utf-8", "backslashreplace"): json_value(value) for name, value in table.entries}


def json_value(value: Value) -> object:
    """Return the value of a header as a JSON value.

    A timestamp is its number of seconds. A decimal number is a string such as `"1.50"`, and so is a number
    that JSON does not have, such as `"inf"`. Octets that are not UTF-8 are `{"base64": …}`.
    """
    match value:
        case Number():
            return value.value if math.isfinite(value.value) else str(value.value)
        case Boolean():
            return value.value
        case Decimal():
            return value.text()
        case LongString() | ByteArray():
            return json_text(value.octets)
        case Array():
            return [json_value(each) for each in value.values]
        case Table():
            return json_table(value)
        case Void():
            return None
        case _:
            assert_never(value)


def json_text(octets: bytes) -> object:
    """Return octets as a JSON value: a text, or `{"base64": …}` if they are not UTF-8."""
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode()}
