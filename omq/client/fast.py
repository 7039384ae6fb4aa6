"""Open and close the sinks and feeds of a client, and dispatch the server's notices about them."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from omq.client.connection import Connection
from omq.client.dmp_stream import DmpStream, LeaseDeclined, open_dmp
from omq.client.errors import ConnectionLost, FeedFailed, Gap, OmqError, SinkFailed
from omq.client.feed import Feed
from omq.client.reasons import named
from omq.client.sink import Sink
from omq.client.sink_heads import SinkHeads
from omq.model import Replay
from omq.protocol.dmp.client import Purpose
from omq.protocol.dmp.responses import ResponseCode
from omq.protocol.omq.sentences import read_sentence, sentence
from omq.protocol.omq.types import Get, Leased, Put, Topics
from omq.server_address import Security

log = logging.getLogger("omq.client")

Live = Callable[[], Awaitable[Connection]]
"""Returns the client's connection, and waits for one while disconnected."""


class OpenStreams:
    """The open sinks and feeds of a client."""

    def __init__(
        self, on_gap: Callable[[Gap], None], connect_seconds: float, security: Security | None = None
    ) -> None:
        self.sinks: set[Sink] = set()
        self.feeds: set[Feed] = set()
        self._on_gap = on_gap
        self._security = security
        self._connect_seconds = connect_seconds

    def news(self, octets: bytes) -> None:
        """Dispatch a notice of the server about a sink or a feed, which names only the topic."""
        said = read_sentence(octets)
        if said is not None and (gap := said.gone()) is not None:
            for topic in {feed.topic for feed in self.feeds if said.answers("Feed", feed.topic)}:
                try:
                    self._on_gap(Gap(topic, *gap))
                except Exception:  # a mistake in on_gap must not end the client, whose task this is
                    log.exception("on_gap raised for a feed of %s", named(topic))
                return
        text = octets.decode("utf-8", "backslashreplace")
        log.warning("the server said: %s", text)
        for sink in self.sinks:
            if said is not None and said.answers("Sink", sink.topic):
                sink.notices.append(text)
        for feed in self.feeds:
            if said is not None and said.answers("Feed", feed.topic):
                feed.notices = [text]

    def server_silent(self, failure: ConnectionLost) -> None:
        """Fail the sinks: the server has sent nothing for too long on the client's connection.

        A server sends nothing to a sink before its end, so only the client's connection can show that the
        server is alive.
        """
        for sink in self.sinks:
            sink.fail(ConnectionLost(f"the sink is lost with the client's connection: {failure}"))

    async def stream(self, connection: Connection, command: Put | Get, purpose: Purpose) -> DmpStream:
        """Get a lease with `command`, and open a DMP connection with it.

        Raises ServerError, LeaseDeclined, ReplyBlocked, ConnectionFailed and ConnectionLost.
        """
        host, port = connection.peer()
        answer = await connection.call(command)
        if not isinstance(answer, Leased):
            raise RuntimeError(f"a {type(answer).__name__} answered what was asked for a lease")
        return await open_dmp(host, port, self._security, answer.lease, purpose, self._connect_seconds)


class SinkBlock(AbstractAsyncContextManager[Sink]):
    """The `async with` block in which a sink is open; it owns the sink's tasks."""

    # Not an async generator with a task group, for the same reason as `Connecting`.

    def __init__(self, opened: OpenStreams, live: Live, topic: bytes, heads: SinkHeads) -> None:
        self._opened = opened
        self._live = live
        self._topic = topic
        self._heads = heads
        self._group: TaskGroup | None = None
        self._sink: Sink | None = None

    async def __aenter__(self) -> Sink:
        connection = await self._live()
        try:
            stream = await self._opened.stream(connection, Put(self._topic), Purpose.SINK)
        except LeaseDeclined as declined:
            raise SinkFailed(declined.response, 0, 0) from declined
        self._sink = Sink(self._topic, stream, self._heads)
        self._opened.sinks.add(self._sink)
        self._group = await anyio.create_task_group().__aenter__()
        self._group.start_soon(self._sink.run)
        return self._sink

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is None or self._sink is None:
            raise RuntimeError("left without being entered")
        try:
            if error is None:
                await self._sink.close()
        finally:
            self._opened.sinks.discard(self._sink)
            self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)


@asynccontextmanager
async def feed_block(opened: OpenStreams, live: Live, topic: bytes, replay: Replay) -> AsyncIterator[Feed]:
    """Open a feed; close it at the end of the block."""
    connection = await live()
    deleted = sentence("Feed", topic, f"{ResponseCode.NOT_FOUND:d} ").decode("utf-8", "backslashreplace")

    async def why_ended(feed: Feed) -> OmqError | None:
        # The server's notice about the end precedes the answer to any command sent now.
        try:
            await connection.call(Topics())
        except OmqError as error:
            return ConnectionLost(f"the server ended the feed: {error}")
        if feed.notices and feed.notices[-1].startswith(deleted):
            return None
        return FeedFailed(
            feed.notices[-1] if feed.notices else "the server ended the feed and did not say why"
        )

    try:
        stream = await opened.stream(connection, Get(topic, replay), Purpose.FEED)
    except LeaseDeclined as declined:
        raise FeedFailed("", declined.response) from declined
    feed = Feed(topic, stream, why_ended)
    opened.feeds.add(feed)
    try:
        yield feed
    finally:
        opened.feeds.discard(feed)
        feed.close()
