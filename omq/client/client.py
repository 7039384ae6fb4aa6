"""A client: what a program says to a server, over one connection after another."""

import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

import trio
from trio.lowlevel import current_task

from omq.client import bulk
from omq.client.address import parse_url
from omq.client.connection import Connection
from omq.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    Gap,
    HandshakeRefused,
    OmqError,
    ProtocolError,
    ReplyBlocked,
    ServerError,
)
from omq.client.fast import Opened, SinkBlock, feed_block
from omq.client.feed import Feed
from omq.client.ledger import Ledger
from omq.client.lines import publish_bodies, publish_line, publish_lines, publish_start
from omq.client.network import Security
from omq.client.replies import Answer, AnsweredCommand
from omq.client.sink import Sink
from omq.client.sink_heads import Heads
from omq.client.subscription import DEFAULT_CAPACITY, Subscription
from omq.protocol.credentials import File, client_context
from omq.protocol.topics import check_topic
from omq.protocol.types import (
    BlockInfo,
    BlockList,
    Blocks,
    Confirm,
    Declare,
    Declared,
    Delete,
    Deleted,
    Delivery,
    Fetch,
    FromCurrent,
    Persistence,
    Persistent,
    Replay,
    Sync,
    Topic,
    TopicInfo,
    TopicList,
    Topics,
)

log = logging.getLogger("omq.client")

SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds between attempts to connect again; until a server answers, each is about twice the one before."""

FINISH_SECONDS = 10.0
"""How long the server has to read what was sent last, and to close."""

BREAK_OFF_SECONDS = 0.5
"""The same when the client is left by an exception."""

BATCH_OCTETS = 64 << 10
"""About how many octets of bodies `publish_many` turns into lines at a time."""

NOT_LET_IN = "Connect: "
"""How an Error begins that says why the server does not let this client in: not now, or not at all."""

UNKNOWN_CLIENT = "Connect: no client has this name and secret"
"""Not at all: it would be the same the next time."""

MOST_STARTS = 1024

EVERYTHING = 2**63 - 1
"""A count of messages that reaches to the newest one."""

Name = bytes | str


def warn_of_gap(gap: Gap) -> None:
    """What is done with a gap when nothing else is asked for: a warning in the log."""
    log.warning("%r: messages %d to %d are missing: %s", gap.topic, gap.first, gap.last, gap.reason)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client connects; see `connect` for their meaning."""

    host: str
    port: int
    security: Security | None
    id: bytes = field(repr=False)  # there may be a secret in it
    reconnect: bool
    on_gap: Callable[[Gap], None]
    connect_seconds: float


