"""Moves blocks from the tails of transient broadcast topics to the spool, when the memory is short.

Only what the fastest subscriber of a topic has and a slower one that moves has not got yet is spooled: the
fastest sets the pace of the publishers (`omq.drivers.backpressure`), and always finds its messages in memory.
While the spool is written, publishers of topics with a subscriber that is behind wait (`must_wait`).
When it is full they wait, too, but not for long. After that the oldest messages are lost.

A subscriber whose connection takes nothing for `spool_seconds` is left behind: the spool keeps nothing for it
until it takes something again, except the message that it is in the middle of. That one stays while the spool
is not full: without its rest the connection would have to be closed.
"""

import logging
import sys
import traceback
from collections.abc import Mapping
from math import inf
from weakref import WeakKeyDictionary

import trio

from omq.drivers.backlog import Backlog
from omq.drivers.entrance import Entrances
from omq.drivers.signal import Signal
from omq.drivers.slices import Slices
from omq.drivers.spool import Spool, SpoolFull, Spooling
from omq.drivers.spoolable import Spoolable, SpoolExtent, StallWatch
from omq.drivers.tail import Tail, TailMemory
from omq.logs import LogThrottle

LOOK_SECONDS = 0.05
"""How often to look what the spool need not keep any more, while there is something in it."""

BACKLOG_SECONDS = 0.01
"""How often to look whether connections have taken what is in their backlogs, if nothing can be spooled."""

MOST_WRITTEN = 1 << 20
"""About how many octets are written at a time."""

MOST_JOINED = 32 << 10
"""The greatest extent that is written again, together with what follows, when there are too many."""

log = logging.getLogger("omq.spool")


