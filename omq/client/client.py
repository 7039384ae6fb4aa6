"""A client: what a program says to a server."""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from trio.lowlevel import current_task

from omq.client import bulk
from omq.client.bodies import check_bodies
from omq.client.connection import Connection
from omq.client.connections import Connections
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
from omq.client.sink_heads import Heads
from omq.client.subscription import DEFAULT_CAPACITY, Subscription
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
from omq.protocol.omq.client import Answer, AnsweredCommand
from omq.protocol.omq.types import (
    BlockList,
    Blocks,
    Declare,
    Declared,
    Delete,
    Deleted,
    Fetch,
    TopicList,
    Topics,
)

BATCH_OCTETS = 64 << 10
"""About how many octets of bodies `publish_many` turns into lines at a time."""

MOST_STARTS = 1024

EVERYTHING = 2**63 - 1
"""A count of messages that reaches to the newest one."""

Name = bytes | str


class Client:
    """A connected client. Made by `connect`; any number of tasks may use it.

    Topics may be given as octets or as text, which stands for its UTF-8 octets; bodies are octets. Every
    method that talks to the server raises ConnectionLost when the connection ends before it is done (with
    `reconnect`, those that have sent nothing yet wait for the next connection instead), and ValueError when a
    topic's name is empty or longer than 255 octets, and TypeError for a topic or a body of another type.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._ledger = connections.ledger
        self._starts: dict[Name, bytes] = {}
        self._longest = connections.settings.max_line_bytes

    @property
    def ended(self) -> bool:
        """Whether there is no connection, and there will be none any more."""
        return self._connections.ended

    # -- topics --------------------------------------------------------------------------------------------

    async def declare(
        self,
        topic: Name,
        delivery: Delivery = Delivery.BROADCAST,
        persistence: Persistence = Persistent(Sync.WEAK),  # noqa: B008 - a frozen value
    ) -> Topic:
        """See that a topic exists with these types. Raises ServerError when it exists with others."""
        match await self._call(Declare(_name(topic), delivery, persistence)):
            case Declared(declared):
                return declared
            case other:
                raise unexpected(other)

    async def delete(self, topic: Name) -> Topic:
        """Delete a topic with all its messages; its subscriptions end. Raises ServerError."""
        match await self._call(Delete(_name(topic))):
            case Deleted(deleted):
                return deleted
            case other:
                raise unexpected(other)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Every topic of the server, with its types, counts and ids."""
        match await self._call(Topics()):
            case TopicList(infos):
                return infos
            case other:
                raise unexpected(other)

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish(self, topic: Name, body: bytes) -> None:
        """Send a message, and do not wait for what becomes of it; `confirm` tells.

        Waits only while much is queued that the server does not take. A lone message leaves at once; messages
        published one after another share system calls.

        Raises MessageTooLong for a body that does not fit into a line of 1 MiB (see `max_line_bytes` of
        `connect`): publish it through a `sink`.
        """
        start = self._start(topic)
        line = publish_line(start, body)
        if len(line) > self._longest:
            check_line(len(line), self._longest)
        if current_task() is not self._ledger.publisher:
            self._ledger.see()
        connection = self._connections.current
        if connection is not None and not connection.failed:
            try:
                await connection.send(line, 1)
                return
            except ConnectionLost:
                if not self._connections.settings.reconnect:
                    raise
        await self._send(line, 1)

    async def publish_many(self, topic: Name, bodies: Iterable[bytes]) -> int:
        """Send many messages, for a fraction of the time that as many calls of `publish` take.

        Returns how many there were. Raises MessageTooLong as `publish` does; those before it are sent.
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
        """Send each line of `text` as a message, without its line feed; the last one may lack it.

        The fastest way to publish. Give it some 64 KiB at a time. Returns how many lines there were. Raises
        MessageTooLong as `publish` does; then nothing of `text` is sent.
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
        """Wait until everything published on this client so far is as safe as its topic declares: on disk,
        written, or handed over.

        Raises PublishRefused when messages were refused, and ConnectionLost when a connection was lost before
        the fate of messages was known. When several tasks share the client:

        - Each task that calls `confirm` is told of each failure once, whoever published the message and
          whoever else was told: all failures from the moment on when the task first published or asked here
          (for the one that entered the client's block, from the beginning), and also those before that of
          which nobody was told.
        - Nothing else uses up a failure: not `ping`, and not a `confirm` that was cancelled.
        - Which message was refused is only known roughly, so a failure may be told to a task whose own
          messages are all safe. Success is never told to one with a message that is not.
        - When nobody asks, leaving the client's block tells.
        """
        self._ledger.see_asking()
        try:
            connection = self._connections.live_now()
            if connection is None:
                # It may take long until there is a connection again, and what was lost with the last one is
                # known already.
                self._ledger.tell(self._ledger.published)
                connection = await self._connections.live()
            end = self._ledger.published
            await self._connections.ask(connection, own=False)
        except ConnectionLost:
            self._ledger.loss_told(to_all=True)
            raise
        self._ledger.tell(end)

    async def publish_confirmed(self, topic: Name, body: bytes) -> None:
        """`publish`, and wait until the message is as safe as its topic declares.

        Raises as `confirm` does, when this message was refused or may be lost, and for other messages as
        well, unless each was published by `publish_confirmed` of another task, which is told of it there.
        What it raises is told: a later `confirm` of the same task does not repeat it.
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
            self._ledger.loss_told(to_all=False)
            raise
        self._ledger.tell_publisher(number)

    async def ping(self) -> float:
        """The seconds that a round trip takes. It waits for messages that are on their way to disk, but what
        has become of them is left for `confirm` to tell. Raises ConnectionLost when there is no answer.
        """
        started = time.perf_counter()
        await self._connections.ask(await self._connections.live(), own=False)
        return time.perf_counter() - started

    # -- subscribing ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(
        self,
        topic: Name,
        replay: Replay = FromCurrent(),  # noqa: B008 - a frozen value
        *,
        credit: int | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> AsyncIterator[Subscription]:
        """Subscribed within the block, unsubscribed behind it.

        `credit` is for round-robin topics: at most so many messages at a time are dealt to us and not
        confirmed; see `Subscription`. It starts with the current messages, whatever `replay` says.

        `capacity` is how many octets of messages wait here. When they are not taken the whole connection
        stops being read, other subscriptions on it included, until there is room or somebody waits for a
        reply (then up to 64 MiB more are taken in, and behind that the reply is given up with ReplyBlocked).
        So give a slow consumer a client of its own.

        Raises ServerError when the server refuses.
        """
        subscription = Subscription(_name(topic), replay, credit, capacity, self._connections.settings.on_gap)
        self._connections.subscriptions[subscription] = None
        connection: Connection | None = None
        asked = True
        try:
            connection = await self._connections.live()
            if self._connections.settings.reconnect and credit is None and isinstance(replay, FromCurrent):
                # Where "current" is, in case the connection is lost before the first message.
                infos = {info.topic: info for info in await self.topics()}
                info = infos.get(subscription.name)
                subscription.floor = 0 if info is None else info.last
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

    # -- bulk reading ---------------------------------------------------------------------------------------

    async def blocks(self, topic: Name, first: int = 1, count: int = EVERYTHING) -> tuple[BlockInfo, ...]:
        """The stored blocks that hold any of `count` messages from `first` on: at most 4,096, ask again from
        behind the last. Raises ServerError, also for a topic that cannot be replayed.
        """
        match await self._call(Blocks(_name(topic), first, count)):
            case BlockList(blocks):
                return blocks
            case other:
                raise unexpected(other)

    def fetch(
        self, topic: Name, first: int = 1, count: int = EVERYTHING
    ) -> AbstractAsyncContextManager[bulk.Blocks]:
        """`async with client.fetch(topic) as blocks:` gives an iterator over whole stored blocks, those that
        hold any of `count` messages from `first` on: the fastest way to read what is stored. It has a
        connection of its own, which is read only as fast as blocks are taken.

        The first block may begin before `first`, and the last may end behind the range. Blocks are merged in
        the background, so they are not always the same ones, and one may begin before the end of the one
        before it: ids below that were there already. Gaps are told to the `on_gap` of `connect`.

        Entering raises ConnectionFailed and HandshakeRefused; for the rest see `omq.client.bulk.Blocks`.
        """
        settings = self._connections.settings
        return bulk.fetching(
            settings.host,
            settings.port,
            settings.security,
            settings.id,
            settings.connect_seconds,
            Fetch(_name(topic), first, count),
            settings.on_gap,
        )

    # -- the fast door -------------------------------------------------------------------------------------

    def sink(
        self, topic: Name, *, producer: Name | None = None, first: int = 1
    ) -> AbstractAsyncContextManager[Sink]:
        """`async with client.sink(topic) as sink:` publishes to a topic on a connection made for speed (DMP).

        Leaving the block confirms: it waits until all messages are as safe as the topic declares, and
        `sink.stored` says how many they are. It raises SinkFailed when they are fewer than were sent, and
        ConnectionLost when the server did not say. After an exception in the block nothing is confirmed.

        With a `producer` each message also carries this name and a number, which begins at `first`. A
        producer that is in doubt about messages sends them again with the same numbers, and what the topic
        has already is not stored twice. Every producer of a topic needs a name of its own.

        What the server says of single messages (`mandatory` and `immediate` ones that nobody took) is logged
        as a warning, and kept in `sink.notices`.

        Entering raises ServerError, SinkFailed, ConnectionFailed and ConnectionLost. A sink goes on when the
        client's connection breaks. It is lost when its own breaks, and when the server falls silent on the
        client's connection, since a server sends nothing to a sink before the end. It is not made again.
        """
        heads = Heads(None if producer is None else octets_of(producer), first)
        return SinkBlock(self._connections.opened, self._connections.live, _name(topic), heads)

    def feed(self, topic: Name, replay: Replay = FromCurrent()) -> AbstractAsyncContextManager[Feed]:  # noqa: B008
        """`async with client.feed(topic) as feed:` receives a topic on a connection made for speed (DMP).

        It has what came with the messages too (exchange, routing key, properties), and no ids. Nothing that
        is published after entering the block is missed. Of a round-robin topic it gets its share, and what it
        has received counts as done: there is no credit.

        What is known to be missing is told to the `on_gap` of `connect` as soon as the server says so, with
        feeds on the same topic once for all of them. Other news of it is logged as a warning.

        Entering raises ServerError, FeedFailed, ConnectionFailed and ConnectionLost. A feed whose connection
        is lost is not made again.
        """
        return feed_block(self._connections.opened, self._connections.live, _name(topic), replay)

    # -- the connections underneath ------------------------------------------------------------------------

    async def _call(self, command: AnsweredCommand) -> Answer:
        return await (await self._connections.live()).call(command)

    async def _send(self, octets: bytes, messages: int) -> None:
        while True:
            connection = await self._connections.live()
            try:
                await connection.send(octets, messages)
                return
            except ConnectionLost:
                # Nothing of it was queued, so it can be given to the next connection.
                if not self._connections.settings.reconnect:
                    raise

    async def _queue(self, octets: bytes, messages: int) -> Connection:
        """`_send`, but the caller goes on before anybody else; says over which connection it went."""
        while True:
            connection = await self._connections.live()
            try:
                await connection.queue(octets, messages)
                return connection
            except ConnectionLost:
                if not self._connections.settings.reconnect:
                    raise

    async def _send_batch(self, start: bytes, batch: list[bytes]) -> None:
        if batch:
            await self._send(publish_bodies(start, batch), len(batch))

    def _start(self, topic: Name) -> bytes:
        """How a Publish line of this topic begins."""
        try:
            return self._starts.get(topic) or self._new_start(topic)
        except TypeError:
            octets_of(topic)  # which says what is wanted
            raise

    def _new_start(self, topic: Name) -> bytes:
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        start = self._starts[topic] = publish_start(_name(topic))
        return start


def octets_of(name: Name) -> bytes:
    """Raises TypeError for what is neither."""
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
