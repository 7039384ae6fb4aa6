"""The offset at which a consumer of a stream begins: the argument `x-stream-offset`.

Ids of messages begin with 1. An id below the oldest kept message is taken for that one, and the consumer
waits for an id that is not there yet.
"""

import re
from dataclasses import dataclass

from omq.model import FromBeginning, FromCurrent, FromMessage, Replay
from omq.protocol.amqp.fields import LongString, Number, NumberType, Value

_INTERVAL = re.compile(rb"([0-9]{1,9})([YMDhms])")
_SECONDS = {b"Y": 31_536_000, b"M": 2_592_000, b"D": 86_400, b"h": 3600, b"m": 60, b"s": 1}
"""The lengths of RabbitMQ's intervals: a year of 365 days, and a month of 30."""


@dataclass(frozen=True, slots=True)
class FromLast:
    """The last message that there is, and the later ones."""


@dataclass(frozen=True, slots=True)
class FromTime:
    """The first message of this time or later, in seconds since the epoch."""

    seconds: int


@dataclass(frozen=True, slots=True)
class FromAgo:
    """The first message that is at most this old, in seconds."""

    seconds: int


Offset = Replay | FromLast | FromTime | FromAgo


def read_offset(value: Value | None) -> Offset | None:
    """Return the offset in the argument, and the end of the stream if there is none. None if it says nothing
    that is known.
    """
    match value:
        case None | LongString(b"next"):
            return FromCurrent()
        case LongString(b"first"):
            return FromBeginning()
        case LongString(b"last"):
            return FromLast()
        case LongString(text):
            seconds = read_interval(text)
            return None if seconds is None else FromAgo(seconds)
        case Number(NumberType.TIMESTAMP, seconds):
            return FromTime(int(seconds))
        case Number(_, int(number)) if number >= 0:
            return FromMessage(max(1, number))
        case _:
            return None


def read_interval(text: bytes) -> int | None:
    """Return the seconds of an interval such as 12h; None if it is none."""
    match = _INTERVAL.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None
