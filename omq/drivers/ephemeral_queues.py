"""Queues that are not durable. The exclusive ones among them belong to a connection, and end with it."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from omq.drivers.driver import Driver
from omq.drivers.factory import DriverFactory
from omq.drivers.lifetime import Ephemeral, Ownership
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.topic_quota import Admit, TopicQuota
from omq.model import Topic

TOPIC_IDS_RESERVED = 1024
"""The number of ids of ephemeral topics that are reserved at a time, so that few of them cost a write to the
disk.
"""


class EphemeralQueues:
    """The ephemeral queues among the drivers of a server by name, `drivers`."""

    def __init__(
        self,
        drivers: dict[bytes, Driver],
        factory: DriverFactory,
        quota: TopicQuota,
        reserve: Callable[[int], Awaitable[range]],
        deleted: Callable[[Driver], None],
    ) -> None:
        """Create an empty set of queues, which count against the quota of topics. `reserve(count)` returns
        `count` new topic ids, and may raise Refused. `deleted` is called when a queue has been deleted.
        """
        self._drivers = drivers
        self._factory = factory
        self._quota = quota
        self._reserve = reserve
        self._deleted = deleted
        self._ids = iter(range(0))

    async def create(
        self, name: bytes, options: QueueOptions, owner: Ownership | None, admit: Admit | None
    ) -> QueueDriver:
        """Create a queue with a name that no other topic has. An exclusive one belongs to `owner`. Raises
        Refused.
        """
        own = owner if options.exclusive else None
        topic = Topic(await self._next_id(), name)
        lifetime = Ephemeral(with_last_consumer=options.auto_delete, owner=own)
        if own is not None:
            own.check()
        released = self._quota.admit(admit)
        driver = self._factory.create_ephemeral(topic, lifetime, options)
        self._quota.created(topic.id, released)
        if own is not None:
            own.add(topic.id, partial(self.delete_at_once, driver))
        self._drivers[name] = driver
        return driver

    async def _next_id(self) -> int:
        id = next(self._ids, None)
        if id is None:
            self._ids = iter(await self._reserve(TOPIC_IDS_RESERVED))
            id = next(self._ids)
        return id

    def delete_at_once(self, driver: Driver) -> None:
        """Do as `delete`, in one step: there are few subscribers, or none."""
        for _ in self.delete(driver):
            pass

    def delete(self, driver: Driver) -> Iterator[None]:
        """Delete an ephemeral queue unless it is deleted already; its subscribers' channels end, in steps."""
        lifetime = driver.lifetime
        assert isinstance(lifetime, Ephemeral)
        if self._drivers.get(driver.topic.topic) is not driver:
            return
        del self._drivers[driver.topic.topic]
        if lifetime.owner is not None:
            lifetime.owner.discard(driver.topic.id)
        self._quota.deleted(driver.topic.id)
        self._deleted(driver)
        yield from driver.end()
        self._factory.stop(driver)
