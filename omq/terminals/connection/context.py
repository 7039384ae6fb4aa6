"""The parts from which a terminal is made: those that all connections share, and its own first octets."""

import logging
from collections.abc import Callable, Iterator
from typing import Self

import trio
from msgspec import Struct

from omq.access.control import AccessControl
from omq.config import Config
from omq.drivers.immediate_sends import ImmediateSends
from omq.drivers.memory import Memory
from omq.drivers.seam import Unavailable
from omq.logs import LogThrottle, quoted
from omq.terminals.connection.endings import EndTurns
from omq.terminals.connection.pace import Pace
from omq.terminals.connection.transport import Transport

log = logging.getLogger("omq.server")


class Context(Struct, frozen=True):
    """The parts that the terminals of all protocols share."""

    access: AccessControl
    """Sessions of clients: the way to the drivers."""
    memory: Memory
    config: Config
    pace: Pace
    """Bounds the octets that all connections send in one round of the scheduler."""
    end_turns: EndTurns
    """The turns of the connections that end."""
    at_once: ImmediateSends
    """The connections that have something to send because another task has read or stored it."""
    begin: Callable[[Iterator[None]], None]
    """Does long work soon that outlives a connection, in steps (`Errands.begin`)."""
    connects: LogThrottle
    """The log of clients that have connected."""
    undelivered_reports: LogThrottle
    """The log of reports whose principal has gone."""
    evictions: LogThrottle
    """The log of connections that were closed because others needed their memory."""
    gaps: LogThrottle
    """The log of messages that AMQP consumers miss."""

    @classmethod
    def of(
        cls,
        config: Config,
        access: AccessControl,
        memory: Memory,
        at_once: ImmediateSends,
        begin: Callable[[Iterator[None]], None],
    ) -> Self:
        """Create the context of a server."""
        return cls(
            access,
            memory,
            config,
            Pace(),
            EndTurns(),
            at_once,
            begin,
            connects=LogThrottle.of_connections("clients connected"),
            undelivered_reports=LogThrottle(
                log, logging.INFO, "reports about sinks and feeds found no principal connection"
            ),
            gaps=LogThrottle(log, logging.WARNING, "consumers missed messages"),
            evictions=LogThrottle(
                log, logging.INFO, "connections were closed because others needed their memory"
            ),
        )

    def log_connected(self, peer: str, client: bytes, what: str = "") -> None:
        """Log that a client has connected. `what`: for what, such as ": sink 'prices'"."""
        self.connects.add(f"{peer}: {quoted(client)} connected{what}", peer=peer, client=client)

    def log_gap(self, peer: str, topic: bytes, gap: Unavailable) -> None:
        """Log that a consumer misses messages, where its protocol cannot tell it."""
        line = f"{peer}: {quoted(topic)}: messages {gap.first} to {gap.last} are gone: {gap.reason}"
        self.gaps.add(line, peer=peer, topic=topic)

    def log_eviction(self, transport: Transport, client: bytes | None, what: str) -> None:
        """Log that a connection was closed because it took too long for `what`: "to complete a line"."""
        peer = transport.peer()
        line = f"{peer}: closed: it took too long {what} while others wait for its memory"
        transport.ends(line.removeprefix(f"{peer}: closed: "))
        self.evictions.add(line, peer=peer, client=client)

    def log_dropped(self, transport: Transport, client: bytes | None) -> None:
        """Log that an incomplete message of a connection was dropped, because it took too long."""
        self._log_dropped(
            transport, client, "it took too long to complete a message while others wait for its memory"
        )

    def log_without_memory(self, transport: Transport, client: bytes | None) -> None:
        """Log that an incomplete message of a connection was dropped, because it got no memory."""
        self._log_dropped(
            transport, client, "it got no memory, and the other links of its connection waited for it"
        )

    def _log_dropped(self, transport: Transport, client: bytes | None, why: str) -> None:
        peer = transport.peer()
        self.evictions.add(f"{peer}: an incomplete message was dropped: {why}", peer=peer, client=client)


class Arrival(Struct, frozen=True):
    """A connection whose first octets have selected its protocol."""

    transport: Transport
    received: bytes
    """The octets after those."""
    nursery: trio.Nursery
    """The nursery of the tasks of the connection."""
    newcomers: dict[trio.CancelScope, Transport]
    """The scopes of the connections whose client is not known yet."""

    @property
    def scope(self) -> trio.CancelScope:
        """The scope of these tasks: cancel it to cut the connection off."""
        return self.nursery.cancel_scope

    def known(self) -> None:
        """Record that the client is known: from now on no new connection replaces this one."""
        self.newcomers.pop(self.scope, None)
