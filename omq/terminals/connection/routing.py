"""Finds the topics of messages that a connection publishes to an exchange, in turn with other connections."""

from collections.abc import Sequence

from omq.access.topology import Topology
from omq.exchanges.routes import RoutedPart, RouteIsLong, TopicIsReplaced
from omq.terminals.connection.turns import in_turns


async def routed(
    topology: Topology, exchange: bytes, key: bytes, heads: Sequence[bytes]
) -> Sequence[RoutedPart]:
    """Divide messages by the topics that get them, as `Topology.parts` does. Raises Refused."""
    is_long = False
    while True:
        try:
            if is_long:
                return await in_turns(topology.parts_in_steps(exchange, key, heads))
            return topology.parts(exchange, key, heads)
        except RouteIsLong:
            is_long = True
        except TopicIsReplaced:
            await topology.settled()
