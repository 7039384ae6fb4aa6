"""Octets that a connection was pushed and its socket has not taken: order, loss under pressure, and room."""

import gc
import tracemalloc

import pytest
from served_drivers import Drivers
from test_pushes import Connection, Subscription, push, route, transient

from omq.drivers.backlog import ENTRY_OCTETS, MOST_ENTRIES, MOST_OCTETS, Backlog
from omq.drivers.broadcast import BroadcastDriver
from omq.drivers.broadcast_channel import BroadcastChannel
from omq.drivers.errands import Errands
from omq.drivers.seam import TakenMessages, Unavailable
from omq.drivers.tail import Tail, TailMemory
from omq.model import FromCurrent
from omq_storage import codec
from omq_storage.batches import Bodies
from omq_storage.blocks import encode

needs_codec = pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")


def press(memory: TailMemory) -> None:
    """Let a tail take all of this memory."""
    Tail(memory, 2 * memory.limit).append(encode(1, 1, [bytes(memory.limit)], 0))


async def taken(subscription: Subscription) -> list[object]:
    """Return the gaps and the ranges of ids that a subscriber pulls, until there is nothing more."""
    found: list[object] = []
    channel = subscription.channel
    while channel.ready():
        match await channel.take():
            case Unavailable() as gone:
                found.append((gone.first, gone.last, gone.reason))
            case TakenMessages(cuts):
                found += [cut.ids for cut in cuts]
                channel.written(sum(len(cut.ids) for cut in cuts))
    return found


@needs_codec
async def test_pushes_to_a_connection_follow_its_backlog(shared_drivers: Drivers) -> None:
    first, second = await transient(shared_drivers, 2)
    connection = Connection(room=20)
    every = [Subscription(connection, topic) for topic in (first, second)]
    assert route(shared_drivers, {first: [b"a"], second: [b"b"]}) == {}
    assert route(shared_drivers, {second: [b"c"], first: [b"d"]}) == {}
    assert len(connection.backlog) == 2
    assert connection.backlog.unsent == 4 * 18 - 20
    assert [each.channel.statistics().behind for each in every] == [0, 0]
    # Messages that cannot be routed are pulled when the backlog has left.
    assert push({first: [b"e"]}) == [first]
    await first.post(Bodies([b"e"]))
    await connection.drain()
    assert connection.got() == {
        first.topic.id: [(1, b"a"), (2, b"d"), (3, b"e")],
        second.topic.id: [(1, b"b"), (2, b"c")],
    }


@needs_codec
@pytest.mark.parametrize(("room", "is_begun"), [(0, False), (20, True), (36, False)])
async def test_a_backlog_knows_whether_a_message_may_be_begun(
    shared_drivers: Drivers, room: int, is_begun: bool
) -> None:
    (topic,) = await transient(shared_drivers, 1)
    connection = Connection(room=room)
    subscription = Subscription(connection, topic)
    assert route(shared_drivers, {topic: [b"a", b"b"]}) == {}
    assert connection.backlog.is_begun == is_begun
    await connection.drain()
    assert not connection.backlog.is_begun
    subscription.channel.close()


@needs_codec
async def test_under_pressure_a_backlog_is_dropped_and_the_subscribers_are_told(
    shared_drivers: Drivers,
) -> None:
    topics = first, second = await transient(shared_drivers, 2)
    connection, other = Connection(room=20), Connection()
    every = [Subscription(connection, topic) for topic in topics]
    for topic in topics:
        Subscription(other, topic)
    assert route(shared_drivers, {first: [b"a"], second: [b"b", b"c"]}) == {}
    assert route(shared_drivers, {first: [b"d"]}) == {}
    connection.backlog.add(b"an answer")
    press(connection.memory)
    # The message that was begun is completed, and what is no message is sent.
    assert [bytes(part) for part in connection.backlog.parts(9, connection.backlog.end)][1:] == [b"an answer"]
    assert connection.backlog.unsent == 16 + 9
    assert connection.backlog.delivered == 2
    assert [each.channel.statistics().behind for each in every] == [1, 1]
    assert [topic.statistics().messages_out for topic in topics] == [3, 3]
    assert [topic.statistics().octets_out for topic in topics] == [3 * 18, 3 * 18]
    await second.post(Bodies([b"e"]))
    assert await taken(every[0]) == [(2, 2, "the subscriber was too slow")]
    assert await taken(every[1]) == [(2, 2, "the subscriber was too slow"), range(3, 4)]
    await shared_drivers.catalogue.delete(second.topic.topic)


@needs_codec
async def test_a_backlog_outlives_topics_and_subscriptions(shared_drivers: Drivers) -> None:
    topics = deleted, left, _ = await transient(shared_drivers, 3)
    connection = Connection(room=0)
    every = [Subscription(connection, topic) for topic in topics]
    assert route(shared_drivers, {topic: [b"a"] for topic in topics}) == {}
    await shared_drivers.catalogue.delete(deleted.topic.topic)
    every[1].channel.close()
    every[2].channel.hold()
    press(connection.memory)
    assert connection.backlog.octets == connection.backlog.unsent == 0
    every[2].channel.release()
    assert await taken(every[2]) == [(1, 1, "the subscriber was too slow")]
    assert route(shared_drivers, {left: [b"b"]}) == {}


