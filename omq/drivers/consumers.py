"""The consumers of a queue with a single active consumer."""

from bisect import insort
from collections import OrderedDict

from omq.drivers.round_robin_channel import RoundRobinChannel


class Consumers:
    """The order in which consumers become the active one, which gets all messages until it has gone. A queue
    without a single active consumer notes nothing here.
    """

    __slots__ = ("_levels", "_order", "_priorities", "active", "is_single")

    def __init__(self, *, single_active: bool) -> None:
        """Create an empty set of consumers. With `single_active`, one of them gets all messages."""
        self.is_single = single_active
        """Whether there is a single active consumer."""
        self.active: RoundRobinChannel | None = None
        """The single active consumer."""
        self._priorities: dict[RoundRobinChannel, int] = {}
        self._levels: dict[int, OrderedDict[RoundRobinChannel, None]] = {}
        """The consumers of each priority in the order of their arrival."""
        self._order: list[int] = []  # these priorities, the highest last

    def add(self, channel: RoundRobinChannel, priority: int) -> None:
        """Add a consumer."""
        if not self.is_single:
            return
        self._priorities[channel] = priority
        if priority not in self._levels:
            self._levels[priority] = OrderedDict()
            insort(self._order, priority)
        self._levels[priority][channel] = None
        self.active = self.active or channel

    def remove(self, channel: RoundRobinChannel) -> bool:
        """Remove a consumer. Return whether another one is active now."""
        priority = self._priorities.pop(channel, None)
        if priority is None:
            return False
        del self._levels[priority][channel]
        if not self._levels[priority]:
            del self._levels[priority]
            self._order.remove(priority)
        if self.active is not channel:
            return False
        # The first one of the highest priority.
        self.active = next(iter(self._levels[self._order[-1]])) if self._order else None
        return self.active is not None

    def may_have(self, channel: RoundRobinChannel) -> bool:
        """Return whether this consumer may get messages now, if it has room and others have none."""
        return not self.is_single or channel is self.active