class Client:
    """A connected client. Made by `connect`; any number of tasks may use it.

    Topics may be given as octets or as text, which stands for its UTF-8 octets; bodies are octets. Every
    method that talks to the server raises ConnectionLost when the connection ends before it is done (with
    `reconnect`, those that have sent nothing yet wait for the next connection instead), and ValueError when a
    topic's name is empty or longer than 255 octets.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connection: Connection | None = None
        self._changed = trio.lowlevel.ParkingLot()  # a connection has come, or none will
        self._failure: OmqError | None = None
        self._ledger = Ledger()
        self._numbers = itertools.count(1)
        self._starts: dict[Name, bytes] = {}
        self._subscriptions: dict[Subscription, None] = {}
        self._opened = Opened(settings.on_gap, settings.connect_seconds, settings.security)
        self._leaving = False

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
                raise _unexpected(other)

    async def delete(self, topic: Name) -> Topic:
        """Delete a topic with all its messages; its subscriptions end. Raises ServerError."""
        match await self._call(Delete(_name(topic))):
            case Deleted(deleted):
                return deleted
            case other:
                raise _unexpected(other)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Every topic of the server, with its types, counts and ids."""
        match await self._call(Topics()):
            case TopicList(infos):
                return infos
            case other:
                raise _unexpected(other)

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish(self, topic: Name, body: bytes) -> None:
        """Send a message, and do not wait for what becomes of it; `confirm` tells.

        Waits only while much is queued that the server does not take. A lone message leaves at once; messages
        published one after another share system calls.
        """
        start = self._starts.get(topic)
        if start is None:
            start = self._new_start(topic)
        line = publish_line(start, body)
        if current_task() is not self._ledger.publisher:
            self._ledger.see()
        connection = self._connection
        if connection is not None and not connection.failed:
            try:
                await connection.send(line, 1)
                return
            except ConnectionLost:
                if not self._settings.reconnect:
                    raise
        await self._send(line, 1)

    async def publish_many(self, topic: Name, bodies: Iterable[bytes]) -> int:
        """Send many messages, for a fraction of the time that as many calls of `publish` take.

        Returns how many there were.
        """
        start = self._starts.get(topic) or self._new_start(topic)
        self._ledger.see()
        count = 0
        batch: list[bytes] = []
        octets = 0
        for body in bodies:
            batch.append(body)
            octets += len(body)
            if octets >= BATCH_OCTETS or len(batch) >= BATCH_OCTETS // 16:
                await self._send(publish_bodies(start, batch), len(batch))
                count += len(batch)
                batch = []
                octets = 0
        if batch:
            await self._send(publish_bodies(start, batch), len(batch))
        return count + len(batch)

    async def publish_lines(self, topic: Name, text: bytes) -> int:
        """Send each line of `text` as a message, without its line feed; the last one may lack it.

        The fastest way to publish. Give it some 64 KiB at a time. Returns how many lines there were.
        """
        if not text:
            return 0
        start = self._starts.get(topic) or self._new_start(topic)
        if not text.endswith(b"\n"):
            text += b"\n"
        self._ledger.see()
        count = text.count(b"\n")
        await self._send(publish_lines(start, text), count)
        return count

    async def confirm(self) -> None:
        """Wait until everything published on this client so far is as safe as its topic declares: on disk,
        written, or handed over (design, section 4).

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
            connection = await self._live()
            end = self._ledger.published
            await self._ask(connection, own=False)
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
        start = self._starts.get(topic) or self._new_start(topic)
        line = publish_line(start, body)
        self._ledger.see()
        connection = await self._queue(line, 1)
        number = self._ledger.published
        try:
            await self._ask(connection, own=True)
        except ConnectionLost:
            self._ledger.loss_told(to_all=False)
            raise
        self._ledger.tell_publisher(number)

    async def ping(self) -> float:
        """The seconds that a round trip takes. It waits for messages that are on their way to disk, but what
        has become of them is left for `confirm` to tell. Raises ConnectionLost when there is no answer.
        """
        started = time.perf_counter()
        await self._ask(await self._live(), own=False)
        return time.perf_counter() - started

    async def _ask(self, connection: Connection, *, own: bool) -> None:
        """Wait for the answer to a Confirm; what it says is in the ledger."""
        try:
            await connection.call(Confirm(next(self._numbers)), own=own)
        except ServerError as error:
            log.debug("%s", error)

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
        subscription = Subscription(_name(topic), replay, credit, capacity, self._settings.on_gap)
        self._subscriptions[subscription] = None
        connection: Connection | None = None
        asked = True
        try:
            connection = await self._live()
            if self._settings.reconnect and credit is None and isinstance(replay, FromCurrent):
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
            del self._subscriptions[subscription]
            current = self._connection if subscription.topic is not None else connection
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
                raise _unexpected(other)

    def fetch(
        self, topic: Name, first: int = 1, count: int = EVERYTHING
    ) -> AbstractAsyncContextManager[bulk.Blocks]:
        """`async with client.fetch(topic) as blocks:` gives an iterator over whole stored blocks, those that
        hold any of `count` messages from `first` on: the fastest way to read what is stored. It has a
        connection of its own, which is read only as fast as blocks are taken.

        The first block may begin before `first`, and the last may end behind the range. Blocks are merged in
        the background, so they are not always the same ones. Gaps are told to the `on_gap` of `connect`.

        Entering raises ConnectionFailed and HandshakeRefused; for the rest see `omq.client.bulk.Blocks`.
        """
        settings = self._settings
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

        Entering raises ServerError, SinkFailed, ConnectionFailed and ConnectionLost. A sink goes on when
        the client's connection is lost; when its own is, it is not made again.
        """
        heads = Heads(None if producer is None else _octets(producer), first)
        return SinkBlock(self._opened, self._live, _name(topic), heads)

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
        return feed_block(self._opened, self._live, _name(topic), replay)

    # -- the connection underneath -------------------------------------------------------------------------

    async def _live(self) -> Connection:
        """The connection there is, or the next one. Raises the reason when there will be none."""
        while self._connection is None or self._connection.failed:
            if self._failure is not None:
                raise self._failure
            await self._changed.park()
        return self._connection

    async def _call(self, command: AnsweredCommand) -> Answer:
        return await (await self._live()).call(command)

    async def _send(self, octets: bytes, messages: int) -> None:
        while True:
            connection = await self._live()
            try:
                await connection.send(octets, messages)
                return
            except ConnectionLost:
                # Nothing of it was queued, so it can be given to the next connection.
                if not self._settings.reconnect:
                    raise

    async def _queue(self, octets: bytes, messages: int) -> Connection:
        """`_send`, but the caller goes on before anybody else; says over which connection it went."""
        while True:
            connection = await self._live()
            try:
                await connection.queue(octets, messages)
                return connection
            except ConnectionLost:
                if not self._settings.reconnect:
                    raise

    def _new_start(self, topic: Name) -> bytes:
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        start = self._starts[topic] = publish_start(_name(topic))
        return start

    async def connect(self) -> Connection:
        """Open a connection. Raises ConnectionFailed and HandshakeRefused."""
        settings = self._settings
        return await Connection.open(
            settings.host,
            settings.port,
            settings.security,
            settings.id,
            settings.connect_seconds,
            self._ledger,
            self._opened.news,
        )

    async def run(self, connection: Connection) -> None:
        """Serve `connection`, and if so asked those that follow it, until there will be no other."""
        pause = SHORTEST_PAUSE
        resuming = False
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                if not resuming or await self._resume(connection):
                    self._connection = connection
                    self._changed.unpark_all()
            self._connection = None
            for subscription in self._subscriptions:
                subscription.disconnected()
            failure = connection.failure()
            said = failure.server_error or ""
            final = isinstance(failure, ProtocolError) or said.startswith(UNKNOWN_CLIENT)
            if not self._settings.reconnect or self._leaving or final:
                self._give_up(failure)
                return
            log.warning("%s; connecting again", failure)
            if connection.heard_from and not said.startswith(NOT_LET_IN):
                pause = SHORTEST_PAUSE
            while True:
                await trio.sleep(random.uniform(pause / 2, pause))
                pause = min(2 * pause, LONGEST_PAUSE)
                try:
                    connection = await self.connect()
                    break
                except ConnectionFailed as error:
                    log.info("%s", error)
                except HandshakeRefused as error:
                    self._give_up(error)
                    return
            resuming = True

    def _give_up(self, failure: OmqError) -> None:
        self._failure = failure
        for subscription in self._subscriptions:
            subscription.fail(failure)
        self._changed.unpark_all()

    async def _resume(self, connection: Connection) -> bool:
        """See that the server answers, and subscribe again where each subscription had got to.

        False when this connection ended too.
        """
        subscriptions = [one for one in self._subscriptions if one.topic is not None and not one.finished]
        try:
            if not subscriptions:
                await self._ask(connection, own=False)
                return True
            answer = await connection.call(Topics())
            if not isinstance(answer, TopicList):
                raise _unexpected(answer)
            infos = {info.id: info for info in answer.topics}
            for subscription in subscriptions:
                info = infos.get(subscription.topic.id) if subscription.topic is not None else None
                if info is None or info.topic != subscription.name:
                    log.warning("%r was deleted while the connection was lost", subscription.name)
                    subscription.end()
                    continue
                if subscription not in self._subscriptions:
                    continue  # its owner left meanwhile
                try:
                    await connection.subscribe(subscription, subscription.resume(info))
                except (ServerError, ReplyBlocked) as error:
                    subscription.fail(error)
                if subscription not in self._subscriptions:
                    connection.leave(subscription.name)
        except ConnectionLost:
            return False
        return True

    async def finish(self) -> None:
        """The proper end: what was sent leaves, and is read by the server.

        Raises ConnectionLost when published messages may not have arrived, and PublishRefused when the
        server refused some and nobody was told.
        """
        self._leaving = True
        connection = self._connection
        if connection is not None:
            in_doubt = self._ledger.unsettled
            try:
                with trio.fail_after(FINISH_SECONDS):
                    await connection.finish()
            except trio.TooSlowError as error:
                if in_doubt:
                    late = f"the server did not finish within {FINISH_SECONDS:g} s after the last message"
                    raise ConnectionLost(late) from error
                log.warning("the server did not close within %g s", FINISH_SECONDS)
            except ConnectionLost as error:
                if in_doubt:
                    raise
                log.debug("at the end: %s", error)
        self._ledger.tell_untold()

    async def break_off(self) -> None:
        """The end after an exception: what was sent still leaves if that takes no time to speak of."""
        self._leaving = True
        connection = self._connection
        if connection is not None:
            with trio.move_on_after(BREAK_OFF_SECONDS, shield=True):
                try:
                    await connection.finish()
                except ConnectionLost as error:
                    log.debug("after an exception: %s", error)


