"""The ends of bindings in the tests of exchanges: queues and exchanges by their names."""

from served_drivers import Drivers

from omq.exchanges.types import Destination, DestinationKind
from omq.model import Delivery, Transient


def queue(name: bytes) -> Destination:
    return Destination(DestinationKind.QUEUE, name)


def exchange(name: bytes) -> Destination:
    return Destination(DestinationKind.EXCHANGE, name)


async def make(drivers: Drivers, *names: bytes) -> None:
    """Declare round-robin topics, which are durable queues."""
    for name in names:
        await drivers.catalogue.declare(name, Delivery.ROUND_ROBIN, Transient())
