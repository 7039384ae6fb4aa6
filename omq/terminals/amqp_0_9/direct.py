"""Class Direct: leases of sinks and feeds for OpenAMQ's clients (6-DMP, "Integration with AMQP").

Such a client publishes and receives by DMP, and uses its AMQP connection, the principal, for everything else.
It gets the lease of a feed before it binds and consumes its queue, so the feed waits for the consumer.
"""

from functools import partial

from omq.access.leases import Principal
from omq.access.topology import Topology
from omq.drivers.feed import LeasedFeed
from omq.protocol.amqp_0_9 import delivery
from omq.protocol.amqp_0_9.methods import DirectGet, DirectPut
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode
from omq.terminals.amqp_0_9.channel import AmqpChannel
from omq.terminals.amqp_0_9.outbox import Outbox

NO_ROUTE = b"Message cannot be processed - no route is defined"
"""The text that OpenAMQ's server has."""


class DirectLeases:
    """The leases of one connection."""

    def __init__(
        self,
        topology: Topology,
        principal: Principal,
        outbox: Outbox,
        frame_max: int,
    ) -> None:
        self._topology = topology
        self._principal = principal
        self._outbox = outbox
        self._frame_max = frame_max
        self._feeds: dict[bytes, LeasedFeed] = {}
        """The feeds of queues."""

    async def put(self, channel: AmqpChannel, method: DirectPut) -> bytes:
        """Return the lease of a sink. Raises Refused."""
        returned = partial(self._return, channel)
        return await self._topology.lease_sink(method.sink, self._principal, returned)

    def get(self, method: DirectGet) -> bytes:
        """Return the lease of a feed. Raises Refused, and ConnectionProblem."""
        if not method.feed:
            text = "the name of a feed is empty"
            raise ConnectionProblem(ReplyCode.SYNTAX_ERROR, text, method.CLASS, method.METHOD)
        lease, feed = self._topology.lease_feed(method.feed, self._principal)
        if feed.is_paused:
            self._feeds[method.feed] = feed
        return lease

    def feed(self, queue: bytes) -> LeasedFeed | None:
        """Return the feed that gets the messages of this queue, instead of deliveries, if there is one."""
        feed = self._feeds.get(queue)
        if feed is not None and feed.is_over:
            del self._feeds[queue]
            return None
        return feed

    async def _return(self, channel: AmqpChannel, head: bytes, body: bytes) -> None:
        """Return a mandatory message without a route on the channel that asked for the lease."""
        await self._outbox.room()
        if not channel.is_over:
            frames = delivery.returned(
                channel.number,
                self._frame_max,
                ReplyCode.CANNOT_ROUTE,
                NO_ROUTE,
                head,
                body,
                to_openamq=self._principal.is_openamq,
            )
            self._outbox.add(*frames, channel=channel.number)
