"""Creates and ends the drivers of topics without a record in the catalogue."""

from collections.abc import Callable
from functools import partial

from omq.drivers.driver import Driver
from omq.drivers.factory import DriverFactory
from omq.drivers.lifetime import Ephemeral, Private
from omq.drivers.queue_options import DEFAULT, QueueOptions
from omq.drivers.topic_quota import Admit, TopicQuota
from omq.model import Delivery, Topic


class UnrecordedTopics:
    """Counts these topics against the quota of topics, and gives each one that has an owner to its owner."""

    def __init__(self, factory: DriverFactory, quota: TopicQuota) -> None:
        self._factory = factory
        self._quota = quota

    def create(
        self,
        topic: Topic,
        delivery: Delivery,
        lifetime: Private | Ephemeral,
        admit: Admit | None,
        delete: Callable[[Driver], None],
        options: QueueOptions = DEFAULT,
    ) -> Driver:
        """Create the driver of a new transient topic. At the end of its owner, if it has one, `delete` is
        called. Raises Refused.
        """
        if lifetime.owner is not None:
            lifetime.owner.check()
        released = self._quota.admit(admit)
        driver = self._factory.create_unrecorded(topic, delivery, lifetime, options)
        self._quota.created(topic.id, released)
        if lifetime.owner is not None:
            lifetime.owner.add(topic.id, partial(delete, driver))
        return driver

    def end(self, driver: Driver) -> None:
        """End a driver that `create` returned; its subscribers' channels end."""
        lifetime = driver.lifetime
        assert isinstance(lifetime, Private | Ephemeral)
        if lifetime.owner is not None:
            lifetime.owner.discard(driver.topic.id)
        self._quota.deleted(driver.topic.id)
        driver.end()
        self._factory.stop(driver)
