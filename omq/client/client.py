"""The client's methods: declare, publish, confirm, subscribe, fetch, sinks and feeds."""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from omq import management
from omq.client import bulk
from omq.client.arguments import check_period, check_replay, check_types
from omq.client.bodies import check_bodies
from omq.client.connection import Connection
from omq.client.connections import ClientConnections
from omq.client.errors import ConnectionLost, ServerError
from omq.client.fast import SinkBlock, feed_block
from omq.client.feed import Feed
from omq.client.lines import (
    always_fits,
    check_line,
    check_text,
    publish_bodies,
    publish_line,
    publish_lines,
    publish_start,
)
from omq.client.replies import unexpected
from omq.client.sink import Sink
from omq.client.sink_heads import SinkHeads
from omq.client.subscription import DEFAULT_CAPACITY, Subscription
from omq.client.watching import Rounds, watching_server
from omq.model import (
    BlockInfo,
    Delivery,
    FromCurrent,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Topic,
    TopicInfo,
    check_topic,
)
from omq.protocol.omq.client import AnsweredCommand, AnswerFrame
from omq.protocol.omq.types import (
    BlockList,
    Blocks,
    ConnectionList,
    Declare,
    Declared,
    Delete,
    Deleted,
    Disconnect,
    Done,
    Fetch,
    Manage,
    Managed,
    Purge,
    Retain,
    SubscriberList,
    Subscribers,
    TopicList,
    Topics,
)
from omq.protocol.omq.types import Connections as ConnectionsFrom
from omq.watching import ConnectionInfo, Retention, SubscriberInfo

BATCH_OCTETS = 64 << 10
"""The approximate octets of bodies that `publish_many` turns into lines at a time."""

MOST_STARTS = 1024

EVERYTHING = 2**63 - 1
"""A count of messages that reaches to the newest one."""

Name = bytes | str


