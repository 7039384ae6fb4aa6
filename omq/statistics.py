"""Numbers about a server. Sizes are octets, times are seconds; see `omq.drivers.statistics` for the rest."""

from collections import Counter

from msgspec import Struct

from omq.drivers.memory import MemoryStatistics
from omq.drivers.spool import SpoolStatistics
from omq.drivers.statistics import WriterStatistics
from omq.terminals.connection.statistics import Kind


class ServerStatistics(Struct, frozen=True):
    """A server. Its topics are in `Server.catalogue`, its connections are given by `Server.terminals`."""

    seconds: float
    """The number of seconds since it was started."""
    connections: int
    """Connections that are open: the sum of `handshakes`, of `served`, and of those that are just ending."""
    max_connections: int
    handshakes: int
    """Connections whose client has not said its protocol yet, or is in its TLS handshake."""
    served: Counter[Kind]
    """Connections by the protocol that their client speaks. Sinks and feeds are DMP, and connections that
    speak omq through a WebSocket are OMQ."""
    newcomers: int
    """Connections whose client is not known yet: no Connect or no lease was accepted. When all connections
    are taken, the oldest of these is closed for a new one."""
    dmp_leased: int
    """DMP connections that showed a lease."""
    subscriptions: int
    """Subscriptions, feeds and early Requests."""
    max_subscriptions: int
    leases: int
    """Leases that are not used yet."""
    max_leases: int
    direct_nodes: int
    """Nodes of AMQP 1.0 without a queue, to which a link is attached."""
    undelivered: int
    """Messages to those so far that no consumer took, or for which there was no memory."""
    stalls: int
    """The number of times so far that a producer of AMQP 1.0 had used up its credit and got none."""
    topics: int
    max_topics: int
    turned_away: int
    """Connections so far that were refused, or closed for newer ones, because of `max_connections`."""
    unrecognized: int
    """Connections so far that ended before their client said a protocol that is served here."""
    defects: int
    """Connections so far that ended by a defect of the server."""
    memory: MemoryStatistics
    spool: SpoolStatistics
    writers: tuple[WriterStatistics, ...]
