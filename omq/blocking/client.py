"""The synchronous client: the methods of `omq.client.Client`, called in the thread of a portal."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType

from omq import management
from omq.blocking.blocks import Blocks
from omq.blocking.portal import BATCH_MESSAGES, BATCH_OCTETS, CALLING_THREAD, Portal
from omq.blocking.receiving import Feed, Subscription
from omq.blocking.sink import Sink
from omq.blocking.watching import Rounds
from omq.client import Gap, warn_of_gap
from omq.client.bodies import batches
from omq.client.client import EVERYTHING, Name
from omq.client.connecting import Connecting, settings_for
from omq.client.subscription import DEFAULT_CAPACITY
from omq.credentials import File
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
)
from omq.watching import ConnectionInfo, Retention, SubscriberInfo


class Client(AbstractContextManager["Client"]):
    """A connected client. `connect` creates it; any number of threads may use it, each as if it were a task
    of `omq.client`: the calls of different threads run concurrently, and each thread gets its own reports of
    messages that were refused.

    Every method that uses the connection raises ConnectionLost when the connection ends, or `close` is
    called, before the method is done; ValueError when a topic's name is empty or longer than 255 octets; and
    TypeError for a topic or a body of another type. Ctrl-C interrupts every method.

    Sinks, subscriptions, feeds and fetches end with the client: leave or close them before.
    """

    def __init__(self, portal: Portal, connecting: Callable[[], Connecting]) -> None:
        self._portal = portal
        self._entered = portal.enter(connecting)
        self._client = self._entered.value.get()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(whole=error is None)

    def close(self) -> None:
        """Send all published messages, wait until the server has read them, and disconnect.

        The end of a `with` block does the same, but after an exception it waits 0.5 s at most. A second call
        does nothing. Raises ConnectionLost when messages may not have arrived within 10 s, and PublishRefused
        when the server refused messages and no `confirm` reported that.
        """
        self._leave(whole=True)

    def _leave(self, *, whole: bool) -> None:
        if self._portal.is_closed:
            return
        try:
            self._portal.leave(self._entered, whole=whole)
        finally:
            self._portal.close()

    @property
    def ended(self) -> bool:
        """Whether the last connection has ended and the client will not reconnect."""
        return self._portal.is_closed or self._client.ended

    # -- topics --------------------------------------------------------------------------------------------

    def declare(
        self,
        topic: Name,
        delivery: Delivery = Delivery.BROADCAST,
        persistence: Persistence = Persistent(Sync.WEAK),
    ) -> Topic:
        """Create a topic, unless it exists with these types. Raises ServerError if it exists with others."""
        return self._portal.call(self._client.declare, topic, delivery, persistence)

    def delete(self, topic: Name) -> Topic:
        """Delete a topic with all its messages, and end its subscriptions. Raises ServerError."""
        return self._portal.call(self._client.delete, topic)

    def topics(self) -> tuple[TopicInfo, ...]:
        """List the server's topics, with their types, counts and ids."""
        return self._portal.call(self._client.topics)

    # -- publishing ----------------------------------------------------------------------------------------

    def publish(self, topic: Name, body: bytes) -> None:
        """Send a message without waiting for its confirmation; `confirm` waits for it.

        Waits only while the send queue is full. A call takes some 100 microseconds, because it changes
        threads: use `publish_many` for many messages. Raises MessageTooLong for a body that does not fit into
        a line of 1 MiB (see `connect`): publish it through a `sink`.
        """
        self._portal.call(self._client.publish, topic, body)

    def publish_many(self, topic: Name, bodies: Iterable[bytes]) -> int:
        """Send many messages, much faster than with one call of `publish` for each.

        `bodies` is iterated over in the calling thread, and may use this client. Returns the number of
        messages. Raises MessageTooLong as `publish` does, after it has sent the messages before the long one.
        """
        return sum(
            self._portal.call(self._client.publish_many, topic, batch)
            for batch in batches(bodies, BATCH_OCTETS, BATCH_MESSAGES)
        )

    def publish_lines(self, topic: Name, text: bytes) -> int:
        """Send each line of `text` as a message, without its line feed; the last line may lack one.

        Pass about 64 KiB at a time. Returns the number of lines. Raises MessageTooLong as `publish` does, and
        then has sent nothing of `text`.
        """
        return self._portal.call(self._client.publish_lines, topic, text)

    def confirm(self, timeout: float | None = None) -> None:
        """Wait until everything published on this client so far has its topic's persistence: on disk,
        written, or handed over.

        Raises PublishRefused when the server refused messages, ConnectionLost when a connection was lost
        before the outcome of messages was known, and TimeoutError when that takes more than `timeout`
        seconds; a later call then waits on. When several threads share the client, each failure is reported
        once to each thread that it may concern, as `omq.client.Client.confirm` describes it for tasks.
        """

        self._portal.call_within(timeout, self._client.confirm)

    def publish_confirmed(self, topic: Name, body: bytes) -> None:
        """Publish a message, and wait until it has its topic's persistence. Raises as `publish` and `confirm`
        do.
        """
        self._portal.call(self._client.publish_confirmed, topic, body)

    def ping(self) -> float:
        """Measure a round trip, in seconds. It includes the wait for earlier messages to be stored."""
        return self._portal.call(self._client.ping)

    # -- subscribing ---------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: Name,
        replay: Replay = FromCurrent(),
        *,
        timeout: float | None = None,
        credit: int | None = None,
        capacity: int = DEFAULT_CAPACITY,
    ) -> Subscription:
        """Subscribe to a topic, and unsubscribe at the end of a `with` block or by `close`.

        Iteration ends when no message arrives within `timeout` seconds; None waits without limit.

        `credit` is for round-robin topics: the window, the greatest number of messages that we hold
        unconfirmed. Such a subscription starts with new messages and ignores `replay`.

        `capacity` is the size of the receive buffer, in octets of messages. While it is full, the client does
        not read its connection, so other subscriptions on it wait too, and `confirm` may raise ReplyBlocked.
        So use a separate client for a slow consumer.

        Raises ServerError when the server refuses.
        """
        subscribed = partial(self._client.subscribe, topic, replay, credit=credit, capacity=capacity)
        return Subscription(self._portal, subscribed, timeout)

    # -- DMP -----------------------------------------------------------------------------------------------

    def sink(self, topic: Name, *, producer: Name | None = None, first: int = 1) -> Sink:
        """Publish to one topic over a DMP connection of its own, the fastest way: `with client.sink(topic) as
        sink:`.

        The end of the block, or `close`, waits until all messages have the topic's persistence; `sink.stored`
        is then their number. Raises SinkFailed when the server stored fewer messages than were sent, and
        ConnectionLost when the server did not answer. After an exception in the block nothing is confirmed.

        With a `producer` each message also carries this name and a sequence number, which begins at `first`.
        A producer that does not know whether messages were stored sends them again with the same numbers; the
        server does not store them twice. Every producer of a topic needs a unique name.

        Opening raises ServerError, SinkFailed, ConnectionFailed and ConnectionLost. A sink does not
        reconnect.
        """
        opened = partial(self._client.sink, topic, producer=producer, first=first)
        return Sink(self._portal, self._portal.enter(opened))

    def feed(
        self,
        topic: Name,
        replay: Replay = FromCurrent(),
        *,
        timeout: float | None = None,
    ) -> Feed:
        """Receive one topic over a DMP connection of its own: `with client.feed(topic) as feed:`.

        A feed gives the heads of messages (exchange, routing key, properties), but no ids. It misses no
        message that is published after this call. On a round-robin topic it gets its share, and a received
        message counts as confirmed: a feed has no credit. For messages of more than 64 MiB iterate over
        `feed.opened()`; otherwise they raise BodyTooLong.

        Iteration ends when no message arrives within `timeout` seconds; None waits without limit.

        Opening raises ServerError, FeedFailed, ConnectionFailed and ConnectionLost. A feed does not
        reconnect.
        """
        return Feed(self._portal, partial(self._client.feed, topic, replay), timeout)

    # -- bulk reading ---------------------------------------------------------------------------------------

    def fetch(self, topic: Name, first: int = 1, count: int = EVERYTHING) -> Blocks:
        """Read stored messages the fastest way: `with client.fetch(topic) as blocks:` gives an iterator over
        the whole stored blocks that hold any of `count` messages from `first` on. It uses a separate
        connection, and reads it only as fast as the caller takes blocks.

        The first block may begin before `first`, and the last may end after the range. The server merges
        blocks in the background, so a block may begin before the end of the previous one: skip the ids that
        you have already. `omq.arrow` does that, and gives columns.

        Opening raises ConnectionFailed and HandshakeRefused.
        """
        return Blocks(self._portal, self._portal.enter(partial(self._client.fetch, topic, first, count)))

    def blocks(self, topic: Name, first: int = 1, count: int = EVERYTHING) -> tuple[BlockInfo, ...]:
        """List the stored blocks that hold any of `count` messages from `first` on, at most 4,096; for more,
        call again with the id after the last block. Raises ServerError, also for a topic that cannot be
        replayed.
        """
        return self._portal.call(self._client.blocks, topic, first, count)

    # -- watch and control ---------------------------------------------------------------------------------

    def watch(self, period: float = 1.0) -> Rounds:
        """Watch the server: `with client.watch() as rounds:` gives an iterator over rounds of its statistics,
        one in each `period` seconds, on a separate connection. See docs/PROTOCOL.md, "Watch and control".

        Raises ConnectionFailed and HandshakeRefused.
        """
        return Rounds(self._portal, self._portal.enter(partial(self._client.watch, period)))

    def connections(self, first: int = 1) -> tuple[ConnectionInfo, ...]:
        """List the connections of the server with ids from `first` on. Raises ServerError."""
        return self._portal.call(self._client.connections, first)

    def subscribers(self, topic: Name) -> tuple[SubscriberInfo, ...]:
        """List the subscribers of a topic that are the furthest behind, at most 50. Raises ServerError."""
        return self._portal.call(self._client.subscribers, topic)

    def disconnect(self, connection: int) -> bool:
        """End a connection of the server; return False if there is none with this id. Raises ServerError."""
        return self._portal.call(self._client.disconnect, connection)

    def purge(self, topic: Name) -> int:
        """Delete the messages of a topic; of a round-robin topic those that no subscriber has. Return their
        number. Raises ServerError.
        """
        return self._portal.call(self._client.purge, topic)

    def retain(self, topic: Name, retention: Retention) -> None:
        """Change the retention of a topic: `Limits(octets, ms)`, or `Configured()`. Raises ServerError."""
        self._portal.call(self._client.retain, topic, retention)

    # -- queues, exchanges and bindings --------------------------------------------------------------------

    def manage(self, request: management.Request) -> management.Answer:
        """List or change queues, exchanges and bindings, see docs/PROTOCOL.md, "Manage". Raises
        ServerError.
        """
        return self._portal.call(self._client.manage, request)


