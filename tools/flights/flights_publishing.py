"""Publishing all rows through DMP, with a crash in the middle."""

from collections import Counter
from collections.abc import Sequence

import trio
from flights_file import DemoFailed, Flights
from flights_server import Server
from flights_telling import show
from tqdm import tqdm

from omq.client import (
    Client,
    ConnectionFailed,
    ConnectionLost,
    TopicInfo,
)

MOST_PARTS = 16
PART_ROWS = 16
"""The publisher waits for confirmations of a topic's rows in at most MOST_PARTS parts of at least PART_ROWS
rows.
"""


class Publisher:
    """Publishes the rows through DMP, those of each topic in the order of the file, each once, also over a
    crash of the server.
    """

    def __init__(self, flights: Flights) -> None:
        self._by_topic = flights.by_topic
        self.sent: Counter[bytes] = Counter()
        """The number of rows of each topic that were handed to the client, over all attempts."""
        self.confirmed: Counter[bytes] = Counter()
        """The number of these rows that the server holds for certain."""

    def go_on_from(self, topics: Sequence[TopicInfo]) -> None:
        """Go on when the server has come back: do not publish rows again that it holds.

        Raises DemoFailed if it holds less than it confirmed, or more than it was given.
        """
        held = {info.topic: info for info in topics}
        for topic, confirmed in self.confirmed.items():
            name, info = topic.decode(), held.get(topic)
            if info is None or info.messages < confirmed:
                messages = 0 if info is None else info.messages
                raise DemoFailed(f"{name}: {confirmed:,} rows were confirmed, and only {messages:,} are held")
        for topic, info in held.items():
            name, sent = topic.decode(), self.sent[topic]
            if info.messages > sent:
                raise DemoFailed(f"{name}: {info.messages:,} rows are held, and only {sent:,} were published")
            if info.messages and (info.first, info.last) != (1, info.messages):
                raise DemoFailed(
                    f"{name}: {info.messages:,} rows are held, with ids from {info.first:,} to {info.last:,}"
                )
            self.sent[topic] = self.confirmed[topic] = info.messages

    async def publish(self, client: Client, bar: "tqdm[None]", enough: int, server: Server | None) -> None:
        """Publish the rows that are not yet sent, all topics at a time. When `enough` are confirmed, kill the
        server, if one is given, and return; else return when all are confirmed.
        """
        crash = None if server is None else Crash(server, enough)
        async with trio.open_nursery() as nursery:
            for topic, rows in self._by_topic.items():
                nursery.start_soon(self._publish_topic, client, topic, rows, bar, crash)
        if crash is not None and not crash.happened:
            raise DemoFailed("the server was not killed while rows were published")

    async def _publish_topic(
        self, client: Client, topic: bytes, rows: Sequence[bytes], bar: "tqdm[None]", crash: "Crash | None"
    ) -> None:
        """Publish the rows of one topic, in parts. Each part is a sink's: it is confirmed when that is
        closed.
        """
        part = max(PART_ROWS, -(-len(rows) // MOST_PARTS))
        try:
            while self.sent[topic] < len(rows):
                start = self.sent[topic]
                async with client.sink(topic) as sink:
                    # Counted first: messages under way when the server is killed may have arrived.
                    bodies = rows[start : start + part]
                    self.sent[topic] += len(bodies)
                    await sink.publish_many(bodies)
                self.confirmed[topic] = self.sent[topic]
                show(bar, self.confirmed.total())
                if crash is not None and self.confirmed.total() >= crash.enough:
                    await crash.happen()
        except (ConnectionLost, ConnectionFailed):
            if crash is None or not crash.happened:
                raise


class Crash:
    """The server is killed once, when enough rows are confirmed."""

    def __init__(self, server: Server, enough: int) -> None:
        self.enough = enough
        self.happened = False
        self._server = server

    async def happen(self) -> None:
        if not self.happened:
            self.happened = True
            await self._server.kill()
