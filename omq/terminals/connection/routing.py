"""Finds the topics of messages that a connection publishes to an exchange, in turn with other connections."""

from collections.abc import Sequence

import trio

from omq.access.routed_publishing import RoutedPublishing
from omq.exchanges.routes import RoutedPart, RouteIsLong, TopicIsReplaced
from omq.terminals.connection.turns import in_turns
from omq_storage.batches import Batch, Bodies

TARGETS_IN_TURN = 16
"""The number of topics that get messages of one read after which other connections have their turn, however
fast that was.
"""

NOTED_IN_TURN = 64
"""The number of topics of a message after which other connections have their turn, while it is noted for
them: a fanout exchange may lead to thousands.
"""


async def routed(
    publishing: RoutedPublishing,
    exchange: bytes,
    key: bytes,
    heads: Sequence[bytes],
    *,
    is_long: bool = False,
) -> Sequence[RoutedPart]:
    """Divide messages by the topics that get them, as `RoutedPublishing.parts` does. Raises Refused.

    `is_long`: whether that has raised RouteIsLong.
    """
    while True:
        try:
            if is_long:
                return await in_turns(publishing.parts_in_steps(exchange, key, heads))
            return publishing.parts(exchange, key, heads)
        except RouteIsLong:
            is_long = True
            await trio.lowlevel.checkpoint()
        except TopicIsReplaced:
            await publishing.settled()


def chosen(batch: Batch, indexes: Sequence[int]) -> Batch:
    """Return the messages of a batch at these indexes."""
    if isinstance(indexes, range):
        whole = indexes == range(batch.count)
        return batch if whole else batch.part(indexes.start, indexes.stop)
    bodies = batch.bodies()
    return Bodies([bodies[index] for index in indexes])
