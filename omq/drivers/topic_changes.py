"""Changes of topics that exist: their types, their retention, and the options of queues."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import assert_never

import trio

from omq.drivers.driver import Driver
from omq.drivers.factory import DriverFactory
from omq.drivers.lifetime import Durable
from omq.drivers.limited import Measured
from omq.drivers.loading import Loaded
from omq.drivers.making import first_bound
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import NO_QUEUE, NO_TOPIC, RETYPED, Reason, Refused
from omq.drivers.reservations import Reservations
from omq.drivers.slices import Slices
from omq.drivers.store_calls import StoreCalls
from omq.drivers.topics_by_name import TopicsByName
from omq.model import Delivery, FromCurrent, Persistence, stored_persistence
from omq.watching import Configured, Limits, Retention
from omq_storage.catalogue import StoreCatalogue
from omq_storage.errors import StoreError
from omq_storage.topics import TopicRecord


class TopicChanges:
    """Changes the topics of one server, one at a time."""

    def __init__(
        self,
        topics: TopicsByName,
        store: StoreCatalogue,
        calls: StoreCalls,
        ids: Reservations,
        factory: DriverFactory,
        changing: trio.Lock,
    ) -> None:
        """Use `changing`, the lock of the catalogue: its holder may declare, change or delete topics."""
        self._topics = topics
        self._store = store
        self._calls = calls
        self._ids = ids
        self._factory = factory
        self._changing = changing
        self.replaced: Callable[[], None] = _nothing
        """Called when a topic gets another driver."""

    async def retain(self, name: bytes, retention: Retention) -> None:
        """Change the retention of a topic, now and for later starts. Raises Refused."""
        async with self._changing:
            driver = self._topics.drivers.get(name)
            if driver is None:
                raise Refused.of(NO_TOPIC)
            if not driver.is_persistent:
                raise Refused(Reason.INVALID, "a transient topic keeps nothing to retain")
            match retention:
                case Configured():
                    limits = None
                case Limits(octets, ms):
                    limits = octets, ms
                case _:
                    assert_never(retention)
            record = await self._calls.or_refused(partial(self._store.retain, driver.topic.id, limits))
            self._topics.records[record.id] = record
            driver.retain(*self._topics.retention(record))

    async def change_queue(self, name: bytes, options: QueueOptions) -> None:
        """Give a queue other options. It stays as durable, exclusive and so on as it is: see
        `QueueOptions.changed`. Raises Refused.
        """
        # To measure a long queue takes seconds, in which other topics can be declared and deleted.
        queue = self._topics.drivers.get(name)
        measured = await _measured(queue, options) if isinstance(queue, QueueDriver) else None
        async with self._changing:
            driver = self._topics.drivers.get(name)
            if driver is None:
                raise Refused.of(NO_TOPIC)
            if not isinstance(driver, QueueDriver):
                raise Refused.of(NO_QUEUE)
            options = driver.options.changed(options)
            await self.set_options(driver, options, measured if driver is queue else None)

    async def set_options(
        self, driver: QueueDriver, options: QueueOptions, measured: Measured | None = None
    ) -> None:
        """Give a queue these options. The caller holds `changing`. Raises Refused."""
        measured = await _measured(driver, options, measured)
        if driver.topic.id in self._topics.records:  # ephemeral queues have none
            set_queue = partial(self._store.set_queue, driver.topic.id, options.encode())
            await self._calls.or_refused(set_queue)
        driver.change(options, measured)

    async def retype(
        self, old: Driver, record: TopicRecord, delivery: Delivery, persistence: Persistence
    ) -> Driver:
        """Give an empty topic its declared types, and its subscribers channels on the new driver. The caller
        holds `changing`. Raises Refused.
        """
        # Other tasks that look the topic up wait for its new driver, so nothing can be posted to the old one,
        # and nothing to the new one before it has all subscribers.
        old.is_replaced = True
        del self._topics.routes[record.name]
        try:
            with trio.CancelScope(shield=True):
                async with self._ids.held_back():
                    record = dataclasses.replace(
                        record,
                        delivery=delivery.value,
                        persistence=stored_persistence(persistence),
                        declared=True,
                        reserved=max(old.reserved, first_bound(persistence)),
                    )
                    await self._calls.or_refused(partial(self._store.update, record))
                    self._topics.records[record.id] = record
                    old.reserved = record.reserved
                    if old.delivery is delivery and old.persistence == persistence:
                        return old
                    assert isinstance(old.lifetime, Durable), "the topic has a record"
                    driver = self._topics.open(Loaded(record), old.lifetime)
                    await _move_subscribers(old, driver)
        finally:
            old.is_replaced = False
            self._topics.routes[record.name] = old.route
        self._topics.put(record, driver)
        old.gone = RETYPED
        self._factory.stop(old)
        self.replaced()
        return driver


async def _move_subscribers(old: Driver, new: Driver) -> None:
    """Give the subscribers of a driver channels on another one, in slices. Some may leave meanwhile."""
    slices = Slices()
    while (first := next(iter(old.subscribers()), None)) is not None:
        channel, subscriber = first
        exclusive = old.is_exclusive(channel)
        channel.close()
        subscriber.replaced(new.open(subscriber, FromCurrent(), exclusive=exclusive))
        await slices.step()
    if isinstance(old, QueueDriver):
        for _ in old.end_browsers():
            await slices.step()


async def _measured(
    driver: QueueDriver, options: QueueOptions, measured: Measured | None = None
) -> Measured | None:
    """See `LimitedDriver.prepare`. Raises Refused."""
    try:
        return await driver.prepare(options, measured)
    except StoreError as problem:
        raise Refused.of(for_clients(problem)) from problem


def _nothing() -> None:
    """Do nothing: the default listener for changes."""
