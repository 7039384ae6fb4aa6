"""The order of the consumers of a queue: by priority, or a single active one."""

from collections.abc import Sequence

from omq.drivers.round_robin_channel import RoundRobinChannel


class Consumers:
    """The priorities and the single active consumer of a queue. Other consumers use no memory here."""

    __slots__ = ("_active", "_in_line", "_priorities", "_sharing", "_single")

    def __init__(self, *, single_active: bool) -> None:
        """Create an empty set of consumers. With `single_active`, one of them gets all messages until it has
        gone.
        """
        self._single = single_active
        self._in_line: dict[RoundRobinChannel, None] = {}
        """The consumers in the order of their arrival; empty without `single_active`."""
        self._active: RoundRobinChannel | None = None
        self._priorities: dict[RoundRobinChannel, int] = {}
        """The priorities other than 0."""
        self._sharing: set[RoundRobinChannel] = set()

    @property
    def is_plain(self) -> bool:
        """Whether all consumers take turns."""
        return not (self._single or self._priorities or self._sharing)

    @property
    def share_only(self) -> bool:
        """Whether some consumers share a window, and nothing else distinguishes consumers."""
        return bool(self._sharing) and not (self._single or self._priorities)

    def add(self, channel: RoundRobinChannel, priority: int) -> None:
        """Add a consumer."""
        if priority:
            self._priorities[channel] = priority
        if self._single:
            self._in_line[channel] = None
            self._active = self._active or channel

    def shares(self, channel: RoundRobinChannel) -> None:
        """Note whether a channel has a window together with others."""
        if channel.is_sharing:
            self._sharing.add(channel)
        else:
            self._sharing.discard(channel)

    def remove(self, channel: RoundRobinChannel) -> bool:
        """Remove a consumer. Return whether another one is active now."""
        self._in_line.pop(channel, None)
        self._sharing.discard(channel)
        is_next = False
        if self._active is channel:
            # The first one of the highest priority.
            self._active = max(self._in_line, key=self._priority, default=None)
            is_next = self._active is not None
        self._priorities.pop(channel, None)
        return is_next

    def _priority(self, channel: RoundRobinChannel) -> int:
        return self._priorities.get(channel, 0)

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """Return whether this consumer may get messages now, if it has room and others have none."""
        return not self._single or channel is self._active

    def preferred(self, channels: Sequence[RoundRobinChannel]) -> list[RoundRobinChannel]:
        """Return those of the channels with room that get the next messages."""
        if self._single:
            return [channel for channel in channels if channel is self._active]
        highest = max(map(self._priority, channels), default=0)
        best = [channel for channel in channels if self._priority(channel) == highest]
        # A message for one of them changes the room of those that share a window with it.
        return best[:1] if not self._sharing.isdisjoint(best) else best
