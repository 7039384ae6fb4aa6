"""What was pushed to one connection and its socket has not taken yet.

A socket takes less than everything for a moment when its client is not scheduled, or slower than the
publishers. Then all topics that are pushed to it would have to fall behind, and to be pulled one by one. So
the connection keeps what was pushed, in order, and its topics still count as received. Publishers wait
while a backlog is full and its connection moves (`wait_for_room`). Topics whose messages are not pushed
meanwhile fall behind.

A backlog takes its memory from that of the tails. When tails grow and it is used up, the largest tails and
backlogs lose what they have: the subscribers are told which messages they do not get. A backlog that grows
makes nobody lose anything, because others of the same pass over received lines may be just about to be sent.
Backlogs alone never take much: each is full while a quarter of the memory is used.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from omq.drivers.seam import Octets, Outlet
from omq.drivers.tail import TailMemory

if TYPE_CHECKING:
    from omq_storage._codec import Pass

MOST_OCTETS = 1 << 20
"""The size from which on a backlog is full."""


class Loser(Protocol):
    """A driver whose messages are in a backlog."""

    def unsent(self, octets: int) -> None:
        """So many octets of frames were counted as sent, and are not."""

    def fall_behind(self, outlet: Outlet, position: int) -> None:
        """The subscriber on this connection has the messages below `position` only."""


class Entry:
    """Octets in a backlog: the frames of one lane of a pass, or others, which are never dropped."""

    __slots__ = ("lane", "octets", "outlet", "passed", "sent")

    def __init__(
        self, octets: Octets, sent: int, outlet: Outlet | None, passed: "Pass | None", lane: int
    ) -> None:
        self.octets = octets
        self.sent = sent
        self.outlet = outlet
        self.passed = passed
        self.lane = lane

    def drop(self) -> bytes:
        """Let the topics of these messages fall behind. Return the rest of the message that is begun."""
        assert self.passed is not None
        rest, behind = self.passed.unsent(self.lane, self.sent)
        for topic, position, octets in behind:
            driver: Loser | None = self.passed.route(topic).owner
            if driver is not None:  # otherwise the topic was deleted
                assert self.outlet is not None
                driver.unsent(octets)
                driver.fall_behind(self.outlet, position)
        return rest


class Backlog:
    """The backlog of one connection."""

    __slots__ = ("_tails", "_waiting", "begin", "end", "entries")

    def __init__(self, tails: TailMemory) -> None:
        self._tails = tails
        self.entries: list[Entry] = []
        """Without entries there is nothing to send: to look here is no call."""
        self._waiting: list[trio.Event] = []
        self.begin = 0
        """How many octets have left so far, or were dropped at the beginning."""
        self.end = 0
        """How many octets have left so far, and will if nothing is dropped."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def octets(self) -> int:
        """The number of octets in it."""
        return self.end - self.begin

    def is_full(self) -> bool:
        """Return whether nothing more should be pushed now."""
        tails = self._tails
        return self.octets >= MOST_OCTETS or (bool(self.entries) and tails.used > tails.limit // 4)

    def add(self, octets: Octets) -> None:
        """Add octets that are never dropped."""
        self._add(Entry(octets, 0, None, None, 0))

    def add_frames(self, outlet: Outlet, passed: "Pass", lane: int, sent: int) -> None:
        """Add the frames of a lane behind the first `sent` octets."""
        self._add(Entry(passed.frames[lane], sent, outlet, passed, lane))

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        octets = len(entry.octets) - entry.sent
        self.end += octets
        self._tails.hold(self, octets)

    def parts(self, most: int) -> Sequence[Octets]:
        """Return at most so many parts of it, from its beginning on."""
        parts: list[Octets] = []
        for entry in self.entries:
            parts.append(memoryview(entry.octets)[entry.sent :] if entry.sent else entry.octets)
            if len(parts) == most:
                break
        return parts

    def sent(self, octets: int) -> None:
        """So many octets have left."""
        entries = self.entries
        self.begin += octets
        left = octets
        whole = 0
        while left:
            first = entries[whole]
            size = len(first.octets) - first.sent
            if left < size:
                first.sent += left
                break
            left -= size
            whole += 1
        del entries[:whole]
        self._tails.shrank(self, octets)
        if self._waiting and self.octets <= MOST_OCTETS // 2 and not self.is_full():
            self._wake()

    def forget(self, octets: int, kept: int) -> bool:
        """Drop everything that may be dropped, unless `kept` is above 0: see `omq.drivers.tail.Holder`."""
        if kept:
            return False
        before = self.octets
        entries, self.entries = self.entries, []
        self.end = self.begin
        for entry in entries:
            if entry.passed is not None:
                rest = entry.drop()
                if not (rest and entry.sent):
                    continue
                entry = Entry(rest, 0, None, None, 0)
            self.entries.append(entry)
            self.end += len(entry.octets) - entry.sent
        self._tails.shrank(self, before - self.octets)
        self._wake()
        return before > self.octets

    def close(self) -> None:
        """The connection has ended."""
        self.entries.clear()
        octets, self.begin = self.octets, self.end
        self._tails.shrank(self, octets)
        self._wake()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    def wait(self, event: trio.Event) -> None:
        """Set this event when there is room, until `leave`."""
        self._waiting.append(event)

    def leave(self, event: trio.Event) -> None:
        """Do not set this event any more."""
        self._waiting.remove(event)


class Filled(Protocol):
    """A connection with a backlog."""

    backlog: Backlog
    still_at: int | None

    @property
    def sent(self) -> int:
        """As in `omq.drivers.seam.Outlet`."""


async def wait_for_room(outlets: Iterable[Filled], stall_seconds: float) -> None:
    """Wait until one of these connections has room in its backlog, or none of them moves any more."""
    filled = tuple(outlets)
    if not all(outlet.backlog.is_full() for outlet in filled):
        return  # one has got room since the pass ended: nothing would set the event
    event = trio.Event()
    for outlet in filled:
        outlet.backlog.wait(event)
    try:
        moves = True
        while moves and not event.is_set():
            before = [outlet.sent for outlet in filled]
            with trio.move_on_after(stall_seconds):
                await event.wait()
                return
            moves = False
            for outlet, sent in zip(filled, before, strict=True):
                if outlet.sent == sent:
                    outlet.still_at = sent
                else:
                    moves = True
    finally:
        for outlet in filled:
            outlet.backlog.leave(event)
