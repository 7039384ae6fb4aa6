"""The connections that have their terminals."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Protocol

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
        """Run the connection, and return when it has ended for any reason."""

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


class ConnectionRegistry:
    """The connections after their handshake."""

    def __init__(self) -> None:
        # With their ids, the oldest first.
        self._terminals: dict[Terminal, int] = {}
        self._next_id = 1
        self.served: Counter[Kind] = Counter()
        """The number of connections there are now, of each kind."""
        self.ended: defaultdict[Kind, EndedConnections] = defaultdict(EndedConnections)
        """The sums of the connections that have ended."""
        self._ends = LogThrottle.of_connections("connections ended")
        self.is_stopping = False

    def numbered(self) -> list[tuple[Terminal, int]]:
        """Return the connections with their ids, the oldest first."""
        return list(self._terminals.items())

    def terminals(self) -> list[Terminal]:
        """Return the connections, the oldest first."""
        return list(self._terminals)

    async def serve(self, kind: Kind, terminal: Terminal) -> None:
        """Serve a connection from its handshake to its end."""
        self._terminals[terminal] = self._next_id
        self._next_id += 1
        self.served[kind] += 1
        peer = terminal.statistics().peer
        try:
            if self.is_stopping:
                return
            await terminal.serve()
        finally:
            del self._terminals[terminal]
            self.served[kind] -= 1
            found = terminal.statistics()
            self.ended[found.kind] = self.ended[found.kind].plus(EndedConnections.one(found))
            if found.client is not None:  # strangers cannot fill the log
                self._tell_end(found, found.client, peer)

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
        for terminal in let_go(self.terminals()):
            if terminal in self._terminals:  # it may have ended meanwhile
                terminal.shut_down()
            yield
