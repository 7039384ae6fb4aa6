"""Which messages are to be read: from options to a range of ids for each topic, and from those to parts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar, assert_never

from omq.blocking.access import Access, Gap, StoredTopic
from omq.blocking.errors import BadOptions, Refused, UnknownTopic
from omq.blocking.places import Bound, Choice, Edge, Pattern, PerTopic, Timestamp, Topics
from omq_storage import numbers
from omq_storage.blocks import Block

PART_OCTETS = 128 << 20
"""About how much one partition reads when nobody asks for more partitions."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """The messages from `start` to before `end`."""

    topic: StoredTopic
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def choose(access: Access, choice: Choice) -> dict[str, StoredTopic]:
    """The topics that were chosen, by name. Raises UnknownTopic, and Refused for one that cannot be read."""
    found = access.topics()
    match choice:
        case Topics(names):
            missing = [name for name in names if name not in found]
            if missing:
                hidden = "" if access.shows_all else ", or this client has no right to it"
                raise UnknownTopic(f"There is no topic {' and no topic '.join(map(repr, missing))}{hidden}.")
            chosen = {name: found[name] for name in names}
            for name, topic in chosen.items():
                if topic.problem is not None:
                    raise Refused(f"The topic {name!r} cannot be read: {topic.problem}.")
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
    """The message id that a bound means for each topic: where reading `begins`, or else ends.

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
        case PerTopic(bounds):
            unsaid = sorted(topics.keys() - bounds.keys())
            unknown = sorted(bounds.keys() - topics.keys())
            if unsaid or unknown:
                option = "startingOffsets" if begins else "endingOffsets"
                raise BadOptions(
                    f"{option} must name exactly the topics that are read: "
                    + "; ".join(
                        [f"{name!r} is missing" for name in unsaid]
                        + [f"{name!r} is not read" for name in unknown]
                    )
                    + "."
                )
            return {
                name: _edge(topic, said) if isinstance(said := bounds[name], Edge) else said
                for name, topic in topics.items()
            }
        case _:
            assert_never(bound)


def _edge(topic: StoredTopic, edge: Edge) -> int:
    match edge:
        case Edge.EARLIEST:
            return topic.first
        case Edge.LATEST:
            return topic.next
        case _:
            assert_never(edge)


def first_since(access: Access, topic: StoredTopic, time: int, *, begins: bool) -> int:
    """The first kept message at or after a time, in microseconds since the epoch; `next` when there is none.

    Times never go down within a topic, so this takes a look at a block for each halving of the topic. Where
    the block in question is damaged, a range that `begins` here has all of it, and one that ends here too: so
    whoever reads it is told.
    """
    low, high = topic.first, topic.next
    before: tuple[int, int] | None = None  # the last block that begins before the time
    while low < high:
        found = access.block_at(topic, (low + high) // 2, high)
        if found is None:
            high = (low + high) // 2
        elif found.time >= time:
            high = max(low, min(high, found.first))
        else:
            before = (found.first, found.first + found.count)
            low = before[1]
    if before is None:
        return high
    # Read to its end: what is left unread would stand before the next answer.
    use = partial(_first_since, time=time)
    for after, end in _made(access.fetch(topic, max(before[0], topic.first), before[1], use)):
        if after < end:
            return max(topic.first, after)
        return max(high, min(end, topic.next))
    return max(topic.first, before[0]) if begins else min(before[1], topic.next)


def _made(found: Iterable[T | Gap]) -> list[T]:
    return [each for each in found if not isinstance(each, Gap)]


def _first_since(block: Block, _: range, time: int) -> tuple[int, int]:
    """The first message of a block at or after a time, or where the block ends; and that end."""
    if block.deltas is None:
        return block.first if block.time >= time else block.next, block.next
    before = sum(delta < time - block.time for delta in numbers.unpack(block.deltas))
    return block.first + before, block.next


def cut(access: Access, ranges: Iterable[Range], min_partitions: int | None) -> list[Range]:
    """The ranges in parts, at least `min_partitions` if there are so many messages, cut between blocks where
    that can be.

    Merging may move the blocks' bounds afterwards, so the same ranges can be cut elsewhere the next time:
    whoever must have the same parts again keeps them.
    """
    whole = [part for part in ranges if len(part)]
    total = sum(map(len, whole))
    parts: list[Range] = []
    for part in whole:
        wanted = max(1, round(_octets(part) / PART_OCTETS))
        if min_partitions is not None:
            wanted = max(wanted, -(-min_partitions * len(part) // total))
        parts += _pieces(access, part, min(wanted, len(part)))
    return parts


def _octets(part: Range) -> float:
    """About how much of the store a range is."""
    kept = part.topic.next - part.topic.first
    return part.topic.bytes * len(part) / kept if kept else 0.0


def _pieces(access: Access, part: Range, wanted: int) -> list[Range]:
    """Exactly `wanted` parts, at most as many as there are messages."""
    evenly = [part.start + len(part) * number // wanted for number in range(wanted + 1)]
    bounds = [part.start]
    for ideal, following in pairwise(evenly[1:]):
        bound = _nearest_edge(access, part, ideal)
        # A block that is larger than a part is cut itself.
        bounds.append(bound if bounds[-1] < bound < following else ideal)
    return [Range(part.topic, start, end) for start, end in zip(bounds, [*bounds[1:], part.end], strict=True)]


def _nearest_edge(access: Access, part: Range, message: int) -> int:
    """Where the block that holds a message begins or ends, whichever is nearer."""
    block = access.block_at(part.topic, message, part.end)
    if block is None or block.first > message:
        return message  # it is in a gap
    end = block.first + block.count
    return block.first if message - block.first <= end - message else end
