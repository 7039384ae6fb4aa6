"""Messages of queues expire: by the time to live of the queue, and by their own."""

from pathlib import Path

import trio
import trio.testing
from counted_steps import counted_calls
from queue_cases import EITHER, FAILED, expiring, passed, queue_of, rest, worker
from served_drivers import Client, Drivers, Listener, opened, post, quiet

from omq.drivers.seam import Modified
from omq_storage.batches import BLOCK_MESSAGES


@EITHER
async def test_messages_expire_in_the_queue(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000)
    await post(queue, b"a", b"b")
    await passed(clock, 0.6)
    await post(queue, b"c")
    assert queue.ready == 3
    await passed(clock, 0.5)
    assert queue.ready == 1
    assert queue.info().messages == 1
    await passed(clock, 0.4)
    assert queue.ready == 1
    await passed(clock, 0.2)
    assert (queue.ready, queue.info().messages) == (0, 0)
    await post(queue, b"d")
    assert await rest(queue) == [b"d"]
    await passed(clock, 1.1)
    assert queue.ready == 0


@EITHER
async def test_an_unacknowledged_message_expires_when_it_comes_back(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000)
    client = worker(queue, 2)
    await post(queue, b"a", b"b", b"c")
    assert (await client.read()).bodies == [b"a", b"b"]
    await passed(clock, 0.5)
    client.settle(1, outcome=FAILED)
    assert (await client.read()).bodies == [b"a", b"b", b"a"]
    await passed(clock, 0.6)
    assert queue.ready == 0
    client.settle(1, 2, outcome=FAILED)
    await client.read()
    assert client.bodies == [b"a", b"b", b"a"]
    assert queue.info().messages == 0
    client.close()


@EITHER
async def test_a_long_expiration_is_exact(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    await post(queue, b"a", heads=[expiring(1_000_000)])
    await passed(clock, 999.5)
    assert queue.ready == 1
    await passed(clock, 0.9)
    assert queue.ready == 0


@EITHER
async def test_a_message_expires_by_its_own_property(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    await post(queue, b"plain", b"short", b"long", heads=[b"", expiring(100), expiring(5000)])
    await passed(clock, 1)
    # Only at the head: nobody would get it anyway, as long as the one before it waits.
    assert queue.ready == 3
    getter = queue.open_getter(Listener())
    assert await queue.deal_one(getter)
    await passed(clock, 0.1)
    assert queue.ready == 1
    assert await rest(queue) == [b"long"]
    await passed(clock, 5)
    assert queue.ready == 0
    getter.close()
    assert queue.ready == 1
    assert await rest(queue) == [b"plain"]


@EITHER
async def test_many_messages_expire_in_short_steps(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    heads = [expiring(500 + number) for number in range(BLOCK_MESSAGES)]
    await post(queue, *[b"m"] * BLOCK_MESSAGES, heads=heads)
    with counted_calls() as calls:
        await passed(clock, 10)
    assert (queue.ready, queue.info().messages) == (0, 0)
    assert calls.total > BLOCK_MESSAGES  # each has been examined
    assert calls.longest < BLOCK_MESSAGES


@EITHER
async def test_a_getter_passes_over_many_expired_messages_in_short_steps(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    heads = [expiring(500 + number) for number in range(BLOCK_MESSAGES)]
    await post(queue, *[b"m"] * BLOCK_MESSAGES, heads=heads)
    await quiet()
    clock.jump(10)
    with counted_calls() as calls:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.deal_one, queue.open_getter(Listener()))
    assert queue.ready == 0
    assert calls.longest < BLOCK_MESSAGES


@EITHER
async def test_expired_messages_between_others_are_not_dealt(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=60_000)
    numbers = range(300)
    await post(
        queue,
        *(b"%d" % number for number in numbers),
        heads=[expiring(100) if number % 3 else b"" for number in numbers],
    )
    await passed(clock, 1)
    assert queue.ready == 300
    client = Client(queue)
    client.request(10)
    expected = [b"%d" % number for number in numbers[::3]]
    assert (await client.read()).bodies == expected[:10]
    client.request(1000)
    assert (await client.read()).bodies == expected
    assert queue.info().messages == 100
    client.close()
    assert queue.purge() == 100


@EITHER
async def test_messages_that_no_consumer_may_have_expire(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000, max_octets=100)
    selective = worker(queue)
    await post(queue, b"a", b"b")
    await passed(clock, 0.5)
    await post(queue, b"c", b"d")
    await selective.read()
    selective.settle(1, 2, 3, outcome=Modified(undeliverable_here=True))
    await quiet()
    assert queue.ready == 3
    await passed(clock, 0.6)
    assert (queue.ready, queue.info().messages) == (1, 2)
    other = worker(queue, 1)
    assert (await other.read()).bodies == [b"c"]
    other.settle(3, outcome=Modified(undeliverable_here=True))
    await passed(clock, 0.5)
    assert (queue.ready, queue.info().messages) == (0, 1)
    selective.settle(4)
    await post(queue, b"e" * 100)
    await selective.read()
    assert [*selective.bodies, *(await other.read()).bodies].count(b"e" * 100) == 1
    selective.close()
    other.close()


async def test_a_purge_forgets_messages_set_aside(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    not_here = Modified(undeliverable_here=True)
    first = worker(queue, 1)
    for message in (1, 2):
        await post(queue, b"purged")
        await first.read()
        first.settle(message, outcome=not_here)
        await quiet()
    assert queue.ready == 2
    assert queue.purge() == 2
    await post(queue, b"kept")
    assert (await first.read()).bodies[-1] == b"kept"
    second = worker(queue, 1)
    await post(queue, b"undeliverable to the second")
    await second.read()
    second.settle(4, outcome=not_here)
    await quiet()
    assert queue.ready == 1
    first.settle(3)
    await quiet()
    assert queue.ready == 0
    assert (await first.read()).bodies[-1] == b"undeliverable to the second"
    first.close()
    second.close()


async def test_an_expiration_of_zero(drivers: Drivers, clock: trio.testing.MockClock) -> None:
    """Delivered at once or never."""
    queue = await queue_of(drivers)
    await post(queue, b"never", heads=[expiring(0)])
    await quiet()
    assert queue.ready == 0
    client = worker(queue)
    await post(queue, b"once", b"no number", heads=[expiring(0), expiring(b"soon")])
    assert (await client.read()).bodies == [b"once", b"no number"]
    client.close()
    await quiet()
    assert queue.ready == 1


async def test_stored_messages_expire_after_a_restart(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        await post(queue, b"a", b"b", heads=[expiring(1000), expiring(9000)])
    clock.jump(2)
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        assert await rest(queue) == [b"b"]
        await passed(clock, 8)
        assert queue.ready == 0


async def test_a_message_behind_lost_ones_expires(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    path = tmp_path / "store"
    async with opened(path, killed=True) as drivers:
        queue = await queue_of(drivers, durable=True, ttl_ms=60_000)
        await post(queue, b"a")
        await trio.to_thread.run_sync(queue.environment.checkpoint)
        await post(queue, b"lost")
    async with opened(path, boot_id="second") as drivers:
        queue = await queue_of(drivers, durable=True, ttl_ms=60_000)
        clock.jump(30)
        await post(queue, b"b")
        await passed(clock, 31)
        assert queue.ready == 1
        await passed(clock, 30)
        assert queue.ready == 0
