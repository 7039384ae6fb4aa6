"""What a stream keeps in a query's checkpoint of each topic: `{"prices": {"id": 1, "bounds": [1, 61, 101]}}`.

The bounds are those of the parts that a micro-batch was read in; the last of them is the id of the next
message. Spark keeps nothing else of a micro-batch. One that is done again must have the same rows in the same
parts, and by then blocks may have been merged, and retention may have deleted what was the earliest message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omq.blocking.access import StoredTopic
from omq.blocking.errors import BadOptions
from omq.blocking.ranges import Range

Offsets = dict[str, Any]
"""Positions by topic, as Spark keeps them in JSON."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream has got to in a topic, and in which parts it read the messages before."""

    id: int
    """The topic's: one that is deleted and made anew has another."""
    bounds: tuple[int, ...]
    """At least one, not decreasing."""

    @property
    def next(self) -> int:
        """The message to go on at."""
        return self.bounds[-1]

    def parts(self, topic: StoredTopic) -> list[Range]:
        """What the micro-batch that ended here has of the topic."""
        return [Range(topic, begin, end) for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]


def at(topic: StoredTopic, message: int) -> Position:
    """At this message, with nothing read before."""
    return Position(topic.id, (message,))


def behind(topic: StoredTopic, begin: int, parts: Iterable[Range]) -> Position:
    """Behind these parts of a topic, which follow one another from `begin` on."""
    return Position(topic.id, (begin, *(part.end for part in parts)))


def offsets_of(positions: Mapping[str, Position]) -> Offsets:
    """For Spark to keep."""
    return {name: {"id": each.id, "bounds": list(each.bounds)} for name, each in positions.items()}


def positions_of(offsets: Offsets) -> dict[str, Position]:
    """What Spark has kept. Raises BadOptions for a checkpoint that is none of ours."""
    found = {}
    for name, kept in offsets.items():
        match kept:
            case {"id": int(id), "bounds": [_, *_] as bounds} if all(
                isinstance(each, int) for each in bounds
            ):
                found[name] = Position(id, tuple(bounds))
            case _:
                raise BadOptions(f"The query's checkpoint is not one of omq: it has {kept!r} for {name!r}.")
    return found
