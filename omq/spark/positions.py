"""The offsets of a stream in a query's checkpoint, by topic: `{"prices": {"id": 1, "bounds": [1, 61, 101]}}`.

The bounds are those of the partitions of a micro-batch; the last one is the id of the next message.
`"joined": true` says that the task of the last partition before, of another topic, also reads the first one
of this topic, since both are small.

Spark stores nothing else about a micro-batch. A repeated micro-batch must have the same rows in the same
tasks, but by then the server may have merged blocks, and retention may have deleted the earliest message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omq.bulk.access import StoredTopic
from omq.bulk.errors import BadOptions
from omq.bulk.ranges import Range

Offsets = dict[str, Any]
"""Positions by topic, as Spark stores them in JSON."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The position of a stream in a topic, and the partitions of its last micro-batch."""

    id: int
    """The topic's id, which differs after the topic was deleted and created again."""
    bounds: tuple[int, ...]
    """The bounds of the partitions: at least one; they do not decrease."""
    joined: bool = False
    """Whether the task of the last partition before, of another topic, also reads the first one here."""

    @property
    def next(self) -> int:
        """The next message to read."""
        return self.bounds[-1]

    def parts(self, topic: StoredTopic) -> list[Range]:
        """Return the ranges of the topic in the micro-batch that ended here."""
        return [Range(topic, begin, end) for begin, end in zip(self.bounds, self.bounds[1:], strict=False)]


def at(topic: StoredTopic, message: int) -> StreamPosition:
    """Return the position at a message, with no micro-batch before it."""
    return StreamPosition(topic.id, (message,))


def behind(topic: StoredTopic, begin: int, parts: Iterable[Range], joined: bool) -> StreamPosition:
    """Return the position after these parts of a topic, which are consecutive and start at `begin`."""
    return StreamPosition(topic.id, (begin, *(part.end for part in parts)), joined)


def offsets_of(positions: Mapping[str, StreamPosition]) -> Offsets:
    """Convert positions to JSON for Spark's checkpoint."""
    return {
        name: {"id": each.id, "bounds": list(each.bounds)} | ({"joined": True} if each.joined else {})
        for name, each in positions.items()
    }


def positions_of(offsets: Offsets) -> dict[str, StreamPosition]:
    """Parse positions from a checkpoint. Raises BadOptions for a checkpoint of another data source."""
    found = {}
    for name, kept in offsets.items():
        match kept:
            case {"id": int(id), "bounds": [_, *_] as bounds} if all(
                isinstance(each, int) for each in bounds
            ):
                found[name] = StreamPosition(id, tuple(bounds), kept.get("joined") is True)
            case _:
                raise BadOptions(f"The query's checkpoint is not one of omq: it has {kept!r} for {name!r}.")
    return found
