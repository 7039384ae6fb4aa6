"""A window that many consumers share: what it costs to give room, and to assign messages within it."""

from collections.abc import Iterator
from functools import partial

import trio
from counted_steps import counted_calls
from quietness import quiet
from served_drivers import Client, Drivers, post

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin import MOST_DEALT
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED
from omq.drivers.shared_window import TOLD_AT_ONCE, SharedWindow

CONSUMERS = 1000

TOPICS = 3 * TOLD_AT_ONCE

QUEUES = 200

MOST_CALLS = 9000
"""A number of calls for each acknowledgement; to ask the consumers of all queues takes more."""

TRANSIENT = QueueOptions(durable=False)

WINDOW = 150


def test_room_is_told_once_to_each_topic_that_waits_and_only_where_there_was_none() -> None:
    told: list[str] = []
    begun: list[Iterator[None]] = []

    def one(freed: SharedWindow) -> None:
        assert freed is window
        told.append("one")

    def two(freed: SharedWindow) -> None:
        told.append("two")

    def three(freed: SharedWindow) -> None:
        raise AssertionError

    window = SharedWindow(2, begun.append)
    for member in range(100):
        window.join(member, 0)
    for unsettled, room, expected in ((1, 1, []), (2, 0, []), (1, 1, ["two", "one"]), (0, 2, [])):
        for topic in (one, two, one, three):
            window.call_when_freed(topic)
        window.forget(three)
        window.count(7, unsettled)
        window.freed()
        assert window.room() == room
        assert told == expected
        told.clear()
    window.count(7, 2)
    window.leave(7)
    assert (window.room(), told) == (2, ["two", "one"])
    window.count(8, 3)
    assert window.room() == -1
    window.call_when_freed(one)
    window.set(3)
    assert (window.room(), len(told)) == (0, 2)
    window.set(4)
    window.set(5)
    assert (window.room(), len(told)) == (2, 3)
    assert not begun


def test_room_is_told_to_many_topics_one_by_one_until_it_is_taken() -> None:
    told: list[int] = []
    begun: list[Iterator[None]] = []
    window = SharedWindow(1, begun.append)
    window.join("member", 1)

    def tell(topic: int, freed: SharedWindow) -> None:
        told.append(topic)

    for topic in range(TOPICS):
        window.call_when_freed(partial(tell, topic))
    window.count("member", 0)
    window.freed()
    assert told == list(reversed(range(TOLD_AT_ONCE)))
    window.freed()
    (others,) = begun
    next(others)
    next(others)
    assert told[TOLD_AT_ONCE:] == [TOLD_AT_ONCE, TOLD_AT_ONCE + 1]
    window.count("member", 1)
    assert list(others) == []
    assert len(told) == TOLD_AT_ONCE + 2
    window.count("member", 0)
    window.freed()
    assert len(told) == 2 * TOLD_AT_ONCE + 2
    assert len(list(begun[1])) == TOPICS - 2 * TOLD_AT_ONCE - 2
    assert sorted(told) == list(range(TOPICS))


async def test_room_in_a_window_of_many_queues_wakes_few_and_serves_all(drivers: Drivers) -> None:
    """Each acknowledgement makes room for one message, and each queue has some."""
    window = SharedWindow(1, drivers.catalogue.begin)
    queues = [await drivers.catalogue.declare_queue(b"q%d" % each, TRANSIENT) for each in range(QUEUES)]
    clients = {Client(queue): queue for queue in queues}
    for client, queue in clients.items():
        client.request(10)
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)
        await post(queue, b"a", b"b")
    await quiet()
    with counted_calls() as calls:
        for left in range(2 * QUEUES, 0, -1):
            assert sum(queue.ready for queue in queues) == left - 1
            (busy,) = [client for client, queue in clients.items() if queue.unacknowledged]
            busy.settle((await busy.read()).got[-1].id)
            await quiet()
    assert [queue.unacknowledged for queue in queues] == [0] * QUEUES
    assert calls.total < 2 * QUEUES * MOST_CALLS
    for client in clients:
        client.close()


class Dealt(trio.abc.Instrument):
    """The greatest number of messages of a queue that are assigned in one step of a task."""

    def __init__(self, queue: QueueDriver) -> None:
        self._queue = queue
        self._before = queue.ready
        self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        ready = self._queue.ready
        self.most = max(self.most, self._before - ready)
        self._before = ready


async def test_room_passes_from_many_queues_without_messages_to_the_others(drivers: Drivers) -> None:
    window = SharedWindow(1, drivers.catalogue.begin)
    queues = [await drivers.catalogue.declare_queue(b"q%d" % each, TRANSIENT) for each in range(QUEUES)]
    clients = [Client(queue) for queue in queues]
    for client, queue in zip(clients, queues, strict=True):
        client.request(10)
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)
        await post(queue, b"a")
        await quiet()
    assert [queue.unacknowledged for queue in queues] == [1, *[0] * (QUEUES - 1)]
    for queue in queues[1:-1]:
        queue.purge()
    clients[0].settle((await clients[0].read()).got[-1].id)
    await quiet()
    assert [queue.unacknowledged for queue in queues] == [*[0] * (QUEUES - 1), 1]
    for client in clients:
        client.close()


async def test_messages_for_many_consumers_that_share_a_window_are_assigned_in_steps(
    drivers: Drivers,
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    window = SharedWindow(WINDOW, drivers.catalogue.begin)
    clients = [Client(queue) for _ in range(CONSUMERS)]
    for client in clients:
        client.request(100)
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)
    dealt = Dealt(queue)
    trio.lowlevel.add_instrument(dealt)
    await post(queue, *(b"%d" % number for number in range(2 * WINDOW)))
    with trio.fail_after(60):
        while queue.unacknowledged < WINDOW:
            await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(dealt)
    assert 0 < dealt.most <= MOST_DEALT
    assert (queue.ready, queue.unacknowledged) == (WINDOW, WINDOW)
    for client in clients:
        client.close()


async def test_a_closed_consumer_that_shared_a_window_settles_nothing(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    window = SharedWindow(WINDOW, drivers.catalogue.begin)
    client = Client(queue)
    client.request(WINDOW)
    client.channel.share(window)
    await post(queue, b"a", b"b")
    (first, second) = (await client.read()).ids
    client.close()
    assert window.room() == WINDOW
    assert client.channel.settle(range(first, second + 1), ACCEPTED) == 0
    assert (await Client(queue).read()).bodies == [b"a", b"b"]
