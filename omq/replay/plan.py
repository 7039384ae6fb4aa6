"""Plan a replay: find the messages to read before it begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from omq.bulk.access import Access, StoredTopic
from omq.bulk.errors import BadOptions, DataLoss
from omq.bulk.ranges import Range, choose, first_since
from omq.replay.request import Bounds, ReplayRequest, ToJson, ToParquet, ToServer


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages to replay. It excludes messages that are published later."""

    request: ReplayRequest
    parts: Sequence[Range]
    """One for each chosen topic, in the order of their names; some may be empty."""

    @property
    def messages(self) -> int:
        """The number of ids within the bounds; holes contain fewer messages."""
        return sum(map(len, self.parts))


def make_plan(access: Access, request: ReplayRequest) -> Plan:
    """Make the plan. Raises BadOptions, UnknownTopic, DataLoss, and the errors of `Access`."""
    topics = choose(access, request.choice)
    if not topics:
        raise BadOptions("No topic that can be read matches the pattern.")
    return Plan(request, [_range(access, topics[name], request) for name in sorted(topics)])


def _range(access: Access, topic: StoredTopic, request: ReplayRequest) -> Range:
    bounds = request.bounds
    start = topic.first if bounds.first is None else bounds.first
    end = topic.next if bounds.last is None else bounds.last + 1
    if not request.skip_lost:
        _check(topic, bounds)
    start, end = min(max(start, topic.first), topic.next), min(end, topic.next)
    if bounds.since is not None:
        start = max(start, first_since(access, topic, bounds.since, begins=True))
    if bounds.until is not None:
        end = min(end, first_since(access, topic, bounds.until, begins=False))
    return Range(topic, start, max(start, end))


def _check(topic: StoredTopic, bounds: Bounds) -> None:
    """Raise DataLoss if a message that the user named is not stored."""
    for option, message in (("--first", bounds.first), ("--last", bounds.last)):
        if message is None:
            continue
        if message >= topic.next:
            raise DataLoss(
                f"Topic {topic.name!r}: {option} is {message}, but its last message is {topic.next - 1}. "
                "With --skip-lost, the stored messages are replayed."
            )
        if message < topic.first:
            raise DataLoss(
                f"Topic {topic.name!r}: {option} is {message}, but the oldest message kept is {topic.first}. "
                "With --skip-lost, the stored messages are replayed."
            )


def describe(plan: Plan) -> str:
    """Format the plan for the user."""
    request = plan.request
    lines = [f"from   {request.shown}", f"to     {_destination(request)}", f"how    {_way(request)}"]
    if request.where is not None:
        lines.append(f"where  {request.where}")
    width = max(len("topic"), *(len(part.topic.name) for part in plan.parts))
    lines += ["", f"{'topic':<{width}}  {'first':>12}  {'last':>12}  {'messages':>12}  {'about':>9}"]
    for part in plan.parts:
        first, last = (part.start, part.end - 1) if len(part) else ("-", "-")
        size = octets(part.octets)
        lines.append(f"{part.topic.name:<{width}}  {first:>12}  {last:>12}  {len(part):>12,}  {size:>9}")
    return "\n".join(lines)


def _destination(request: ReplayRequest) -> str:
    match request.destination:
        case ToServer(_, shown, None):
            return f"{shown}, topics of the same names"
        case ToServer(_, shown, topic):
            return f"{shown}, topic {topic!r}"
        case ToParquet(path):
            return f"Parquet files in {path}"
        case ToJson(path):
            return f"files of JSON lines in {path}"
        case _:
            assert_never(request.destination)


def _way(request: ReplayRequest) -> str:
    pace = "" if request.speed is None else f", at {request.speed:g} times the pace they were published at"
    if request.needs_spark:
        return f"with Spark{pace}"
    return f"stored blocks are copied, without Spark{pace}"


def octets(count: float) -> str:
    """Format a number of octets for the user."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
