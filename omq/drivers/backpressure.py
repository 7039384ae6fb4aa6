"""Backpressure in a transient broadcast topic: its publishers wait for its fastest subscriber.

A publisher has no room while even the fastest subscriber is far behind. So a subscriber that keeps up with
the others loses nothing, and one that is slower than they are slows nobody: the fastest sets the pace.

A stalled subscriber sets none. That is a property of its connection, not of its place in this topic: a
client that reads as fast as it can has not got to this topic yet when it has much of others to read. So a
subscriber is stalled when its connection takes nothing at all for `stall_seconds`. Then it is stalled in all
topics, which need not find out one by one, and until the connection takes something again.

Publishers are admitted one at a time, each when what the one before it handed over is counted too.
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
        # While it is: how far each channel was, and since when.
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
        quarter there is at most one post of a share for each. Nor may the fastest have to read the spool.
        """
        driver = self._driver
        tails = driver.resources.memory.tails
        most = 0 if tails.used > tails.limit // 4 else tails.share()
        if driver.tail.octets <= most and not driver.has_spooled:
            return False
        fastest = max((each.position for each in self._channels if not each.is_stalled()), default=None)
        if fastest is None:
            return False
        return driver.is_spooled(fastest) or driver.tail.octets_after(fastest, most + 1) > most

    def moved(self, channel: BroadcastChannel) -> None:
        """Record the progress of a channel that has moved."""
        self._watched[channel] = (channel.progress(), trio.current_time())

    def watch(self) -> None:
        """Watch who moves, from now on until no publisher waits any more."""
        now = trio.current_time()
        self._watched = {channel: (channel.progress(), now) for channel in self._channels}
        if not self.is_watching:
            self._look_later(now)

    def _look_later(self, now: float) -> None:
        """See who moves, when the first subscriber must have moved."""
        since = [since for channel, (_, since) in self._watched.items() if not channel.is_stalled()]
        self.is_watching = True
        resources = self._driver.resources
        resources.alarms.at(min(since, default=now) + resources.stall_seconds, self._look_who_moves)

    def _look_who_moves(self) -> None:
        """Let publishers go on that wait for stalled subscribers."""
        watched, self._watched = self._watched, {}
        self.is_watching = False
        if self._topic() is None:
            return
        entrance = self._driver.entrance
        if not entrance.is_wanted:
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
        entrance.look()
        self._look_later(now)
