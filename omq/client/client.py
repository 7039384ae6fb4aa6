"""A client: what a program says to a server, over one connection after another."""

import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

import trio

from omq.client.address import parse_url
from omq.client.connection import Connection
from omq.client.errors import (
    ConnectionFailed,
    ConnectionLost,
    Gap,
    HandshakeRefused,
    OmqError,
    ProtocolError,
    PublishRefused,
    ReplyBlocked,
    ServerError,
)
from omq.client.lines import publish_bodies, publish_line, publish_lines, publish_start
from omq.client.replies import Answer, AnsweredCommand
from omq.client.subscription import DEFAULT_CAPACITY, Subscription
from omq.protocol.topics import check_topic
from omq.protocol.types import (
    Confirm,
    Declare,
    Declared,
    Delete,
    Deleted,
    Delivery,
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
"""Seconds between attempts to connect again; each pause is about twice the one before."""

FINISH_SECONDS = 10.0
"""How long the server has to read what was sent last, and to close."""

BREAK_OFF_SECONDS = 0.5
"""The same when the client is left by an exception."""

BATCH_OCTETS = 64 << 10
"""About how many octets of bodies `publish_many` turns into lines at a time."""

MOST_STARTS = 1024

Name = bytes | str


def warn_of_gap(gap: Gap) -> None:
    """What is done with a gap when nothing else is asked for: a warning in the log."""
    log.warning("%r: messages %d to %d are missing: %s", gap.topic, gap.first, gap.last, gap.reason)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a client connects; see `connect` for their meaning."""

    host: str
    port: int
    id: bytes
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
        self._doubtful: Connection | None = None  # ended with messages of unknown fate
        self._numbers = itertools.count(1)
        self._starts: dict[Name, bytes] = {}
        self._subscriptions: dict[Subscription, None] = {}
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
        count = text.count(b"\n")
        await self._send(publish_lines(start, text), count)
        return count

    async def confirm(self) -> None:
        """Wait until everything published on this client so far is as safe as its topic declares: on disk,
        written, or handed over (design, section 4).

        Raises PublishRefused when something published since the last `confirm` was refused, and
        ConnectionLost when a connection was lost since then and the fate of messages is not known. Both
        are said once.
        """
        connection = await self._live()
        if self._doubtful is not None:
            lost, self._doubtful = self._doubtful, None
            raise ConnectionLost(f"messages that were not confirmed may be lost: {lost.failure()}")
        published = connection.published
        try:
            await connection.call(Confirm(next(self._numbers)))
        except ServerError as error:
            connection.settled = max(connection.settled, published)
            refusals = connection.take_refusals()
            raise PublishRefused(error.text, error.command, error.argument, refusals) from error
        except ConnectionLost:
            self._no_doubt_about(connection)
            raise
        connection.settled = max(connection.settled, published)

    def _no_doubt_about(self, connection: Connection) -> None:
        """Somebody was told that messages of this connection may be lost: once is enough."""
        connection.doubt_reported = True
        connection.take_refusals()  # told with the loss
        if self._doubtful is connection:
            self._doubtful = None

    async def publish_confirmed(self, topic: Name, body: bytes) -> None:
        """`publish` and `confirm`. Raises as these do."""
        await self.publish(topic, body)
        await self.confirm()

    async def ping(self) -> float:
        """The seconds that a round trip takes. It is a `confirm`, so it raises as that does, and waits for
        messages that are on their way to disk.
        """
        started = time.perf_counter()
        await self.confirm()
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

    def _new_start(self, topic: Name) -> bytes:
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        start = self._starts[topic] = publish_start(_name(topic))
        return start

    async def connect(self) -> Connection:
        """Open a connection. Raises ConnectionFailed and HandshakeRefused."""
        settings = self._settings
        return await Connection.open(settings.host, settings.port, settings.id, settings.connect_seconds)

    async def run(self, connection: Connection) -> None:
        """Serve `connection`, and if so asked those that follow it, until there will be no other."""
        pause = SHORTEST_PAUSE
        resuming = False
        while True:
            started = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                if not resuming or await self._resume(connection):
                    self._connection = connection
                    self._changed.unpark_all()
            self._connection = None
            for subscription in self._subscriptions:
                subscription.disconnected()
            failure = connection.failure()
            if connection.unsettled and not connection.doubt_reported:
                self._doubtful = connection
            if not self._settings.reconnect or self._leaving or isinstance(failure, ProtocolError):
                self._give_up(failure)
                return
            log.warning("%s; connecting again", failure)
            if trio.current_time() - started > LONGEST_PAUSE:
                pause = SHORTEST_PAUSE
            while True:
                await trio.sleep(pause * random.uniform(0.5, 1.0))
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
        """Subscribe again where each subscription had got to; False when this connection ended too."""
        subscriptions = [one for one in self._subscriptions if one.topic is not None and not one.finished]
        if not subscriptions:
            return True
        try:
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
        server refused some and no `confirm` has said so.
        """
        self._leaving = True
        if self._doubtful is not None:
            raise ConnectionLost(f"messages that were not confirmed may be lost: {self._doubtful.failure()}")
        connection = self._connection
        if connection is None:
            return
        in_doubt = connection.unsettled and not connection.doubt_reported
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
        refusals = connection.take_refusals()
        if refusals:
            raise PublishRefused(refusals[0], "Publish", b"", refusals[1:])

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
) -> Connecting:
    """Connect to a server: `async with connect("omq://host:port", id="prices-feed") as client:`.

    `id` is who we say we are; the server logs it. Connecting, handshake included, takes at most
    `connect_seconds`.

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
    left, and ValueError at once for a bad `url`.
    """
    host, port = parse_url(url)
    return Connecting(Settings(host, port, _octets(id), reconnect, on_gap, connect_seconds))


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