def connect(
    url: str = "omq://127.0.0.1:7730",
    *,
    id: Name = b"omq.blocking",
    reconnect: bool = False,
    on_gap: Callable[[Gap], None] = warn_of_gap,
    connect_seconds: float = 10.0,
    max_line_bytes: int = 1 << 20,
    ca: File | None = None,
    certificate: File | None = None,
    key: File | None = None,
) -> Client:
    """Connect to a server: `with connect("omq://host:port", id="report") as client:`, or without `with`, and
    call `client.close()` at the end.

    The arguments are those of `omq.client.connect`. The client reads its connection in a thread of its own,
    which answers the server's pings while the program does something else; with `reconnect` it also
    reconnects. That thread calls `on_gap`, which must not call the client.

    A program that ends without `close` waits for its clients for 1 s at most; published messages that the
    server has not read by then are lost. After a fork, connect again in the new process.

    Raises ConnectionFailed and HandshakeRefused, and ValueError for a bad `url` and for files that cannot be
    used.
    """
    settings = settings_for(url, id, reconnect, on_gap, connect_seconds, max_line_bytes, ca, certificate, key)
    portal = Portal()
    try:
        return Client(portal, lambda: Connecting(settings, CALLING_THREAD.get))
    except BaseException:  # Ctrl-C, too
        portal.close()
        raise
