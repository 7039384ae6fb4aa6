"""The records of a server's statistics, for people and as JSON."""

import json
from collections.abc import Mapping

import msgspec

from omq.cli.json_values import json_text
from omq.model import Delivery, Persistence, delivery_name, persistence_name

_WITH_UNITS = {name: f"{name}_ms" for name in ("age", "stalled", "uptime")}
"""The names in JSON of fields whose names in the protocol have no unit."""


def duration(milliseconds: int) -> str:
    """Return a time as a clock shows it: `0:01:30`, or `2 d 3:00:00`."""
    seconds = milliseconds // 1000
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{days} d {clock}" if days else clock


def json_line(record: msgspec.Struct) -> str:
    """Return a record as a line of JSON."""
    return json.dumps(json_fields(record), ensure_ascii=False) + "\n"


def json_fields(record: msgspec.Struct) -> Mapping[str, object]:
    """Return the fields of a record as JSON values, by their names in JSON."""
    fields = msgspec.structs.asdict(record)
    return {_WITH_UNITS.get(name, name): _jsonable(value) for name, value in fields.items()}


def _jsonable(value: object) -> object:
    match value:
        case bytes():
            return json_text(value)
        case Delivery():
            return delivery_name(value)
        case tuple():
            return [_jsonable(each) for each in value]
        case int() | float() | None:
            return value
        case _ if isinstance(value, Persistence):
            return persistence_name(value)
        case msgspec.Struct():
            return json_fields(value)
        case _:
            raise TypeError(f"{value!r} cannot be written as JSON")
