"""Messages of queues on demand."""

from pathlib import Path

from queue_cases import DURABLE, EITHER_OPTIONS, getter_of
from served_drivers import Client, Drivers, Listener, messages_of, opened, post, quiet

from omq.drivers.confirmation import Confirmation
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED, RELEASED, CreditKind, Modified, TakenMessages
from omq.model import FromCurrent
from omq_storage.batches import Bodies


async def got(driver: QueueDriver, getter: RoundRobinChannel) -> tuple[bytes, int, int] | None:
    """Return the answer of basic.get: the body, the number of earlier deliveries, and that of the messages
    left.
    """
    if not await driver.deal_one(getter):
        return None
    left = driver.ready
    taken = await getter.take()
    assert isinstance(taken, TakenMessages)
    [message] = messages_of(taken, driver.topic.id)
    getter.written(1)
    return message.body, message.deliveries, left


@EITHER_OPTIONS
async def test_a_getter_gets_the_oldest_message_also_a_returned_one(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    getter = getter_of(queue)
    assert queue.subscriber_count() == 0
    assert await got(queue, getter) is None
    await post(queue, *(b"%d" % number for number in range(5)))
    assert [await got(queue, getter) for _ in range(3)] == [(b"0", 0, 4), (b"1", 0, 3), (b"2", 0, 2)]
    assert queue.info().messages == 5
    # Back to its place, and marked as delivered before.
    assert getter.settle(range(2, 3), Modified(delivery_failed=True)) == 1
    assert queue.ready == 3
    assert await got(queue, getter) == (b"1", 1, 2)
    assert await got(queue, getter) == (b"3", 0, 1)
    assert getter.settle(range(1, 5), ACCEPTED) == 4
    assert await got(queue, getter) == (b"4", 0, 0)
    getter.close()
    assert queue.ready == 1
    client = await Client(queue).read()
    assert [(message.body, message.deliveries) for message in client.got] == [(b"4", 1)]
    client.close()


@EITHER_OPTIONS
async def test_a_getter_and_consumers_share_the_messages(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    client, getter = Client(queue), getter_of(queue)
    client.request(2)
    await post(queue, b"0", b"1", b"2", b"3")
    assert (await client.read()).bodies == [b"0", b"1"]
    assert queue.ready == 2
    assert await got(queue, getter) == (b"2", 0, 1)
    client.settle(1)
    assert (await client.read()).bodies == [b"0", b"1", b"3"]
    assert await got(queue, getter) is None
    client.close()
    getter.close()
    assert queue.ready == 3


async def test_a_getter_takes_messages_no_consumer_may_have(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    client, getter = Client(queue), getter_of(queue)
    client.request(1)
    await post(queue, b"a")
    await client.read()
    client.settle(1, outcome=Modified(undeliverable_here=True))
    await quiet()
    assert queue.ready == 1
    assert await got(queue, getter) == (b"a", 0, 0)
    getter.settle(range(1, 2), RELEASED)
    getter.close()
    client.close()
    await quiet()
    assert queue.ready == 1


@EITHER_OPTIONS
async def test_a_purge_takes_ready_messages_only(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    getter = getter_of(queue)
    await post(queue, *(b"%d" % number for number in range(5)))
    assert await got(queue, getter) == (b"0", 0, 4)
    assert await got(queue, getter) == (b"1", 0, 3)
    getter.settle(range(1, 2), RELEASED)
    assert queue.purge() == 4
    assert (queue.ready, queue.purge()) == (0, 0)
    assert queue.info().messages == 1
    assert await got(queue, getter) is None
    getter.settle(range(2, 3), Modified(delivery_failed=True))
    assert await got(queue, getter) == (b"1", 1, 0)
    await post(queue, b"new")
    assert await got(queue, getter) == (b"new", 0, 0)
    getter.close()


async def test_the_count_of_ready_messages_survives_a_kill(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
        await post(queue, *(b"%d" % number for number in range(10)))
        getter = getter_of(queue)
        for _ in range(4):
            await got(queue, getter)
        getter.settle(range(1, 3), ACCEPTED)
        await drivers.save_positions()
        assert queue.ready == 6
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
        assert queue.ready == 8
        getter = getter_of(queue)
        assert [await got(queue, getter) for _ in range(3)] == [(b"2", 1, 7), (b"3", 1, 6), (b"4", 0, 5)]
        getter.close()


async def test_large_messages_are_got_piece_by_piece(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
    large = b"x" * (3 << 20)
    await post(queue, b"first")
    await post(queue, large)
    client = Client(queue)
    client.channel.hold()
    getter = queue.open_getter(client)
    getter.grant(10, CreditKind.WINDOW)
    assert await queue.deal_one(getter)
    assert await queue.deal_one(getter)
    client.channel, kept = getter, client.channel
    await client.read()
    assert client.bodies == [b"first", large]
    getter.close()
    kept.close()
    assert queue.ready == 2


async def test_an_ephemeral_queue_never_waits_for_ids(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    offered = queue.offer(Bodies([b"a"] * 3))
    assert isinstance(offered, Confirmation)
    assert offered.settled
    assert queue.purge() == 3


async def test_a_post_is_dealt_at_once(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    channel = queue.open(Listener(), FromCurrent())
    queue.offer(Bodies([b"a"] * 3))
    assert channel.ready()  # without a step of any other task
    channel.close()
