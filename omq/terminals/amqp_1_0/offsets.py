"""The position from which on a consumer gets a broadcast topic: filters of its source.

`omq:from` is our own; `rabbitmq:stream-offset-spec` is what clients of RabbitMQ's streams send.
"""

import msgspec

from omq.model import FromBeginning, FromCurrent, FromMessage, Replay
from omq.protocol.amqp_1_0 import decoding, encoding
from omq.protocol.amqp_1_0.conditions import Condition, LinkProblem
from omq.protocol.amqp_1_0.types import NULL, DecodeError, Described, Map, Number, Symbol, Value

FROM = "omq:from"
OFFSET = "rabbitmq:stream-offset-spec"

_WORDS: dict[str, Replay] = {
    "beginning": FromBeginning(),
    "first": FromBeginning(),
    "current": FromCurrent(),
    "next": FromCurrent(),
}


class Filters(msgspec.Struct, frozen=True):
    """The filters of a source that the server applies."""

    replay: Replay | None = None
    """None if they do not say where the consumer begins."""
    has_ids: bool = False
    """Whether the client knows ids of messages: it said `omq:from`."""
    applied: bytes = NULL
    """The filters, for the answer."""


def read_filters(encoded: bytes) -> Filters:
    """Return the filters in a filter set. Raises LinkProblem."""
    if encoded == NULL:
        return Filters()
    try:
        filters = decoding.read_all(encoded)
    except DecodeError as problem:
        raise LinkProblem(Condition.DECODE_ERROR, f"the filter: {problem}") from problem
    if not isinstance(filters, Map):
        raise LinkProblem(Condition.INVALID_FIELD, "a filter is a map")
    replay: Replay | None = None
    has_ids = False
    applied: list[tuple[Value, Value]] = []
    for key, value in filters.entries:
        if not isinstance(value, Described):
            raise LinkProblem(Condition.INVALID_FIELD, "the value of a filter has a descriptor")
        match value.descriptor:
            case Symbol(name) if name in (FROM, OFFSET):
                replay = _beginning(name, value.value)
                has_ids = has_ids or name == FROM
                applied.append((key, value))
            case _:
                pass  # the client sees that it is not applied: it is not in the answer
    return Filters(replay, has_ids, encoding.write(Map(tuple(applied)))) if applied else Filters()


def _beginning(name: str, value: Value) -> Replay:
    match value:
        case Number(_, int(number)) if number >= 0:
            # Offsets of streams begin at 0, ids of messages at 1.
            return FromMessage(number + 1 if name == OFFSET else max(number, 1))
        case str(word) | Symbol(word) if word in _WORDS:
            return _WORDS[word]
        case _:
            raise LinkProblem(
                Condition.INVALID_FIELD,
                f"the filter {name} is the id of a message, or one of {', '.join(_WORDS)}",
            )
