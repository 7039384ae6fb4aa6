"""The catalogue of names: finds, creates and deletes drivers (terminal-driver RFC, section 3.5.1: lookup)."""

import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import trio

from omq.config import Config
from omq.drivers.alarms import Alarms
from omq.drivers.dead_letters import DeadLetterDelivery
from omq.drivers.deletion import TopicDeletion
from omq.drivers.driver import Driver, Resources
from omq.drivers.ephemeral_queues import EphemeralQueues
from omq.drivers.errands import Errands
from omq.drivers.factory import DriverFactory
from omq.drivers.immediate_sends import ImmediateSends
from omq.drivers.lifetime import DURABLE, Durable, Ownership, check_user
from omq.drivers.loading import Loaded, TopicLoader
from omq.drivers.making import TopicMaker, check_name, first_bound
from omq.drivers.memory import Memory
from omq.drivers.orphaned_blocks import OrphanedBlocks
from omq.drivers.push import Lanes
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions, change_needed, difference
from omq.drivers.reasons import NO_QUEUE, Failure, Reason, Refused, locked
from omq.drivers.reservations import Reservations
from omq.drivers.slices import Slices
from omq.drivers.spool import Spool
from omq.drivers.statistics import DiskStatistics
from omq.drivers.store_calls import StoreCalls
from omq.drivers.topic_changes import TopicChanges
from omq.drivers.topic_quota import Admit, AdmitName, TopicQuota
from omq.drivers.topics_by_name import UNLIMITED, TopicsByName
from omq.drivers.waiting_publishers import WaitingPublishers
from omq.drivers.writer import Writer
from omq.model import (
    Delivery,
    Persistence,
    Persistent,
    Topic,
    declaration,
    stored_persistence,
)
from omq.threads import in_thread
from omq.watching import Limits
from omq_storage.catalogue import StoreCatalogue
from omq_storage.levels import Level
from omq_storage.store import Store
from omq_storage.topology import BindingRecord, ExchangeRecord

READERS = 4
"""The number of threads that read from the store at a time."""


