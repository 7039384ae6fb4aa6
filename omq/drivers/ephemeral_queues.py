"""Queues that are not durable. The exclusive ones among them belong to a connection, and end with it."""

from collections.abc import Awaitable, Callable
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
        delete: Callable[[Driver], None],
    ) -> None:
        """Create an empty set of queues, which count against the quota of topics. `reserve(count)` returns
        `count` new topic ids, and may raise Refused. `delete` deletes a queue.
        """
        self._drivers = drivers
        self._factory = factory
        self._quota = quota
        self._reserve = reserve
        self._delete = delete
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
            own.add(topic.id, partial(self._delete, driver))
        self._drivers[name] = driver
        return driver

    async def _next_id(self) -> int:
        id = next(self._ids, None)
        if id is None:
            self._ids = iter(await self._reserve(TOPIC_IDS_RESERVED))
            id = next(self._ids)
        return id