class Spooler:
    """Decides what is spooled. `run` is its task."""

    def __init__(self, tails: TailMemory, entrances: Entrances, spool: Spool, seconds: float) -> None:
        """Create the spooler of these tails. `entrances` are the topics whose publishers wait for it: not
        longer than N `seconds` while it does not get on.
        """
        self._tails = tails
        self._entrances = entrances
        self._spool = spool
        self._seconds = seconds
        self._watch = StallWatch(seconds)
        self._signal = Signal()
        self._most_used = tails.limit // 2
        """While less is in use, nothing is spooled."""
        self.asked_from: float = self._most_used
        self._wanted = 0
        """The largest post that waits."""
        self._has_none = False
        """Whether there was no tail at the last look that could be spooled."""
        self._begins: WeakKeyDictionary[Backlog, int] = WeakKeyDictionary()
        """Where the backlogs of connections began at the last look."""
        self._makes_no_room = False
        """Whether room was asked for, and the spool was full, or had nothing to take."""
        self._waits_until: float | None = None
        """Until when publishers wait at most; None while it makes no room."""
        self._topics: dict[Spoolable, None] = {}
        """Those with something on the spool."""
        self._full = LogThrottle.of_problem(log, "no more messages are spooled for slow subscribers")
        self._defects = LogThrottle.of_problem(log, "a defect of the server")

    # -- for tails and publishers: see omq.drivers.tail.Relief ---------------------------------------------

    def ask(self) -> None:
        self.asked_from = inf
        if self._waits_until is None:
            self._waits_until = trio.current_time() + self._seconds
        self._signal.set()

    def must_wait(self, octets: int, *, is_behind: bool, again: bool) -> bool:
        used = self._tails.used
        if used + octets <= self._most_used or (self._makes_no_room and not is_behind):
            return False
        if used and used + octets > self._tails.limit and not again:
            self._wanted = max(self._wanted, octets)
            self.ask()
        return self._waits_until is not None and trio.current_time() < self._waits_until

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make room when that is asked for, until cancelled."""
        self._tails.relief = self
        try:
            while True:
                is_idle = not self._topics and self.asked_from == self._most_used
                with trio.move_on_after(inf if is_idle else LOOK_SECONDS):
                    await self._signal.wait()
                await self._forget()
                if self._waits_until is None:
                    self.asked_from = self._most_used
                else:
                    await self._make_room()
        finally:
            self._spool.close()

    async def _make_room(self) -> None:
        self._has_none = False
        try:
            await self._spool_until_there_is_room()
        except Exception:  # noqa: BLE001 - a defect, which the log shows; the server continues
            self._defects.add(traceback.format_exc())
        # With nothing to spool, look again only when the use has grown, or after a while.
        used = inf if self._has_none else self._tails.used
        self.asked_from = max(self._most_used, used + self._tails.limit // 16)
        self._wanted = 0
        self._makes_no_room = False
        self._waits_until = None
        self._entrances.look()

    async def _spool_until_there_is_room(self) -> None:
        """Spool until there is room again, or there is nothing to spool."""
        self._makes_no_room = False
        while self._excess() > 0:
            is_full = False
            runs = await self._find()
            if not runs and self._leaving() < self._tails.limit // 8:
                return
            try:
                if runs:
                    await self._write(runs)
                else:
                    self._makes_no_room = True  # but connections do
            except SpoolFull as full:
                self._full.add(full)
                is_full = self._makes_no_room = True
                if not any(topic.is_waited_for(self._watch) for topic in runs):
                    self._waits_until = -inf
            if self._makes_no_room:
                await trio.sleep(LOOK_SECONDS if runs else BACKLOG_SECONDS)
                await self._forget(is_full=is_full)
            else:
                self._waits_until = trio.current_time() + self._seconds
            self._entrances.look()

    def _excess(self) -> int:
        """Return how many octets should leave the memory; 0 or less when there is room."""
        tails = self._tails
        return tails.used - max(0, min(3 * tails.limit // 8, tails.limit - self._wanted))

    def _leaving(self) -> int:
        """Return how many octets are in backlogs of connections that have taken something since the last
        look. Drop the backlogs of those that have taken nothing for too long.
        """
        octets = 0
        for each in self._tails.holders():
            if not isinstance(each, Backlog):
                continue
            if not self._watch.moves(each):
                each.forget(each.octets, 0)
            elif self._begins.get(each) != each.begin:
                self._begins[each] = each.begin
                octets += each.octets
        return octets

    async def _find(self) -> dict[Spoolable, Spooling]:
        """Return what may be spooled: about MOST_WRITTEN octets, of the larger tails if they have any."""
        tails, slices = self._tails, Slices()
        spoolable = [each for each in tails.holders() if isinstance(each, Tail) and each.topic is not None]
        self._has_none = not spoolable
        least = tails.used // (2 * len(spoolable) or 1)
        runs: dict[Spoolable, Spooling] = {}
        octets = min(MOST_WRITTEN, tails.limit // 16)
        for size in (range(least, sys.maxsize), range(least)):
            for tail in spoolable:
                await slices.step()
                topic = None if tail.topic is None else tail.topic()
                if octets > 0 and tail.octets in size and topic is not None:
                    blocks = topic.to_spool(octets, self._excess(), self._watch)
                    if blocks:
                        runs[topic] = Spooling(blocks, self._joined(topic))
                        octets -= sum(block.held for block in blocks)
            if runs:
                break
        return runs

    def _joined(self, topic: Spoolable) -> SpoolExtent | None:
        """Return the extent that is to be written again together with the following blocks."""
        last = topic.last_spooled() if self._spool.has_many_extents else None
        return None if last is None or last.octets > MOST_JOINED else last

    async def _write(self, runs: Mapping[Spoolable, Spooling]) -> None:
        """Move these blocks to the spool. Raises SpoolFull."""
        written = await self._spool.write(list(runs.values()))
        for (topic, run), extents in zip(runs.items(), written, strict=True):
            if topic.spooled(extents, run.before):
                self._topics[topic] = None
            else:
                self._spool.drop(extents)

    async def _forget(self, *, is_full: bool = False) -> None:
        """Drop what nobody needs on the spool."""
        slices = Slices()
        for topic in list(self._topics):
            await slices.step()
            if not topic.forget_spooled(self._watch, is_full=is_full):
                del self._topics[topic]
        if not self._topics:
            await self._spool.shorten()
