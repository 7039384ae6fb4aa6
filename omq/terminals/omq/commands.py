"""What the commands of an omq connection do, for a client that is known."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar, assert_never

from omq import model
from omq.access.clients import Client
from omq.access.leases import Leases, Principal, Sink
from omq.access.limits import Owner, Quota, check_quota
from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.feed import Feed
from omq.drivers.reasons import Reason, Refused
from omq.protocol.omq import types
from omq.protocol.omq.sentences import sentence
from omq.terminals.omq.fetches import Fetches, stored_topic
from omq.terminals.omq.long_answers import LongAnswers
from omq.terminals.omq.permission import check_rights
from omq.terminals.omq.replies import Replies
from omq.terminals.omq.subscriptions import Subscriptions
from omq_storage.batches import Batch, Bodies, joined

T = TypeVar("T")

log = logging.getLogger("omq.terminal")


class Commands:
    """Acts on them, one after another."""

    def __init__(
        self,
        client: Client,
        principal: Principal,
        catalogue: Catalogue,
        leases: Leases,
        config: Config,
        replies: Replies,
        long_answers: LongAnswers,
        fetches: Fetches,
        subscriptions: Subscriptions,
        all_subscriptions: Quota,
        room: Callable[[], Awaitable[None]],
        excused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`all_subscriptions` counts those of the server. `room` waits until there is room for one more
        answer; within `excused` the client need not be heard of, as nothing is read.
        """
        self._client = client
        self._principal = principal
        self._catalogue = catalogue
        self._leases = leases
        self._config = config
        self._replies = replies
        self._long_answers = long_answers
        self._fetches = fetches
        self._subscriptions = subscriptions
        self._all_subscriptions = all_subscriptions
        self._room = room
        self._excused = excused

    # -- publishing ----------------------------------------------------------------------------------------

    async def publish_all(self, runs: dict[bytes, list[Batch]]) -> None:
        """Publish what was read together, by topics; nothing is left in `runs`."""
        if len(runs) > 1:
            await self._reserve(runs)
        for topic, batches in runs.items():
            await self._publish(topic, joined(batches))
        runs.clear()

    async def _reserve(self, runs: dict[bytes, list[Batch]]) -> None:
        """Reserve ids for all transient topics among these at once: one by one each would wait for the disk.

        For persistent ones the writer does the same.
        """
        counts: dict[Driver, int] = {}
        for topic, batches in runs.items():
            driver = self._catalogue.lookup(topic)
            if driver is not None and not driver.is_persistent and topic in self._client.rights.publish:
                counts[driver] = sum(batch.count for batch in batches)
        try:
            with self._excused():
                await self._catalogue.ids.reserve(counts)
        except Exception as problem:  # noqa: BLE001 - each topic, which tries it alone next, tells its publisher
            log.debug("%s", problem)

    async def _publish(self, topic: bytes, batch: Batch) -> None:
        await self._room()
        limit = self._config.max_message_bytes
        try:
            if topic not in self._client.rights.publish:
                raise Refused(Reason.FORBIDDEN, "this client may not publish to it")
            if batch.longest > limit:
                await self._publish_those_within(topic, batch.bodies(), limit)
                return
            driver = self._catalogue.lookup(topic) or await self._driver(topic)
            offered = driver.offer(batch)
            if isinstance(offered, Confirmation):
                confirmation = offered
            else:
                with self._excused():
                    confirmation = await offered.taken()
        except Refused as refused:
            what = str(refused) if batch.count == 1 else f"{batch.count} messages: {refused}"
            self._replies.refuse_publish(sentence("Publish", topic, what), batch.count)
            return
        self._replies.published(topic, batch.count, confirmation)

    async def _driver(self, topic: bytes) -> Driver:
        """What is behind a name, for this client. Raises Refused."""
        return await self._catalogue.lookup_or_declare(topic, partial(self._admit, topic))

    def _admit(self, topic: bytes) -> Callable[[], None]:
        """Count a topic that is to be made for this client. Raises Refused; else call what it returns when
        the topic is deleted, or cannot be made.
        """
        if topic not in self._client.rights.declare:
            raise Refused(Reason.FORBIDDEN, "there is no such topic, and this client may not declare it")
        self._catalogue.check_room()
        client = self._client
        check_quota(client.topics, Owner.CLIENT, "topics")
        client.topics.take()
        # This refers to the client and not to its quota alone: a client that is known by its address is kept
        # as long as anything refers to it, and its topics count for as long as they exist.
        return lambda: client.topics.give()

    async def _publish_those_within(self, topic: bytes, bodies: Sequence[bytes], limit: int) -> None:
        fitting = [body for body in bodies if len(body) <= limit]
        if fitting:
            await self._publish(topic, Bodies(fitting))
        for body in bodies:
            if len(body) > limit:
                what = f"a message has at most {limit} octets, this one {len(body)}"
                self._replies.refuse_publish(sentence("Publish", topic, what))

    # -- the others ----------------------------------------------------------------------------------------

    async def act(self, command: types.Command) -> None:
        """Do it, and answer it; or answer why not."""
        try:
            await self._perform(command)
        except Refused as refused:
            constructor, argument = _subject(command)
            self._replies.add(types.Error(sentence(constructor, argument, str(refused))))

    async def _perform(self, command: types.Command) -> None:
        """Raises Refused."""
        check_rights(self._client.rights, command)
        match command:
            case types.Connect():
                raise Refused(Reason.INVALID, "this connection is connected already")
            case types.Publish(topic, body):
                await self._publish(topic, Bodies([body]))
            case types.Subscribe(topic, replay):
                await self._subscribe(topic, replay)
            case types.Unsubscribe(topic):
                self._subscriptions.unsubscribe(topic)
            case types.Ack():
                pass  # a sign of life, which every command is
            case types.Declare(topic, delivery, persistence):
                driver = await self._catalogue.declare(
                    topic, delivery, persistence, partial(self._admit, topic)
                )
                self._replies.add(types.Declared(driver.topic))
            case types.Confirm(n):
                self._replies.confirm(n)
            case types.Delete(topic):
                self._replies.add(types.Deleted(await self._catalogue.delete(topic)))
            case types.Topics():
                self._replies.make(partial(self._long_answers.topics, self._client.rights))
            case types.Request(topic, n):
                await self._request(topic, n)
            case types.Received(topic, id):
                self._subscriptions.received(topic, id)
            case types.Put(sink):
                driver = await self._driver_to_lease(sink)
                self._lease(Sink(driver.topic))
            case types.Get(feed, replay):
                driver = await self._driver_to_lease(feed)
                self._lease(self._with_place(partial(Feed.open, driver, replay)))
            case types.Fetch():
                # It reads what was published before it; and nothing behind it waits for it.
                self._replies.after(partial(self._fetches.add, command))
            case types.Blocks(topic, first, count):
                stored_topic(self._catalogue, topic, first, count)
                self._replies.make(partial(self._long_answers.blocks, command))
            case _:
                assert_never(command)

    def _with_place(self, open: Callable[[Callable[[], None]], T]) -> T:
        """Open a subscription or feed, or note credit for one, with what is to be called when it is over.

        Raises Refused.
        """
        every, own = self._all_subscriptions, self._client.subscriptions
        check_quota(every, Owner.SERVER, "subscriptions")
        check_quota(own, Owner.CLIENT, "subscriptions")
        every.take()
        own.take()

        def give() -> None:
            every.give()
            own.give()

        try:
            return open(give)
        except Refused:
            give()
            raise

    async def _driver_to_lease(self, topic: bytes) -> Driver:
        """What is behind a name, when there is room for a lease. Raises Refused."""
        self._leases.check_room(self._client)  # before a topic is made for it
        driver = await self._driver(topic)
        self._leases.check_room(self._client)  # others were perhaps granted the last ones meanwhile
        return driver

    def _lease(self, leased: Sink | Feed) -> None:
        self._replies.add(types.Leased(self._leases.grant(leased, self._principal)))

    async def _subscribe(self, topic: bytes, replay: model.Replay) -> None:
        self._subscriptions.check_free(topic)
        driver = await self._driver(topic)
        place = self._subscriptions.place_of_credit(topic)
        if place is None:
            self._with_place(partial(self._subscriptions.open, driver, replay))
        else:
            self._subscriptions.open(driver, replay, place)

    async def _request(self, topic: bytes, n: int) -> None:
        if n < 0:
            raise Refused(Reason.INVALID, "credit cannot be negative")
        driver = await self._catalogue.find(topic)
        if driver is None:
            raise Refused(Reason.NOT_FOUND, "there is no such topic")
        if driver.delivery is not model.Delivery.ROUND_ROBIN:
            raise Refused(Reason.INVALID, "only a round-robin topic gives credit")
        credit = min(n, self._config.max_credit)
        if self._subscriptions.is_open(topic):
            self._subscriptions.request(driver.topic, credit)
            return
        place = self._subscriptions.place_of_credit(topic)
        if place is None:
            self._with_place(partial(self._subscriptions.request_early, driver.topic, credit))
        else:
            self._subscriptions.request_early(driver.topic, credit, place)


def _subject(command: types.Command) -> tuple[str, bytes | None]:
    """A command's constructor and first argument: how the Error that answers it begins."""
    match command:
        case types.Topics():
            return "Topics", None
        case types.Ack():
            return "Ack", None
        case types.Connect(version, _):
            return "Connect", str(version).encode()
        case types.Confirm(n):
            return "Confirm", str(n).encode()
        case types.Put(name) | types.Get(name, _):
            return type(command).__name__, name
        case _:
            return type(command).__name__, command.topic
