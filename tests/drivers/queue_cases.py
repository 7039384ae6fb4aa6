"""The common part of tests of queues."""

from typing import Any

import pytest
import trio
import trio.testing
from served_drivers import Client, Drivers, Listener, quiet, settled

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import CreditKind, Modified
from omq.model import Sync
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq_storage.batches import Bodies

EITHER = pytest.mark.parametrize("durable", [False, True], ids=["ephemeral", "durable"])

DURABLE = QueueOptions(durable=True, sync=Sync.WEAK)
EITHER_OPTIONS = pytest.mark.parametrize("options", [QueueOptions(), DURABLE], ids=["ephemeral", "durable"])

FAILED = Modified(delivery_failed=True)


async def passed(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let this time pass, and wait until what happens then has happened."""
    await quiet()
    clock.jump(seconds)
    await quiet()


async def queue_of(
    drivers: Drivers, name: bytes = b"q", *, durable: bool = False, **options: Any
) -> QueueDriver:
    sync = Sync.WEAK if durable else None
    return await drivers.catalogue.declare_queue(
        name,
        QueueOptions(durable=durable, sync=sync, **options),
    )


def published(exchange: bytes, key: bytes, **properties: Any) -> bytes:
    """Return the head of a message that was published so."""
    return heads.encode(Head(exchange, key, Properties(**properties)))


def expiring(milliseconds: int | bytes) -> bytes:
    """Return the head of a message with this expiration."""
    text = milliseconds if isinstance(milliseconds, bytes) else b"%d" % milliseconds
    return published(b"", b"q", expiration=text)


def worker(queue: QueueDriver, window: int = 100) -> Client:
    client = Client(queue)
    client.request(window)
    return client


def getter_of(driver: QueueDriver) -> RoundRobinChannel:
    getter = driver.open_getter(Listener())
    getter.grant(1000, CreditKind.WINDOW)
    return getter


async def rest(queue: QueueDriver) -> list[bytes]:
    """Return the bodies of the messages that are ready, in order."""
    client = await worker(queue, 10_000).read()
    client.close()
    return client.bodies


async def small_posts(queue: QueueDriver, count: int) -> None:
    """Post N (`count`) messages, each of which is a block."""
    for _ in range(count):
        assert await settled(await queue.post(Bodies([b"x"]))) is None
