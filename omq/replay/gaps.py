"""Gaps in a replay: handle them, and report where a replay after them begins."""

from omq.bulk.access import Gap
from omq.bulk.errors import DataLoss
from omq.bulk.ranges import Range
from omq.replay.meter import Meter

SKIP_LOST = "With --skip-lost they are left out"


class LostMessages(DataLoss):
    """Messages of a topic are lost, and the request does not allow to skip them."""

    def __init__(self, sentence: str, topic: str) -> None:
        super().__init__(sentence)
        self.topic = topic


def pass_over(part: Range, gap: Gap, meter: Meter, skip_lost: bool) -> None:
    """Report and count missing messages of a range. Raises LostMessages if `skip_lost` is off."""
    topic = part.topic.name
    lost = f"Topic {topic!r}: messages {gap.first} to {gap.last} are gone: {gap.reason}"
    if not (gap.is_hole or skip_lost):
        raise LostMessages(f"{lost}. {SKIP_LOST}{going_on(part, gap.next)}.", topic)
    meter.say(lost)
    if not gap.is_hole:
        meter.skipped += len(gap)


def going_on(part: Range, following: int) -> str:
    """Return the end of a sentence: where a replay of the same range begins after lost messages."""
    if following >= part.end:
        return "; none of this topic follow"
    return f"; a replay of {part.topic.name!r} with --first {following} begins after them"


def published(part: Range, confirmed: int, sent: int = 0) -> str:
    """Return up to which message a range is published: `confirmed` is the first message without confirmation,
    and the outcome is unknown of those from there to before `sent`.
    """
    nothing = confirmed == part.start
    known = "nothing is published" if nothing else f"messages up to {confirmed - 1} are published"
    if sent <= confirmed:
        return known
    return f"{known} for certain, and some of {confirmed} to {sent - 1} may be"