class Connecting(AbstractAsyncContextManager[Client]):
    """The block within which a client is connected; it owns the client's tasks."""

    # No generator with a nursery in it: the nursery would wrap what the block raises into a group, and nobody
    # could write `except ServerError` around it.

    def __init__(self, settings: Settings) -> None:
        self._client = Client(settings)
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Client:
        self._client._ledger.see()
        connection = await self._client.connect()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._client.run, connection)
        self._client._connection = connection
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nursery is None:
            raise RuntimeError("left without being entered")
        try:
            if error is None:
                await self._client.finish()
            else:
                await self._client.break_off()
        finally:
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)


def connect(
    url: str = "omq://127.0.0.1:7730",
    *,
    id: Name = b"omq.client",
    reconnect: bool = False,
    on_gap: Callable[[Gap], None] = warn_of_gap,
    connect_seconds: float = 10.0,
    ca: File | None = None,
    certificate: File | None = None,
    key: File | None = None,
) -> Connecting:
    """Connect to a server: `async with connect("omq://host:port", id="prices-feed") as client:`.

    `id` is who we say we are; the server logs it, up to the first colon. Connecting, handshake included,
    takes at most `connect_seconds`. A server that knows its clients wants to see `NAME:SECRET`. When that is
    refused, it is not tried again, with `reconnect` either.

    With `omqs://host:port` everything goes through TLS, and the server must show a certificate for this host:
    one that the authorities in the file `ca` vouch for, or without it those whom the system trusts. A server
    that wants to see a certificate of ours is shown that in the file `certificate`, whose private key is in
    `key`, or else in the same file.

    With `reconnect`, a lost connection is made again, as often as it takes (the first one is tried once);
    commands that were waiting for an answer still raise ConnectionLost, and so does the `confirm` after
    publishes of unknown fate. Subscriptions go on: of persistent broadcast topics behind the last
    message seen, without loss or repeat; of the others with the current messages, and `on_gap` is called with
    what a transient broadcast topic sent meanwhile. With credit, messages not confirmed come again, here or
    elsewhere.

    `on_gap` is also called when the server itself has lost messages of a subscription. It is called by the
    task that iterates, when it gets there. By default it logs a warning.

    Leaving the block without an exception sends what was published and sees that the server has read
    it. Raises ConnectionFailed and HandshakeRefused when entered, ConnectionLost and PublishRefused when
    left, and ValueError at once for a bad `url` and for files that cannot be used.
    """
    host, port, tls = parse_url(url)
    security = None
    if tls:
        security = Security(client_context(ca, certificate, key), host)
    elif ca is not None or certificate is not None or key is not None:
        raise ValueError("certificates are for omqs://, and this address begins with omq://")
    return Connecting(Settings(host, port, security, _octets(id), reconnect, on_gap, connect_seconds))


def _octets(name: Name) -> bytes:
    return name.encode() if isinstance(name, str) else name


def _name(topic: Name) -> bytes:
    octets = _octets(topic)
    problem = check_topic(octets)
    if problem is not None:
        raise ValueError(problem)
    return octets


def _unexpected(answer: Answer) -> RuntimeError:
    return RuntimeError(f"a {type(answer).__name__} got through to one who asked for something else")
