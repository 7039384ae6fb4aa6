"""What the spooler and the topics whose messages it moves know of one another: see `omq.drivers.spooler`."""

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import trio
from msgspec import Struct

from omq_storage.blocks import Block

MOST_COUNTED = 0.1
"""The most seconds between two looks at a subscriber that count."""


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
        """Return what moves when the subscriber takes something, and a number that grows then."""


class StallWatch:
    """Knows which subscribers have taken nothing for too long.

    A subscriber is looked at only while there is something that it could take. So if it was at the same place
    at an earlier look, it has not moved since: to get everything it would have had to move.

    Only the time in which it was looked at often counts. When the server itself was not scheduled, nobody was
    sent anything.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: WeakKeyDictionary[object, tuple[int, float, float]] = WeakKeyDictionary()
        """Where each was, for how long it has not moved, and when that was seen."""

    def moves(self, subscriber: Paced) -> bool:
        """Return whether this subscriber, which has not got everything, has taken something lately."""
        mover, place = subscriber.pace()
        now = trio.current_time()
        before, stalled, looked_at = self._seen.get(mover, (None, 0.0, now))
        stalled = stalled + min(now - looked_at, MOST_COUNTED) if place == before else 0.0
        self._seen[mover] = place, stalled, now
        return stalled < self._seconds


class Spoolable(Protocol):
    """A transient broadcast topic."""

    def to_spool(self, octets: int, excess: int, watch: StallWatch) -> Sequence[Block]:
        """Return the oldest blocks that may be spooled, about N `octets` of them.

        Forget what only subscribers need that are left behind: what stands before those blocks; if there are
        none, no more than about the `excess`.
        """

    def is_waited_for(self, watch: StallWatch) -> bool:
        """Return whether publishers should wait for a subscriber that is behind: see `Backpressure`."""

    def last_spooled(self) -> SpoolExtent | None:
        """Return the newest extent on the spool; None if there is none."""

    def spooled(self, extents: Sequence[SpoolExtent], before: SpoolExtent | None) -> bool:
        """Keep messages on the spool from now on, and not in memory. They stand there together with those of
        an extent `before`, if there is one. Return whether anybody needs them.
        """

    def forget_spooled(self, watch: StallWatch, *, is_full: bool) -> bool:
        """Drop what is on the spool and nobody needs. Return whether something is left there.

        Unless the spool is full, messages stay that subscribers are in the middle of who are left behind.
        """
