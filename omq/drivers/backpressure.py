"""Backpressure in a transient broadcast topic: its publishers wait for its fastest subscriber.

A publisher has no room while even the fastest subscriber is far behind. So the fastest subscriber sets the
pace and loses nothing, and slower subscribers do not delay the publishers.

A stalled subscriber does not set the pace. A subscriber counts as stalled when its connection accepts nothing
for `stall_seconds`, and not when its position in one topic stays the same: a client that reads as fast as it
can may still have to read the messages of other topics first. A stalled connection is stalled in all its
topics at once, until it accepts octets again.

Publishers are admitted one at a time, each when the messages of the one before it are counted.
"""

import weakref
from collections.abc import Iterable

import trio

from omq.drivers.broadcast_channel import BroadcastChannel, CursorDriver


class Backpressure:
    """Detects when the publishers of one topic must wait, and which of its subscribers are stalled."""

    def __init__(self, driver: CursorDriver, channels: Iterable[BroadcastChannel]) -> None:
        """Create the backpressure of a topic whose open channels are `channels`."""
        self._topic = weakref.ref(driver)
        self._channels = channels
        self.is_watching = False
        """Whether an alarm is set, because publishers wait, or did a moment ago."""
        # While it is: the position of each channel, and the time since which the channel has it.
        self._watched: dict[BroadcastChannel, tuple[int, float]] = {}

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
        fastest = max((each.position for each in self._channels if not each.is_stalled()), default=None)
        if fastest is None:
            return False
        if driver.is_spooled(fastest) or driver.has_long_from(fastest):
            return True
        return driver.tail.octets_after(fastest, most + 1) > most

    def moved(self, channel: BroadcastChannel) -> None:
        """Record the progress of a channel that has moved."""
        self._watched[channel] = (channel.progress(), trio.current_time())

    def watch(self) -> None:
        """Record the progress of the subscribers from now on, until no publisher waits any more."""
        now = trio.current_time()
        self._watched = {channel: (channel.progress(), now) for channel in self._channels}
        if not self.is_watching:
            self._look_later(now)

    def _look_later(self, now: float) -> None:
        """Check the progress at the time at which the first subscriber must have made some."""
        since = [since for channel, (_, since) in self._watched.items() if not channel.is_stalled()]
        self.is_watching = True
        resources = self._driver.resources
        resources.alarms.at(min(since, default=now) + resources.stall_seconds, self._look_who_moves)

    def _look_who_moves(self) -> None:
        """Mark the stalled subscribers, and admit publishers that waited for them."""
        watched, self._watched = self._watched, {}
        self.is_watching = False
        if self._topic() is None:
            return
        publisher_queue = self._driver.publisher_queue
        if not publisher_queue.is_wanted:
            return
        now = trio.current_time()
        for channel in self._channels:
            progress = channel.progress()
            before, since = watched.get(channel, (None, now))
            if channel.position >= self._driver.next_id:
                before = None  # it has everything: so it cannot move
            self._watched[channel] = (progress, since if progress == before else now)
            if progress == before and now >= since + self._driver.resources.stall_seconds:
                channel.mark_stalled()
        publisher_queue.look()
        self._look_later(now)
