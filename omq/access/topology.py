"""The operations of one connection on exchanges, bindings and queues, with the rights of its client.

AMQP 0-9-1 names more things than topics; these are the rights that its operations need (docs/AMQP.md,
"Rights"):

    declare and delete     the right to declare or delete the name, of an exchange as of a topic
    publish                see `omq.access.routed_publishing`
    forward                to publish to the alternate exchange of an exchange, or the dead-letter exchange of
                           a queue: see `check_forwarding`
    bind and unbind        to publish to the destination, and to subscribe to the source
    consume, get, purge    to subscribe to the queue
    declare passively      any right to the name

An exclusive queue whose name the server made needs no right: nobody else can use it. It counts against the
quota of topics.
"""

import base64
import secrets
import sys
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from omq.access.getter import Getter
from omq.access.leases import LeasedExchange, Leases, Principal, Returned
from omq.access.leasing import Leasing
from omq.access.rights import Right
from omq.access.routed_publishing import REPLIES, RoutedPublishing
from omq.access.session import Release, S, Session
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.feed import LeasedFeed
from omq.drivers.lifetime import Ephemeral, Ownership, check_user
from omq.drivers.purging import purge
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueKind, QueueOptions
from omq.drivers.reasons import (
    IN_VIRTUAL_HOST,
    NOT_REPLAYED,
    Inequivalent,
    Reason,
    Refused,
    in_use,
    missing,
)
from omq.drivers.seam import Channel, Subscriber
from omq.drivers.times import first_since
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.types import (
    DEFAULT,
    RESERVED,
    Destination,
    DestinationKind,
    Exchange,
    alternate_exchange,
    refusal_of_internal,
    refusal_of_reserved,
)
from omq.logs import quoted
from omq.model import Delivery, FromCurrent, FromMessage, Persistent, Replay, Sync, Topic
from omq.protocol.amqp.fields import Table
from omq.watching import Limits

GENERATED = b"amq.gen-"
"""The beginning of the names that the server makes for queues."""

NAME_OCTETS = 16
"""The random octets of a name: 22 characters in base64."""


LEAST_GENERATED = 64
"""The least number of names of generated queues after which a connection checks which of them still exist."""


class QueueState(Struct, frozen=True):
    """A queue, as the answer to its declaration tells it."""

    name: bytes
    messages: int
    consumers: int


def check_forwarding(
    check: Callable[[Right, bytes], None], exchange: bytes | None, key: bytes | None
) -> None:
    """Check the right to publish to where the server forwards messages for a client: to this exchange, with
    this key, or with the keys of the messages (None). Raises Refused, as `check` does.
    """
    if exchange is None:
        return
    if exchange == DEFAULT and key is not None:
        check(Right.PUBLISH, key)
    else:
        # The name of the default exchange is empty, so only the right to all topics (`*`) has it.
        check(Right.PUBLISH, exchange)


