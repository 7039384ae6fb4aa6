"""The octets that were pushed to one connection and that its socket has not accepted yet.

A socket accepts only a part of the octets when its client is not scheduled for a moment, or is slower than
the publishers. Without a backlog, all topics that push to this connection would fall behind, and the sender
would have to read them one by one. So the connection keeps the pushed octets in their order, and their topics
count as received. Publishers wait while a backlog is full and its connection sends (`WaitingPublishers`).
Topics whose messages are not pushed meanwhile fall behind. The sender reads them from their tails, in turns
with the backlog.

A backlog takes its memory from the share of the tails. When a tail grows and the share is used up, the
largest tails and backlogs drop their messages, and the server tells the subscribers which ones. A growing
backlog makes no other one drop messages, because those may be sent next in the same pass. Backlogs alone take
limited memory: each counts as full while all of them use a quarter of the share. What tails keep for slower
subscribers makes no backlog full. An entry counts with everything that it keeps in memory, until its last
octet has left: many small entries take far more than their octets.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from omq.drivers.seam import Octets, Outlet
from omq.drivers.tail import TailMemory
from omq_storage import numbers
from omq_storage.blocks import Block

if TYPE_CHECKING:
    from omq_storage._codec import Part, Pass, Route

MOST_OCTETS = 1 << 20
"""The size from which on a backlog is full."""

MOST_ENTRIES = 256
"""The number of entries from which on a backlog is full: a single small message in a read adds an entry."""

WOKEN_TOGETHER = 8
"""The number of publishers that are woken at a time when a backlog has room again. Each wakes the next one
if there still is room. If a hundred were woken together, most of them would find the backlog full again.
"""

GIVEN_BACK = 32
"""The number of blocks that are given back to round-robin topics in one step: it takes some tenths of a
millisecond.
"""

ENTRY_OCTETS = 200
"""The approximate octets of memory for an entry, without its messages."""


class BackloggedDriver(Protocol):
    """A driver whose messages are in a backlog."""

    def unsent(self, messages: int, octets: int) -> None:
        """Subtract N `messages` with N `octets` of frames that were counted as sent, but were dropped."""

    def fall_behind(self, outlet: Outlet, position: int) -> None:
        """Move the subscriber on this connection back to `position`: it has the messages below it."""


class ReturningDriver(Protocol):
    """A driver that gives messages back to others."""

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""

    def took_back(self, block: Block) -> None:
        """Take messages back that were counted as sent, and were not: others may get them."""


class BacklogEntry:
    """Octets in a backlog: the frames of one lane of a pass, or others, which are never dropped."""

    __slots__ = (
        "begun",
        "competes",
        "end",
        "held",
        "is_rest",
        "may_be_dropped",
        "messages",
        "octets",
        "outlet",
        "part",
        "sent",
    )

    def __init__(
        self,
        octets: Octets,
        sent: int,
        outlet: Outlet | None = None,
        part: "Part | None" = None,
        *,
        is_rest: bool = False,
        begun: "tuple[Route, int, bytes] | None" = None,
    ) -> None:
        """Create an entry of which the first `sent` octets have left."""
        self.octets = octets
        self.sent = sent
        self.is_rest = is_rest
        """Whether it is the rest of a message whose beginning has left."""
        self.begun = begun
        """The route, the id and the frame of that message, if it goes to others when the connection ends."""
        self.outlet = outlet
        self.part = part
        self.held = ENTRY_OCTETS + (len(octets) if part is None else part.held)
        if begun is not None:
            self.held += len(begun[2])
        """The approximate octets of memory that it takes."""
        self.end = 0
        """The position of its end among all octets that were ever added to the backlog."""
        self.messages = 0 if part is None else part.messages
        """The number of messages that have left when its last octet has left."""
        self.competes = part is not None and part.competes
        """Whether its messages are those of round-robin topics, which nobody else has."""
        self.may_be_dropped = part is not None and not part.competes
        """Whether it is one of those that `forget` drops."""

    @property
    def left(self) -> int:
        """The number of its octets that are not sent."""
        return len(self.octets) - self.sent

    def drop(self) -> bytes:
        """Let the topics of these messages fall behind. Return the rest of the message that is begun."""
        assert self.part is not None
        rest, behind = self.part.unsent(self.sent)
        for route, position, messages, octets in behind:
            self.messages -= messages
            driver: BackloggedDriver | None = route.owner
            if driver is not None:  # otherwise the topic was deleted
                assert self.outlet is not None
                driver.unsent(messages, octets)
                driver.fall_behind(self.outlet, position)
        return rest


class Backlog:
    """The backlog of one connection."""

    __slots__ = (
        "__weakref__",
        "_droppable",
        "_leaving",
        "_tails",
        "_waiting",
        "delivered",
        "end",
        "entries",
        "octets",
        "unsent",
    )

    is_stored = False

    def __init__(self, tails: TailMemory) -> None:
        self._tails = tails
        self.entries: list[BacklogEntry] = []
        """The octets to send, in order. Callers read this attribute, because a call would take longer."""
        self._waiting: list[trio.Event] | None = None  # from the first one on
        self._leaving: Iterator[None] | None = None  # in the middle of `give_back`
        self._droppable = 0  # the number of entries that may be dropped: mostly all, or none
        self.end = 0
        """The number of octets that were added so far."""
        self.unsent = 0
        """The number of these octets that have neither left nor been dropped."""
        self.octets = 0
        """The approximate octets of memory that it takes."""
        self.delivered = 0
        """The number of messages that have left."""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def is_begun(self) -> bool:
        """Whether a message may be begun: then the rest of the first entry must be sent before all else."""
        if not self.entries:
            return False
        first = self.entries[0]
        return first.sent > 0 or first.is_rest

    @property
    def begin(self) -> int:
        """The number of added octets before the first one that has neither left nor been dropped."""
        if not self.entries:
            return self.end
        first = self.entries[0]
        return first.end - first.left

    def pace(self) -> tuple[object, int]:
        """Return itself, and a number that grows when its connection takes something."""
        return self, self.begin

    def is_full(self) -> bool:
        """Return whether nothing more should be pushed now."""
        tails = self._tails
        if self.unsent >= MOST_OCTETS or len(self.entries) >= MOST_ENTRIES:
            return True
        return bool(self.entries) and tails.backlogged > tails.limit // 4

    def add(self, octets: Octets) -> None:
        """Add octets that are never dropped."""
        self._add(BacklogEntry(octets, 0))

    def add_frames(self, outlet: Outlet, passed: "Pass", lane: int, sent: int) -> None:
        """Add the frames of a lane after the first `sent` octets."""
        part = passed.part(lane)
        self._add(BacklogEntry(part.octets, sent, outlet, part))

    def _add(self, entry: BacklogEntry) -> None:
        self.entries.append(entry)
        self.unsent += entry.left
        self.end += entry.left
        entry.end = self.end
        self._droppable += entry.may_be_dropped
        self.octets += entry.held
        self._tails.hold(self, entry.held)
        self._tails.backlogged += entry.held

    def parts(self, most: int, end: int) -> Sequence[Octets]:
        """Return its first parts, at most `most`, up to this `end` of an entry."""
        parts: list[Octets] = []
        for entry in self.entries:
            if entry.end > end:
                break
            parts.append(memoryview(entry.octets)[entry.sent :] if entry.sent else entry.octets)
            if len(parts) == most:
                break
        return parts

    def sent(self, octets: int) -> None:
        """Count N `octets` that have left."""
        entries = self.entries
        self.unsent -= octets
        freed = 0
        whole = 0
        while octets:
            first = entries[whole]
            size = first.left
            if octets < size:
                first.sent += octets
                break
            octets -= size
            freed += first.held
            self.delivered += first.messages
            self._droppable -= first.may_be_dropped
            whole += 1
        del entries[:whole]
        self._free(freed)
        if self._waiting and self._has_emptied() and not self.is_full():
            self._wake(WOKEN_TOGETHER)

    def _has_emptied(self) -> bool:
        return self.unsent <= MOST_OCTETS // 2 and len(self.entries) <= MOST_ENTRIES // 2

    def _free(self, octets: int) -> None:
        self.octets -= octets
        self._tails.shrank(self, octets)
        self._tails.backlogged -= octets

    def forget(self, octets: int, kept: int) -> bool:
        """Drop all that may be dropped, unless `kept` is above 0: see `omq.drivers.tail.MemoryUser`."""
        if kept or not self._droppable:
            return False  # hundreds of backlogs may have nothing but the messages of round-robin topics
        before = self.octets
        begin = self.begin
        entries, self.entries = self.entries, []
        self.unsent = self._droppable = 0
        for entry in entries:
            if entry.may_be_dropped:
                rest = entry.drop()
                self.delivered += entry.messages
                if not rest:
                    continue
                entry = BacklogEntry(rest, 0, is_rest=True)  # only the first one is begun
                entry.end = begin + len(rest)
            self.entries.append(entry)
            self.unsent += entry.left
        self._free(before - sum(entry.held for entry in self.entries))
        self._wake()
        return before > self.octets

    def give_back(self) -> bool:
        """Give some messages back to their round-robin topics, because the client takes nothing. Return
        whether there are more. Nothing of these topics may be pushed meanwhile.
        """
        if self._leaving is None:
            leaving = self._leave()
            if not leaving:
                return False
            self._leaving = _given_back(leaving)
        is_over = next(self._leaving, self) is self
        if is_over:
            self._leaving = None
        return not is_over

    def _leave(self) -> "list[tuple[Part, int]]":
        """Remove the messages of round-robin topics, except for the rest of the one that is begun. Return
        them in parts, with the number of the octets that have left.
        """
        leaving: list[tuple[Part, int]] = []
        kept: list[BacklogEntry] = []
        self.unsent = 0
        begin = self.begin
        before = self.octets
        for entry in self.entries:
            if entry.competes:
                assert entry.part is not None
                leaving.append((entry.part, entry.sent))
                message, count = entry.part.begun(entry.sent)
                self.delivered += count
                if message is None:
                    continue
                route, id, frame, rest = message  # only the first one is begun
                entry = BacklogEntry(rest, 0, is_rest=True, begun=(route, id, frame))
                entry.messages = 1
                self.delivered -= 1
                entry.end = begin + len(rest)
            kept.append(entry)
            self.unsent += entry.left
        self.entries = kept
        self._free(before - sum(entry.held for entry in kept))
        if leaving:
            self._wake()
        return leaving

    def close(self, begin: Callable[[Iterator[None]], None]) -> None:
        """Drop the entries of a connection that has ended, and free their memory. `begin` is given the work
        to return the messages of round-robin topics to these, also the one that is begun: the client cannot
        get the rest of it any more.
        """
        if self._leaving is not None:  # the connection ended in the middle of `give_back`
            begin(self._leaving)
            self._leaving = None
        leaving = self._leave()
        begun = self.entries[0].begun if self.entries else None
        if leaving or begun is not None:
            begin(_given_back(leaving, begun))
        self.entries.clear()
        self.unsent = self._droppable = 0
        self._free(self.octets)
        self._wake()

    def _wake(self, most: int | None = None) -> None:
        """Wake those that have waited for the longest time, at most `most` of them."""
        if self._waiting:
            woken, self._waiting[:most] = self._waiting[:most], []
            for event in woken:
                event.set()

    def wait(self, event: trio.Event, *, again: bool) -> None:
        """Set this event once there may be room, until `leave`; before all others if it waits `again`."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.insert(0 if again else len(self._waiting), event)

    def leave(self, event: trio.Event) -> None:
        """Remove a publisher that waits no more, and wake the next one if the backlog has room."""
        if self._waiting and event in self._waiting:
            self._waiting.remove(event)
        if self._waiting and not self.is_full():
            self._wake(1)


def _given_back(
    leaving: "list[tuple[Part, int]]", begun: "tuple[Route, int, bytes] | None" = None
) -> Iterator[None]:
    """Give messages back to their topics, in steps: first the one that is begun, if it is given back, too."""
    if begun is not None:
        route, id, frame = begun
        _take_back(route, id, 1, frame, numbers.pair(0, len(frame)))
    leaving.reverse()
    while leaving:
        runs = _unsent_runs(*leaving.pop())
        yield
        for number, run in enumerate(runs, 1):
            _take_back(*run)
            if not number % GIVEN_BACK:
                yield


def _take_back(route: "Route", first: int, count: int, frames: bytes, offsets: bytes) -> None:
    driver: ReturningDriver | None = route.owner
    if driver is not None:  # otherwise the topic was deleted
        driver.took_back(Block(route.topic, first, count, driver.now(), frames, offsets))


def _unsent_runs(part: "Part", sent: int) -> "list[tuple[Route, int, int, bytes, bytes]]":
    return part.unsent_runs(sent)  # a function, so that the caller does not keep the part
