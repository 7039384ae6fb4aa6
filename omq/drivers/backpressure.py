"""Backpressure in a transient broadcast topic: its publishers wait for its fastest subscriber.

A publisher has no room while even the fastest subscriber is far behind. So the fastest subscriber sets the
pace and loses nothing, and slower subscribers do not delay the publishers.

A stalled subscriber does not set the pace. A subscriber counts as stalled when its connection accepts nothing
for `stall_seconds`, and not when its position in one topic stays the same: a client that reads as fast as it
can may still have to read the messages of other topics first. A stalled connection is stalled in all its
topics at once, until it accepts octets again.

Publishers are admitted one at a time, each when the messages of the one before it are counted.

There may be thousands of subscribers. Then an errand looks for the fastest one, some in each step, and the
publishers wait until it is found.
"""

import weakref
from collections.abc import Collection, Iterator
from itertools import islice
from math import inf

import trio

from omq.drivers.broadcast_channel import BroadcastChannel, CursorDriver
from omq.drivers.slices import let_go

MOST_LOOKED = 128
"""The greatest number of subscribers whose progress is checked in one step."""

LOOK_SECONDS = 0.004
"""The number of seconds between two such steps."""


class Backpressure:
    """Detects when the publishers of one topic must wait, and which of its subscribers are stalled."""

    def __init__(self, driver: CursorDriver, channels: Collection[BroadcastChannel]) -> None:
        """Create the backpressure of a topic whose open channels are `channels`."""
        self._topic = weakref.ref(driver)
        self._channels = channels
        self.is_watching = False
        """Whether an alarm is set, because publishers wait, or did a moment ago."""
        # While it is: the position of each channel, and the time since which the channel has it.
        self._watched: dict[BroadcastChannel, tuple[int, float]] = {}
        self._since = 0.0
        """The time since which publishers wait: before that, no subscriber counts as stalled."""
        self._unlooked: list[BroadcastChannel] = []
        """The channels whose progress is not checked yet in the current round of checks."""
        self._earliest = inf
        """The earliest of the times of the others, without the stalled ones."""
        self._lead: tuple[BroadcastChannel, int] | None = None
        """The fastest subscriber that is not stalled, and its position at its last move. While publishers
        wait, none is further unless it has moved since.
        """
        self._is_searching = False
        """Whether an errand looks for the fastest subscriber. `_lead` is the fastest one so far then."""
        self._is_any_moving = True
        """Whether the last search found a subscriber that is not stalled. It is true while none has ended."""

    @property
    def _driver(self) -> CursorDriver:
        driver = self._topic()
        assert driver is not None, "its alarm alone may outlive the topic"
        return driver

    def is_due(self) -> bool:
        """Return whether the fastest subscriber is too far behind.

        That is more than a share of the memory of all tails, or anything at all while a quarter of it
        is used. So all topics together never push out what subscribers that move still need: besides the
        quarter there is at most one post of a share for each. Nor may the fastest have to read the spool,
        except for one long message.
        """
        driver = self._driver
        tails = driver.resources.memory.tails
        most = 0 if tails.unstored > tails.limit // 4 else tails.share()
        if driver.tail.octets <= most and not driver.has_spooled:
            return False
        if self._is_searching:
            return True
        if not self._is_any_moving:
            return False
        lead = self._valid_lead()
        if lead is not None:
            # This is asked at each move of each of thousands of subscribers, while publishers wait.
            is_behind = self._is_behind(lead, most)
            if self.is_watching or not is_behind:
                return is_behind
        if len(self._channels) > MOST_LOOKED:
            self._begin_search()
            return True
        fastest = self._find_lead()
        return fastest is not None and self._is_behind(fastest, most)

    def _is_behind(self, position: int, most: int) -> bool:
        driver = self._driver
        if driver.is_spooled(position) or driver.has_long_from(position):
            return True
        return driver.tail.octets_after(position, most + 1) > most

    def _valid_lead(self) -> int | None:
        """Return the position of the fastest subscriber, if it is known without asking the others."""
        if self._lead is None:
            return None
        channel, noted = self._lead
        position = channel.position
        return None if position < noted or channel.is_stalled() else position

    def _find_lead(self) -> int | None:
        """Find the fastest subscriber. Return its position; None if all are stalled."""
        moving = (channel for channel in self._channels if not channel.is_stalled())
        lead = max(moving, key=_position, default=None)
        self._lead = None if lead is None else (lead, lead.position)
        return None if lead is None else lead.position

    def _begin_search(self) -> None:
        """Find the fastest subscriber soon, and look then who may publish."""
        self._is_searching = True
        self._lead = None
        self._driver.resources.errands.begin(self._search())

    def _search(self) -> Iterator[None]:
        """Do as `_find_lead`, in steps. Those that move meanwhile are noted when they move."""
        try:
            others = let_go(list(self._channels))
            while some := list(islice(others, MOST_LOOKED)):
                for channel in some:
                    if channel in self._channels and not channel.is_stalled():
                        self._follow(channel)
                some.clear()
                yield
        finally:
            self._is_searching = False
        if self._topic() is None:
            return
        self._is_any_moving = self._valid_lead() is not None
        try:
            self._driver.publisher_queue.look()
        finally:
            self._is_any_moving = True

    def _follow(self, channel: BroadcastChannel) -> None:
        """Note that this channel is the fastest one, if it is faster than the one that was noted."""
        position = channel.position
        if self._lead is None or position > self._lead[0].position:
            self._lead = channel, position

    def advanced(self, channel: BroadcastChannel) -> None:
        """Note that a channel may be the fastest one now."""
        if self._is_searching:
            self._follow(channel)
        elif self._lead is not None:
            lead, _ = self._lead
            position = channel.position
            if channel is lead or position > lead.position:
                self._lead = channel, position

    def left(self, channel: BroadcastChannel) -> None:
        """Note that a channel is closed, or takes no messages any more."""
        self._watched.pop(channel, None)
        if self._lead is not None and self._lead[0] is channel:
            self._lead = None

    def moved(self, channel: BroadcastChannel) -> None:
        """Record the progress of a channel that has moved."""
        self._watched[channel] = (channel.progress(), trio.current_time())
        self.advanced(channel)

    def watch(self) -> None:
        """Record the progress of the subscribers from now on, until no publisher waits any more."""
        self._since = now = trio.current_time()
        if not self.is_watching:  # otherwise it is recorded already
            self._watched = {}
            recording = self._record()
            if len(self._channels) > MOST_LOOKED:
                self._driver.resources.errands.begin(recording)
            else:
                list(recording)
            if not self._is_searching:
                self._lead = None
            self._look_at(now + self._driver.resources.stall_seconds)

    def _record(self) -> Iterator[None]:
        """Record the progress of the subscribers, some in each step, except of those that have moved."""
        watched, others = self._watched, let_go(list(self._channels))
        while watched is self._watched and (some := list(islice(others, MOST_LOOKED))):
            now = trio.current_time()
            for channel in some:
                if channel in self._channels and channel not in watched:
                    watched[channel] = channel.progress(), now
            some.clear()
            yield

    def _look_at(self, time: float) -> None:
        """Check the progress at this time."""
        self.is_watching = True
        self._driver.resources.alarms.at(time, self._look_who_moves)

    def _look_who_moves(self) -> None:
        """Mark the stalled subscribers, some in each step. Then admit publishers that waited for them."""
        self.is_watching = False
        if self._topic() is None:
            return
        driver = self._driver
        if not driver.publisher_queue.is_wanted:
            self._watched = {}
            self._unlooked.clear()
            self._lead = None
            return
        now = trio.current_time()
        if not self._unlooked:
            self._unlooked = list(self._channels)
            self._earliest = inf
        some = self._unlooked[-MOST_LOOKED:]
        del self._unlooked[-MOST_LOOKED:]
        for channel in some:
            if channel in self._channels:
                self._look(channel, now)
        if self._unlooked:
            self._look_at(now + LOOK_SECONDS)
            return
        self.is_watching = True
        driver.publisher_queue.look()
        # The time at which the first subscriber must have made some progress.
        self._look_at(min(self._earliest, now) + driver.resources.stall_seconds)

    def _look(self, channel: BroadcastChannel, now: float) -> None:
        """Check the progress of a channel."""
        stall_seconds = self._driver.resources.stall_seconds
        progress = channel.progress()
        before, since = self._watched.get(channel, (None, now))
        since = max(since, self._since)
        if progress != before or channel.position >= self._driver.next_id:
            since = now  # one that has everything cannot move
        elif now >= since + stall_seconds:
            channel.mark_stalled()
        self._watched[channel] = progress, since
        if not channel.is_stalled():
            self._earliest = min(self._earliest, since)


def _position(channel: BroadcastChannel) -> int:
    return channel.position
