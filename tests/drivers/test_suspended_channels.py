"""Channels of one connection that are suspended together, and give their messages back one after another."""

import pytest
from counted_steps import counted_calls
from quietness import quiet
from served_drivers import WEAK, Client, Drivers, post

from omq.drivers.delivery_order import DeliveryOrder
from omq.drivers.message_outbox import LEAVING_IN_STEP, MOST_QUEUED
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin_channel import RoundRobinChannel
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


MANY = 5 * LEAVING_IN_STEP
MANY_BODIES = [b"%d" % number for number in range(MANY)]


async def with_many(drivers: Drivers) -> tuple[QueueDriver, Client, Client]:
    """Return a queue with many messages that one of its clients has not taken, which is suspended."""
    queue = await queue_of(drivers)
    client = Client(queue, priority=0)
    for body in MANY_BODIES:
        await post(queue, body)
    client.channel.suspend()
    return queue, client, Client(queue, priority=0)


async def test_many_messages_are_given_back_in_steps(drivers: Drivers) -> None:
    queue, client, other = await with_many(drivers)
    left = [client.channel.statistics().behind]
    with counted_calls() as calls:
        while True:
            before = calls.total
            goes_on = client.channel.give_back()
            assert calls.total - before < 40 * LEAVING_IN_STEP
            left.append(client.channel.statistics().behind)
            if not goes_on:
                break
            assert (queue.ready, queue.unacknowledged) == (0, MANY)
            assert not other.channel.ready()
    assert left == list(range(MANY, -1, -LEAVING_IN_STEP))
    assert (await other.read()).bodies == MANY_BODIES
    for each in (client, other):
        each.close()


async def test_large_selections_are_given_back_with_little_work(drivers: Drivers) -> None:
    """The last selections leave first. The work for each does not grow with its messages."""
    queue = await queue_of(drivers)
    client = Client(queue, priority=0)
    bodies = [[b"%d" % (1000 * number + each) for each in range(1000)] for number in range(4)]
    for some in bodies:
        await post(queue, *some)
    assert client.channel.statistics().behind == 4000
    client.channel.suspend()
    with counted_calls() as calls:
        assert not client.channel.give_back()
        assert calls.total < 40 * LEAVING_IN_STEP
    other = Client(queue, priority=0)
    await quiet()
    assert (await other.read()).bodies == [body for some in bodies for body in some]
    for each in (client, other):
        each.close()


@pytest.mark.parametrize("how", ["released", "cancelled", "closed", "retired"])
@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_channel_that_has_given_a_part_back_loses_nothing(
    how: str, is_ordered: bool, drivers: Drivers
) -> None:
    queue, client, other = await with_many(drivers)
    if is_ordered:
        client.channel.follow(DeliveryOrder())
    assert client.channel.give_back()
    assert (queue.ready, queue.unacknowledged) == (0, MANY)
    match how:
        case "released":
            client.channel.release()
        case "cancelled":
            client.channel.cancel()
        case "closed":
            client.close()
        case _:
            client.channel.retire()
            client.close()
    assert not client.channel.give_back()
    await quiet()
    got: dict[int, list[bytes]] = {}
    for number, each in enumerate((client, other)):
        if each is other or how == "released":
            got[number] = (await each.read()).bodies
            assert got[number] == sorted(got[number], key=int)
    assert sorted((body for bodies in got.values() for body in bodies), key=int) == MANY_BODIES
    for each in (client, other):
        each.close()


async def test_a_position_has_what_a_channel_has_given_back_and_what_it_has(shared_drivers: Drivers) -> None:
    queue = await shared_drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    assert isinstance(queue, QueueDriver)
    client = Client(queue)
    for body in MANY_BODIES:
        await post(queue, body)
    client.channel.suspend()
    assert client.channel.give_back()
    position = await queue.position()
    undone = sorted(id for run in position.undone for id in run.ids())
    assert undone == list(range(1, position.cursor))
    client.close()
    other = Client(queue)
    assert (await other.read()).bodies == MANY_BODIES
    other.close()


async def test_a_subscriber_that_takes_nothing_is_assigned_a_limited_number_of_selections(
    drivers: Drivers,
) -> None:
    """Some steps look at all of them: the position of the topic, for example."""
    queue = await queue_of(drivers)
    client = Client(queue, priority=0)
    bodies = [b"%d" % number for number in range(MOST_QUEUED + MANY)]
    for body in bodies:
        await post(queue, body)
    assert (queue.ready, queue.unacknowledged) == (MANY, MOST_QUEUED)
    channel = client.channel
    assert isinstance(channel, RoundRobinChannel)
    with counted_calls() as calls:
        assert sum(run.bits.bit_count() for run in channel.outstanding()) == MOST_QUEUED
    assert calls.total < 2 * MOST_QUEUED
    assert (await client.read()).bodies == bodies
    client.close()
