"""The nodes without queues, as one connection may use them.

A producer needs the right to publish to the name of a node, a consumer the right to subscribe to it. A node
whose name the server made needs none: the name cannot be guessed, and a client that knows it may send.
Only the connection for which it was made consumes it.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeVar

from omq.access.rights import Right
from omq.access.session import Release, Session, TooLarge
from omq.drivers.direct import DirectNode, DirectTotals, NodeProducer
from omq.drivers.direct_channel import DirectChannel, NodeConsumer, TellOutcome
from omq.drivers.direct_memory import DirectMemory
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import RELEASED
from omq.drivers.slices import Slices, in_slices, let_go
from omq.drivers.statistics import NodeStatistics
from omq_storage.batches import Batch

C = TypeVar("C", bound=NodeConsumer)

DYNAMIC = b"amqp:/_omq/temp."
"""The beginning of the names that the server makes."""

NAME_OCTETS = 24
"""The random octets of a name: 32 characters in base64."""


class Nodes:
    """The nodes of a server."""

    def __init__(
        self,
        memory: DirectMemory,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        begin: Callable[[Iterator[None]], None],
    ) -> None:
        """Create an empty set of nodes. `memory` counts the messages that they hold, `start` starts a task,
        and `begin` does long work soon, in steps.
        """
        self._memory = memory
        self._start = start
        self._begin = begin
        self._nodes: dict[bytes, DirectNode] = {}
        self._is_stopping = False
        self.totals = DirectTotals()
        self.outcomes = memory.outcomes

    def __len__(self) -> int:
        return len(self._nodes)

    def statistics(self) -> list[NodeStatistics]:
        """Return a snapshot of each node."""
        return [node.statistics() for node in self._nodes.values()]

    def named(self) -> Iterator[NodeStatistics]:
        """Yield a snapshot of each node whose name the server has not made, the oldest first."""
        for name, node in list(self._nodes.items()):
            if not name.startswith(DYNAMIC):
                yield node.statistics()

    def get(self, name: bytes) -> DirectNode | None:
        """Return the node of this name, if there is one."""
        return self._nodes.get(name)

    def find(self, name: bytes) -> DirectNode:
        """Return the node of this name; make it if there is none. Raises Refused."""
        node = self._nodes.get(name)
        if node is not None:
            return node
        if name.startswith(DYNAMIC):
            raise Refused(Reason.NOT_FOUND, "there is no such node")
        return self._make(name)

    def make(self) -> DirectNode:
        """Make a node with a name of its own."""
        return self._make(DYNAMIC + secrets.token_urlsafe(NAME_OCTETS).encode())

    def stop(self) -> Iterator[None]:
        """Finish the messages of all nodes, in steps, because the server stops (`DirectNode.stop`)."""
        self._is_stopping = True
        for node in let_go(list(self._nodes.values())):
            yield from node.stop()

    def end(self, node: DirectNode) -> None:
        """End a node: as much of it as a slice allows at once, and the rest in a task."""
        steps = node.end()
        slices = Slices()
        for _ in steps:
            if slices.is_over:
                self._start(partial(in_slices, steps))
                return

    def _make(self, name: bytes) -> DirectNode:
        node = self._nodes[name] = DirectNode(name, self._memory, self.totals, self._begin, self._forget)
        if self._is_stopping:
            for _ in node.stop():
                pass  # it has no consumers yet, and gives them nothing
        return node

    def _forget(self, node: DirectNode) -> None:
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]


class Direct:
    """The nodes, for the client of a session."""

    def __init__(self, session: Session, nodes: Nodes) -> None:
        self._session = session
        self._nodes = nodes
        self.totals = nodes.totals
        self.outcomes = nodes.outcomes
        """The memory of long outcomes that producers were not told yet."""
        self._own = session.made_names

    def check(self, name: bytes) -> None:
        """Raise Refused when the client may not send to the node of this name."""
        if not name.startswith(DYNAMIC):
            self._session.check(Right.PUBLISH, name)

    def produce(self, name: bytes, producer: NodeProducer) -> DirectNode:
        """Attach a producer to the node of this name. Raises Refused."""
        self.check(name)
        node = self._nodes.find(name)
        node.attach(producer)
        return node

    def make(self, producer: NodeProducer) -> DirectNode:
        """Attach a producer to a new node with a name of its own. The caller ends the node (`end`)."""
        node = self._nodes.make()
        self._own[node.name] = None
        node.attach(producer)
        return node

    def end(self, node: DirectNode) -> None:
        """End a node with a name of its own: the link for which it was made is gone. Where thousands of links
        are attached to it, some of them end later.
        """
        self._own.pop(node.name, None)
        self._nodes.end(node)

    def offer(self, node: DirectNode, one: Batch, head: bytes, done: TellOutcome, *, settled: bool) -> None:
        """Send the message of a batch to a node to which a producer is attached, as `DirectNode.offer`.
        Raises TooLarge, and Refused: the rights may have changed since the producer was attached.
        """
        self._check_offer(node.name, one)
        node.offer(one, head, done, settled=settled)

    def relay(self, name: bytes, one: Batch, head: bytes, done: TellOutcome, *, settled: bool) -> None:
        """Send the message of a batch to the node of this name, as `DirectNode.offer`. Without a node it is
        released.

        Raises TooLarge, and Refused.
        """
        self._check_offer(name, one)
        node = self._nodes.get(name)
        if node is not None:
            node.offer(one, head, done, settled=settled)
        elif name.startswith(DYNAMIC):
            raise Refused(Reason.NOT_FOUND, "there is no such node")
        else:
            self._nodes.totals.undelivered += 1
            done(RELEASED, b"")

    def _check_offer(self, name: bytes, one: Batch) -> None:
        self.check(name)
        if one.longest > self._session.max_message_bytes:
            raise TooLarge(self._session.max_message_bytes, one.longest)

    def consume(
        self, name: bytes | None, make: Callable[[DirectNode, Release], C]
    ) -> tuple[C, DirectNode, DirectChannel]:
        """Attach a consumer to the node of this name, or to a new one with a name of its own. The caller ends
        that one (`end`). `make` returns the subscriber, as for `Session.open`. Raises Refused.
        """
        if name is not None and name not in self._own:
            if name.startswith(DYNAMIC):  # only its owner gets what is sent to it
                raise Refused(Reason.NOT_FOUND, "there is no such node")
            self._session.check(Right.SUBSCRIBE, name)
        release = self._session.hold_subscription()
        try:
            node = self._nodes.make() if name is None else self._nodes.find(name)
        except Refused:
            release()
            raise
        if name is None:
            self._own[node.name] = None
        subscriber = make(node, release)
        return subscriber, node, node.open(subscriber)
