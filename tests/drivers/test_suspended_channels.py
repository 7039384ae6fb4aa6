"""Channels of one connection that are suspended together, and give their messages back one after another."""

from quietness import quiet
from served_drivers import Client, Drivers, post

from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.seam import CreditKind
from omq.model import Delivery, Transient

BODIES = [b"%d" % number for number in range(8)]


async def queue_of(drivers: Drivers) -> QueueDriver:
    driver = await drivers.catalogue.declare_queue(b"q", QueueOptions(durable=False))
    assert isinstance(driver, QueueDriver)
    return driver


async def test_messages_return_in_their_order_when_all_have_given_back(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    clients = [Client(queue, priority=0) for _ in range(4)]
    for client in clients:
        client.request(2)
    await post(queue, *BODIES)
    for client in clients:
        client.channel.suspend()
    other = Client(queue, priority=0)
    for client in clients:
        await quiet()
        assert not other.channel.ready()
        assert (queue.ready, queue.unacknowledged) == (0, len(BODIES))
        client.channel.give_back()
    assert queue.ready == len(BODIES)
    await other.read()
    assert other.bodies == BODIES
    for client in (*clients, other):
        client.close()


async def test_a_channel_that_is_released_gives_nothing_back(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    clients = [Client(queue, priority=0) for _ in range(2)]
    await post(queue, *BODIES[:2])
    for client in clients:
        client.channel.suspend()
        client.channel.suspend()
    clients[0].channel.release()
    clients[0].channel.give_back()
    assert (await clients[0].read()).bodies == BODIES[:1]
    clients[1].channel.give_back()
    assert (await clients[0].read()).bodies == BODIES[:2]
    for client in clients:
        client.close()


async def test_a_channel_that_is_released_gives_what_it_still_may(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    clients = [Client(queue, priority=0) for _ in range(2)]
    for client in clients:
        client.channel.grant(4, CreditKind.COUNT)
    await post(queue, *BODIES)
    for client in clients:
        client.channel.suspend()
    clients[0].channel.grant(1, CreditKind.COUNT)
    clients[1].channel.cancel()
    for client in clients:
        client.channel.release()
        await client.read()
    assert [len(client.got) for client in clients] == [1, 0]
    assert (queue.ready, queue.unacknowledged) == (len(BODIES) - 1, 1)
    for client in clients:
        client.close()


async def test_channels_that_leave_while_they_are_suspended_hold_nothing_up(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    clients = [Client(queue, priority=0) for _ in range(4)]
    await post(queue, *BODIES[:4])
    for client in clients:
        client.channel.suspend()
    clients[0].channel.cancel()
    clients[1].channel.retire()
    clients[2].close()
    clients[3].channel.hold()
    for client in clients:
        assert (queue.ready, queue.unacknowledged) == (0, 4)
        client.channel.give_back()
    assert (queue.ready, queue.unacknowledged) == (0, 4)  # until the one that retired is closed
    clients[1].close()
    other = Client(queue, priority=0)
    assert (await other.read()).bodies == BODIES[:4]
    for client in (clients[0], clients[3], other):
        client.close()


async def test_channels_in_an_order_give_nothing_while_some_are_suspended(drivers: Drivers) -> None:
    """Otherwise a client that takes again would get the later messages of those that are not yet first."""
    queue = await queue_of(drivers)
    order = DeliveryOrder()
    clients = [Client(queue, priority=0) for _ in range(2)]
    for client in clients:
        client.channel.follow(order)
    await post(queue, *BODIES)
    clients[0].channel.suspend()
    assert [client.channel.ready() for client in clients] == [False, False]
    clients[1].channel.suspend()
    for client in clients:
        client.channel.give_back()
        assert [each.channel.ready() for each in clients] == [False, False]
    for client in clients:
        client.channel.release()
    await quiet()
    got = []
    while ready := [client for client in clients if client.channel.ready()]:
        (client,) = ready
        taken = await client.take()
        got += [each.body for each in taken]
        client.channel.written(len(taken))
        await quiet()
    assert got == BODIES
    for client in clients:
        client.close()


async def test_a_topic_that_is_deleted_forgets_suspended_channels(drivers: Drivers) -> None:
    topic = await drivers.declare(Transient(), Delivery.ROUND_ROBIN)
    clients = [Client(topic) for _ in range(2)]
    await post(topic, *BODIES)
    for client in clients:
        client.channel.suspend()
    clients[0].channel.give_back()
    await drivers.catalogue.delete(b"t")
    await quiet()
    clients[1].channel.give_back()
    assert [len(client.ends) for client in clients] == [1, 1]
