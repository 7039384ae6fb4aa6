"""Transient broadcast topics with thousands of subscribers: none of them costs a look at all others."""

import pytest
import trio
from counted_steps import counted_calls, watched
from quietness import quiet
from served_drivers import KIB, MIB, WEAK, Client, Drivers, emptied, post
from test_pushes import Connection
from trio.testing import MockClock

from omq.drivers.broadcast import TRIM_BLOCKS, BroadcastDriver
from omq.drivers.push import MOST_FOLLOWERS
from omq.drivers.scheduled_time import MOST_COUNTED
from omq.drivers.spoolable import StallWatch
from omq.model import Persistence, Transient
from omq_storage.batches import Bodies
from omq_storage.store import Store

SUBSCRIBERS = 1000

FEW_CALLS = SUBSCRIBERS
"""A number of calls of functions that are not needed for one of them, and that would be needed to ask each of
the others once.
"""

BODY = bytes(15 * KIB)


async def crowded(drivers: Drivers) -> tuple[BroadcastDriver, list[Client]]:
    topic = await drivers.declare(Transient())
    assert isinstance(topic, BroadcastDriver)
    return topic, [Client(topic) for _ in range(SUBSCRIBERS)]


async def publish(topic: BroadcastDriver) -> None:
    """Publish more than the memory has room for."""
    for _ in range(40):
        await topic.post(Bodies([BODY]))


async def test_a_move_asks_no_others_while_publishers_wait_for_the_fastest(
    shared_store: Store, mock_clock: MockClock
) -> None:
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        topic, clients = await crowded(drivers)
        nursery.start_soon(publish, topic)
        await quiet()
        for client in clients[500:503]:  # each is the fastest one then
            before = topic.next_id
            while topic.next_id == before:
                await client.read_once()
                await quiet()
        clients[7].request(1)  # so it gets no further than one message
        assert topic.statistics().waiting_publishers == 1
        end = topic.next_id
        with counted_calls() as calls:
            await clients[7].read_once()
            await quiet()
        assert (topic.next_id, bool(clients[7].got)) == (end, True)
        assert calls.total < FEW_CALLS
        # The fastest one leaves: then the next one sets the pace.
        clients[502].close()
        before = topic.next_id
        while topic.next_id == before:
            await clients[501].read_once()
            await quiet()
        for client in clients:
            client.close()
        nursery.cancel_scope.cancel()


async def test_publishers_that_begin_to_wait_ask_all_in_steps(
    shared_store: Store, mock_clock: MockClock
) -> None:
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        topic, clients = await crowded(drivers)
        with counted_calls() as calls:
            nursery.start_soon(publish, topic)
            await quiet()
        assert topic.statistics().waiting_publishers == 1
        assert calls.longest < 4 * SUBSCRIBERS
        before = topic.next_id
        while topic.next_id == before:  # the fastest one is found
            await clients[7].read_once()
            await quiet()
        for client in clients:
            client.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("persistence", [Transient(), WEAK], ids=["transient", "stored"])
async def test_messages_that_nobody_needs_are_found_in_steps(
    shared_store: Store, persistence: Persistence
) -> None:
    async with emptied(shared_store) as drivers:
        topic = await drivers.declare(persistence)
        clients = [Client(topic) for _ in range(SUBSCRIBERS)]
        for number in range(2 * TRIM_BLOCKS):
            with counted_calls() as calls:
                await post(topic, b"%d" % number)
                await quiet()
            assert calls.longest < 2 * SUBSCRIBERS
        for client in clients[:2]:
            assert (await client.read()).bodies == [b"%d" % number for number in range(2 * TRIM_BLOCKS)]
        for client in clients:
            client.close()


async def test_a_new_subscriber_sets_the_pace_of_waiting_publishers(
    shared_store: Store, mock_clock: MockClock
) -> None:
    """It is the fastest one: it has all that there is."""
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        topic = await drivers.declare(Transient())
        old = Client(topic)
        nursery.start_soon(publish, topic)
        await quiet()
        before = topic.next_id
        new = Client(topic)
        old.channel.written(0)
        await old.read_once()
        await quiet()
        assert topic.next_id > before
        for client in (old, new):
            client.close()
        nursery.cancel_scope.cancel()


