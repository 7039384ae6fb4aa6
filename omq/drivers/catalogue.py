"""The catalogue of names: finds, creates and deletes drivers (terminal-driver RFC, section 3.5.1: lookup)."""

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeVar, assert_never

import msgspec
import trio

from omq.config import Config
from omq.drivers.alarms import Alarms
from omq.drivers.broadcast import BroadcastDriver
from omq.drivers.dead_letters import Office
from omq.drivers.driver import Driver, Opening, Resources
from omq.drivers.lifetime import DURABLE, Durable, Ephemeral, Lifetime, Ownership, Private, check_user
from omq.drivers.memory import Memory
from omq.drivers.priority_queue import PriorityQueueDriver
from omq.drivers.problems import for_clients
from omq.drivers.push import Lanes
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import DEFAULT, PERSISTENT, QueueOptions, difference
from omq.drivers.reasons import Reason, Refused
from omq.drivers.reservations import Reservations
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.stored_types import LEVELS
from omq.drivers.writer import Writer
from omq.logs import LogThrottle, quoted, subject
from omq.model import (
    Delivery,
    FromCurrent,
    Persistence,
    Persistent,
    Topic,
    Transient,
    check_topic,
    declaration,
    read_stored_persistence,
    stored_persistence,
)
from omq.threads import in_thread
from omq_storage.catalogue import Catalogue as StoreCatalogue
from omq_storage.catalogue import TopicRecord
from omq_storage.environment import Extent, Position
from omq_storage.errors import Limit, StoreError, StoreFull
from omq_storage.integrity import ADVICE
from omq_storage.levels import Level
from omq_storage.routes import Route
from omq_storage.store import Store
from omq_storage.topology import BindingRecord, ExchangeRecord

log = logging.getLogger("omq.catalogue")

T = TypeVar("T")

Admit = Callable[[], Callable[[], None]]
"""Called before a topic is created; raises Refused if it may not be. The result is called when the
topic is deleted, or could not be created.
"""

FIRST_PRIVATE, LAST_PRIVATE = 1 << 31, (1 << 32) - 1
"""The range of the ids of private topics. Ids of the catalogue start at 0, and stay far below."""

EVERY_ID = 1 << 63
"""A bound of message ids that no topic reaches: a private topic needs no reservations."""

TOPIC_IDS_RESERVED = 1024
"""How many ids of ephemeral topics are reserved at a time, so that few of them cost a write to the disk."""

DELETED_AT_ONCE = 8
"""How many topics of a connection that has ended are deleted in one step."""

READERS = 4
"""The number of threads that read from the store at a time."""


