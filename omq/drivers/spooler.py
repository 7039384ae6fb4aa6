"""Moves blocks from the tails of transient broadcast topics to the spool, when the memory is short.

A block moves to the spool if the fastest subscriber of its topic has received it, and a slower one that still
reads has not. The fastest subscriber sets the pace of the publishers (`omq.drivers.backpressure`), and finds
its messages in memory. Only when they fill the memory, a little in each of very many topics, do they move to
the spool, too. While the spooler writes, the publishers of topics with slower subscribers wait (`must_wait`).
While the spool is full they wait for a limited time; after that the oldest messages are lost.

A subscriber whose connection takes nothing for `spool_seconds` is left behind in all its topics: neither the
memory nor the spool keeps anything for it until it takes something again, and its topics are as fast as
without it. Only the message that it is in the middle of stays while the spool is not full: without its rest
the connection would have to be closed.
"""

import logging
import sys
import traceback
from collections.abc import Mapping
from math import inf
from weakref import WeakKeyDictionary

import trio

from omq.drivers.backlog import Backlog
from omq.drivers.publisher_queue import PublisherQueues
from omq.drivers.slices import Slices
from omq.drivers.spool import Spool, SpoolFull, Spooling
from omq.drivers.spoolable import Spoolable, SpoolExtent, StallWatch
from omq.drivers.tail import Tail, TailMemory
from omq.logs import LogThrottle

LOOK_SECONDS = 0.05
"""Seconds between two searches for messages that the spool can drop, while it contains any."""

BACKLOG_SECONDS = 0.01
"""Seconds between two checks whether connections have sent their backlogs, if nothing can be spooled."""

MOST_WRITTEN = 1 << 20
"""The approximate number of octets that are written at a time."""

MOST_JOINED = 32 << 10
"""The greatest extent that is written again, together with the following one, when there are too many."""

log = logging.getLogger("omq.spool")


