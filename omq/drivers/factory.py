"""Creates the drivers of topics, and runs the dealers of round-robin topics."""

from typing import assert_never

import trio

from omq.drivers.broadcast import BroadcastDriver
from omq.drivers.driver import Driver, InitialState, Resources
from omq.drivers.lifetime import Ephemeral
from omq.drivers.priority_queue import PriorityQueueDriver
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.routed_queue import RoutedQueueDriver
from omq.model import Delivery, Topic, Transient
from omq_storage.environment import Extent

EVERY_ID = 1 << 63
"""A bound of message ids that no topic reaches: a topic without a record needs no reservations."""


class DriverFactory:
    """Creates drivers with these resources. The dealers run in `nursery`."""

    def __init__(self, resources: Resources, nursery: trio.Nursery) -> None:
        self._resources = resources
        self._nursery = nursery
        self._dealers: dict[Driver, trio.CancelScope] = {}

    def create(self, opening: InitialState, delivery: Delivery) -> Driver:
        """Return the driver of a topic, whose dealer runs until `stop`."""
        match delivery:
            case Delivery.BROADCAST:
                return BroadcastDriver(opening)
            case Delivery.ROUND_ROBIN:
                return self._create_queue(opening)
            case other:
                assert_never(other)

    def create_ephemeral(self, topic: Topic, lifetime: Ephemeral, options: QueueOptions) -> QueueDriver:
        """Return the driver of a new queue without a record in the catalogue."""
        opening = InitialState(
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
        return self._create_queue(opening)

    def _create_queue(self, opening: InitialState) -> QueueDriver:
        kind = RoutedQueueDriver if opening.options.max_priority is None else PriorityQueueDriver
        driver = kind(opening)
        self._nursery.start_soon(self._deal, driver)
        return driver

    def stop(self, driver: Driver) -> None:
        """End the dealer of a driver whose topic was deleted, or has another driver. Messages for it that
        wait for room on the spool need not wait any longer.
        """
        driver.deleted = True
        self._resources.spool.room.topic_ended()
        driver.route.owner = None
        scope = self._dealers.pop(driver, None)
        if scope is not None:
            scope.cancel()

    async def _deal(self, driver: RoundRobinDriver) -> None:
        if driver.deleted:
            return
        with trio.CancelScope() as scope:
            self._dealers[driver] = scope
            await driver.run()
        while driver.free_some():
            await trio.lowlevel.checkpoint()
