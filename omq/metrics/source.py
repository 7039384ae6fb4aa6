"""The source of metrics: the statistics of a server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.histogram import Distribution
from omq.drivers.statistics import NodeStatistics
from omq.statistics import ServerStatistics
from omq.terminals.connection.statistics import ConnectionStatistics, EndedConnections, Kind

PROTOCOLS = {
    Kind.OMQ: "omq",
    Kind.DMP: "dmp",
    Kind.SINK: "dmp",
    Kind.FEED: "dmp",
    Kind.AMQP_0_9: "amqp_0_9",
    Kind.AMQP_1_0: "amqp_1_0",
    Kind.HTTP: "http",
}
"""The protocols by the kinds of connections."""


class MeasuredConnection(Protocol):
    """A connection after its handshake."""

    def statistics(self) -> ConnectionStatistics:
        """Return a snapshot of it."""


class MetricsSource(Protocol):
    """A server."""

    config: Config
    catalogue: Catalogue

    def statistics(self) -> ServerStatistics:
        """Return a snapshot of it."""

    def terminals(self) -> Sequence[MeasuredConnection]:
        """Return its connections."""

    def named_nodes(self) -> Iterator[NodeStatistics]:
        """Yield its nodes without a queue that have a name of their client's, the oldest first."""

    @property
    def ended(self) -> Mapping[Kind, EndedConnections]:
        """The sums of the connections that have ended."""

    @property
    def loop_lag(self) -> Distribution:
        """The times for which a task that could run waited for its turn, measured about once a second."""

    @property
    def is_stopping(self) -> bool:
        """Whether it ends its connections."""
