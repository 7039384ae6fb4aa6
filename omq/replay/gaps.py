"""How a replay handles gaps."""

from omq.bulk.access import Gap
from omq.bulk.errors import DataLoss
from omq.replay.meter import Meter

SKIP_LOST = "With --skip-lost they are left out"


def pass_over(topic: str, gap: Gap, meter: Meter, skip_lost: bool) -> None:
    """Report and count missing messages. Raises DataLoss for lost messages without `skip_lost`."""
    lost = f"Topic {topic!r}: messages {gap.first} to {gap.last} are gone: {gap.reason}"
    if not (gap.is_hole or skip_lost):
        raise DataLoss(f"{lost}. {SKIP_LOST}.")
    meter.say(lost)
    if not gap.is_hole:
        meter.skipped += len(gap)
