"""A feed: a private channel that is opened before a connection receives it.

See docs/PROTOCOL.md, "Feeds".

It is opened when its lease is granted, so that nothing after the Get is missed. Until the lease is used
nobody takes from it: a broadcast topic keeps its place, and a round-robin topic deals to others meanwhile.
"""

from collections.abc import Callable

from omq.drivers.seam import Channel, EndReason
from omq.model import Topic


class LeasedFeed:
    """A subscriber (see omq.drivers.seam.Subscriber) that waits for its connection."""

    __slots__ = ("_channel", "_closed", "_ended", "_is_paused", "_wake", "needs_right", "topic")

    direct = None

    def __init__(self, topic: Topic, closed: Callable[[], None], *, needs_right: bool = True) -> None:
        """Create a feed that no connection uses. `closed` is called once, when no connection will take from
        it any more.
        """
        self.topic = topic
        self.needs_right = needs_right
        """Whether its client needs the right to subscribe to the topic, when it uses the lease, too. The
        client needs none for a queue whose name the server made for it.
        """
        self._closed: Callable[[], None] | None = closed
        self._channel: Channel | None = None
        self._wake: Callable[[], None] | None = None
        self._ended = False
        self._is_paused = False

    @property
    def is_paused(self) -> bool:
        """Whether it takes no messages, with a connection or without."""
        return self._is_paused

    @property
    def is_over(self) -> bool:
        """Whether it gets no message any more: it was closed, or its topic was deleted."""
        return self._channel is None

    @property
    def has_ended(self) -> bool:
        """Whether its topic was deleted."""
        return self._ended

    def start(self, wake: Callable[[], None]) -> None:
        """Attach a connection: `wake` is called when there are messages to take, or the feed has ended."""
        self._wake = wake
        if self._channel is not None and not self._is_paused:
            self._channel.release()
        wake()

    def pause(self) -> None:
        """Take no messages until `resume`, also while there is a connection."""
        self._is_paused = True
        if self._channel is not None:
            self._channel.hold()

    def resume(self) -> None:
        """Take messages, as soon as there is a connection."""
        self._is_paused = False
        if self._channel is not None and self._wake is not None:
            self._channel.release()
        self.wake()

    def close(self) -> None:
        """End the feed: no connection takes from it any more."""
        self._wake = None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        closed, self._closed = self._closed, None
        if closed is not None:
            closed()

    @property
    def channel(self) -> Channel:
        """The channel, as long as the feed has not ended."""
        assert self._channel is not None, "the feed is over"
        return self._channel

    # -- the driver's side ---------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._wake is not None:
            self._wake()

    def replaced(self, channel: Channel) -> None:
        self._channel = channel
        if self._wake is None or self._is_paused:
            channel.hold()
        self.wake()

    def ended(self, end: EndReason) -> None:
        self._ended = True
        self._channel = None
        self.wake()
