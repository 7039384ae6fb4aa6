"""A window that many consumers share: what it costs to give room, and to assign messages within it."""

import trio
from served_drivers import Client, Drivers, post

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.round_robin import MOST_DEALT
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED
from omq.drivers.shared_window import SharedWindow

CONSUMERS = 1000

WINDOW = 150


def test_room_is_told_once_to_each_topic_that_waits_and_only_where_there_was_none() -> None:
    told: list[str] = []

    def one(freed: SharedWindow) -> None:
        assert freed is window
        told.append("one")

    def two(freed: SharedWindow) -> None:
        told.append("two")

    def three(freed: SharedWindow) -> None:
        raise AssertionError

    window = SharedWindow(2)
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


async def test_messages_for_many_consumers_that_share_a_window_are_assigned_in_steps(
    drivers: Drivers,
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    window = SharedWindow(WINDOW)
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
    window = SharedWindow(WINDOW)
    client = Client(queue)
    client.request(WINDOW)
    client.channel.share(window)
    await post(queue, b"a", b"b")
    (first, second) = (await client.read()).ids
    client.close()
    assert window.room() == WINDOW
    assert client.channel.settle(range(first, second + 1), ACCEPTED) == 0
    assert (await Client(queue).read()).bodies == [b"a", b"b"]