class Catalogue:
    """All drivers of a server by name. Call `open_stored` first; the tasks of drivers run in `nursery`."""

    def __init__(self, config: Config, store: Store, memory: Memory, nursery: trio.Nursery) -> None:
        self._config = config
        self._store = store
        self._memory = memory
        self.ids = Reservations(self._reserve)
        self.at_once = ImmediateSends()
        """The connections that have something to send because of what another task does."""
        self.writers = {
            level: Writer(store.level(level), memory.posted, self.ids, self.at_once) for level in Level
        }
        self.dead_letters = DeadLetterDelivery(nursery.start_soon)
        readers = trio.CapacityLimiter(READERS)
        folder, reserve = Path(config.store), config.disk_reserve_bytes
        self.spool = Spool(folder, config.spool_bytes, reserve, memory.tails, readers)
        resources = Resources(
            memory=memory,
            readers=readers,
            listers=trio.CapacityLimiter(1),
            ids=self.ids,
            alarms=Alarms(),
            errands=Errands(),
            lanes=Lanes(),
            stall_seconds=config.stall_seconds,
            spool_seconds=config.spool_seconds,
            unused=self._unused,
            dead_letters=self.dead_letters,
            spills=self.writers[Level.ASYNC],
            spool=self.spool,
        )
        self.waiting_publishers = WaitingPublishers(resources.alarms, config.stall_seconds)
        """The publishers that wait for room in the backlogs of connections."""
        nursery.start_soon(self.ids.run)
        nursery.start_soon(resources.alarms.run)
        nursery.start_soon(resources.errands.run)
        self.start: Callable[[Callable[[], Awaitable[None]]], None] = nursery.start_soon
        """Starts a task of a layer above the drivers. The task ends with the server."""
        self.begin: Callable[[Iterator[None]], None] = resources.errands.begin
        """Does long work of such a layer soon, in steps (`Errands.begin`)."""
        self.most_exchanges, self.most_bindings = config.max_exchanges, config.max_bindings
        self._calls = StoreCalls(store, self.writers)
        self.orphaned_blocks = OrphanedBlocks(self._calls, self.writers)
        self._factory = DriverFactory(resources, nursery)
        self._topics = TopicsByName(config, self.writers, resources, self._factory)
        self._drivers, self._records = self._topics.drivers, self._topics.records
        self.by_name: Mapping[bytes, Driver] = self._drivers
        """The drivers for code that runs for each message: as `lookup`, but also those that are being
        replaced (see `Driver.is_replaced`).
        """
        self.routes = self._topics.routes
        self._quota = TopicQuota(config.max_topics, lambda: len(self._drivers))
        self._changing = trio.Lock()
        self.deletion = TopicDeletion(
            self._topics,
            self._quota,
            self.ids,
            store.catalogue,
            self._calls,
            self.orphaned_blocks,
            self._factory,
            self._changing,
            nursery,
        )
        self._ephemeral = EphemeralQueues(
            self._drivers, self._factory, self._quota, self._reserve_topics, self.deletion.delete_at_once
        )
        self._maker = TopicMaker(self._topics, self._quota, self._calls, store, self._changing)
        self.changes = TopicChanges(
            self._topics, store.catalogue, self._calls, self.ids, self._factory, self._changing
        )
        self._is_open = False
        self._when_open: list[Callable[[], None]] = []
        self.disk = DiskStatistics(0, 0)
        """The free and the used octets of the disk, as housekeeping last saw them."""

    def __iter__(self) -> Iterator[Driver]:
        return iter(self._drivers.values())

    def lookup(self, name: bytes) -> Driver | None:
        """Return the driver of a topic by its name; None if there is none, or while it is being replaced."""
        driver = self._drivers.get(name)
        return None if driver is None or driver.is_replaced else driver

    async def find(self, name: bytes) -> Driver | None:
        """Return the driver of a topic by its name, or None. Wait while it is being replaced."""
        if self.is_replacing(name):
            await self.settled()
        return self._drivers.get(name)

    def is_replacing(self, name: bytes) -> bool:
        """Return whether the topic with this name is being given other types: await `settled`."""
        driver = self._drivers.get(name)
        return driver is not None and driver.is_replaced

    async def settled(self) -> None:
        """Wait until no topic is being changed."""
        async with self._changing:
            pass

    def in_turn(self) -> Iterator[Driver]:
        """Yield all drivers, as `DriversByName.in_turn` does: for long work in slices."""
        return self._drivers.in_turn()

    def current(self, driver: Driver) -> Driver | None:
        """Return the current driver of this driver's topic; None if the topic was deleted."""
        found = self._drivers.get(driver.topic.topic)
        return found if found is not None and found.topic.id == driver.topic.id else None

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len(self._drivers)

    def size(self) -> tuple[int, int]:
        """Return the number of topics, and the octets of their names."""
        return len(self._drivers), self._drivers.octets

    # -- opening -------------------------------------------------------------------------------------------

    async def open_stored(self) -> None:
        """Open a driver for every topic of the store, then declare those of the configuration.

        Raises StoreError, and Refused for a configured topic that exists with other types.
        """
        loader = TopicLoader(self._store)
        for loaded in loader.topics():
            self._topics.add(loaded)
        # Record the lost ids before anything else happens, for every later start: a client may have seen
        # messages with these ids.
        await self._calls.in_need(partial(self._store.catalogue.settle, loader.losses))
        next_id = await in_thread(lambda: self._store.catalogue.next_id)
        for level, leftover in loader.leftovers(next_id):
            self.orphaned_blocks.add(level, leftover)
        await self.orphaned_blocks.drop()
        groups: dict[tuple[Delivery, Persistence], list[bytes]] = {}
        for topic in self._config.topics:
            groups.setdefault(topic.types(), []).append(topic.name.encode())
        for types_of_group, names in groups.items():
            await self.make(names, *types_of_group, admit=None)
        for topic in self._config.topics:
            delivery, persistence = topic.types()
            try:
                await self.declare(topic.name.encode(), delivery, persistence)
            except Refused as refused:
                types = declaration(delivery, persistence)
                raise Refused(
                    refused.reason, f"{topic.name!r}, configured as {types}: {refused}"
                ) from refused

        self._is_open = True
        for action in self._when_open:
            action()

    async def reload(self, config: Config) -> None:
        """Apply the limits of another configuration: of retention, and of the numbers of topics,
        exchanges and bindings. Those beyond a lower limit stay.
        """
        self._config = config
        self._quota.most = config.max_topics
        self.most_exchanges, self.most_bindings = config.max_exchanges, config.max_bindings
        await self._topics.reload(config)

    def stop_assigning(self) -> None:
        """Assign messages of round-robin topics to nobody any more, because all subscribers end: otherwise
        those that end later would get the messages of those that end first.
        """
        self._memory.unconfirmed.is_closed = True

    def when_open(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as the topics of the store are open."""
        if self._is_open:
            action()
        else:
            self._when_open.append(action)

    # -- declaring -----------------------------------------------------------------------------------------

    async def declare(
        self,
        name: bytes,
        delivery: Delivery,
        persistence: Persistence,
        admit: Admit | None = None,
        lifetime: Durable = DURABLE,
        retention: Limits = UNLIMITED,
    ) -> Driver:
        """Return the topic with this name and these types; create it if there is none. Raises Refused.

        `admit` decides whether it may be made; None where no client asks for it. `lifetime` and `retention`
        are for a topic that is made: see `retention_for`.
        """
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                limits = self.retention_for(name, retention)
                return await self._create(
                    name, delivery, persistence, admit, lifetime, retention=limits, declared=True
                )
            record = self._records.get(driver.topic.id)
            same = driver.delivery is delivery and driver.persistence == persistence
            if same and (record is None or record.declared):
                return driver
            if record is not None and (same or (not record.declared and driver.is_empty)):
                return await self.changes.retype(driver, record, delivery, persistence)
            types = declaration(driver.delivery, driver.persistence)
            raise Refused(Reason.DIFFERS, f"the topic exists as {types}")

    def retention_for(self, name: bytes, limits: Limits) -> Limits | None:
        """Return the retention of a new topic for which a client wants these limits: no more than the
        configuration says. None leaves it to the configuration.
        """
        return self._topics.lower_limits(name, limits)

    async def declare_changeable(
        self,
        name: bytes,
        persistence: Persistence,
        options: QueueOptions,
        named: Collection[str],
        admit: Admit | None = None,
    ) -> None:
        """Create a queue with these options in one step. If there is one, check its persistence and those of
        the options that are `named`: nothing of it changes. Raises Refused.
        """
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                await self._create(
                    name, Delivery.ROUND_ROBIN, persistence, admit, options=options, declared=True
                )
                return
            record = self._records.get(driver.topic.id)
            is_undeclared = record is not None and not record.declared
            if record is not None and is_undeclared and driver.is_empty:
                driver = await self.changes.retype(driver, record, Delivery.ROUND_ROBIN, persistence)
                assert isinstance(driver, QueueDriver), "it has this delivery now"
                await self.changes.set_options(driver, driver.options.changed(options))
                return
            if not isinstance(driver, QueueDriver) or driver.persistence != persistence:
                types = declaration(driver.delivery, driver.persistence)
                raise Refused(Reason.DIFFERS, f"the topic exists as {types}")
            differs = change_needed(named, options, driver.options)
            if differs is not None:
                raise Refused(Reason.DIFFERS, differs)
            if record is not None and is_undeclared:
                await self.changes.retype(driver, record, Delivery.ROUND_ROBIN, persistence)

    async def declare_queue(
        self,
        name: bytes,
        options: QueueOptions,
        owner: Ownership | None = None,
        admit: Admit | None = None,
    ) -> QueueDriver:
        """Return the queue with this name and these options; create it if there is none. Raises Refused.

        `owner` is the connection that asks: an exclusive queue belongs to it. A queue that is not durable is
        ephemeral. `admit` is as for `declare`.
        """
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                if options.durable:
                    return await self._create_durable(name, options, admit)
                check_name(name)
                return await self._ephemeral.create(name, options, owner, admit)
            check_user(driver.topic.topic, driver.lifetime, owner)
            if not isinstance(driver, QueueDriver):
                raise Refused.of(NO_QUEUE)
            if options.exclusive is not driver.options.exclusive:
                raise locked(name, f"it exists, and is {'' if driver.options.exclusive else 'not '}exclusive")
            differs = difference(name, options, driver.options)
            if differs is not None:
                raise differs
            driver.used()
            return driver

    async def _create_durable(self, name: bytes, options: QueueOptions, admit: Admit | None) -> QueueDriver:
        persistence = Persistent(options.sync or self._config.durable_sync())
        driver = await self._create(
            name, Delivery.ROUND_ROBIN, persistence, admit, options=options, declared=True
        )
        assert isinstance(driver, QueueDriver)
        return driver

    async def lookup_or_declare(
        self, name: bytes, admit: Admit | None = None, *, for_messages: bool = False
    ) -> Driver:
        """Return the driver of a topic by its name. Declare an unknown topic with the default types. Raises
        Refused.

        `admit` decides whether it may be made; None where no client asks for it. `for_messages`: messages for
        it are about to be offered.
        """
        driver = self.lookup(name)
        if driver is not None:
            return driver
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is not None:
                return driver
            if not self._config.allow_undeclared:
                check_name(name)
                raise Refused(
                    Reason.NOT_FOUND, "there is no such topic, and this server wants topics declared"
                )
            return await self._create(
                name, *self._config.default_types(), admit, declared=False, for_messages=for_messages
            )

    async def make_undeclared(self, names: Iterable[bytes], admit: AdmitName) -> None:
        """Make those of these topics that do not exist, with the default types, as far as that is possible.
        See `make`.
        """
        if self._config.allow_undeclared:
            await self.make(names, *self._config.default_types(), admit, declared=False)

    async def make(
        self,
        names: Iterable[bytes],
        delivery: Delivery,
        persistence: Persistence,
        admit: AdmitName | None,
        *,
        declared: bool = True,
    ) -> None:
        """Make topics before they are declared or published to, in few commits: see `TopicMaker.make`."""
        await self._maker.make(names, delivery, persistence, admit, declared=declared)

    def check_room(self) -> None:
        """Raise Refused if the quota of topics is used up."""
        self._quota.check_room()

    async def _create(
        self,
        name: bytes,
        delivery: Delivery,
        persistence: Persistence,
        admit: Admit | None,
        lifetime: Durable = DURABLE,
        options: QueueOptions | None = None,
        *,
        retention: Limits | None = None,
        declared: bool,
        for_messages: bool = False,
    ) -> Driver:
        check_name(name)
        released = self._quota.admit(admit)
        try:
            record = await self._calls.or_refused(
                partial(
                    self._store.catalogue.create,
                    name,
                    delivery.value,
                    stored_persistence(persistence),
                    declared,
                    # A topic that may still get other types must not look used after the server was killed.
                    reserved=first_bound(persistence) if declared or for_messages else 1,
                    queue=None if options is None else options.encode(),
                    retention=None if retention is None else (retention.octets, retention.ms),
                )
            )
        except BaseException:  # cancelled, too: there is no topic that could count
            released()
            raise
        self._quota.created(record.id, released)
        return self._topics.add(Loaded(record, options=options), lifetime)

    async def delete(self, name: bytes) -> Topic:
        """See `TopicDeletion.delete`."""
        return await self.deletion.delete(name)

    def _unused(self, driver: Driver, is_still: Callable[[], bool]) -> None:
        self.deletion.delete_unused(driver, is_still)

    # -- the store -----------------------------------------------------------------------------------------

    async def _reserve(self, bounds: Mapping[int, int]) -> None:
        await self._calls.reserve(bounds)
        slices = Slices()
        with trio.CancelScope(shield=True):  # what the store has is known for all of them
            for topic, bound in bounds.items():
                record = self._records.get(topic)
                if record is not None:  # otherwise the topic was deleted meanwhile
                    self._records[topic] = dataclasses.replace(record, reserved=bound)
                await slices.step()

    async def _reserve_topics(self, count: int) -> range:
        return await self._calls.or_refused(partial(self._store.catalogue.reserve_topics, count))

    def stored_exchanges(self) -> list[ExchangeRecord]:
        """Return the exchanges that the store has."""
        return self._store.catalogue.exchanges()

    def stored_bindings(self) -> list[BindingRecord]:
        """Return the bindings that the store has."""
        return self._store.catalogue.bindings()

    async def change_store(self, change: Callable[[StoreCatalogue], None]) -> None:
        """Change the exchanges or bindings that the store has. Raises Refused."""
        await self._calls.or_refused(partial(change, self._store.catalogue))

    async def sweep(self) -> None:
        """See `StoreCalls.sweep`."""
        await self._calls.sweep()

    async def make_room(self) -> None:
        """See `StoreCalls.make_room`."""
        await self._calls.make_room()

    def refuse_changes(self, reason: Failure | None) -> None:
        """Refuse declarations and deletions for this reason; None: carry them out again."""
        self._calls.refusal = reason

    def is_in_place(self) -> bool:
        """See `Store.is_in_place`. It is called in a thread."""
        return self._store.is_in_place()

    def release_ids(self) -> dict[int, int]:
        """Return the next id of each topic with reserved ids: at a clean shutdown, the ids from there
        on are unused.
        """
        return {
            driver.topic.id: driver.next_id
            for driver in self
            if driver.topic.id in self._records and driver.reserved > max(1, driver.next_id)
        }
