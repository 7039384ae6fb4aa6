"""The memory of messages that nodes without queues hold.

They are a part of the messages that wait for consumers (`Memory.waiting`), which topics hold, too. The nodes
have no more than half of that together, so that the topics always have the other half.
"""

from typing import Protocol

from omq.drivers.budget import Budget
from omq.drivers.publisher_queue import PublisherQueues


class WaitingNode(Protocol):
    """A node whose producers have no credit because memory is short."""

    def look(self) -> None:
        """Tell the producers that there is room, if there is."""


SHORT_OUTCOME = 64
"""The octets of an outcome that takes no memory but that of its message: most have fewer."""


class DirectMemory:
    """The share of all nodes."""

    def __init__(self, shared: Budget, publisher_queues: PublisherQueues) -> None:
        """Create the memory of direct nodes within `shared`; topics whose publishers wait for it are in
        `publisher_queues`.
        """
        self._shared = shared
        self._publisher_queues = publisher_queues
        self._limit = shared.limit // 2
        self._used = 0
        self._waiting: dict[WaitingNode, None] = {}
        self.outcomes = Budget(shared.limit // 16)
        """The longer outcomes that producers were not told yet."""
        shared.eased = self._look

    @property
    def is_short(self) -> bool:
        """Whether producers get no credit."""
        return self._used > self._limit // 2 or self._shared.used > self._shared.limit // 2

    def wait(self, node: WaitingNode) -> None:
        """Let a node look again when memory is not short any more."""
        self._waiting[node] = None

    def take(self, octets: int) -> bool:
        """Count a message, and return True, if there is memory for it."""
        if (self._used and self._used + octets > self._limit) or not self._shared.try_take(octets):
            return False
        self._used += octets
        return True

    def give(self, octets: int) -> None:
        """Give back the octets of a message that is not held any more."""
        self._used -= octets
        self._shared.give(octets)
        self._publisher_queues.look()
        if self._waiting:
            self._look()

    def _look(self) -> None:
        if self._waiting and not self.is_short:
            waiting, self._waiting = self._waiting, {}
            for node in waiting:
                node.look()
