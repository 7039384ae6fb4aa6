"""The answer to a request for `/metrics`."""

import trio

from omq.drivers.slices import Slices
from omq.metrics.exposition import Exposition
from omq.metrics.nodes import NodeMetrics
from omq.metrics.server import ServerMetrics
from omq.metrics.source import MetricsSource
from omq.metrics.topics import TopicMetrics
from omq.protocol.http.requests import NO_STORE, HttpAnswer, HttpRequest


class Metrics:
    """Answers requests for `/metrics`, one at a time."""

    def __init__(self, source: MetricsSource) -> None:
        self._server = ServerMetrics(source)
        self._topics = TopicMetrics(source)
        self._nodes = NodeMetrics(source)
        self._turn = trio.Lock()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Return all metrics as they are now."""
        async with self._turn:
            slices = Slices()
            exposition = Exposition(request.field(b"accept"))
            await exposition.add(await self._server.collect(slices), slices)
            await exposition.add(await self._topics.collect(slices), slices)
            await exposition.add(await self._nodes.collect(slices), slices)
        return HttpAnswer(200, exposition.octets(), exposition.content_type, NO_STORE)
