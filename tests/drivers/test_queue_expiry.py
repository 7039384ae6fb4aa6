"""A queue that nobody uses is deleted after a time."""

import gc
from functools import partial
from weakref import WeakSet

import pytest
import trio
import trio.testing
from queue_cases import EITHER, passed, queue_of
from served_drivers import Client, Drivers, Listener, post, quiet

from omq.drivers.housekeeping import NOT_IN_PLACE, keep_deleting
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.seam import CreditKind
from omq.model import FromCurrent


@EITHER
async def test_an_unused_queue_expires(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    deleted = trio.Event()
    drivers.catalogue.deletion.deleted = lambda driver: deleted.set()
    queue = await queue_of(drivers, durable=durable, expires_ms=1000)
    await passed(clock, 0.9)
    assert await queue_of(drivers, durable=durable, expires_ms=1000) is queue  # a declaration is a use
    await passed(clock, 0.9)
    getter = queue.open_getter(Listener())
    assert not await queue.deal_one(getter)
    await passed(clock, 0.9)
    client = Client(queue)
    await passed(clock, 5)
    assert not deleted.is_set()
    client.close()
    await passed(clock, 0.9)
    assert not deleted.is_set()
    await post(queue, b"a")  # a message is no use of it
    await passed(clock, 0.2)
    await deleted.wait()
    assert drivers.catalogue.lookup(b"q") is None
    getter.close()


async def test_unused_queues_are_deleted_when_the_catalogue_can_be_changed_again(
    drivers: Drivers, clock: trio.testing.MockClock
) -> None:
    catalogue = drivers.catalogue
    await queue_of(drivers, b"expired", durable=True, expires_ms=1000)
    queues = [await queue_of(drivers, name, durable=True, auto_delete=True) for name in (b"left", b"used")]
    catalogue.refuse_changes(NOT_IN_PLACE)
    for queue in queues:
        Client(queue).close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_deleting, catalogue)
        await passed(clock, 5)
        assert all(map(catalogue.lookup, (b"expired", b"left", b"used")))
        client = Client(queues[1])
        catalogue.refuse_changes(None)
        await passed(clock, 5)
        assert not any(map(catalogue.lookup, (b"expired", b"left")))
        assert catalogue.lookup(b"used") is queues[1]
        client.close()
        await passed(clock, 1)
        assert catalogue.lookup(b"used") is None
        nursery.cancel_scope.cancel()


async def test_a_plain_consumer_keeps_a_queue(drivers: Drivers, clock: trio.testing.MockClock) -> None:
    queue = await queue_of(drivers, expires_ms=100)
    channel = queue.open(Listener(), FromCurrent())
    channel.grant(1, CreditKind.WINDOW)
    await passed(clock, 1)
    assert drivers.catalogue.lookup(b"q") is queue
    channel.cancel()
    await passed(clock, 1)
    assert drivers.catalogue.lookup(b"q") is None


async def test_a_queue_expires_when_its_time_is_over_and_not_before(
    drivers: Drivers, clock: trio.testing.MockClock
) -> None:
    await queue_of(drivers, expires_ms=3_600_000)
    await passed(clock, 3599)
    assert drivers.catalogue.lookup(b"q") is not None
    await passed(clock, 2)
    assert drivers.catalogue.lookup(b"q") is None


@EITHER
async def test_a_queue_expires_by_its_new_options(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    deleted = trio.Event()
    drivers.catalogue.deletion.deleted = lambda driver: deleted.set()
    change = drivers.catalogue.changes.change_queue
    await queue_of(drivers, durable=durable, expires_ms=3_600_000)
    await passed(clock, 1)
    await change(b"q", QueueOptions(expires_ms=2000))
    await passed(clock, 0.9)
    await change(b"q", QueueOptions(expires_ms=5000))
    await passed(clock, 3)
    assert not deleted.is_set()
    await change(b"q", QueueOptions())
    await passed(clock, 9)
    await change(b"q", QueueOptions(expires_ms=20_000))
    await quiet()
    assert not deleted.is_set()
    await change(b"q", QueueOptions(expires_ms=10_000))  # has passed
    await quiet()
    assert deleted.is_set()


@pytest.mark.parametrize("use", ["declare", "get", "change"])
async def test_a_queue_that_is_used_while_its_deletion_waits_is_kept(
    drivers: Drivers, clock: trio.testing.MockClock, use: str
) -> None:
    send, deleted = trio.open_memory_channel[bytes](2)
    drivers.catalogue.deletion.deleted = lambda driver: send.send_nowait(driver.topic.topic)
    queue = await queue_of(drivers, durable=True, expires_ms=1000)
    await queue_of(drivers, b"other", durable=True)
    async with trio.open_nursery() as nursery:
        async with drivers.catalogue.ids.held_back():
            nursery.start_soon(drivers.catalogue.delete, b"other")  # has its turn until the block ends
            await quiet()
            if use == "declare":
                nursery.start_soon(partial(queue_of, drivers, durable=True, expires_ms=1000))
            elif use == "change":
                nursery.start_soon(
                    drivers.catalogue.changes.change_queue, b"q", QueueOptions(expires_ms=2000)
                )
            await passed(clock, 1.1)
            if use == "get":
                getter = queue.open_getter(Listener())
                assert not await queue.deal_one(getter)
                getter.close()
        assert await deleted.receive() == b"other"
    await drivers.catalogue.settled()
    assert drivers.catalogue.lookup(b"q") is queue
    await passed(clock, 1.1)
    assert await deleted.receive() == b"q"


async def test_alarms_hold_no_queue_that_was_deleted(drivers: Drivers) -> None:
    queues: WeakSet[QueueDriver] = WeakSet()
    for _ in range(10):
        queue = await queue_of(drivers, expires_ms=3_600_000, ttl_ms=3_600_000)
        await post(queue, b"a")
        queues.add(queue)
        await drivers.catalogue.delete(b"q")
    del queue
    await quiet()
    gc.collect()
    assert len(queues) <= 1
