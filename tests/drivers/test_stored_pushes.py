"""Pushes of messages that a commit has stored, in the task of the commit."""

from collections.abc import Sequence

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pushed_connections import Connection, Subscription
from served_drivers import Drivers, opened_for_an_example

from omq.drivers.driver import Driver
from omq.drivers.push import MOST_FOLLOWERS, MOST_STORED_WORK
from omq.drivers.seam import LITTLE_OCTETS, TAKE_OCTETS, Octets
from omq.model import FromMessage, Persistent, Sync
from omq_storage.batches import Bodies


class Limited(Connection):
    """A connection whose rate limit closes with its first octets."""

    is_open = True
    largest = 0
    """The most octets that it was given at once."""

    def is_clear(self) -> bool:
        return self.is_open and super().is_clear()

    def try_send(self, parts: Sequence[Octets]) -> int:
        self.is_open = False
        self.largest = max(self.largest, sum(map(len, parts)))
        return super().try_send(parts)


LEVELS = pytest.mark.parametrize("sync", [Sync.WEAK, Sync.STRONG])


async def stored(drivers: Drivers, count: int, sync: Sync = Sync.WEAK) -> list[Driver]:
    """Return stored topics with subscribers to come."""
    return [await drivers.declare(Persistent(sync), name=b"stored %d" % number) for number in range(count)]


async def post(drivers: Drivers, messages: dict[Driver, list[bytes]]) -> None:
    """Post the messages of all these topics for one commit, and wait until they are stored."""
    for topic, bodies in messages.items():
        topic.offer(Bodies(bodies))
    await drivers.drain()


@LEVELS
async def test_the_topics_of_one_commit_take_one_call_for_each_connection(
    shared_drivers: Drivers, sync: Sync
) -> None:
    topics = await stored(shared_drivers, 5, sync)
    connections = [Connection(), Connection()]
    every = [Subscription(connection, topic) for topic in topics for connection in connections]
    await post(shared_drivers, {topic: [b"a", b"b"] for topic in topics})
    assert [connection.calls for connection in connections] == [1, 1]
    for connection in connections:
        assert connection.got() == {topic.topic.id: [(1, b"a"), (2, b"b")] for topic in topics}
        assert not connection.ready
        assert connection.delivered == 10
    assert all(each.channel.statistics().behind == 0 for each in every)
    assert [topic.statistics().messages_out for topic in topics] == [4] * 5
    assert [topic.statistics().octets_out for topic in topics] == [4 * 18] * 5
    assert shared_drivers.memory.statistics().tails == 0