async def test_stalled_subscribers_are_marked_in_steps(shared_store: Store, mock_clock: MockClock) -> None:
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        topic, clients = await crowded(drivers)
        nursery.start_soon(publish, topic)
        await quiet()
        assert topic.statistics().waiting_publishers == 1
        longest = []
        while topic.statistics().waiting_publishers:
            with counted_calls() as calls:
                mock_clock.jump(0.05)
                await quiet()
            longest.append(calls.longest)
        # The last one ends the wait, and the messages of the publisher wake all subscribers.
        assert max(longest[:-1]) < 4 * SUBSCRIBERS
        assert len(longest) >= 7
        for client in clients:
            client.close()


async def test_subscribers_are_left_behind_in_steps(shared_store: Store, mock_clock: MockClock) -> None:
    async with emptied(shared_store) as drivers:
        topic, clients = await crowded(drivers)
        await post(topic, b"x")
        await clients[3].read()
        watch = StallWatch(1.0)
        while not watch.has_found:
            with counted_calls() as calls:
                await topic.leave_behind(watch)
                await trio.lowlevel.checkpoint()
            mock_clock.jump(MOST_COUNTED)
        assert [client.channel.statistics().behind > 0 for client in clients].count(False) == 1
        assert calls.total > 20 * SUBSCRIBERS
        for client in clients:
            client.close()


async def test_the_writes_of_all_look_few_times_for_what_nobody_needs(shared_store: Store) -> None:
    async with emptied(shared_store, memory=MIB) as drivers:
        topic, clients = await crowded(drivers)
        for _ in range(6):
            await post(topic, BODY)
        with counted_calls() as calls:
            for client in clients:
                await client.read_once()
            await quiet()
        assert calls.total < 200 * SUBSCRIBERS
        assert topic.statistics().octets == 0
        for client in clients:
            client.close()


@pytest.mark.parametrize("persistence", [Transient(), WEAK], ids=["transient", "stored"])
async def test_a_message_wakes_subscribers_in_steps(shared_store: Store, persistence: Persistence) -> None:
    async with emptied(shared_store) as drivers:
        topic = await drivers.declare(persistence)
        clients = [Client(topic) for _ in range(SUBSCRIBERS)]
        woken = {client: client.wakes for client in clients}
        with watched(lambda: sum(client.wakes for client in clients)) as wakes, counted_calls():
            await post(topic, b"x")
            await quiet()
        assert wakes.largest_rise() <= SUBSCRIBERS // 4
        assert all(client.wakes > woken[client] for client in clients)
        for client in clients:
            await client.read_once()
            assert client.bodies == [b"x"]
            client.close()


async def test_each_of_many_messages_wakes_those_first_that_wait_longest(shared_store: Store) -> None:
    """Otherwise the last ones would never be woken while messages come."""
    async with emptied(shared_store) as drivers:
        topic, clients = await crowded(drivers)
        with counted_calls():
            for _ in range(40):
                topic.offer(Bodies([b"x"]))
                await trio.lowlevel.checkpoint()
            assert min(client.wakes for client in clients) > 0
            await quiet()
        for client in clients:
            await client.read()
            assert len(client.bodies) == 40
            client.close()


async def test_a_channel_that_finishes_before_it_is_woken_gets_what_there_was(shared_store: Store) -> None:
    async with emptied(shared_store) as drivers:
        topic, clients = await crowded(drivers)
        topic.offer(Bodies([b"x"]))
        last = clients[-1]
        assert not last.wakes
        last.channel.finish()
        assert last.wakes == 1
        await post(topic, b"y")
        assert (await last.read()).bodies == [b"x"]
        for client in clients:
            client.close()


async def test_subscribers_that_leave_a_crowd_are_not_woken(shared_store: Store) -> None:
    async with emptied(shared_store) as drivers:
        topic, clients = await crowded(drivers)
        topic.offer(Bodies([b"x"]))
        for client in clients[:-2]:
            client.close()
        before = sum(client.wakes for client in clients[:-2])
        await quiet()
        assert sum(client.wakes for client in clients[:-2]) == before
        for client in clients[-2:]:
            assert (await client.read()).bodies == [b"x"]
            client.close()


async def test_a_held_subscriber_loses_nothing_when_a_crowd_becomes_small(shared_store: Store) -> None:
    async with emptied(shared_store) as drivers:
        topic = await drivers.declare(Transient())
        clients = [Client(topic) for _ in range(MOST_FOLLOWERS + 1)]
        for client in clients:
            await post(topic, b"x")
            client.channel.attach(Connection(room=1000))
            await client.read()
        held, other, leaving = clients[:3]
        held.channel.hold()
        leaving.close()
        await other.read()
        await post(topic, b"y")
        await quiet()
        held.channel.release()
        assert (await held.read()).bodies[-1] == b"y"
        for client in (held, other, *clients[3:]):
            client.close()
