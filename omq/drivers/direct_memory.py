"""The memory of messages that nodes without queues hold.

They are a part of the messages that wait for consumers (`Memory.waiting`), which topics hold, too. The nodes
have no more than half of that together, so that the topics always have the other half.

A consumer that settles nothing, or topics whose messages nobody takes, may use all of it. So there is a small
reserve for the nodes that hold little: they go on meanwhile.
"""

from typing import Protocol

from omq.drivers.budget import Budget
from omq.drivers.publisher_queue import PublisherQueues

SHORT_OUTCOME = 64
"""The octets of an outcome that takes no memory but that of its message: most have fewer."""


class WaitingNode(Protocol):
    """A node whose producers have less credit, or none, because memory is short."""

    held: int
    """The octets of the messages that it holds. Only the memory counts them."""

    def look(self) -> None:
        """Tell the producers that there is room, if there is."""


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
        """The octets that are taken from `shared`."""
        self._reserve = shared.limit // 16
        """The octets beside `shared`."""
        self._reserved = 0
        """The part of them that is used."""
        self._is_reserve_low = False
        self._waiting: dict[WaitingNode, None] = {}
        self.outcomes = Budget(shared.limit // 16)
        """The longer outcomes that producers were not told yet."""
        shared.eased = self._look

    @property
    def is_short(self) -> bool:
        """Whether producers get less credit."""
        return self._used > self._limit // 2 or self._shared.used > self._shared.limit // 2

    def is_short_for(self, node: WaitingNode) -> bool:
        """Return whether the producers of a node get no credit while memory is short: it holds much, compared
        with what is left of the reserve, or others use half of that.
        """
        return self._is_reserve_low or node.held > (self._reserve - self._reserved) // 8

    def wait(self, node: WaitingNode) -> None:
        """Let a node look again when there may be more memory for it."""
        self._waiting[node] = None

    def take(self, node: WaitingNode, octets: int) -> bool:
        """Count octets that a node holds, and return True, if there is memory for them."""
        if (not self._used or self._used + octets <= self._limit) and self._shared.try_take(octets):
            self._used += octets
        elif node.held + octets <= (self._reserve - self._reserved) // 4:
            self._reserved += octets
            self._is_reserve_low = self._is_reserve_low or self._reserved > self._reserve // 2
        else:
            return False
        node.held += octets
        return True

    def give(self, node: WaitingNode, octets: int) -> None:
        """Give back octets that a node does not hold any more: first to the reserve."""
        node.held -= octets
        if self._reserved:
            reserved = min(octets, self._reserved)
            self._reserved -= reserved
            octets -= reserved
        self._used -= octets
        self._shared.give(octets)
        self._publisher_queues.look()
        if self._is_reserve_low and self._reserved <= self._reserve // 4:
            self._is_reserve_low = False
            self._wake()
        if self._waiting:
            if node in self._waiting and not self.is_short_for(node):
                del self._waiting[node]
                node.look()
            self._look()

    def _look(self) -> None:
        if self._waiting and not self.is_short:
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for node in waiting:
            node.look()