def test_a_backlog_is_full_from_a_size_on_and_sooner_when_memory_is_short() -> None:
    memory = TailMemory(4 * (MOST_OCTETS + 2 * ENTRY_OCTETS))
    backlog = Backlog(memory)
    backlog.add(bytes(MOST_OCTETS - 1))
    assert not backlog.is_full()
    tail = Tail(memory, memory.limit)
    tail.append(encode(1, 1, [bytes(memory.limit // 2)], 0))
    assert not backlog.is_full()  # what others have not got makes no connection wait
    tail.clear()
    other = Backlog(memory)
    other.add(bytes(ENTRY_OCTETS + 2))
    assert backlog.is_full()
    other.close(Errands().begin)
    assert memory.used == MOST_OCTETS - 1 + ENTRY_OCTETS
    assert not backlog.is_full()
    backlog.add(b"c")
    assert backlog.is_full()
    assert [len(part) for part in backlog.parts(1, backlog.end)] == [MOST_OCTETS - 1]
    backlog.sent(MOST_OCTETS - 2)
    assert b"".join(backlog.parts(9, backlog.end)) == b"\0c"
    backlog.sent(2)
    assert (len(backlog), backlog.octets, memory.used) == (0, 0, 0)


def test_a_backlog_is_full_from_a_number_of_entries_on() -> None:
    memory = TailMemory(64 << 20)
    backlog = Backlog(memory)
    for _ in range(MOST_ENTRIES - 1):
        backlog.add(b"x")
    assert not backlog.is_full()
    backlog.add(b"x")
    assert backlog.is_full()
    assert memory.used == backlog.octets == MOST_ENTRIES * (ENTRY_OCTETS + 1)
    backlog.sent(1)
    assert not backlog.is_full()
    assert memory.used == (MOST_ENTRIES - 1) * (ENTRY_OCTETS + 1)


@needs_codec
async def test_a_backlog_keeps_and_counts_its_own_part_of_each_read(shared_drivers: Drivers) -> None:
    slow_topic, fast_topic = await transient(shared_drivers, 2)
    await shared_drivers.catalogue.ids.reserve({fast_topic: 1000})
    slow, fast = Connection(room=0), Connection()
    Subscription(slow, slow_topic)
    Subscription(fast, fast_topic)
    tracemalloc.start()
    try:
        assert route(shared_drivers, {slow_topic: [b"a"], fast_topic: [bytes(1000)] * 1000}) == {}
        fast.octets.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert slow.memory.used == slow.backlog.octets == ENTRY_OCTETS + 18 + 4 + 8
    assert grown < 100_000


@needs_codec
async def test_the_kept_part_of_a_dropped_backlog_leaves_alone(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    connection = Connection(room=20)
    Subscription(connection, topic)
    backlog = connection.backlog
    assert route(shared_drivers, {topic: [b"a", b"b"]}) == {}
    backlog.add(b"an answer")
    end = backlog.end
    assert route(shared_drivers, {topic: [b"c"]}) == {}
    press(connection.memory)
    assert backlog.begin < end
    backlog.sent(16 + 8)
    assert backlog.begin == end - 1
    backlog.sent(1)
    assert backlog.begin >= end


@needs_codec
async def test_a_dropped_backlog_delays_no_later_octets(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    connection = Connection(room=0)
    Subscription(connection, topic)
    backlog = connection.backlog
    assert route(shared_drivers, {topic: [b"a"]}) == {}
    end = backlog.end
    press(connection.memory)
    backlog.add(b"later")
    assert backlog.begin == end


@needs_codec
async def test_a_new_subscription_does_not_fall_behind_its_beginning(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    connection = Connection(room=0)
    first = Subscription(connection, topic)
    assert route(shared_drivers, {topic: [b"a", b"b"]}) == {}
    first.channel.close()
    again = Subscription(connection, topic)
    press(connection.memory)
    assert again.channel.statistics().behind == 0
    assert topic.statistics().messages_out == 0
    again.channel.close()
    # A subscription that waits for a message begins later still.
    waiting = topic.open(again, FromCurrent())
    assert isinstance(waiting, BroadcastChannel)
    waiting.wait_for(5)
    waiting.attach(connection)
    assert isinstance(topic, BroadcastDriver)
    topic.fall_behind(connection, 1)
    assert waiting.statistics().position == 5


@needs_codec
async def test_messages_are_counted_right_when_a_post_drops_the_backlog(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    tails = shared_drivers.memory.tails
    connection = Connection(room=0, memory=tails)
    subscription = Subscription(connection, topic)
    assert route(shared_drivers, {topic: [b"a", b"b"]}) == {}
    assert topic.statistics().messages_out == 2
    limit, tails.limit = tails.limit, 100
    try:
        await topic.post(Bodies([bytes(1000)]))
    finally:
        tails.limit = limit
    assert len(connection.backlog) == 0
    assert (topic.statistics().messages_out, topic.statistics().octets_out) == (0, 0)
    assert await taken(subscription) == [(1, 2, "the subscriber was too slow"), range(3, 4)]
    assert topic.statistics().messages_out == 1
