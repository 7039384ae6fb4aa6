"""The only way from a terminal to the drivers: what one connection may do, on behalf of its client.

Every operation of a `Session` checks the client's right, the quotas of the client and of the server, and the
size of messages, before it reaches a driver. So no terminal decides what a client may do: a terminal
translates a refusal (`Refused`, with a `Reason`) to the words of its protocol. It hands `rates` to its
`ReadAdmission` and its `Sender`, which apply them.

Other operations on behalf of a session have modules of their own: omq.access.control makes them.

The right is checked before anything is looked up. So a refusal does not tell a client without the right
whether there is such a topic.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeVar

import trio
from msgspec import Struct, field

from omq.access.archive import Archive
from omq.access.clients import ClientAccount, Identity
from omq.access.limits import Owner, Quota, Rates, check_quota
from omq.access.link_names import LinkNames
from omq.access.rights import Right, Rights
from omq.drivers.budget import Budget
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.feed import LeasedFeed
from omq.drivers.lifetime import DURABLE, Durable, Ownership, check_user
from omq.drivers.offer import Offered
from omq.drivers.push import MOST_WORK, Pushes
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import NO_TOPIC, Reason, Refused
from omq.drivers.seam import Channel, Subscriber
from omq.drivers.sequences import Origins
from omq.drivers.spooled_uploads import begin_upload
from omq.drivers.tail import TailMemory
from omq.drivers.topic_quota import Release as Release
from omq.drivers.uploads import Upload
from omq.logs import LogThrottle, quoted
from omq.model import Delivery, Persistence, Replay, Sync, Topic, TopicInfo
from omq_storage.batches import Batch, joined

MOST_REMEMBERED = 1024
"""The number of topics for which a session remembers that its client may publish to them."""

S = TypeVar("S", bound=Subscriber)

log = logging.getLogger("omq.access")


def _denials() -> LogThrottle:
    return LogThrottle(log, logging.DEBUG, "commands without the right to them")


class SessionContext(Struct, frozen=True):
    """The parts that all sessions of a server share."""

    catalogue: Catalogue
    subscriptions: Quota
    """The subscriptions, feeds and early credits of all clients."""
    max_message_bytes: int
    """The limit for messages that are held whole."""
    max_uploaded_bytes: int
    """The limit for messages that are written to the disk while they arrive."""
    fragment_octets: int
    """The size from which on messages are stored in fragments."""
    max_credit: int
    durable_sync: Sync
    """The sync level of durable queues and streams whose declaration names none."""
    posted: Budget
    """The memory for messages on their way into a store."""
    tails: TailMemory
    """The memory for messages that were not pushed to all their subscribers."""
    pushes: Pushes = field(default_factory=Pushes)
    """The messages that the session pushes which is pushing now; empty between."""
    denials: LogThrottle = field(default_factory=_denials)
    """Logs which client lacks which right."""


class TooLarge(Refused):
    """A batch has a message with more octets than the server takes: nothing of the batch was posted."""

    def __init__(self, limit: int, longest: int) -> None:
        super().__init__(Reason.TOO_LARGE, too_large(limit, longest))
        self.limit = limit


def too_large(limit: int, octets: int) -> str:
    """Return the sentence that refuses a message of N `octets`."""
    return f"a message has at most {limit} octets, this one {octets}"


class _CountedSubscription:
    """A subscription that counts until this is called.

    Of all that is counted there are most subscriptions. A function that refers to the same objects would take
    200 octets more.
    """

    __slots__ = ("_client", "_every")

    def __init__(self, every: Quota, client: ClientAccount) -> None:
        self._every: Quota | None = every
        self._client = client  # which is kept as long as this refers to it, see `ClientAccount.hold`
        every.take()
        client.subscriptions.take()

    def __call__(self) -> None:
        # Credit that waits for a subscription and the subscription count once. A connection that ends while
        # the subscription is being opened releases it for both.
        every, self._every = self._every, None
        if every is not None:
            every.give()
            self._client.subscriptions.give()


class Session:
    """One connection of a client. Call `close` when the connection ends."""

    def __init__(
        self,
        shared: SessionContext,
        identity: Identity,
        name: bytes,
        closed: Callable[[], None] | None = None,
    ) -> None:
        """Create an open session, which counts as one connection of its client until it is closed. `name` is
        what the client calls itself. `closed` is called once, when the session is closed.
        """
        self._shared = shared
        self._catalogue = shared.catalogue
        self.max_message_bytes = shared.max_message_bytes
        """The octets of the longest message that is held whole."""
        self.max_uploaded_bytes = shared.max_uploaded_bytes
        self.fragment_octets = shared.fragment_octets
        self.durable_sync = shared.durable_sync
        self.identity = identity
        """The client, as it proved to be."""
        self._client = identity.client
        self._rights_before = identity.client.rights
        self.name = name
        self.owner: Ownership | None = None
        """The owner of the exclusive queues that the connection may use; None if it cannot have any."""
        self._closed = closed
        self._is_open = True
        self.may_publish: dict[bytes, None] = {}  # an empty set would take three times as much
        """Topics to which the client may publish: one look at a set instead of its rights for each post. It
        stays the same object.
        """

    # Most connections of omq never need these two. Empty sets would take three times as much.

    @cached_property
    def may_route(self) -> dict[tuple[bytes, bytes], None]:
        """Exchanges and keys to which the client may publish, as `RoutedPublishing.parts` remembers them."""
        return {}

    @cached_property
    def made_names(self) -> dict[bytes, None]:
        """The names of queues and nodes that the server made for this connection. They need no right."""
        return {}

    @property
    def rights(self) -> Rights:
        """The rights of the client. Sessions with equal rights see the same topics."""
        return self._client.rights

    @property
    def rates(self) -> Rates:
        """The rate limits of the client, which all its connections share."""
        return self._client.rates

    @property
    def watchers(self) -> Quota:
        """Counts the connections of the client that watch."""
        return self._client.watchers

    @property
    def quota_owner(self) -> Owner:
        """The owner of the quotas of the client, in the words of a refusal."""
        return self._client.owner

    @property
    def large_answers(self) -> trio.CapacityLimiter:
        """The places for large answers of the client: one is held until such an answer is sent."""
        return self._client.large_answers

    @property
    def link_names(self) -> LinkNames:
        """The links of all connections of the client, by their names."""
        return self._client.link_names

    @property
    def withdrawn(self) -> str | None:
        """The reason why the connection may not go on, after the configuration has changed; None while it
        may.
        """
        return self.identity.withdrawn

    def renew_rights(self) -> Callable[[bytes], str | None] | None:
        """Forget the rights that the client had before the configuration changed. Return a function that
        gives the reason why the client may not keep its subscription to a topic, or None if it may; None in
        place of the function if the client may keep all.
        """
        before, self._rights_before = self._rights_before, self._client.rights
        self.may_publish.clear()
        self.may_route.clear()
        return None if before.subscribe == self.rights.subscribe else partial(self._reason_to_end, before)

    def _reason_to_end(self, before: Rights, topic: bytes) -> str | None:
        if topic not in before.subscribe or topic in self.rights.subscribe or topic in self.made_names:
            return None
        return f"this client may not {Right.SUBSCRIBE.value} {quoted(topic)} any more"

    def close(self) -> None:
        """End the session: the connection counts no more."""
        if self._is_open:
            self._is_open = False
            self._client.connections.give()
            if self._closed is not None:
                self._closed()

    def check(self, right: Right, topic: bytes) -> None:
        """Raise Refused when the client does not have this right to the topic."""
        if topic not in self._client.rights.of(right):
            raise self.denied(f"may not {right.value}", topic)

    def check_unless_made(self, right: Right, topic: bytes) -> None:
        """Check the right to a topic as `check` does, unless the server made its name for this connection."""
        if topic not in self.made_names:
            self.check(right, topic)

    def check_known(self, topic: bytes) -> None:
        """Raise Refused when the client may not know whether there is this topic: when it has no right to it,
        and the server did not make its name for this connection.
        """
        if topic not in self.made_names and not self._client.rights.sees(topic):
            raise self.denied("has no right to", topic)

    def check_server(self, right: Right) -> None:
        """Raise Refused when the client does not have this right to all topics, and so to the server."""
        if not self._client.rights.of(right).are_all:
            raise self.denied(f"may not {right.value} the server")

    def denied(self, what: str, topic: bytes | None = None) -> Refused:
        """Log that the client lacks the right for this, and return the refusal."""
        self._log_denial(what, topic)
        return Refused(Reason.FORBIDDEN, f"this client {what}" + ("" if topic is None else " it"))

    def _log_denial(self, what: str, topic: bytes | None) -> None:
        if log.isEnabledFor(logging.DEBUG):
            of = "" if topic is None else f" {quoted(topic)}"
            self._shared.denials.add(f"{quoted(self.name)} {what}{of}", client=self.name, topic=topic)

    def use_feed(self, feed: LeasedFeed) -> None:
        """Admit this connection to a feed that was leased to its client. Raises Refused when the client has
        lost the right to the topic since. A queue whose name the server made needs none.
        """
        if feed.needs_right:
            self.check(Right.SUBSCRIBE, feed.topic.topic)
        else:
            self.made_names[feed.topic.topic] = None

    # -- publishing ----------------------------------------------------------------------------------------

    def offer(
        self, name: bytes, batch: Batch, heads: Sequence[bytes] = (), origins: Origins = ()
    ) -> Offered | None:
        """Offer messages to the topic of this name, as `Driver.offer` does. Raises TooLarge, and Refused.

        Return None when there is no such topic now: await `find_or_make`, and offer them again. So this hot
        path never waits, and takes no coroutine.
        """
        self.check_offer(name, batch)
        driver = self._catalogue.by_name.get(name)
        if driver is None or driver.is_replaced:
            return None
        return driver.offer(batch, heads, origins)

    def check_offer(self, name: bytes, batch: Batch) -> None:
        """Raise TooLarge and Refused as `offer` does, for messages that are offered later."""
        if name not in self.may_publish:
            self._check_publish(name)
        if batch.longest > self.max_message_bytes:
            raise TooLarge(self.max_message_bytes, batch.longest)

    def longest_to(self, name: bytes) -> int:
        """Return the octets of the longest message that the topic of this name takes."""
        driver = self._catalogue.by_name.get(name)
        if driver is None or driver.uploads_from(self.fragment_octets) is None:
            return self.max_message_bytes
        return self.max_uploaded_bytes

    async def upload(self, name: bytes, octets: int, *, may_wait: bool) -> Upload | None:
        """Begin a message of N octets to the topic of this name, whose body comes in pieces. Return None if
        it must be held in memory. `may_wait` as in `begin_upload`. Raises Refused.
        """
        self.check(Right.PUBLISH, name)
        driver = self._catalogue.by_name.get(name)
        if driver is None or driver.is_replaced:
            return None
        least = driver.uploads_from(self.fragment_octets)
        if least is None or octets < least:
            return None
        return await begin_upload(driver, octets, self.max_message_bytes, may_wait=may_wait)

    def push(self, runs: Iterator[tuple[bytes, Sequence[Batch]]], rest: dict[bytes, Sequence[Batch]]) -> bool:
        """Push messages to the subscribers of their topics, as far as that is possible now: see
        `Driver.try_push`. Add those that were not pushed to `rest`: they must be offered.

        Return False where this must go on after the other connections have had their turn.
        """
        drivers, allowed, most = self._catalogue.by_name, self._client.rights.publish, self.max_message_bytes
        pushes = self._shared.pushes
        pushes.work = 0
        try:
            for name, batches in runs:
                pushes.work += 1
                driver = drivers.get(name)
                if (
                    driver is None
                    or driver.writer is not None
                    or driver.is_replaced
                    or name not in allowed
                    or (batch := batches[0] if len(batches) == 1 else joined(batches)).longest > most
                    or not driver.try_push(batch, pushes)
                ):
                    rest[name] = batches
                if pushes.work >= MOST_WORK:
                    return False
        finally:
            if pushes.lines:
                pushes.send()
        return True

    async def find_or_make(self, name: bytes) -> None:
        """Make the topic of this name unless there is one, or wait while it is given other types.

        Raises Refused.
        """
        if name not in self.may_publish:
            self._check_publish(name)
        await self._find_or_make(name, for_messages=True)

    def _check_publish(self, name: bytes) -> None:
        self.check(Right.PUBLISH, name)
        if len(self.may_publish) >= MOST_REMEMBERED:
            self.may_publish.clear()
        self.may_publish[name] = None

    # -- topics --------------------------------------------------------------------------------------------

    async def declare(
        self, name: bytes, delivery: Delivery, persistence: Persistence, lifetime: Durable = DURABLE
    ) -> Topic:
        """Return the topic of that name and types; make it, with this lifetime, if there is none.

        Raises Refused.
        """
        self.check(Right.DECLARE, name)
        admit = partial(self.admit, name)
        driver = await self._catalogue.declare(name, delivery, persistence, admit, lifetime=lifetime)
        return driver.topic

    async def delete(self, name: bytes) -> Topic:
        """Delete a topic. Raises Refused."""
        self.check(Right.DELETE, name)
        driver = self._catalogue.lookup(name)
        if driver is not None:
            check_user(driver.topic.topic, driver.lifetime, self.owner)
        return await self._catalogue.delete(name)

    async def find(self, name: bytes, right: Right) -> tuple[Delivery, Persistence] | None:
        """Return the types of the topic of this name, to which the client must have this right. Raises
        Refused.
        """
        self.check(right, name)
        driver = await self._catalogue.find(name)
        return None if driver is None else (driver.delivery, driver.persistence)

    async def look_up(self, name: bytes) -> TopicInfo:
        """Return the description of a topic that the client may subscribe to. Raises Refused."""
        self.check(Right.SUBSCRIBE, name)
        driver = await self._catalogue.find(name)
        if driver is None:
            raise Refused.of(NO_TOPIC)
        return driver.info()

    async def _find_or_make(self, name: bytes, *, for_messages: bool = False) -> Driver:
        return await self._catalogue.lookup_or_declare(
            name, partial(self.admit, name), for_messages=for_messages
        )

    def admit(self, name: bytes, *, is_allowed: bool = False) -> Release:
        """Count a topic that will be made. It needs the right to declare it, unless it `is_allowed`. Raises
        Refused.
        """
        if not is_allowed and name not in self.rights.declare:
            self._log_denial("may not declare", name)
            raise Refused(Reason.FORBIDDEN, "there is no such topic, and this client may not declare it")
        self._catalogue.check_room()
        return self._client.hold(self._client.topics, "topic")

    def admit_exchange(self) -> Release:
        """Count an exchange that will be made. Raises Refused."""
        return self._client.hold(self._client.exchanges, "exchange")

    def admit_binding(self) -> Release:
        """Count a binding that will be made. Raises Refused."""
        return self._client.hold(self._client.bindings, "binding")

    # -- messages out --------------------------------------------------------------------------------------

    async def open(
        self,
        name: bytes,
        replay: Replay,
        make: Callable[[Topic, Release], S],
        held: Release | None = None,
        *,
        exclusive: bool = False,
    ) -> tuple[S, Channel]:
        """Open a channel on a topic; make the topic if there is none. Raises Refused.

        `make` returns the subscriber. It takes the topic, and what to call when the subscription is over.
        `held` is what `hold_subscription` gave for this subscription before, and is used up. An `exclusive`
        subscriber is the only one of its topic.
        """
        self.check(Right.SUBSCRIBE, name)
        driver = await self._find_or_make(name)
        self.check(Right.SUBSCRIBE, name)  # a reload may have taken the right away meanwhile
        return self.open_driver(driver, replay, make, held, exclusive=exclusive)

    async def browse(self, name: bytes, make: Callable[[Topic, Release], S]) -> tuple[S, Channel] | None:
        """Open a channel as `open` does, which gives copies of the messages of a queue. Return None if the
        topic of this name is none. Raises Refused.
        """
        self.check(Right.SUBSCRIBE, name)
        driver = await self._find_or_make(name)
        self.check(Right.SUBSCRIBE, name)  # as in `open`
        if not isinstance(driver, QueueDriver):
            return None
        check_user(driver.topic.topic, driver.lifetime, self.owner)
        subscriber = make(driver.topic, self.hold_subscription())
        return subscriber, driver.browse(subscriber)

    def hold_subscription(self) -> Release:
        """Count a subscription before it is opened. Raises Refused."""
        every = self._shared.subscriptions
        check_quota(every, Owner.SERVER, "subscription")
        check_quota(self._client.subscriptions, self._client.owner, "subscription")
        return _CountedSubscription(every, self._client)

    def window(self, wanted: int) -> int:
        """Return the greatest number of unsettled messages of a channel, for a client that wants N."""
        return min(wanted, self._shared.max_credit)

    def archive(self, name: bytes) -> Archive:
        """Return the stored messages under a name, whether there are any or not. Raises Refused."""
        self.check(Right.SUBSCRIBE, name)
        return Archive(self._catalogue, name, partial(self.check, Right.SUBSCRIBE, name))

    def open_driver(
        self,
        driver: Driver,
        replay: Replay,
        make: Callable[[Topic, Release], S],
        held: Release | None = None,
        *,
        exclusive: bool = False,
        priority: int = 0,
    ) -> tuple[S, Channel]:
        """See `open`. The caller has checked the rights. `priority` is for a queue, see
        `Driver.open`."""
        check_user(driver.topic.topic, driver.lifetime, self.owner)
        release = self.hold_subscription() if held is None else held
        try:
            subscriber = make(driver.topic, release)
            return subscriber, driver.open(subscriber, replay, exclusive=exclusive, priority=priority)
        except Refused:
            if held is None:
                release()
            raise