@LEVELS
async def test_what_a_socket_refuses_is_pulled_and_later_messages_are_pushed_again(
    shared_drivers: Drivers, sync: Sync
) -> None:
    topics = await stored(shared_drivers, 2, sync)
    slow, fast = Connection(room=18 + 18 + 20), Connection()
    every = [Subscription(connection, topic) for topic in topics for connection in (slow, fast)]
    await post(shared_drivers, {topic: [b"a", b"b"] for topic in topics})
    assert len(slow.rest) == 18 - (20 - 18)  # the second message of the second topic is begun
    assert (slow.delivered, fast.delivered) == (4, 4)
    await post(shared_drivers, {topic: [b"c"] for topic in topics})
    assert [each.channel.statistics().behind for each in every] == [1, 0, 1, 0]
    assert not fast.ready
    assert shared_drivers.memory.statistics().tails > 0  # for the slow connection alone
    slow.room = 1 << 30
    await slow.drain()
    assert shared_drivers.memory.statistics().tails == 0
    calls = slow.calls
    await post(shared_drivers, {topic: [b"d"] for topic in topics})
    assert slow.calls == calls + 1
    assert not slow.ready
    whole = [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    for connection in (slow, fast):
        assert connection.got() == {topic.topic.id: whole for topic in topics}


class Defective(Connection):
    """A connection that cannot send at first, because of a defect."""

    def try_send(self, parts: Sequence[Octets]) -> int:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a defect")
        return super().try_send(parts)


async def test_a_connection_that_fails_to_send_loses_no_message_and_fails_no_other(
    shared_drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    topics = await stored(shared_drivers, 2)
    connections = [Connection(), Defective(), Connection()]
    every = [Subscription(connection, topic) for topic in topics for connection in connections]
    await post(shared_drivers, {topic: [b"a", b"b"] for topic in topics})
    assert [each.channel.statistics().behind for each in every] == [0, 2, 0] * 2
    assert "messages were not sent by a defect of the server" in caplog.text
    caplog.clear()
    await connections[1].drain()
    for connection in connections:
        assert connection.got() == {topic.topic.id: [(1, b"a"), (2, b"b")] for topic in topics}
        assert connection.delivered == (0 if connection is connections[1] else 4)
    assert [topic.statistics().messages_out for topic in topics] == [6] * 2


async def test_a_subscriber_that_replays_gets_what_is_pushed_past_it(shared_drivers: Drivers) -> None:
    (topic,) = await stored(shared_drivers, 1)
    await post(shared_drivers, {topic: [b"a", b"b"]})
    fast, replaying = Connection(), Connection()
    Subscription(fast, topic)
    late = Subscription(replaying, topic, FromMessage(1))
    await post(shared_drivers, {topic: [b"c"]})
    assert fast.got() == {topic.topic.id: [(3, b"c")]}
    assert late.channel.statistics().behind == 3
    await replaying.drain()
    assert replaying.got() == {topic.topic.id: [(1, b"a"), (2, b"b"), (3, b"c")]}
    await post(shared_drivers, {topic: [b"d"]})
    assert not replaying.ready
    assert replaying.got()[topic.topic.id][-1] == (4, b"d")


async def test_much_is_left_to_the_tasks_of_the_connections(shared_drivers: Drivers) -> None:
    """A step of the commit's task neither copies much to sockets nor sends to many of them."""
    large, wide, beside = await stored(shared_drivers, 3)
    first, second = Connection(), Connection()
    for connection in (first, second):
        Subscription(connection, large)
    size = TAKE_OCTETS // 2
    await post(shared_drivers, {large: [bytes(size)]})
    assert [connection.calls for connection in (first, second)] == [0, 0]
    for connection in (first, second):
        await connection.drain()
        assert connection.got() == {large.topic.id: [(1, bytes(size))]}
    await post(shared_drivers, {large: [bytes(LITTLE_OCTETS)]})
    assert [connection.calls for connection in (first, second)] == [1, 1]
    crowd = [Connection() for _ in range(MOST_FOLLOWERS - 1)]
    for connection in crowd:
        Subscription(connection, wide)
    others = [Connection() for _ in range(MOST_STORED_WORK - len(crowd))]
    for connection in others:
        Subscription(connection, beside)
    await post(shared_drivers, {wide: [b"a"], beside: [b"b"], large: [b"c"]})
    assert {connection.calls for connection in (*crowd, *others)} == {1}
    assert [connection.calls for connection in (first, second)] == [1, 1]
    for connection in (first, second):
        await connection.drain()
        assert connection.got()[large.topic.id][-1] == (3, b"c")


@LEVELS
async def test_a_connection_gets_few_octets_before_its_rate_limit_is_looked_at(
    shared_drivers: Drivers, sync: Sync
) -> None:
    topics = await stored(shared_drivers, 12, sync)
    all_topics, some_topics = Limited(), Limited()
    for topic in topics:
        Subscription(all_topics, topic)
    for topic in topics[:3]:
        Subscription(some_topics, topic)
    size = TAKE_OCTETS * 3 // 8
    await post(shared_drivers, {topic: [bytes(size)] for topic in topics})
    for connection, number in ((all_topics, 12), (some_topics, 3)):
        assert 1 <= connection.calls < number
        assert connection.largest <= TAKE_OCTETS
        connection.is_open = True
        await connection.drain()
        assert connection.got() == {topic.topic.id: [(1, bytes(size))] for topic in topics[:number]}


async def test_blocks_of_one_topic_that_are_stored_together_keep_their_order(
    shared_drivers: Drivers,
) -> None:
    (topic,) = await stored(shared_drivers, 1)
    slow, fast = Connection(room=100), Connection()
    for connection in (fast, slow):
        Subscription(connection, topic)
    bodies = [b"%d" % number for number in range(5000)]  # more than a block has
    await post(shared_drivers, {topic: bodies})
    slow.room = 1 << 30
    for connection in (fast, slow):
        await connection.drain()
        assert connection.got() == {topic.topic.id: list(enumerate(bodies, 1))}


TOPICS = 3

steps = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.integers(0, TOPICS - 1), st.integers(1, 3), st.integers(0, 40)),
            min_size=1,
            max_size=TOPICS,
            unique_by=lambda run: run[0],
        ),
        st.tuples(st.integers(0, 1), st.integers(0, 300)),
        st.integers(0, TOPICS - 1),
    ),
    max_size=20,
)
"""The messages of one commit for some topics; the octets that a connection may take now, and its turn; or
that a subscriber is held, or goes on.
"""


@given(steps)
@settings(max_examples=60, deadline=None)
def test_every_subscriber_gets_every_stored_message_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[object]
) -> None:
    async def run() -> None:
        async with opened_for_an_example(tmp_path_factory, killed=True) as drivers:
            topics = await stored(drivers, TOPICS)
            connections = [Connection(room=0), Connection(room=100)]
            every = [[Subscription(connection, topic) for topic in topics] for connection in connections]
            posted: dict[int, list[tuple[int, bytes]]] = {}
            for step in steps:
                match step:
                    case list():
                        read = {topics[place]: [b"x" * size] * count for place, count, size in step}
                        for topic, bodies in read.items():
                            ids = range(topic.next_id, topic.next_id + len(bodies))
                            posted.setdefault(topic.topic.id, []).extend(zip(ids, bodies, strict=True))
                        await post(drivers, read)
                    case int(place):
                        channel = every[0][place].channel
                        if channel.statistics().is_held:
                            channel.release()
                        else:
                            channel.hold()
                    case (int(place), int(room)):
                        connections[place].room = room
                        await connections[place].drain()
            for connection in connections:
                await connection.drain()
                assert connection.got() == posted
            assert all(not each.channel.statistics().behind for all in every for each in all)

    trio.run(run)