class Catalogue:
    """All drivers of a server by name. Call `open_stored` first; the tasks of drivers run in `nursery`."""

    def __init__(self, config: Config, store: Store, memory: Memory, nursery: trio.Nursery) -> None:
        self._config = config
        self._store = store
        self._nursery = nursery
        self.ids = Reservations(self._reserve)
        self.writers = {level: Writer(store.level(level), memory.posted, self.ids) for level in Level}
        self.dead_letters = Office(nursery.start_soon)
        self._resources = Resources(
            memory=memory,
            readers=trio.CapacityLimiter(READERS),
            listers=trio.CapacityLimiter(1),
            ids=self.ids,
            alarms=Alarms(),
            lanes=Lanes(),
            stall_seconds=config.stall_seconds,
            unused=self._unused,
            dead_letters=self.dead_letters,
            spills=self.writers[Level.ASYNC],
        )
        nursery.start_soon(self.ids.run)
        nursery.start_soon(self._resources.alarms.run)
        self.start: Callable[[Callable[[], Awaitable[None]]], None] = nursery.start_soon
        """Starts a task of what is above the drivers. It ends with the server."""
        self.most_exchanges, self.most_bindings = config.max_exchanges, config.max_bindings
        self._drivers: dict[bytes, Driver] = {}
        self.by_name: Mapping[bytes, Driver] = self._drivers
        """For code that runs for each message: as `lookup`, but also those that are being replaced (see
        `Driver.is_replaced`).
        """
        self.routes: dict[bytes, Route] = {}
        """The routes of the topics that may be found by their names now."""
        self._records: dict[int, TopicRecord] = {}
        self._released: dict[int, Callable[[], None]] = {}
        """Calls for deleted topics, by the ids of topics that clients created since the start."""
        self._private: dict[int, Driver] = {}
        self._last_private = LAST_PRIVATE
        self._ephemeral = 0
        """The number of ephemeral topics."""
        self._ephemeral_ids = iter(range(0))
        """Topic ids that are reserved for such topics."""
        self._dealers: dict[Driver, trio.CancelScope] = {}
        self._changing = trio.Lock()
        self._problems = LogThrottle.of_problem(log, "the catalogue")
        self._is_cramped = False
        self._is_open = False
        self._when_open: list[Callable[[], None]] = []
        self._leftovers: set[tuple[Level, int]] = set()
        self.replaced: Callable[[], None] = _nothing
        """Called when a topic gets another driver."""
        self.deleted: Callable[[Driver], None] = _ignore
        """Called when a topic has been deleted."""
        self._undropped = LogThrottle.of_problem(log, "not all of a deleted topic could be deleted yet")

    def __iter__(self) -> Iterator[Driver]:
        return iter(self._drivers.values())

    def lookup(self, name: bytes) -> Driver | None:
        """Return the driver behind a name; None if there is none, or while it is being replaced."""
        driver = self._drivers.get(name)
        return None if driver is None or driver.is_replaced else driver

    async def find(self, name: bytes) -> Driver | None:
        """Return the driver behind a name, or None. Wait while it is being replaced."""
        if self.is_replacing(name):
            await self.settled()
        return self._drivers.get(name)

    def is_replacing(self, name: bytes) -> bool:
        """Whether the topic with this name is being given other types: await `settled`."""
        driver = self._drivers.get(name)
        return driver is not None and driver.is_replaced

    async def settled(self) -> None:
        """Wait until no topic is being changed."""
        async with self._changing:
            pass

    def drivers(self) -> list[Driver]:
        """Return all drivers in the order of their topics' ids."""
        # Topics are opened and created in this order, and a replaced driver keeps its place. But ids of
        # ephemeral topics are reserved before they are used.
        drivers = list(self._drivers.values())
        if self._ephemeral:
            drivers.sort(key=lambda driver: driver.topic.id)
        return drivers

    def current(self, driver: Driver) -> Driver | None:
        """Return the current driver of this driver's topic; None if the topic was deleted."""
        if driver.topic.id in self._private:
            return driver
        found = self._drivers.get(driver.topic.topic)
        return found if found is not None and found.topic.id == driver.topic.id else None

    @property
    def topic_count(self) -> int:
        """The number of topics."""
        return len(self._drivers)

    def size(self) -> tuple[int, int]:
        """Return the number of topics, and the octets of their names."""
        return len(self._drivers), sum(map(len, self._drivers))

    # -- opening -------------------------------------------------------------------------------------------

    async def open_stored(self) -> None:
        """Open a driver for every topic of the store, then declare those of the configuration.

        Raises StoreError, and Refused for a configured topic that exists with other types.
        """
        rolled_back = {recovery.level for recovery in self._store.recoveries if recovery.rolled_back}
        extents = {level: self._store.level(level).extents() for level in Level}
        positions = {level: self._store.level(level).positions() for level in Level}
        known: dict[Level, set[int]] = {level: set() for level in Level}
        losses: dict[int, range] = {}
        queues = {topic: _read_options(topic, row) for topic, row in self._store.catalogue.queues().items()}
        for record in self._store.catalogue.topics():
            persistence = read_stored_persistence(record.persistence)
            match persistence:
                case Transient():
                    self._add(record, Extent(), None, record.reserved)
                case Persistent(sync):
                    level = LEVELS[sync]
                    known[level].add(record.id)
                    extent = extents[level].get(record.id, Extent())
                    next_id = max(1, extent.next, record.resume)
                    lost = record.lost
                    if level in rolled_back and record.reserved > next_id:
                        log.warning(
                            "%s: messages %d to %d may have been lost before they were durable",
                            quoted(record.name),
                            next_id,
                            record.reserved - 1,
                            extra=subject(topic=record.name),
                        )
                        lost = losses[record.id] = range(max(1, extent.next), record.reserved)
                        next_id = record.reserved
                    newest = self._newest_time(level, record.id, extent)
                    position = positions[level].get(record.id)
                    below = 0 if position is None else position.cursor
                    dealt = self._stored_below(level, record.id, extent, below)
                    options = queues.get(record.id)
                    self._add(record, extent, position, next_id, newest, dealt, lost, options=options)
                case _:
                    assert_never(persistence)
        # Record it before anything else happens, for every later start: a client may have seen messages with
        # these ids.
        await self._in_need(partial(self._store.catalogue.settle, losses))
        next_id = await in_thread(lambda: self._store.catalogue.next_id)
        every = set().union(*known.values()) | {record.id for record in self._records.values()}
        transient = {driver.topic.id for driver in self if not driver.is_persistent}
        for level, topics in known.items():
            for misplaced in (extents[level].keys() & every) - topics:
                if level is Level.ASYNC and misplaced in transient:
                    self._leftovers.add((level, misplaced))  # it had spilled, see omq.drivers.spill
                    continue
                log.error("topic %d has messages in %s, where it is not kept", misplaced, level.value)
            for leftover in extents[level].keys() - every:
                if leftover >= next_id:
                    # The topic was not deleted: this is not the catalogue with which its messages were
                    # stored.
                    raise StoreError(
                        f"The store {self._store.path} has messages of topic {leftover}, which its catalogue "
                        f"never knew; {ADVICE}."
                    )
                # An interrupted deletion: the record in the catalogue is deleted first, the blocks follow.
                self._leftovers.add((level, leftover))
        await self.drop_leftovers()
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

    def when_open(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as the topics of the store are open."""
        if self._is_open:
            action()
        else:
            self._when_open.append(action)

    def _newest_time(self, level: Level, topic: int, extent: Extent) -> int:
        """Return the time of the last stored message, so that times never decrease if the clock was
        set back.
        """
        try:
            newest = self._store.level(level).blocks(topic, extent.last, 1) if extent.messages else []
        except StoreError as problem:
            log.error("topic %d: the time of its last message cannot be read: %s", topic, problem)
            return 0
        return newest[0].time + newest[0].span if newest else 0

    def _stored_below(self, level: Level, topic: int, extent: Extent, bound: int) -> int:
        """Return the number of stored messages with ids below a bound."""
        count, first = 0, extent.first
        try:
            while extent.messages and first < bound:
                infos = self._store.level(level).blocks(topic, first)
                if not infos:
                    break
                count += sum(min(info.next, bound) - info.first for info in infos if info.first < bound)
                first = infos[-1].next
        except StoreError as problem:
            log.error("topic %d: the number of its messages that are done cannot be read: %s", topic, problem)
        return count

    def _add(
        self,
        record: TopicRecord,
        extent: Extent,
        position: Position | None,
        next_id: int,
        time: int = 0,
        stored_before_cursor: int = 0,
        lost: range = range(0),
        lifetime: Durable = DURABLE,
        options: QueueOptions | None = None,
    ) -> Driver:
        persistence = read_stored_persistence(record.persistence)
        if options is not None:
            lifetime = Durable(with_last_consumer=options.auto_delete)
        else:
            options = PERSISTENT if isinstance(persistence, Persistent) else DEFAULT
            if lifetime.with_last_consumer:
                options = dataclasses.replace(options, auto_delete=True)
        opening = Opening(
            topic=Topic(record.id, record.name),
            persistence=persistence,
            writer=self.writers[LEVELS[persistence.sync]] if isinstance(persistence, Persistent) else None,
            resources=self._resources,
            next_id=max(1, next_id),
            reserved=record.reserved,
            extent=extent,
            position=position,
            retention=self._config.retention(record.name),
            time=time,
            stored_before_cursor=stored_before_cursor,
            lost=lost,
            lifetime=lifetime,
            options=options,
        )
        driver = self._start(opening, Delivery(record.delivery))
        self._drivers[record.name] = driver
        self.routes[record.name] = driver.route
        self._records[record.id] = record
        return driver

    def _start(self, opening: Opening, delivery: Delivery) -> Driver:
        match delivery:
            case Delivery.BROADCAST:
                return BroadcastDriver(opening)
            case Delivery.ROUND_ROBIN:
                kind = QueueDriver if opening.options.max_priority is None else PriorityQueueDriver
                driver = kind(opening)
                self._nursery.start_soon(self._deal, driver)
                return driver
            case other:
                assert_never(other)

    async def _deal(self, driver: RoundRobinDriver) -> None:
        if driver.deleted:
            return
        with trio.CancelScope() as scope:
            self._dealers[driver] = scope
            await driver.run()

    # -- declaring -----------------------------------------------------------------------------------------

    async def declare(
        self,
        name: bytes,
        delivery: Delivery,
        persistence: Persistence,
        admit: Admit | None = None,
        lifetime: Durable = DURABLE,
    ) -> Driver:
        """Return the topic with this name and these types; create it if there is none. Raises Refused.

        `admit` decides whether it may be made; None where no client asks for it. `lifetime` is for a topic
        that is made.
        """
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                return await self._create(name, delivery, persistence, admit, lifetime, declared=True)
            record = self._records.get(driver.topic.id)
            same = driver.delivery is delivery and driver.persistence == persistence
            if same and (record is None or record.declared):
                return driver
            if record is not None and (same or (not record.declared and driver.is_empty)):
                return await self._retype(driver, record, delivery, persistence)
            types = declaration(driver.delivery, driver.persistence)
            raise Refused(Reason.DIFFERS, f"the topic exists as {types}")

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
                return await self._create_ephemeral(name, options, owner, admit)
            check_user(driver.lifetime, owner)
            if not isinstance(driver, QueueDriver):
                raise Refused(Reason.DIFFERS, "it is a broadcast topic, and no queue")
            if options.exclusive and not driver.options.exclusive:
                raise Refused(Reason.LOCKED, "it exists, and belongs to nobody alone")
            differs = difference(name, options, driver.options)
            if differs is not None:
                raise differs
            driver.used()
            return driver

    async def change_queue(self, name: bytes, options: QueueOptions) -> None:
        """Give a queue other options. It stays as durable, exclusive and so on as it is: see
        `QueueOptions.changed`. Raises Refused.
        """
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                raise Refused(Reason.NOT_FOUND, "there is no such topic")
            if not isinstance(driver, QueueDriver):
                raise Refused(Reason.DIFFERS, "it is a broadcast topic, and no queue")
            options = driver.options.changed(options)
            if driver.is_persistent:
                set_queue = partial(self._store.catalogue.set_queue, driver.topic.id, options.encode())
                await self._in_store(set_queue)
            driver.change(options)

    async def _create_durable(self, name: bytes, options: QueueOptions, admit: Admit | None) -> QueueDriver:
        persistence = Persistent(options.sync or self._config.durable_sync())
        driver = await self._create(
            name, Delivery.ROUND_ROBIN, persistence, admit, options=options, declared=True
        )
        assert isinstance(driver, QueueDriver)
        return driver

    async def _create_ephemeral(
        self, name: bytes, options: QueueOptions, owner: Ownership | None, admit: Admit | None
    ) -> QueueDriver:
        _check_name(name)
        own = owner if options.exclusive else None
        id = await self._ephemeral_id()
        if own is not None:
            own.check()
        released = (admit or self._admit_anyone)()
        lifetime = Ephemeral(with_last_consumer=options.auto_delete, owner=own)
        driver = self._start(self._unrecorded(Topic(id, name), lifetime, options), Delivery.ROUND_ROBIN)
        assert isinstance(driver, QueueDriver)
        self._drivers[name] = driver
        self._ephemeral += 1
        self._released[id] = released
        if own is not None:
            own.add(id, partial(self._delete_ephemeral, driver))
        return driver

    def end(self, owner: Ownership) -> None:
        """Delete the topics of a connection that has ended: in steps, because there may be thousands."""
        if owner.end(DELETED_AT_ONCE):
            self._nursery.start_soon(self._end, owner)

    async def _end(self, owner: Ownership) -> None:
        while owner.end(DELETED_AT_ONCE):
            await trio.lowlevel.checkpoint()

    async def _ephemeral_id(self) -> int:
        id = next(self._ephemeral_ids, None)
        if id is None:
            reserve = partial(self._store.catalogue.reserve_topics, TOPIC_IDS_RESERVED)
            self._ephemeral_ids = iter(await self._in_store(reserve))
            id = next(self._ephemeral_ids)
        return id

    def _unrecorded(self, topic: Topic, lifetime: Lifetime, options: QueueOptions = DEFAULT) -> Opening:
        """Return the state of a new transient topic without a record in the catalogue."""
        return Opening(
            topic=topic,
            persistence=Transient(),
            writer=None,
            resources=self._resources,
            next_id=1,
            reserved=EVERY_ID,
            extent=Extent(),
            position=None,
            retention=(None, None),
            lifetime=lifetime,
            options=options,
        )

    async def lookup_or_declare(self, name: bytes, admit: Admit | None = None) -> Driver:
        """Return the driver behind a name; declare an unknown one with the default types. Raises Refused.

        `admit` decides whether it may be made; None where no client asks for it.
        """
        driver = self.lookup(name)
        if driver is not None:
            return driver
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is not None:
                return driver
            if not self._config.allow_undeclared:
                _check_name(name)
                raise Refused(
                    Reason.NOT_FOUND, "there is no such topic, and this server wants topics declared"
                )
            return await self._create(name, *self._config.default_types(), admit, declared=False)

    def check_room(self) -> None:
        """Raise Refused if the quota of topics is used up."""
        most = self._config.max_topics
        if len(self._drivers) + len(self._private) >= most:
            raise Refused(Reason.QUOTA, f"the server has its {most} topics, the most it is configured for")

    def _admit_anyone(self) -> Callable[[], None]:
        self.check_room()
        return _nothing

    async def _create(
        self,
        name: bytes,
        delivery: Delivery,
        persistence: Persistence,
        admit: Admit | None,
        lifetime: Durable = DURABLE,
        options: QueueOptions | None = None,
        *,
        declared: bool,
    ) -> Driver:
        _check_name(name)
        released = (admit or self._admit_anyone)()
        try:
            record = await self._in_store(
                partial(
                    self._store.catalogue.create,
                    name,
                    delivery.value,
                    stored_persistence(persistence),
                    declared,
                    reserved=1,
                    queue=None if options is None else options.encode(),
                )
            )
        except BaseException:  # cancelled, too: there is no topic that could count
            released()
            raise
        self._released[record.id] = released
        return self._add(record, Extent(), None, 1, lifetime=lifetime, options=options)

    async def _retype(
        self, old: Driver, record: TopicRecord, delivery: Delivery, persistence: Persistence
    ) -> Driver:
        """Give an empty topic its declared types, and its subscribers channels on the new driver."""
        # Other tasks that look the topic up wait for its new driver, so nothing can be posted to the old one.
        old.is_replaced = True
        del self.routes[record.name]
        try:
            with trio.CancelScope(shield=True):
                async with self.ids.held_back():
                    record = dataclasses.replace(
                        record,
                        delivery=delivery.value,
                        persistence=stored_persistence(persistence),
                        declared=True,
                        reserved=old.reserved,
                    )
                    await self._in_store(partial(self._store.catalogue.update, record))
                    self._records[record.id] = record
        finally:
            old.is_replaced = False
            self.routes[record.name] = old.route
        if old.delivery is delivery and old.persistence == persistence:
            return old
        assert isinstance(old.lifetime, Durable), "the topic has a record"
        driver = self._add(record, Extent(), None, 1, lifetime=old.lifetime)
        for channel, subscriber in list(old.subscribers()):
            exclusive = old.is_exclusive(channel)
            channel.close()
            subscriber.replaced(driver.open(subscriber, FromCurrent(), exclusive=exclusive))
        self._stop(old)
        self.replaced()
        return driver

    async def delete(self, name: bytes) -> Topic:
        """Delete a topic with all its messages, and end the channels of its subscribers. Raises Refused."""
        async with self._changing:
            driver = self._drivers.get(name)
            if driver is None:
                raise Refused(Reason.NOT_FOUND, "there is no such topic")
            if isinstance(driver.lifetime, Ephemeral):
                self._delete_ephemeral(driver)
            else:
                await self._delete(driver)
            return driver.topic

    async def _delete(self, driver: Driver) -> None:
        with trio.CancelScope(shield=True):  # interrupted, it would keep octets until the next start
            async with self.ids.held_back():
                await self._in_store(partial(self._store.catalogue.delete, driver.topic.id))
                driver.deleted = True
                del self.routes[driver.topic.topic]
            del self._drivers[driver.topic.topic]
            del self._records[driver.topic.id]
            released = self._released.pop(driver.topic.id, None)
            if released is not None:
                released()
            driver.end()
            self._stop(driver)
            self.deleted(driver)
            if driver.writer is not None:
                # The record is deleted: blocks that cannot be deleted now are tried again until they are.
                self._leftovers.add((driver.environment.level, driver.topic.id))
                await self.drop_leftovers()
            elif isinstance(driver, QueueDriver) and driver.has_spilled:
                self._leftovers.add((Level.ASYNC, driver.topic.id))

    async def drop_leftovers(self) -> None:
        """Delete the remaining blocks of deleted topics, as far as the store has room for that."""
        for level, topic in sorted(self._leftovers, key=lambda leftover: leftover[1]):
            drop = partial(self._store.level(level).drop_some, topic)
            try:
                while await self._in_need(drop, self.writers[level]):
                    pass
            except StoreError as problem:
                self._undropped.add(f"topic {topic}: {problem}")
            else:
                self._leftovers.discard((level, topic))

    def _stop(self, driver: Driver) -> None:
        driver.deleted = True
        driver.route.owner = None
        scope = self._dealers.pop(driver, None)
        if scope is not None:
            scope.cancel()

    # -- shorter lives -------------------------------------------------------------------------------------

    def make_private(
        self, name: bytes, delivery: Delivery, lifetime: Private, admit: Admit | None = None
    ) -> Driver:
        """Create a transient topic that is not found by its name, without a write to the disk. It counts
        against the quota of topics. Raises Refused.
        """
        if lifetime.owner is not None:
            lifetime.owner.check()
        released = (admit or self._admit_anyone)()
        id = self._private_id()
        driver = self._private[id] = self._start(self._unrecorded(Topic(id, name), lifetime), delivery)
        self._released[id] = released
        if lifetime.owner is not None:
            lifetime.owner.add(id, partial(self.delete_private, driver))
        return driver

    def _private_id(self) -> int:
        """Return the next id that no private topic has; after the last one they begin again."""
        while True:
            last = self._last_private
            self._last_private = FIRST_PRIVATE if last == LAST_PRIVATE else last + 1
            if self._last_private not in self._private:
                return self._last_private

    def delete_private(self, driver: Driver) -> None:
        """Delete a private topic unless it is deleted already; its subscribers' channels end."""
        assert isinstance(driver.lifetime, Private)
        if self._private.pop(driver.topic.id, None) is None:
            return
        if driver.lifetime.owner is not None:
            driver.lifetime.owner.discard(driver.topic.id)
        self._released.pop(driver.topic.id)()
        driver.end()
        self._stop(driver)

    def _delete_ephemeral(self, driver: Driver) -> None:
        """Delete an ephemeral topic unless it is deleted already; its subscribers' channels end."""
        assert isinstance(driver.lifetime, Ephemeral)
        if self.current(driver) is not driver:
            return
        del self._drivers[driver.topic.topic]
        self._ephemeral -= 1
        if driver.lifetime.owner is not None:
            driver.lifetime.owner.discard(driver.topic.id)
        self._released.pop(driver.topic.id)()
        driver.end()
        self._stop(driver)
        self.deleted(driver)
        if isinstance(driver, QueueDriver) and driver.has_spilled:
            self._leftovers.add((Level.ASYNC, driver.topic.id))

    def _unused(self, driver: Driver, is_still: Callable[[], bool]) -> None:
        """Delete a topic that nobody uses, if that is still so when it is the topic's turn."""
        match driver.lifetime:
            case Private():
                self.delete_private(driver)
            case Ephemeral():
                self._delete_ephemeral(driver)
            case Durable():
                self._nursery.start_soon(self._delete_unused, driver, is_still)
            case other:
                assert_never(other)

    async def _delete_unused(self, driver: Driver, is_still: Callable[[], bool]) -> None:
        async with self._changing:
            if self.current(driver) is not driver or not is_still():
                return  # it was deleted or given other types, or was used by now
            try:
                await self._delete(driver)
            except Refused as refused:
                self._problems.add(f"{quoted(driver.topic.topic)}, which is used no more: {refused}")

    # -- the store -----------------------------------------------------------------------------------------

    async def _reserve(self, bounds: Mapping[int, int]) -> None:
        """See `omq_storage.catalogue.Catalogue.reserve`."""
        try:
            await in_thread(partial(self._store.catalogue.reserve, bounds))
        except StoreFull:
            self._is_cramped = True
            raise
        for topic in bounds.keys() & self._records.keys():  # the other topics were deleted meanwhile
            self._records[topic] = dataclasses.replace(self._records[topic], reserved=bounds[topic])

    def stored_exchanges(self) -> list[ExchangeRecord]:
        """Return the exchanges that the store has."""
        return self._store.catalogue.exchanges()

    def stored_bindings(self) -> list[BindingRecord]:
        """Return the bindings that the store has."""
        return self._store.catalogue.bindings()

    async def change_store(self, change: Callable[[StoreCatalogue], None]) -> None:
        """Change the exchanges or bindings that the store has. Raises Refused."""
        await self._in_store(partial(change, self._store.catalogue))

    async def _in_store(self, function: Callable[[], T]) -> T:
        """Run a call of the store's catalogue in a thread. Raises Refused for its errors."""
        try:
            return await self._in_need(function)
        except StoreError as problem:
            self._problems.add(problem)
            raise Refused.of(for_clients(problem)) from problem

    async def _in_need(self, function: Callable[[], T], writer: Writer | None = None) -> T:
        """Run a deletion or declaration, between the commits of its writer if it has one. Raises StoreError.

        If the disk is full, use the reserved disk space, while all writers pause so that none takes it.
        """
        try:
            return await (in_thread(function) if writer is None else writer.call(function))
        except StoreFull as full:
            if full.limit is not Limit.DISK:
                raise
        async with AsyncExitStack() as paused:
            for other in self.writers.values():
                await paused.enter_async_context(other.paused())
            return await in_thread(partial(self._store.with_spare_room, function))

    async def sweep(self) -> None:
        """Delete the fragments of large messages that are no messages. Raises StoreError."""
        for writer in self.writers.values():
            while await self._in_need(writer.environment.sweep, writer):
                pass

    async def make_room(self) -> None:
        """Make sure that the catalogue has pages for the next reservation of ids, and reserve disk space for
        deletions, as far as the disk has any. Raises StoreError and OSError.
        """
        if self._is_cramped:
            # Not at the failure itself: that is in the middle of a commit, and its writer cannot pause.
            self._is_cramped = False
            await self._in_need(self._store.catalogue.recycle_pages)
        await in_thread(self._store.restore_spare_room)

    def release_ids(self) -> dict[int, int]:
        """Return the next id of each topic with reserved ids: at a clean shutdown, the ids from there
        on are unused.
        """
        return {
            driver.topic.id: driver.next_id
            for driver in self
            if driver.topic.id in self._records and driver.reserved > max(1, driver.next_id)
        }


def _nothing() -> None:
    """Do nothing: no quota counts this topic, or nothing needs to know of the change."""


def _ignore(driver: Driver) -> None:
    """Nothing needs to know that a topic was deleted."""


def _read_options(topic: int, row: bytes) -> QueueOptions:
    """Return the options of a queue from its row in the catalogue. Raises StoreError."""
    try:
        return QueueOptions.decode(row)
    except msgspec.DecodeError as problem:
        raise StoreError(f"The options of queue {topic} cannot be read: {problem}; {ADVICE}.") from problem


def _check_name(name: bytes) -> None:
    problem = check_topic(name)
    if problem is not None:
        raise Refused(Reason.INVALID, problem)
