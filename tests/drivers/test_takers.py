"""Queues with thousands of consumers: a message costs the same, however many of them there are."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from counted_steps import counted_calls
from quietness import quiet
from served_drivers import Client, Drivers, opened, post

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import RELEASED, CreditKind
from omq.drivers.shared_window import SharedWindow
from omq.drivers.slices import Slices

CONSUMERS = 1000

FEW_CALLS = CONSUMERS
"""A number of calls of functions that one message does not need, and that would be needed to ask each of the
consumers once.
"""

TRANSIENT = QueueOptions(durable=False)


def consumers(queue: QueueDriver, window: int, priority: Callable[[int], int] | None = None) -> list[Client]:
    clients = []
    for number in range(CONSUMERS):
        client = Client(queue, priority=0 if priority is None else priority(number))
        client.request(window)
        clients.append(client)
    return clients


def share(clients: list[Client], window: SharedWindow | None) -> None:
    for client in clients:
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def unsettled(client: Client) -> int:
    found = client.channel.statistics().unsettled
    assert found is not None
    return found


@pytest.mark.parametrize("priority", [None, lambda number: number // 2], ids=["plain", "priorities"])
async def test_a_message_for_one_of_many_busy_consumers_asks_few(
    drivers: Drivers, priority: Callable[[int], int] | None
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1, priority)
    await post(queue, *bodies(CONSUMERS + 10))
    assert (queue.ready, queue.unacknowledged) == (10, CONSUMERS)
    clients[700].settle(*[got.id for got in (await clients[700].read()).got])
    await quiet()
    with counted_calls() as calls:
        clients[500].settle(*[got.id for got in (await clients[500].read()).got])
        await quiet()
    assert (queue.ready, unsettled(clients[500])) == (8, 1)
    assert calls.total < FEW_CALLS
    for client in clients:
        client.close()


async def test_a_message_for_one_of_many_idle_consumers_asks_few(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1)
    await post(queue, b"first")
    with counted_calls() as calls:
        await post(queue, b"second")
    assert (queue.ready, queue.unacknowledged) == (0, 2)
    assert calls.total < FEW_CALLS
    for client in clients:
        client.close()


async def test_a_limited_queue_asks_few_of_many_idle_consumers(drivers: Drivers) -> None:
    options = replace(TRANSIENT, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    clients = consumers(queue, 1)
    with counted_calls() as calls:
        await post(queue, b"0", b"1", b"2")
    assert (queue.ready, queue.unacknowledged) == (0, 3)
    assert calls.total < FEW_CALLS
    for client in clients:
        client.close()


async def test_room_in_a_window_of_many_asks_few(drivers: Drivers) -> None:
    """Also where others than these have the queue, too, and all take turns."""
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    window = SharedWindow(5, drivers.catalogue.begin)
    alone, *clients = consumers(queue, 1)
    share(clients, window)
    await post(queue, *bodies(20))
    assert (queue.ready, queue.unacknowledged) == (14, 6)
    busy = [client for client in clients if unsettled(client)]
    with counted_calls() as calls:
        busy[0].settle(*[got.id for got in (await busy[0].read()).got])
        await quiet()
    assert (queue.ready, queue.unacknowledged) == (13, 6)
    assert calls.total < FEW_CALLS
    alone.settle(*[got.id for got in (await alone.read()).got])
    await quiet()
    assert (queue.ready, unsettled(alone)) == (12, 1)
    for client in (alone, *clients):
        client.close()


async def test_consumers_that_wait_for_a_window_get_all_messages(drivers: Drivers) -> None:
    """Some are paused, cancelled or closed meanwhile, or leave the window: no other one is forgotten."""
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    window = SharedWindow(1, drivers.catalogue.begin)
    clients = [Client(queue) for _ in range(8)]
    for client in clients:
        client.request(10)
    share(clients, window)
    await post(queue, *bodies(30))
    assert (queue.ready, queue.unacknowledged) == (29, 1)
    clients[1].channel.hold()
    clients[2].channel.cancel()
    clients[3].close()
    first = clients[0]
    first.settle(*[got.id for got in (await first.read()).got])
    await quiet()
    assert [unsettled(client) for client in clients[4:]] == [1, 0, 0, 0]
    clients[4].channel.hold()  # with its message, which goes to another one
    await quiet()
    assert [unsettled(client) for client in clients[4:]] == [0, 1, 0, 0]
    clients[5].close()
    await quiet()
    assert [unsettled(client) for client in clients[6:]] == [1, 0]
    share([clients[7]], None)
    await quiet()
    assert [unsettled(client) for client in clients[6:]] == [1, 10]
    window.set(3)
    await quiet()
    assert (queue.unacknowledged, unsettled(clients[7])) == (13, 10)
    clients[1].channel.release()
    window.set(100)
    await quiet()
    assert sorted(unsettled(clients[number]) for number in (0, 1, 6)) == [6, 6, 7]
    assert queue.ready == 0
    for client in (*clients[:3], clients[4], *clients[6:]):
        client.close()


async def test_a_window_that_several_queues_share_serves_all_of_them(drivers: Drivers) -> None:
    names = (b"a", b"b", b"c")
    queues = [await drivers.catalogue.declare_queue(name, TRANSIENT) for name in names]
    window = SharedWindow(1, drivers.catalogue.begin)
    clients = [Client(queue) for queue in queues for _ in range(3)]
    for client in clients:
        client.request(10)
    share(clients, window)
    for queue in queues:
        await post(queue, *bodies(5))
    for settled in range(15):
        assert sum(queue.ready for queue in queues) == 14 - settled
        busy = next(client for client in clients if unsettled(client))
        busy.settle((await busy.read()).got[-1].id)
        await quiet()
    assert [queue.unacknowledged for queue in queues] == [0, 0, 0]
    for client in clients:
        client.close()


async def test_many_paused_consumers_keep_messages_from_no_other(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1)
    for client in clients[:-1]:
        client.channel.hold()
    await post(queue, b"first", b"second")
    assert (queue.ready, unsettled(clients[-1])) == (1, 1)
    for client in clients[:-1]:
        client.channel.release()
    await quiet()
    assert (queue.ready, queue.unacknowledged) == (0, 2)
    for client in clients:
        client.close()


async def test_consumers_without_room_for_a_long_time_are_asked_in_steps(drivers: Drivers) -> None:
    """All of them lose their room at once, and one has some: they are asked a few at a time."""
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1)
    for client in clients[:-1]:
        client.channel.grant(0, CreditKind.COUNT)
    with counted_calls() as calls:
        await post(queue, b"first")
    assert (queue.ready, unsettled(clients[-1])) == (0, 1)
    assert calls.longest < 3 * CONSUMERS
    for client in clients:
        client.close()


async def test_the_next_single_active_consumer_is_found_at_once(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", replace(TRANSIENT, single_active=True))
    clients = consumers(queue, 1, lambda number: number % 3)
    await post(queue, *bodies(CONSUMERS))
    ends = sorted(range(1, CONSUMERS), key=lambda number: (-(number % 3), number))
    for number in (0, *ends[:5]):
        assert unsettled(clients[number]) == 1
        with counted_calls() as calls:
            clients[number].close()
            await quiet()
        assert calls.total < FEW_CALLS
    assert unsettled(clients[ends[5]]) == 1
    for client in set(clients) - {clients[number] for number in (0, *ends[:5])}:
        client.close()
        await trio.lowlevel.checkpoint()


async def test_a_restarted_queue_counts_what_many_consumers_have_seldom(tmp_path: Path) -> None:
    """It looks whether stored messages are left, which may expire."""
    async with opened(tmp_path) as drivers:
        await post(await drivers.catalogue.declare_queue(b"q", QueueOptions(durable=True)), *bodies(3))
    async with opened(tmp_path, boot_id="second") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions(durable=True))
        assert isinstance(queue, QueueDriver)
        clients = consumers(queue, 1)
        await quiet()
        assert (queue.ready, queue.unacknowledged) == (0, 3)
        busy = [client for client in clients if unsettled(client)]
        with counted_calls() as calls:
            busy[0].settle(*[got.id for got in (await busy[0].read()).got])
            await quiet()
        assert calls.total < FEW_CALLS
        for client in clients:
            client.close()


@pytest.mark.parametrize("durable", [False, True], ids=["transient", "durable"])
async def test_the_statistics_of_a_queue_ask_none_of_its_consumers(drivers: Drivers, durable: bool) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions(durable=durable))
    clients = consumers(queue, 1)
    await post(queue, *bodies(2))
    with counted_calls() as calls:
        found, info = queue.statistics(), queue.info()
    assert (found.unsettled, info.messages) == (2, 2)
    assert calls.total < FEW_CALLS
    for client in clients:
        client.close()


class Age:
    """The age of the oldest unacknowledged message, which a task asks for."""

    def __init__(self, queue: QueueDriver) -> None:
        self.found: int | None = None
        self._queue = queue

    async def ask(self) -> None:
        self.found = await self._queue.oldest_ms(Slices())


async def test_the_oldest_message_of_many_consumers_is_found_in_slices(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("omq.drivers.queue.monotonic", lambda: now)
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1)
    await post(queue, *bodies(CONSUMERS))
    now += 5
    age = Age(queue)
    with counted_calls() as calls:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(age.ask)
    assert age.found == 5_000
    assert calls.longest < CONSUMERS
    for client in clients:
        client.close()


async def test_the_oldest_message_is_found_although_it_moves(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("omq.drivers.queue.monotonic", lambda: now)
    monkeypatch.setattr("omq.drivers.slices.SLICE_SECONDS", 0)
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    first, *others = consumers(queue, 0)
    others[-1].request(1)
    await post(queue, b"first")
    now += 5
    others[0].request(1)
    await post(queue, b"second")
    await others[-1].read()
    age = Age(queue)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(age.ask)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        others[-1].channel.suspend()
        first.request(1)
        others[-1].settle(others[-1].got[0].id, outcome=RELEASED)
        while not unsettled(first):
            await trio.lowlevel.checkpoint()
        assert age.found is None
    assert (await first.read()).bodies == [b"first"]
    assert age.found == 5_000
    others[-1].channel.give_back()
    for client in (first, *others):
        client.close()


async def test_whether_a_queue_has_changed_is_seen_without_its_consumers(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", TRANSIENT)
    clients = consumers(queue, 1)
    await post(queue, *bodies(2))
    before = queue.mark()
    assert queue.mark() == before
    busy = next(client for client in clients if unsettled(client))
    await busy.read()
    written = queue.mark()
    busy.settle(busy.got[0].id)
    with counted_calls() as calls:
        settled = queue.mark()
    assert len({before, written, settled}) == 3
    assert calls.total < FEW_CALLS
    assert (queue.unacknowledged, queue.statistics().unsettled) == (1, 1)
    for client in clients:
        client.close()
