"""Choose the messages to read: compute a range of ids for each topic from options, and split ranges into
partitions.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar, assert_never

from omq.bulk.access import Access, Gap, StoredTopic
from omq.bulk.errors import BadOptions, ServerRefused, UnknownTopic
from omq.bulk.places import Bound, Choice, Edge, NamedTopics, Pattern, PerTopic, Timestamp, TimestampPerTopic
from omq.model import BlockInfo
from omq_storage import numbers
from omq_storage.blocks import Block
from omq_storage.time_search import TimeSearch

PART_OCTETS = 128 << 20
"""About the size of a partition, unless `minPartitions` asks for more partitions."""

TASK_OCTETS = 32 << 20
"""The greatest size of several small parts in one task. It is less than PART_OCTETS, so that topics of some
size are still read in parallel.
"""

RANGE_OCTETS = 256 << 10
"""The octets that each range adds to the size of a task: to begin a range takes about as long as to read
them.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """The messages from `start` to before `end`."""

    topic: StoredTopic
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    @property
    def octets(self) -> float:
        """The approximate size in the store, in octets."""
        kept = self.topic.next - self.topic.first
        return self.topic.bytes * len(self) / kept if kept else 0.0


def choose(access: Access, choice: Choice) -> dict[str, StoredTopic]:
    """Find the chosen topics, by name. Raises UnknownTopic, and ServerRefused for unreadable topics."""
    found = access.topics()
    match choice:
        case NamedTopics(names):
            missing = [name for name in names if name not in found]
            if missing:
                hidden = "" if access.shows_all else ", or this client has no right to it"
                raise UnknownTopic(f"There is no topic {' and no topic '.join(map(repr, missing))}{hidden}.")
            chosen = {name: found[name] for name in names}
            for name, topic in chosen.items():
                if topic.problem is not None:
                    raise ServerRefused(f"The topic {name!r} cannot be read: {topic.problem}.")
            return chosen
        case Pattern(expression):
            matching = re.compile(expression)
            return {
                name: topic
                for name, topic in found.items()
                if topic.problem is None and matching.fullmatch(name)
            }
        case _:
            assert_never(choice)


def offsets(
    access: Access, topics: Mapping[str, StoredTopic], bound: Bound, *, begins: bool
) -> dict[str, int]:
    """Resolve a bound to a message id for each topic: the start if `begins`, else the end.

    Raises BadOptions.
    """
    match bound:
        case Edge():
            return {name: _edge(topic, bound) for name, topic in topics.items()}
        case Timestamp(milliseconds):
            return {
                name: first_since(access, topic, milliseconds * 1000, begins=begins)
                for name, topic in topics.items()
            }
        case TimestampPerTopic(times):
            _check_names(
                topics, times, "startingOffsetsByTimestamp" if begins else "endingOffsetsByTimestamp"
            )
            return {
                name: first_since(access, topic, times[name] * 1000, begins=begins)
                for name, topic in topics.items()
            }
        case PerTopic(bounds):
            _check_names(topics, bounds, "startingOffsets" if begins else "endingOffsets")
            return {
                name: _edge(topic, said) if isinstance(said := bounds[name], Edge) else said
                for name, topic in topics.items()
            }
        case _:
            assert_never(bound)


def _check_names(topics: Mapping[str, StoredTopic], given: Mapping[str, object], option: str) -> None:
    """Raise BadOptions unless a bound is given for exactly the topics that are read."""
    unsaid = sorted(topics.keys() - given.keys())
    unknown = sorted(given.keys() - topics.keys())
    if unsaid or unknown:
        raise BadOptions(
            f"{option} must name exactly the topics that are read: "
            + "; ".join(
                [f"{name!r} is missing" for name in unsaid] + [f"{name!r} is not read" for name in unknown]
            )
            + "."
        )


def _edge(topic: StoredTopic, edge: Edge) -> int:
    match edge:
        case Edge.EARLIEST:
            return topic.first
        case Edge.LATEST:
            return topic.next
        case _:
            assert_never(edge)