class Client:
    """A connected client. `connect` creates it; any number of tasks may use it.

    A topic's name is bytes, or str, which is encoded as UTF-8; bodies are bytes. Every method that uses the
    connection raises ConnectionLost when the connection ends before the method is done (with `reconnect`, a
    method that has sent nothing yet waits for the next connection instead), ValueError when a topic's name is
    empty or longer than 255 octets, and TypeError for a topic or a body of another type.
    """

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._ledger = connections.ledger
        self._starts: dict[Name, bytes] = {}
        self._longest = connections.settings.max_line_bytes

    @property
    def ended(self) -> bool:
        """Whether the last connection has ended and the client will not reconnect."""
        return self._connections.ended

    # -- topics --------------------------------------------------------------------------------------------

    async def declare(
        self,
        topic: Name,
        delivery: Delivery = Delivery.BROADCAST,
        persistence: Persistence = Persistent(Sync.WEAK),
    ) -> Topic:
        """Create a topic, unless it exists with these types. Raises ServerError if it exists with others."""
        check_types(delivery, persistence)
        match await self._call(Declare(_name(topic), delivery, persistence)):
            case Declared(declared):
                return declared
            case other:
                raise unexpected(other)

    async def delete(self, topic: Name) -> Topic:
        """Delete a topic with all its messages, and end its subscriptions. Raises ServerError."""
        match await self._call(Delete(_name(topic))):
            case Deleted(deleted):
                return deleted
            case other:
                raise unexpected(other)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """List the server's topics, with their types, counts and ids."""
        match await self._call(Topics()):
            case TopicList(infos):
                return infos
            case other:
                raise unexpected(other)

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish(self, topic: Name, body: bytes) -> None:
        """Send a message without waiting for its confirmation; `confirm` waits for it.

        Waits only while the send queue is full. A single message is sent at once; messages published one
        after another share system calls.

        Raises MessageTooLong for a body that does not fit into a line of 1 MiB (see `max_line_bytes` of
        `connect`): publish it through a `sink`.
        """
        start = self._start(topic)
        line = publish_line(start, body)
        if len(line) > self._longest:
            check_line(len(line), self._longest)
        if self._ledger.caller() is not self._ledger.publisher:
            self._ledger.see()
        connection = self._connections.current
        if connection is not None and not connection.failed:
            try:
                await connection.send(line, 1)
                return
            except ConnectionLost:
                if not self._connections.continues:
                    raise
        await self._send(line, 1)

    async def publish_many(self, topic: Name, bodies: Iterable[bytes]) -> int:
        """Send many messages, much faster than with one call of `publish` for each.

        Returns the number of messages. Raises MessageTooLong as `publish` does, after it has sent the
        messages before the long one.
        """
        start = self._start(topic)
        self._ledger.see()
        fitting = always_fits(start, self._longest)
        count = 0
        batch: list[bytes] = []
        octets = 0
        for body in bodies:
            try:
                length = len(body)
            except TypeError:
                check_bodies([body])
                raise
            if length > fitting:
                await self._send_batch(start, batch)
                count += len(batch)
                batch = []
                octets = 0
                check_line(len(publish_line(start, body)), self._longest)
            batch.append(body)
            octets += length
            if octets >= BATCH_OCTETS or len(batch) >= BATCH_OCTETS // 16:
                await self._send_batch(start, batch)
                count += len(batch)
                batch = []
                octets = 0
        await self._send_batch(start, batch)
        return count + len(batch)

    async def publish_lines(self, topic: Name, text: bytes) -> int:
        """Send each line of `text` as a message, without its line feed; the last line may lack one.

        This is the fastest way to publish lines. Pass about 64 KiB at a time. Returns the number of lines.
        Raises MessageTooLong as `publish` does, and then has sent nothing of `text`.
        """
        check_bodies([text])
        text = bytes(text)
        if not text:
            return 0
        start = self._start(topic)
        check_text(start, text, self._longest)
        if not text.endswith(b"\n"):
            text += b"\n"
        self._ledger.see()
        count = text.count(b"\n")
        await self._send(publish_lines(start, text), count)
        return count

    async def confirm(self) -> None:
        """Wait until everything published on this client so far has its topic's persistence: on disk,
        written, or handed over.

        Raises PublishRefused when the server refused messages, and ConnectionLost when a connection was lost
        before the outcome of messages was known. When several tasks share the client:

        - `confirm` reports each failure once to each task that calls it, no matter which task published the
          message and which other tasks got the report: all failures since the task first published or called
          `confirm` (for the task that entered the client's block, since the beginning), and earlier failures
          that no task was told of.
        - Only a report consumes a failure; `ping` and a cancelled `confirm` do not.
        - The client knows only approximately which message was refused, so a task may get the report of a
          failure although all its own messages are safe. A task with an unsafe message never gets success.
        - If no task calls `confirm`, the end of the client's block reports the failures.
        """
        self._ledger.see_asking()
        try:
            connection = self._connections.live_now()
            if connection is None:
                # The next connection may take long, and the losses of the last one are known already.
                self._ledger.report(self._ledger.published)
                connection = await self._connections.live()
            end = self._ledger.published
            await self._connections.ask(connection, own=False)
        except ConnectionLost:
            self._ledger.loss_reported()
            raise
        self._ledger.report(end)

    async def publish_confirmed(self, topic: Name, body: bytes) -> None:
        """Publish a message, and wait until it has its topic's persistence.

        Raises as `confirm` does when the server refused this message or the message may be lost. Also raises
        for failures of other messages, except those that another task published with `publish_confirmed`,
        which raises there. A later `confirm` of the same task does not repeat the failure, unless other
        messages were lost with this one.
        """
        start = self._start(topic)
        line = publish_line(start, body)
        check_line(len(line), self._longest)
        self._ledger.see()
        connection = await self._queue(line, 1)
        number = self._ledger.published
        try:
            await self._connections.ask(connection, own=True)
        except ConnectionLost:
            self._ledger.loss_of_one_reported(number)
            raise
        self._ledger.report_to_publisher(number)

    async def ping(self) -> float:
        """Measure a round trip, in seconds. It includes the wait for earlier messages to be stored, but only
        `confirm` reports their failures. Raises ConnectionLost when the connection ends without an answer.
        """
        started = time.perf_counter()
        await self._connections.ask(await self._connections.live(), own=False)
        return time.perf_counter() - started

    # -- subscribing ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(
        self,
        topic: Name,
        replay: Replay = FromCurrent(),
        *,
        credit: int | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> AsyncIterator[Subscription]:
        """Subscribe to a topic; unsubscribe at the end of the block.

        `credit` is for round-robin topics: the window, the greatest number of messages that we hold
        unconfirmed; see `Subscription`. Such a subscription starts with new messages and ignores `replay`.

        `capacity` is the size of the receive buffer, in octets of messages. While it is full, the client does
        not read the connection, so other subscriptions on it wait too, until the buffer has room or a task
        waits for a reply (then the client reads up to 64 MiB more, and beyond that gives up the reply with
        ReplyBlocked). So use a separate client for a slow consumer.

        Raises ServerError when the server refuses.
        """
        subscription = Subscription(_name(topic), replay, credit, capacity, self._connections.settings.on_gap)
        self._connections.subscriptions[subscription] = None
        connection: Connection | None = None
        asked = False
        try:
            connection = await self._connections.live()
            if self._connections.settings.reconnect and credit is None and isinstance(replay, FromCurrent):
                # Note the current id, in case the connection is lost before the first message.
                infos = {info.topic: info for info in await self.topics()}
                info = infos.get(subscription.name)
                subscription.floor = 0 if info is None else info.last
            asked = True
            try:
                await connection.subscribe(subscription, replay)
            except ServerError:
                asked = False
                raise
            if subscription.error is not None:
                raise subscription.error
            yield subscription
        finally:
            del self._connections.subscriptions[subscription]
            current = self._connections.current if subscription.topic is not None else connection
            subscription.close()
            if asked and current is not None and not subscription.finished_by_server:
                current.leave(subscription.name)

    # -- queues, exchanges and bindings --------------------------------------------------------------------

    async def manage(self, request: management.Request) -> management.Answer:
        """List or change queues, exchanges and bindings, see docs/PROTOCOL.md, "Manage". Raises
        ServerError.
        """
        match await self._call(Manage(request)):
            case Managed(answer):
                return answer
            case other:
                raise unexpected(other)

    # -- watch and control ---------------------------------------------------------------------------------

    def watch(self, period: float = 1.0) -> AbstractAsyncContextManager[Rounds]:
        """Watch the server: `async with client.watch() as rounds:` gives an iterator over rounds of its
        statistics, one in each `period` seconds, on a separate connection. See docs/PROTOCOL.md, "Watch and
        control".

        Raises ValueError for a period below 0.1 or above 3,600 seconds. Entering raises ConnectionFailed and
        HandshakeRefused; for the rest see `omq.client.watching.Rounds`.
        """
        check_period(period)
        return watching_server(self._connections.settings, round(1000 * period))

    async def connections(self, first: int = 1) -> tuple[ConnectionInfo, ...]:
        """List the connections of the server with ids from `first` on. Raises ServerError."""
        found: list[ConnectionInfo] = []
        while True:
            match await self._call(ConnectionsFrom(first)):
                case ConnectionList(connections):
                    if not connections:
                        return tuple(found)
                    found += connections
                    first = connections[-1].id + 1
                case other:
                    raise unexpected(other)

    async def subscribers(self, topic: Name) -> tuple[SubscriberInfo, ...]:
        """List the subscribers of a topic that are the furthest behind, at most 50. Raises ServerError."""
        match await self._call(Subscribers(_name(topic))):
            case SubscriberList(subscribers):
                return subscribers
            case other:
                raise unexpected(other)

    async def disconnect(self, connection: int) -> bool:
        """End a connection of the server; return False if there is none with this id. Raises ServerError."""
        return bool(await self._done(Disconnect(connection)))

    async def purge(self, topic: Name) -> int:
        """Delete the messages of a topic; of a round-robin topic those that no subscriber has. Return their
        number. Raises ServerError.
        """
        return await self._done(Purge(_name(topic)))

    async def retain(self, topic: Name, retention: Retention) -> None:
        """Change the retention of a topic: `Limits(octets, ms)`, or `Configured()`. Raises ServerError."""
        await self._done(Retain(_name(topic), retention))

    async def _done(self, command: Disconnect | Purge | Retain) -> int:
        match await self._call(command):
            case Done(count):
                return count
            case other:
                raise unexpected(other)

    # -- bulk reading ---------------------------------------------------------------------------------------

    async def blocks(self, topic: Name, first: int = 1, count: int = EVERYTHING) -> tuple[BlockInfo, ...]:
        """List the stored blocks that hold any of `count` messages from `first` on, at most 4,096; for more,
        call again with the id after the last block. Raises ServerError, also for a topic that cannot be
        replayed.
        """
        match await self._call(Blocks(_name(topic), first, count)):
            case BlockList(blocks):
                return blocks
            case other:
                raise unexpected(other)

    def fetch(
        self, topic: Name, first: int = 1, count: int = EVERYTHING
    ) -> AbstractAsyncContextManager[bulk.Blocks]:
        """Read stored messages the fastest way: `async with client.fetch(topic) as blocks:` gives an iterator
        over the whole stored blocks that hold any of `count` messages from `first` on. It uses a separate
        connection, and reads it only as fast as the caller takes blocks.

        The first block may begin before `first`, and the last may end after the range. The server merges
        blocks in the background, so block bounds may change, and a block may begin before the end of the
        previous one: skip the ids that you have already. Gaps go to the `on_gap` of `connect`.

        Entering raises ConnectionFailed and HandshakeRefused; for the rest see `omq.client.bulk.Blocks`.
        """
        return bulk.fetching(self._connections.settings, Fetch(_name(topic), first, count))

    # -- DMP -----------------------------------------------------------------------------------------------

    def sink(
        self, topic: Name, *, producer: Name | None = None, first: int = 1
    ) -> AbstractAsyncContextManager[Sink]:
        """Publish to one topic over a DMP connection: `async with client.sink(topic) as sink:`.

        The end of the block waits until all messages have the topic's persistence; `sink.stored` is then
        their number. It raises SinkFailed when the server stored fewer messages than were sent, and
        ConnectionLost when the server did not answer. After an exception in the block nothing is confirmed.

        With a `producer` each message also carries this name and a sequence number, which begins at `first`.
        A producer that does not know whether messages were stored sends them again with the same numbers; the
        server does not store them twice. Every producer of a topic needs a unique name.

        The client logs the server's notices about single messages (`mandatory` and `immediate` messages that
        no subscriber took) as warnings, and keeps them in `sink.notices`.

        Entering raises ServerError, SinkFailed, ConnectionFailed and ConnectionLost. A sink survives the end
        of the client's connection. It is lost when its own connection breaks, and when the server falls
        silent on the client's connection, since a server sends nothing to a sink before the end. It does not
        reconnect.
        """
        heads = SinkHeads(None if producer is None else octets_of(producer), first)
        return SinkBlock(self._connections.opened, self._connections.live, _name(topic), heads)

    def feed(self, topic: Name, replay: Replay = FromCurrent()) -> AbstractAsyncContextManager[Feed]:
        """Receive one topic over a DMP connection: `async with client.feed(topic) as feed:`.

        A feed gives the heads of messages (exchange, routing key, properties), but no ids. It misses no
        message that is published after the block was entered. On a round-robin topic it gets its share, and a
        received message counts as confirmed: a feed has no credit.

        The client reports gaps to the `on_gap` of `connect` as soon as the server announces them, once for
        all feeds of a topic. It logs other notices as warnings.

        Entering raises ServerError, FeedFailed, ConnectionFailed and ConnectionLost. A feed does not
        reconnect.
        """
        check_replay(replay)
        return feed_block(self._connections.opened, self._connections.live, _name(topic), replay)

    # -- the connections underneath ------------------------------------------------------------------------

    async def _call(self, command: AnsweredCommand) -> AnswerFrame:
        return await (await self._connections.live()).call(command)

    async def _send(self, octets: bytes, messages: int) -> None:
        while True:
            connection = await self._connections.live()
            try:
                await connection.send(octets, messages)
                return
            except ConnectionLost:
                # Nothing of it was queued, so the next connection can send it.
                if not self._connections.continues:
                    raise

    async def _queue(self, octets: bytes, messages: int) -> Connection:
        """Send octets as `_send` does, but do not yield to other tasks afterwards. Return the connection that
        sends them.
        """
        while True:
            connection = await self._connections.live()
            try:
                await connection.queue(octets, messages)
                return connection
            except ConnectionLost:
                if not self._connections.continues:
                    raise

    async def _send_batch(self, start: bytes, batch: list[bytes]) -> None:
        if batch:
            await self._send(publish_bodies(start, batch), len(batch))

    def _start(self, topic: Name) -> bytes:
        """Return the beginning of a Publish line of this topic, cached."""
        try:
            return self._starts.get(topic) or self._new_start(topic)
        except TypeError:
            octets_of(topic)  # its error names the required type
            raise

    def _new_start(self, topic: Name) -> bytes:
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        start = self._starts[topic] = publish_start(_name(topic))
        return start


def octets_of(name: Name) -> bytes:
    """Encode a name as UTF-8. Raises TypeError for another type."""
    match name:
        case str():
            return name.encode()
        case bytes():
            return name
        case _:
            raise TypeError(f"a name must be bytes or str, not {type(name).__name__}")


def _name(topic: Name) -> bytes:
    octets = octets_of(topic)
    problem = check_topic(octets)
    if problem is not None:
        raise ValueError(problem)
    return octets