class Spooler:
    """Selects the blocks to spool. `run` is its task."""

    def __init__(
        self, tails: TailMemory, publisher_queues: PublisherQueues, spool: Spool, seconds: float
    ) -> None:
        """Create the spooler of these tails. The publishers of the topics in `publisher_queues` wait for it:
        at most N `seconds` after its last progress.
        """
        self._tails = tails
        self._publisher_queues = publisher_queues
        self._spool = spool
        self._seconds = seconds
        self._watch = StallWatch(seconds)
        self._signal = spool.changed
        self._most_used = tails.limit // 2
        """The octets in use up to which nothing is spooled."""
        self.asked_from: float = self._most_used
        self._wanted = 0
        """The largest post that waits."""
        self._has_none = False
        """Whether the last search found no tail that could be spooled."""
        self._begins: WeakKeyDictionary[Backlog, int] = WeakKeyDictionary()
        """The positions at which the backlogs of connections began at the last check."""
        self._is_full = False
        """Whether the spool was full at the last attempt to make room."""
        self._is_leaving = False
        """Whether the last attempt found nothing to spool, but connections that send backlogs make room."""
        self._waits_until: float | None = None
        """The time until which publishers wait at most; None while none needs room."""
        self._full = LogThrottle.of_problem(log, "no more messages are spooled for slow subscribers")
        self._defects = LogThrottle.of_problem(log, "a defect of the server")

    # -- for tails and publishers: see omq.drivers.tail.TailEvictor ------------------------------------------

    def ask(self) -> None:
        self.asked_from = inf
        if self._waits_until is None:
            self._waits_until = trio.current_time() + self._seconds
        self._signal.set()

    def room(self) -> int:
        if self._makes_publishers_wait():
            return self._most_used - self._used
        return self._tails.limit // 16

    def _makes_publishers_wait(self) -> bool:
        return self._waits_until is not None and trio.current_time() < self._waits_until

    def must_wait(self, octets: int, *, is_behind: bool, again: bool) -> bool:
        used = self._used
        fits = used + octets <= self._tails.limit
        if used + octets <= self._most_used:
            return False
        if not is_behind and (self._is_full or (self._is_leaving and fits)):
            return False
        # After a search without success one post is admitted, and the next one when it is counted.
        if used and not fits and not (again and not self._publisher_queues.promised):
            self._wanted = max(self._wanted, octets)
            self.ask()
        return self._makes_publishers_wait()

    @property
    def _used(self) -> int:
        """The octets in use, with those of admitted publishers that have not posted yet."""
        return self._tails.unstored + self._publisher_queues.promised

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Make room whenever tails or publishers need it, until cancelled."""
        self._tails.relief = self
        try:
            while True:
                has_work = self._spool.topics or self._spool.room.waiting
                is_idle = not has_work and self.asked_from == self._most_used
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
        # With nothing to spool, the next search comes when the use has grown, or after some time.
        used = inf if self._has_none else self._tails.unstored
        self.asked_from = max(self._most_used, used + self._tails.limit // 16)
        self._wanted = 0
        self._is_full = self._is_leaving = False
        self._waits_until = None
        self._publisher_queues.look()

    async def _spool_until_there_is_room(self) -> None:
        """Spool until there is room again, or no block can be spooled."""
        self._is_full = self._is_leaving = False
        while self._excess() > 0:
            is_full = False
            runs = await self._find()
            if not runs:
                is_leaving = self._leaving() >= self._tails.limit // 8
                if not is_leaving and not self._publisher_queues.promised:
                    return
                self._is_leaving = self._is_leaving or is_leaving
            try:
                if runs:
                    await self._write(runs)
            except SpoolFull as full:
                self._full.add(full)
                is_full = self._is_full = True
                if not any(topic.is_waited_for(self._watch) for topic in runs):
                    self._waits_until = -inf
            if is_full or not runs:
                await trio.sleep(LOOK_SECONDS if runs else BACKLOG_SECONDS)
                await self._forget(is_full=is_full)
            else:
                self._waits_until = trio.current_time() + self._seconds
            self._publisher_queues.look()

    def _excess(self) -> int:
        """Return the number of octets that should leave the memory; 0 or less when there is room."""
        limit = self._tails.limit
        return self._used - max(0, min(3 * limit // 8, limit - self._wanted))

    def _leaving(self) -> int:
        """Return the number of octets in backlogs of connections that have sent something since the last
        check. Drop the backlogs of those that have sent nothing for too long.
        """
        octets = 0
        for each in self._tails.users():
            if not isinstance(each, Backlog):
                continue
            if not self._watch.moves(each):
                each.forget(each.octets, 0)
            elif self._begins.get(each) != each.begin:
                self._begins[each] = each.begin
                octets += each.octets
        return octets

    async def _find(self) -> dict[Spoolable, Spooling]:
        """Return the blocks that may be spooled: about MOST_WRITTEN octets, of the larger tails if they have
        any. If there is none, and a post waits that does not fit, take what the fastest subscribers need.
        """
        tails, slices = self._tails, Slices()
        spoolable = [each for each in tails.users() if isinstance(each, Tail) and each.topic is not None]
        self._has_none = not spoolable
        least = tails.unstored // (2 * len(spoolable) or 1)
        runs: dict[Spoolable, Spooling] = {}
        octets = min(MOST_WRITTEN, tails.limit // 16)
        self._watch.has_found = False
        larger, smaller = range(least, sys.maxsize), range(least)
        for size, whole in ((larger, False), (smaller, False), (larger, True), (smaller, True)):
            if whole and self._used + self._wanted <= tails.limit:
                break
            for tail in spoolable:
                await slices.step()
                topic = None if tail.topic is None else tail.topic()
                if octets > 0 and tail.octets in size and topic is not None:
                    await topic.leave_behind(self._watch)
                    blocks = topic.to_spool(octets, self._excess(), self._watch, whole=whole)
                    if blocks:
                        runs[topic] = Spooling(blocks, self._joined(topic, blocks[0].first))
                        octets -= sum(block.held for block in blocks)
            if runs:
                break
        if self._watch.has_found:  # in all its topics at once, although there is room again after a few
            await tails.leave_behind(self._watch)
        return runs

    def _joined(self, topic: Spoolable, following: int) -> SpoolExtent | None:
        """Return the extent to write again together with the blocks from the message `following` on."""
        last = topic.last_spooled() if self._spool.has_many_extents else None
        return None if last is None or last.octets > MOST_JOINED or last.next != following else last

    async def _write(self, runs: Mapping[Spoolable, Spooling]) -> None:
        """Move these blocks to the spool. Raises SpoolFull."""
        written = await self._spool.write(list(runs.values()))
        for (topic, run), extents in zip(runs.items(), written, strict=True):
            if topic.spooled(extents, run.before):
                self._spool.topics[topic] = None
            else:
                self._spool.drop(extents)

    async def _forget(self, *, is_full: bool = False) -> None:
        """Drop the messages on the spool that no subscriber needs."""
        slices = Slices()
        topics, room = self._spool.topics, self._spool.room
        is_full = is_full or room.is_wanted
        for topic in list(topics):
            await slices.step()
            if not topic.forget_spooled(self._watch, is_full=is_full):
                del topics[topic]
        room.looked()
        if not topics:
            await self._spool.shorten()