def first_since(access: Access, topic: StoredTopic, time: int, *, begins: bool) -> int:
    """Find the first stored message at or after a time, in microseconds since the epoch; `next` if none.

    If the block at the bound is damaged, the range includes all of it, whether the range `begins` or ends
    there, so that its reader gets the error.
    """
    search = TimeSearch[BlockInfo](topic.first, topic.next, time)
    while search.is_open:
        search.found(access.block_at(topic, search.middle, search.high))
    if search.before is None:
        return search.high
    first, behind = search.before.first, search.before.next
    # Read the Fetch to its end: unread frames would precede the next answer.
    use = partial(_first_since, time=time)
    for after, end in _made(access.fetch(topic, max(first, topic.first), behind, use)):
        if after < end:
            return max(topic.first, after)
        return max(search.high, min(end, topic.next))
    return max(topic.first, first) if begins else min(behind, topic.next)


def _made(found: Iterable[T | Gap]) -> list[T]:
    return [each for each in found if not isinstance(each, Gap)]


def _first_since(block: Block, _: range, time: int) -> tuple[int, int]:
    """Return the first message of a block at or after a time, or the end of the block; and the end of the
    block.
    """
    if block.deltas is None:
        return block.first if block.time >= time else block.next, block.next
    before = sum(delta < time - block.time for delta in numbers.unpack(block.deltas))
    return block.first + before, block.next


def cut(
    access: Access, ranges: Iterable[Range], min_partitions: int | None, max_records: int | None = None
) -> list[Range]:
    """Split ranges into parts, between blocks where possible: at least `min_partitions` if there are enough
    messages, and each with at most `max_records` messages.

    The server may merge blocks afterwards, so the next call may split the same ranges differently: a caller
    that needs the same parts again must store them.
    """
    whole = [part for part in ranges if len(part)]
    total = sum(map(len, whole))
    parts: list[Range] = []
    for part in whole:
        wanted = max(1, round(part.octets / PART_OCTETS))
        if min_partitions is not None:
            wanted = max(wanted, -(-min_partitions * len(part) // total))
        if max_records is not None:
            wanted = max(wanted, -(-len(part) // max_records))
        parts += _pieces(access, part, min(wanted, len(part)), max_records or len(part))
    return parts


def pack(
    parts: Iterable[Range], min_partitions: int | None, max_records: int | None
) -> list[tuple[Range, ...]]:
    """Group consecutive small parts of different topics into tasks: at least `min_partitions` if there are as
    many parts, and several parts in one task have at most `max_records` messages.
    """
    sizes = [(part, part.octets + RANGE_OCTETS) for part in parts]
    least = min_partitions or 1
    limit = min(TASK_OCTETS, sum(size for _, size in sizes) / least)
    spare = len(sizes) - least
    tasks: list[list[Range]] = []
    octets, records = 0.0, 0
    for part, size in sizes:
        octets, records = octets + size, records + len(part)
        joins = tasks and tasks[-1][-1].topic.id != part.topic.id and spare > 0
        if joins and octets <= limit and (max_records is None or records <= max_records):
            tasks[-1].append(part)
            spare -= 1
        else:
            tasks.append([part])
            octets, records = size, len(part)
    return [tuple(task) for task in tasks]


def _pieces(access: Access, part: Range, wanted: int, most: int) -> list[Range]:
    """Split a range into exactly `wanted` parts with at most `most` messages each. `wanted` is at most the
    number of messages, and enough for `most`.
    """
    evenly = [part.start + len(part) * number // wanted for number in range(wanted + 1)]
    bounds = [part.start]
    for number, (ideal, following) in enumerate(pairwise(evenly[1:]), 1):
        # The part that ends here has at most `most` messages, and so can each of those that follow.
        lowest = max(bounds[-1] + 1, part.end - most * (wanted - number))
        highest = min(following - 1, bounds[-1] + most)
        bound = _nearest_edge(access, part, ideal)
        # Split a block that is larger than a part.
        bounds.append(bound if lowest <= bound <= highest else min(ideal, highest))
    return [Range(part.topic, start, end) for start, end in zip(bounds, [*bounds[1:], part.end], strict=True)]


def _nearest_edge(access: Access, part: Range, message: int) -> int:
    """Return the beginning or the end of the block that holds a message, whichever is nearer."""
    block = access.block_at(part.topic, message, part.end)
    if block is None or block.first > message:
        return message  # it is in a gap
    return block.first if message - block.first <= block.next - message else block.next
