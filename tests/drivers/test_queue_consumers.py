"""Consumers of queues: priorities, single active consumers, shared windows, and unacknowledged messages."""

from dataclasses import replace

import pytest
from queue_cases import EITHER_OPTIONS
from served_drivers import Client, Drivers, post

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import CreditKind, Modified
from omq.drivers.shared_window import SharedWindow
from omq.drivers.slices import Slices


def consumer(queue: QueueDriver, window: int, priority: int = 0) -> Client:
    client = Client(queue, priority=priority)
    client.request(window)
    return client


async def read(*clients: Client) -> list[list[bytes]]:
    """Return the bodies that each client has got."""
    for client in clients:
        await client.read()
    return [client.bodies for client in clients]


@EITHER_OPTIONS
async def test_consumers_with_a_higher_priority_come_first(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    low, high, also = consumer(queue, 9), consumer(queue, 2, 5), consumer(queue, 2, 5)
    await post(queue, *(b"%d" % number for number in range(7)))
    assert await read(low, high, also) == [[b"4", b"5", b"6"], [b"0", b"2"], [b"1", b"3"]]
    high.settle(1)
    await post(queue, b"7", b"8")
    assert await read(low, high, also) == [[b"4", b"5", b"6", b"8"], [b"0", b"2", b"7"], [b"1", b"3"]]
    # Messages that come back go by priority, too.
    also.settle(2)
    low.settle(5, outcome=Modified(delivery_failed=True))
    assert await read(low, also) == [[b"4", b"5", b"6", b"8"], [b"1", b"3", b"4"]]
    high.close()
    also.close()
    assert (await read(low))[0][4:] == [b"2", b"3", b"4", b"7"]
    low.close()


@EITHER_OPTIONS
async def test_a_single_active_consumer_has_the_queue_until_it_has_gone(
    drivers: Drivers, options: QueueOptions
) -> None:
    options = replace(options, single_active=True)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    first, second, third = consumer(queue, 2), consumer(queue, 9), consumer(queue, 9, 1)
    await post(queue, *(b"%d" % number for number in range(4)))
    assert await read(first, second, third) == [[b"0", b"1"], [], []]
    first.settle(1)
    assert await read(first, second, third) == [[b"0", b"1", b"2"], [], []]
    # Cancelled, it keeps what it has, and the next one continues: the highest priority, then the oldest.
    first.channel.cancel()
    assert await read(first, second, third) == [[b"0", b"1", b"2"], [], [b"3"]]
    first.close()
    assert await read(second, third) == [[], [b"3", b"1", b"2"]]
    third.close()
    assert [len(bodies) for bodies in await read(second)] == [3]
    second.close()


@EITHER_OPTIONS
async def test_a_drain_ends_for_those_that_are_not_active(drivers: Drivers, options: QueueOptions) -> None:
    options = replace(options, single_active=True)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    active, idle = consumer(queue, 1), consumer(queue, 9)
    await post(queue, b"a", b"b")
    assert await read(active, idle) == [[b"a"], []]
    drained: list[str] = []
    idle.channel.drain(lambda _: drained.append("idle"))
    assert drained == ["idle"]
    active.channel.grant(9, CreditKind.COUNT)
    active.settle(1)
    active.channel.drain(lambda _: drained.append("active"))
    assert drained == ["idle"]
    assert await read(active, idle) == [[b"a", b"b"], []]
    assert drained == ["idle", "active"]
    active.close()
    idle.close()


@EITHER_OPTIONS
async def test_consumers_share_a_window(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    other = await drivers.catalogue.declare_queue(b"other", options)
    window = SharedWindow(3, drivers.catalogue.begin)
    clients = [consumer(queue, 100), consumer(queue, 100), consumer(other, 100)]
    for client in clients:
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)
    await post(queue, *(b"%d" % number for number in range(10)))
    await post(other, b"a", b"b")
    one, two, three = await read(*clients)
    assert (one, two, three) == ([b"0", b"2"], [b"1"], [])
    window.set(4)
    assert sum(map(len, await read(*clients))) == 4
    clients[1].settle(2)
    assert sum(map(len, await read(*clients))) == 5
    clients[0].close()
    assert sum(map(len, (await read(*clients))[1:])) == 1 + 4
    assert isinstance(clients[1].channel, RoundRobinChannel)
    clients[1].channel.share(None)
    await clients[1].read()
    assert queue.ready == 0
    for client in clients[1:]:
        client.close()


@EITHER_OPTIONS
async def test_consumers_that_share_no_window_any_more_take_turns(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    window = SharedWindow(3, drivers.catalogue.begin)
    clients = [consumer(queue, 100), consumer(queue, 100)]
    for shared in (window, None):
        for client in clients:
            assert isinstance(client.channel, RoundRobinChannel)
            client.channel.share(shared)
    await post(queue, *(b"%d" % number for number in range(6)))
    assert await read(*clients) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
    for client in clients:
        client.close()


@EITHER_OPTIONS
async def test_the_age_of_the_oldest_message_that_is_not_acknowledged(
    drivers: Drivers, options: QueueOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from when the message was assigned, and not from when it came."""
    now = 100.0
    monkeypatch.setattr("omq.drivers.queue.monotonic", lambda: now)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    await post(queue, b"first", b"second")
    client = Client(queue)
    ages = []
    for window in (1, 2):
        now += 10
        client.request(window)
        await client.read()
        ages.append((client.ids, await queue.oldest_ms(Slices())))
    assert ages == [([1], 0), ([1, 2], 10_000)]
    now = 125.0
    client.settle(1)
    assert await queue.oldest_ms(Slices()) == 5_000
    client.channel.cancel()
    assert await queue.oldest_ms(Slices()) == 5_000
    client.settle(2)
    assert await queue.oldest_ms(Slices()) is None
    client.close()
