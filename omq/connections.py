"""The connections that have their terminals."""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Hashable, Iterator
from typing import Protocol

import trio
from msgspec import Struct

from omq.access.session import Session
from omq.counted import counted
from omq.drivers.seam import Channel
from omq.drivers.slices import let_go
from omq.logs import LogThrottle, quoted
from omq.model import Topic
from omq.printable import printable
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    EndedConnections,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import BY_CLIENT


class Terminal(Protocol):
    """The interface of a connection after its handshake, for the server."""

    async def serve(self) -> None:
        """Run the connection in the nursery of its arrival. Return when nothing more is read or sent; other
        tasks of the connection may last longer.
        """

    async def close(self) -> None:
        """Give back everything, also after a failure: the tasks of the connection have ended."""

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of the connection."""

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return snapshots of its subscriptions."""

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the subscriptions that it has now: there may be thousands."""

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""

    def sweep(self, now: float) -> None:
        """Close connections that have taken too long; called about every second."""

    @property
    def session(self) -> Session | None:
        """The session of the client; None while the client is not known."""

    def shut_down(self) -> None:
        """End the connection in order, within a short time."""

    def disconnect(self, why: str) -> None:
        """Do as `shut_down`, and tell the client this sentence as far as the protocol can."""


class _Served(Struct, frozen=True):
    """A connection that is served, by this terminal."""

    terminal: Terminal
    id: int
    kind: Kind
    """The kind that it began with: a DMP connection has another one when it has shown its lease."""
    peer: str
    """The address of its client, which nobody can ask for when it has gone."""


class ConnectionRegistry:
    """The connections after their handshake."""

    def __init__(self) -> None:
        # The oldest first.
        self._served: dict[Hashable, _Served] = {}
        self._next_id = 1
        self.served: Counter[Kind] = Counter()
        """The number of connections there are now, of each kind."""
        self.ended: defaultdict[Kind, EndedConnections] = defaultdict(EndedConnections)
        """The sums of the connections that have ended."""
        self._ends = LogThrottle.of_connections("connections ended")
        self.is_stopping = False

    def numbered(self) -> list[tuple[Terminal, int]]:
        """Return the connections with their ids, the oldest first."""
        return [(each.terminal, each.id) for each in self._served.values()]

    def terminals(self) -> list[Terminal]:
        """Return the connections, the oldest first."""
        return [each.terminal for each in self._served.values()]

    def begin(self, connection: Hashable, kind: Kind, terminal: Terminal) -> Awaitable[object]:
        """Count a connection from its handshake on, and return what serves it, to be awaited at once. Always
        await `end` with the same `connection` when its tasks have ended.

        A coroutine that awaits it here would take 260 octets for each connection that is idle.
        """
        self._served[connection] = _Served(terminal, self._next_id, kind, terminal.statistics().peer)
        self._next_id += 1
        self.served[kind] += 1
        if self.is_stopping:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - the caller awaits it
        return terminal.serve()

    async def end(self, connection: Hashable) -> None:
        """Close a connection if it was begun, and count its end."""
        served = self._served.get(connection)
        if served is None:
            return
        try:
            await served.terminal.close()
        finally:
            del self._served[connection]
            self.served[served.kind] -= 1
            self._count_end(served)

    def _count_end(self, served: _Served) -> None:
        found = served.terminal.statistics()
        self.ended[found.kind] = self.ended[found.kind].plus(EndedConnections.one(found))
        if found.client is not None:  # strangers cannot fill the log
            self._tell_end(found, found.client, served.peer)

    def _tell_end(self, seen: ConnectionStatistics, client: bytes, peer: str) -> None:
        """Log the end of a connection."""
        line = (
            f"{peer}: {quoted(client)} ({seen.kind.value}) disconnected after {seen.seconds:.1f} s: "
            f"{printable(seen.ending or BY_CLIENT)}; "
            f"{counted(seen.messages_in, 'message')} and {counted(seen.octets_in, 'octet')} in, "
            f"{counted(seen.messages_out, 'message')} and {counted(seen.octets_out, 'octet')} out"
        )
        self._ends.add(line, peer=peer, client=client)

    def stop(self) -> Iterator[None]:
        """End every connection after its outstanding answers, in steps."""
        self.is_stopping = True
        for connection, served in let_go(list(self._served.items())):
            if self._served.get(connection) is served:  # it may have ended meanwhile
                served.terminal.shut_down()
            yield
