"""Message annotations that a consumer asks for: the id and the time of a message in its topic."""

from omq.protocol.amqp_1_0 import stored
from omq.protocol.amqp_1_0.stored import BodyFraming
from omq.protocol.amqp_1_0.types import Number, NumberType, Symbol, Value

IDS = "omq:ids"
"""The capability that a client desires to get them."""

_ID = Symbol("x-opt-omq-id")
_TIME = Symbol("x-opt-omq-time")


def with_id(around: BodyFraming, message: int, time: int | None) -> BodyFraming:
    """Return what stands around a body with the id of the message, and its time in microseconds since the
    epoch if it is known.
    """
    added: list[tuple[Symbol, Value]] = [(_ID, Number(NumberType.ULONG, message))]
    if time is not None:
        added.append((_TIME, Number(NumberType.TIMESTAMP, time // 1000)))
    return stored.annotated(around, added)