class Topology:
    """The exchanges and queues, as one connection may use them. Call `close` when it ends."""

    def __init__(
        self, session: Session, catalogue: Catalogue, exchanges: ExchangeRegistry, leases: Leases
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._leases = leases
        self._exchanges = exchanges
        self.publishing = RoutedPublishing(session, exchanges)
        """Publishes messages to these exchanges."""
        self._owner = session.owner = Ownership()
        self._generated = session.made_names
        self._most_generated = LEAST_GENERATED

    def close(self) -> None:
        """Delete the exclusive queues of the connection."""
        self._catalogue.deletion.delete_of(self._owner)

    # -- exchanges -----------------------------------------------------------------------------------------

    async def declare_exchange(
        self,
        name: bytes,
        type_name: bytes,
        arguments: Table,
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
    ) -> None:
        """See `ExchangeRegistry.declare`. Raises Refused."""
        if not name.startswith(RESERVED):  # which exist, or are refused to every client
            self._session.check_unless_made(Right.DECLARE, name)
            check_forwarding(self._session.check_unless_made, alternate_exchange(name, arguments), None)
        await self._exchanges.declare(
            name,
            type_name,
            arguments,
            self._session.admit_exchange,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
        )

    def find_exchange(self, name: bytes) -> Exchange:
        """Return the exchange with this name. Raises Refused."""
        if not name.startswith(RESERVED):  # of which every client knows
            self._session.check_known(name)
        return self._exchanges.find(name)

    async def delete_exchange(self, name: bytes, *, if_unused: bool) -> None:
        """Delete an exchange if there is one. Raises Refused."""
        self._session.check_unless_made(Right.DELETE, name)
        await self._exchanges.delete(name, if_unused=if_unused)

    async def bind(self, source: bytes, destination: Destination, key: bytes, arguments: Table) -> None:
        """Bind a queue or an exchange to an exchange. Raises Refused."""
        self._check_binding_rights(source, destination)
        if destination.kind is DestinationKind.QUEUE:
            self._find(destination.name)
        await self._exchanges.bind(source, destination, key, arguments, self._session.admit_binding)

    async def unbind(self, source: bytes, destination: Destination, key: bytes, arguments: Table) -> None:
        """Remove a binding if there is one. Raises Refused.

        As with RabbitMQ, there is none where one of its ends does not exist: clients unbind queues that they
        have deleted, and exchanges that have ended with their last binding.
        """
        self._check_binding_rights(source, destination)
        driver = self._catalogue.lookup(destination.name)
        if destination.kind is DestinationKind.QUEUE and driver is not None:
            check_user(driver.topic.topic, driver.lifetime, self._owner)
        await self._exchanges.unbind(source, destination, key, arguments)

    def _check_binding_rights(self, source: bytes, destination: Destination) -> None:
        self._session.check_unless_made(Right.PUBLISH, destination.name)
        if destination.name not in self._generated or not source.startswith(RESERVED):
            self._session.check_unless_made(Right.SUBSCRIBE, source)

    # -- queues --------------------------------------------------------------------------------------------

    def generate(self) -> bytes:
        """Return a new name for a queue of this connection."""
        if len(self._generated) >= self._most_generated:
            # Most of these queues may have gone by themselves.
            gone = [name for name in self._generated if self._catalogue.lookup(name) is None]
            for each in gone:
                del self._generated[each]
            self._most_generated = max(LEAST_GENERATED, 2 * len(self._generated))
        name = GENERATED + secrets.token_urlsafe(NAME_OCTETS).encode()
        self._generated[name] = None
        return name

    async def declare_queue(self, name: bytes, options: QueueOptions) -> QueueState:
        """Return the queue with this name and these options; make it if there is none. Raises Refused."""
        driver = self._catalogue.lookup(name)
        if driver is None and name.startswith(RESERVED) and name not in self._generated:
            raise refusal_of_reserved("queue", name)
        self._session.check_unless_made(Right.DECLARE, name)
        check_forwarding(
            self._session.check_unless_made, options.dead_letter_exchange, options.dead_letter_key
        )
        return _state(await self._catalogue.declare_queue(name, options, self._owner, self._admit(name)))

    async def declare_stream(
        self, name: bytes, sync: Sync | None, most_octets: int | None, most_ms: int | None
    ) -> QueueState:
        """Return the persistent broadcast topic with this name; make it if there is none, with the limits of
        its retention that are not None. One that exists must have these. Raises Refused.
        """
        limits = Limits(most_octets, most_ms)
        if name.startswith(RESERVED):
            raise refusal_of_reserved("queue", name)
        self._session.check_unless_made(Right.DECLARE, name)
        driver = await self._catalogue.find(name)
        if driver is None:
            driver = await self._catalogue.declare(
                name,
                Delivery.BROADCAST,
                Persistent(sync or self._session.durable_sync),
                self._admit(name),
                retention=limits,
            )
        check_user(driver.topic.topic, driver.lifetime, self._owner)
        what = f"queue {quoted(name)}"
        if driver.delivery is not Delivery.BROADCAST:
            raise Inequivalent(what, "x-queue-type", "'stream'", "'classic'")
        if not driver.is_persistent:
            raise Inequivalent(what, "durable", "'true'", "'false'")
        self._check_limits(driver, limits)
        return _state(driver)

    def _check_limits(self, driver: Driver, limits: Limits) -> None:
        """Raise Refused unless a stream has the limits that are not None, or those of the configuration where
        they are lower.
        """
        octets, seconds = driver.retention
        ms = None if seconds is None else round(seconds * 1000)
        lower = self._catalogue.retention_for(driver.topic.topic, limits) or limits
        what = f"queue {quoted(driver.topic.topic)}"
        if limits.octets is not None and octets not in (limits.octets, lower.octets):
            current = "none" if octets is None else f"'{octets}'"
            raise Inequivalent(what, "x-max-length-bytes", f"'{limits.octets}'", current)
        if limits.ms is not None and ms not in (limits.ms, lower.ms):
            current = "none" if ms is None else f"'{ms / 1000:g}s'"
            raise Inequivalent(what, "x-max-age", f"'{limits.ms / 1000:g}s'", current)

    async def make_reply_queue(self) -> bytes:
        """Make the queue of this connection for replies, and return its name. Raises Refused."""
        # Clients know such a name by its form, which is RabbitMQ's: two parts in base64.
        parts = (base64.b64encode(secrets.token_bytes(NAME_OCTETS)) for _ in range(2))
        name = b".".join((REPLIES, *parts))
        self._generated[name] = None
        options = QueueOptions(exclusive=True, auto_delete=True)
        await self._catalogue.declare_queue(name, options, self._owner, self._admit(name))
        return name

    def find_replies(self, name: bytes) -> QueueState:
        """Return the queue of a connection for replies, by its whole name or as REPLIES. As with RabbitMQ,
        any client may ask whether such a queue is still there, and none makes one by declaring it. Raises
        Refused.
        """
        if name != REPLIES and self._catalogue.lookup(name) is None:
            raise missing("queue", name)
        return QueueState(name, messages=0, consumers=1)

    def find_queue(self, name: bytes) -> QueueState:
        """Return the queue with this name, which counts as used. Raises Refused."""
        self._session.check_known(name)
        driver = self._find(name)
        if isinstance(driver, QueueDriver):
            driver.used()
        return _state(driver)

    async def delete_queue(self, name: bytes, *, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue if there is one; return the number of its messages. Raises Refused."""
        self._session.check_unless_made(Right.DELETE, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            return 0
        check_user(driver.topic.topic, driver.lifetime, self._owner)
        state = _state(driver)
        if if_unused and state.consumers:
            raise in_use("queue", name)
        if if_empty and state.messages:
            named = f"queue {quoted(name)}"
            text = f"{named} {IN_VIRTUAL_HOST} not empty"
            raise Refused(Reason.INVALID, f"{named} is not empty", text)
        await self._catalogue.delete(name)
        self._generated.pop(name, None)
        await self._exchanges.swept()
        return state.messages

    async def purge(self, name: bytes) -> int:
        """Delete the messages of a queue that are ready; return their number. Raises Refused."""
        return await purge(self._find_queue(name))

    def _admit(self, name: bytes) -> Callable[[], Release]:
        return partial(self._session.admit, name, is_allowed=name in self._generated)

    def _find(self, name: bytes) -> Driver:
        """Return the topic with this name, unless it belongs to another connection. Raises Refused."""
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise missing("queue", name)
        check_user(driver.topic.topic, driver.lifetime, self._owner)
        return driver

    def _find_source(self, name: bytes) -> Driver:
        """Return the topic with this name, from which the client may receive messages. Raises Refused."""
        self._session.check_unless_made(Right.SUBSCRIBE, name)
        return self._find(name)

    def _find_queue(self, name: bytes) -> QueueDriver:
        """Return the queue with this name, from which the client may receive messages. Raises Refused, and
        IsStream.
        """
        driver = self._find_source(name)
        if not isinstance(driver, QueueDriver):
            raise IsStream(name)
        return driver

    # -- messages out --------------------------------------------------------------------------------------

    def open(
        self,
        name: bytes,
        replay: Replay,
        make: Callable[[Topic, Release], S],
        *,
        exclusive: bool,
        priority: int,
    ) -> tuple[S, Channel]:
        """Open a channel on a queue, or on a stream: see `Session.open`. Raises Refused.

        `replay` is where to begin in a stream: with a message that there is not yet, the channel waits for
        it. `priority` is for consumers of a queue.
        """
        driver = self._find_source(name)
        if isinstance(driver, QueueDriver):
            begin: Replay = FromCurrent()
        elif isinstance(replay, FromMessage) and replay.id > driver.next_id:
            begin = FromMessage(driver.next_id)
        else:
            begin = replay
        opened = self._session.open_driver(driver, begin, make, exclusive=exclusive, priority=priority)
        if isinstance(replay, FromMessage):
            opened[1].wait_for(replay.id)
        return opened

    # -- leases --------------------------------------------------------------------------------------------

    async def lease_sink(self, name: bytes, principal: Principal, returned: Returned) -> bytes:
        """Return a lease for a sink of the exchange with this name; of the topic if there is no exchange.

        Raises Refused.
        """
        if name == DEFAULT or self._exchanges.has(name):
            if name != DEFAULT:  # where the right to the topic of each key counts
                self._session.check_unless_made(Right.PUBLISH, name)
                if self._exchanges.find(name).internal:
                    raise refusal_of_internal(name)
            return self._leasing(principal).lease_exchange(LeasedExchange(name, returned))
        self._session.check_unless_made(Right.PUBLISH, name)
        driver = await self._catalogue.find(name)
        if driver is None:
            raise Refused(Reason.NOT_FOUND, "No such sink")
        check_user(driver.topic.topic, driver.lifetime, self._owner)
        return await self._leasing(principal).lease_sink(name)

    def lease_feed(self, name: bytes, principal: Principal) -> tuple[bytes, LeasedFeed]:
        """Return a lease for a feed of an exclusive queue of this connection, or of a broadcast topic, and
        the feed. The feed of a queue is paused, and the queue exists until the feed and this connection are
        over. Raises Refused.
        """
        self._session.check_unless_made(Right.SUBSCRIBE, name)
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise Refused(Reason.NOT_FOUND, "No such feed")
        if not isinstance(driver, QueueDriver):
            return self._leasing(principal).lease_driver(driver, LeasedFeed)
        if not (isinstance(driver.lifetime, Ephemeral) and driver.lifetime.owner is self._owner):
            raise Refused(Reason.NOT_FOUND, "No such feed")

        def make(topic: Topic, release: Release) -> LeasedFeed:
            kept = self._owner.hold(topic.id)

            def closed() -> None:
                release()
                kept()

            feed = LeasedFeed(topic, closed, needs_right=name not in self._generated)
            feed.pause()
            return feed

        return self._leasing(principal).lease_driver(driver, make)

    def _leasing(self, principal: Principal) -> Leasing:
        return Leasing(self._session, self._catalogue, self._leases, principal)

    def window(self, wanted: int) -> int:
        """Return the number of unsettled messages that a channel may have; 0 is for as many as possible."""
        return self._session.window(wanted or sys.maxsize)

    def is_quorum(self, name: bytes) -> bool:
        """Return whether this is a queue of type `quorum`."""
        driver = self._catalogue.lookup(name)
        return isinstance(driver, QueueDriver) and driver.options.kind is QueueKind.QUORUM

    def is_stream(self, name: bytes) -> bool:
        """Return whether a name that the client may subscribe to is that of a broadcast topic. Raises
        Refused.
        """
        return not isinstance(self._find_source(name), QueueDriver)

    def from_last(self, name: bytes) -> Replay:
        """Return the position of the last message of a stream. Raises Refused."""
        driver = self._find_source(name)
        return FromMessage(driver.next_id - 1) if driver.next_id > 1 else FromCurrent()

    async def from_time(self, name: bytes, seconds: int) -> Replay:
        """Return the position of the first message of this time, or a later one; the end of the stream if
        there is none. Raises Refused, and omq_storage.errors.StoreError.
        """
        driver = self._find_source(name)
        if not driver.is_persistent:
            raise Refused.of(NOT_REPLAYED)
        return FromMessage(await first_since(driver, seconds * 1_000_000))

    async def from_ago(self, name: bytes, seconds: int) -> Replay:
        """Return the position of the first message that is at most N `seconds` old. Raises as `from_time`."""
        return await self.from_time(name, max(0, int(time.time()) - seconds))

    def check_get(self, name: bytes) -> None:
        """Raise Refused when the client may not get messages of this queue. To be called for each Get: the
        rights may have changed since `open_getter`.
        """
        self._session.check_unless_made(Right.SUBSCRIBE, name)

    def open_getter(self, name: bytes, subscriber: Subscriber) -> Getter:
        """Return a getter, which gets messages of a queue on demand. Raises Refused, and IsStream."""
        driver = self._find_queue(name)
        return Getter(driver, driver.open_getter(subscriber))


class IsStream(Exception):
    """A broadcast topic has no messages that could be taken from it."""

    def __init__(self, name: bytes) -> None:
        super().__init__(f"{quoted(name)} is a stream")


def _state(driver: Driver) -> QueueState:
    messages = driver.ready if isinstance(driver, QueueDriver) else driver.info().messages
    return QueueState(driver.topic.topic, messages, driver.subscriber_count())
