"""Finds the topics of messages that a connection publishes to an exchange, in turn with other connections."""

from collections.abc import Sequence

from omq.access.routed_publishing import RoutedPublishing
from omq.exchanges.routes import RoutedPart, RouteIsLong, TopicIsReplaced
from omq.terminals.connection.turns import in_turns


async def routed(
    publishing: RoutedPublishing, exchange: bytes, key: bytes, heads: Sequence[bytes]
) -> Sequence[RoutedPart]:
    """Divide messages by the topics that get them, as `RoutedPublishing.parts` does. Raises Refused."""
    is_long = False
    while True:
        try:
            if is_long:
                return await in_turns(publishing.parts_in_steps(exchange, key, heads))
            return publishing.parts(exchange, key, heads)
        except RouteIsLong:
            is_long = True
        except TopicIsReplaced:
            await publishing.settled()
