"""The interfaces between the spooler (`omq.drivers.spooler`) and the topics whose messages it moves."""

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary, ref

import trio
from msgspec import Struct

from omq.drivers.scheduled_time import MOST_COUNTED
from omq.drivers.slices import Slices
from omq_storage.blocks import Block

LEAST_COUNTED = 0.02
"""The least number of seconds between two checks of a subscriber."""


class SpoolExtent(Struct, frozen=True):
    """Consecutive messages of one topic on the spool."""

    topic: int
    first: int
    next: int
    octets: int
    page: int
    """The first of its pages, which no other extent has."""


class Paced(Protocol):
    """A channel, or the backlog of a connection."""

    def pace(self) -> tuple[object, int]:
        """Return the object that makes progress when the subscriber receives something, and a number that
        grows with this progress.
        """


class StallWatch:
    """Detects subscribers that have received nothing for too long.

    A subscriber is checked only while there are messages for it. So if two checks find it at the same place,
    it has received nothing between them.

    Of a long time between two checks only MOST_COUNTED seconds count: the server was not scheduled then, and
    sent nothing to any subscriber.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.has_found = False
        """Whether it has found a subscriber without progress for too long, since this was set to False."""
        self._seen: WeakKeyDictionary[object, tuple[int, float, float, ref[Paced]]] = WeakKeyDictionary()
        """The place of each at its last check, the seconds without progress, the time of the check, and the
        subscriber that was checked.
        """

    def moves(self, subscriber: Paced) -> bool:
        """Return whether this subscriber, for which there are messages, has received some lately."""
        mover, place = subscriber.pace()
        now = trio.current_time()
        before, stalled, looked_at, _ = self._seen.get(mover, (None, 0.0, now, None))
        if place != before:
            self._seen[mover] = place, 0.0, now, ref(subscriber)
            return True
        if now >= looked_at + LEAST_COUNTED:  # it may have thousands of topics
            stalled += min(now - looked_at, MOST_COUNTED)
            self._seen[mover] = place, stalled, now, ref(subscriber)
        if stalled < self._seconds:
            return True
        self.has_found = True
        return False

    async def look_again(self) -> bool:
        """Check those again that were moving when they were checked before. Return whether one of them has
        received nothing for too long. This takes far less time than to look at all topics.
        """
        slices = Slices()
        has_found = False
        for _, stalled, _, checked in list(self._seen.values()):
            await slices.step()
            subscriber = checked()
            if subscriber is not None and stalled < self._seconds and not self.moves(subscriber):
                has_found = True
        return has_found


class Spoolable(Protocol):
    """A transient broadcast topic."""

    def to_spool(self, octets: int, excess: int, watch: StallWatch, *, whole: bool) -> Sequence[Block]:
        """Return the oldest blocks that may be spooled, about N `octets` of them: with `whole`, also those
        that the fastest subscriber has not received.

        Forget the messages that nobody needs: those before the returned blocks; if no block is returned, at
        most about `excess` octets of them. `leave_behind` must precede.
        """

    async def leave_behind(self, watch: StallWatch) -> None:
        """Keep nothing for subscribers that have received nothing for too long, until they take again: in
        turn with other tasks.
        """

    def is_waited_for(self, watch: StallWatch) -> bool:
        """Return whether publishers should wait for a subscriber that is behind: see `Backpressure`."""

    def last_spooled(self) -> SpoolExtent | None:
        """Return the newest extent on the spool; None if there is none."""

    def spooled(self, extents: Sequence[SpoolExtent], before: SpoolExtent | None) -> bool:
        """Replace blocks in memory by these extents on the spool. They include the messages of the extent
        `before`, if there is one. Return whether any subscriber needs them.
        """

    def forget_spooled(self, watch: StallWatch, *, is_full: bool) -> bool:
        """Drop the spooled messages that no subscriber needs. Return whether any are left.

        Unless the spool is full, it keeps the messages of which left-behind subscribers got a part.
        """
