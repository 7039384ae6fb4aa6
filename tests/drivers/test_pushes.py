"""Pushes to subscribers that have everything, and to those whose connection takes less."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pushed_connections import Connection, Subscription
from served_drivers import Drivers, opened_for_an_example, quiet

from omq.drivers.driver import Driver
from omq.drivers.push import MOST_FOLLOWERS, Pushes, send_passed
from omq.drivers.seam import LITTLE_OCTETS, CreditKind
from omq.drivers.tail import TailMemory
from omq.model import Delivery, FromCurrent, Persistent, Sync, Transient
from omq_storage import codec
from omq_storage.batches import Bodies

if TYPE_CHECKING:
    from omq_storage._codec import Pass


def push(messages: dict[Driver, list[bytes]]) -> list[Driver]:
    """Push the messages of one read to each of these topics; return the topics for which that was not
    possible.
    """
    pushes = Pushes()
    rest = [driver for driver, bodies in messages.items() if not driver.try_push(Bodies(bodies), pushes)]
    pushes.send()
    return rest


def route(drivers: Drivers, messages: dict[Driver, list[bytes]]) -> dict[Driver, list[bytes]]:
    """Let the compiled codec push what one read has for these topics; return what it left."""
    lines = b"".join(
        b"(Publish %s %s)\n" % (quoted(topic.topic.topic), quoted(body))
        for topic, bodies in messages.items()
        for body in bodies
    )
    passed = codec.native.Pass(drivers.catalogue.routes, None, 1 << 20)
    dealt, position = codec.native.deal_lines(lines, 0, len(lines), passed)
    assert position == len(lines)
    send_passed(passed)
    by_name = {quoted(topic.topic.topic): topic for topic in messages}
    return {by_name[name]: spans.bodies() for name, spans in dealt}


def quoted(atom: bytes) -> bytes:
    return b'"%s"' % atom


async def transient(drivers: Drivers, count: int) -> list[Driver]:
    """Return transient topics, with ids to hand out."""
    topics = [await drivers.declare(Transient(), name=b"push %d" % number) for number in range(count)]
    await drivers.catalogue.ids.reserve(dict.fromkeys(topics, 10))
    return topics


async def test_the_topics_of_one_read_take_one_call_for_each_connection(shared_drivers: Drivers) -> None:
    topics = await transient(shared_drivers, 5)
    connections = [Connection(), Connection()]
    every = [Subscription(connection, topic) for topic in topics for connection in connections]
    assert push({topic: [b"a", b"b"] for topic in topics}) == []
    assert [connection.calls for connection in connections] == [1, 1]
    for connection in connections:
        assert connection.got() == {topic.topic.id: [(1, b"a"), (2, b"b")] for topic in topics}
        assert connection.is_clear()
    assert all(each.channel.statistics().behind == 0 for each in every)
    assert [topic.statistics().messages_out for topic in topics] == [4] * 5
    assert [topic.statistics().octets_out for topic in topics] == [4 * 18] * 5
    assert shared_drivers.memory.statistics().tails == 0


async def test_messages_the_socket_refuses_are_pulled_and_later_ones_pushed(shared_drivers: Drivers) -> None:
    topics = await transient(shared_drivers, 3)
    slow, fast = Connection(room=18 + 18 + 20), Connection()
    every = [Subscription(connection, topic) for topic in topics for connection in (slow, fast)]
    assert push({topic: [b"a", b"b"] for topic in topics}) == []
    assert len(slow.rest) == 18 - (20 - 18)  # the second message of the second topic is begun
    assert (slow.delivered, fast.delivered) == (4, 6)
    assert [each.channel.statistics().behind for each in every] == [0, 0, 0, 0, 2, 0]
    assert fast.got() == {topic.topic.id: [(1, b"a"), (2, b"b")] for topic in topics}
    # The slow connection has to send something first, so nothing may overtake that. The fast one gets it all.
    assert push({topic: [b"c"] for topic in topics}) == []
    assert [each.channel.statistics().behind for each in every] == [1, 0, 1, 0, 3, 0]
    assert fast.got() == {topic.topic.id: [(1, b"a"), (2, b"b"), (3, b"c")] for topic in topics}
    assert not fast.ready
    for connection in (slow, fast):
        connection.room = 1 << 30
        await connection.drain()
    assert push({topic: [b"d"] for topic in topics}) == []
    whole = [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
    for connection in (slow, fast):
        assert connection.got() == {topic.topic.id: whole for topic in topics}
    assert not fast.ready
    assert [topic.statistics().messages_out for topic in topics] == [8] * 3
    assert shared_drivers.memory.statistics().tails == 0
    for topic in topics:
        await shared_drivers.catalogue.delete(topic.topic.topic)


async def test_the_rest_of_the_last_message_needs_no_tail(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    connection = Connection(room=18 + 10)
    subscription = Subscription(connection, topic)
    assert push({topic: [b"a", b"b"]}) == []
    assert len(connection.rest) == 18 - 10
    assert subscription.channel.statistics().behind == 0
    assert shared_drivers.memory.statistics().tails == 0
    await connection.drain()
    assert connection.got() == {topic.topic.id: [(1, b"a"), (2, b"b")]}
    assert topic.statistics().octets_out == 2 * 18


@pytest.mark.skipif(not codec.COMPILED, reason="the plain codec routes nothing")
async def test_messages_are_routed_past_a_subscriber_without_room(shared_drivers: Drivers) -> None:
    """They are kept for it, and it follows again when it has them."""
    topics = await transient(shared_drivers, 3)
    stalled, fast = Connection(room=18), Connection()
    every = [Subscription(connection, topic) for topic in topics for connection in (stalled, fast)]
    for body in (b"a", b"b", b"c"):
        assert route(shared_drivers, {topic: [body] for topic in topics}) == {}
    assert [each.channel.statistics().behind for each in every] == [0] * 6
    assert not stalled.has_room()
    assert shared_drivers.memory.statistics().tails == 0
    # From here on its topics keep what it does not get.
    for body in (b"d", b"e"):
        assert route(shared_drivers, {topic: [body, body] for topic in topics[:2]}) == {}
    assert [each.channel.statistics().behind for each in every] == [4, 0, 4, 0, 0, 0]
    assert shared_drivers.memory.statistics().tails == 2 * 4 * 18
    assert not fast.ready
    stalled.room = 1 << 30
    await stalled.drain()
    assert shared_drivers.memory.statistics().tails == 0
    calls = stalled.calls
    assert route(shared_drivers, {topic: [b"f"] for topic in topics}) == {}
    assert stalled.calls == calls + 1
    assert not stalled.ready
    bodies = [b"a", b"b", b"c", b"d", b"d", b"e", b"e", b"f"]
    whole = list(enumerate(bodies, 1))
    short = list(enumerate([b"a", b"b", b"c", b"f"], 1))
    for connection in (stalled, fast):
        got = {topics[0].topic.id: whole, topics[1].topic.id: whole, topics[2].topic.id: short}
        assert connection.got() == got
    assert [topic.statistics().messages_out for topic in topics] == [16, 16, 8]


@pytest.mark.skipif(not codec.COMPILED, reason="the plain codec routes nothing")
async def test_a_pass_ends_before_it_fills_the_memory(shared_drivers: Drivers) -> None:
    """Its messages count once for each connection, and once more where they are kept."""
    (topic,) = await transient(shared_drivers, 1)
    followers = [Subscription(Connection(), topic) for _ in range(3)]
    behind = Subscription(Connection(), topic)
    behind.channel.hold()
    lines = b"(Publish %s %s)\n" % (quoted(topic.topic.topic), quoted(bytes(83).replace(b"\0", b"x"))) * 50

    def taken(tails: TailMemory, granted: int = 0) -> "Pass":
        passed = codec.native.Pass(shared_drivers.catalogue.routes, None, 1 << 20, 0, tails, granted)
        dealt, _ = codec.native.deal_lines(lines, 0, len(lines), passed)
        assert dealt == []
        send_passed(passed)
        return passed

    assert taken(TailMemory(8 * 1000)).messages == 10  # half of the memory, in four copies of 100 octets
    full = TailMemory(8 * 1000)
    full.used = full.limit
    assert taken(full).messages == 1  # one goes on in any case
    tails = TailMemory(1 << 20)
    tails.relief = Relief(250)
    assert taken(tails).messages == 3
    tails.relief = Relief(0)
    passed = taken(tails)
    assert passed.messages == 0
    assert passed.is_full
    assert passed.short is not None
    assert passed.short.owner is topic
    assert taken(tails, granted=150).messages == 2
    behind.channel.release()
    await behind.connection.drain()
    assert taken(tails).messages == 50  # nothing must be kept
    for each in (*followers, behind):
        assert each.connection.got() == {topic.topic.id: [(id, b"x" * 83) for id in range(1, 67)]}


async def test_a_push_leaves_out_topics_that_must_be_pulled(shared_drivers: Drivers) -> None:
    (topic,) = await transient(shared_drivers, 1)
    persistent = await shared_drivers.declare(Persistent(Sync.WEAK), name=b"kept")
    dealt = await shared_drivers.declare(Transient(), Delivery.ROUND_ROBIN, name=b"dealt")
    assert push({persistent: [b"x"], dealt: [b"x"]}) == [persistent, dealt]
    assert push({topic: [b"without subscribers"]}) == []
    connection = Connection()
    channel = Subscription(connection, topic).channel
    assert push({topic: [bytes(LITTLE_OCTETS)]}) == [topic]
    assert push({topic: [b"x"] * (1 << 21)}) == [topic]
    channel.hold()
    assert push({topic: [b"held"]}) == [topic]
    channel.release()
    assert push({topic: [b"2"]}) == []
    channel.grant(5, CreditKind.COUNT)
    assert push({topic: [b"of a subscriber with credit"]}) == [topic]
    beside = Subscription(Connection(), topic)
    assert push({topic: [b"beside it"]}) == []
    assert beside.connection.got() == {topic.topic.id: [(3, b"beside it")]}
    beside.channel.close()
    visitor = Subscription(Connection(), topic)
    other = topic.open(visitor, FromCurrent())
    channel.close()
    visitor.channel.close()
    assert push({topic: [b"of a subscriber that does not take yet"]}) == [topic]
    other.close()
    assert connection.got() == {topic.topic.id: [(2, b"2")]}
    await shared_drivers.catalogue.delete(topic.topic.topic)
    assert push({topic: [b"deleted"]}) == [topic]


@dataclass
class Relief:
    """A spooler that has room for N `octets`."""

    octets: int
    asked_from: float = inf

    def ask(self) -> None:
        raise AssertionError("nothing grows so much here")

    def room(self) -> int:
        return self.octets

    def must_wait(self, octets: int, *, is_behind: bool, again: bool) -> bool:
        return octets > self.octets


TOPICS = 3

steps = st.lists(
    st.one_of(
        st.lists(
            st.tuples(st.integers(0, TOPICS - 1), st.integers(1, 3), st.integers(0, 40), st.booleans()),
            min_size=1,
            max_size=TOPICS,
            unique_by=lambda run: run[0],
        ),
        st.tuples(st.integers(0, 1), st.integers(0, 300)),
        st.integers(0, TOPICS - 1),
    ),
    max_size=25,
)
"""The messages of one read for some topics; the octets that a connection may take now, and its turn; or that
a visitor comes to a topic, or leaves it.
"""


@pytest.mark.parametrize("most", [MOST_FOLLOWERS, 2], ids=["few", "crowds"])
@given(steps)
@settings(max_examples=150, deadline=None)
def test_every_subscriber_gets_every_message_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, most: int, steps: list[object]
) -> None:
    """Also where each visitor of a topic makes a crowd of its subscribers, to which nothing is pushed."""

    async def run() -> None:
        def visits_of(topic: Driver) -> list[Subscription]:
            return [visits[topic]] if topic in visits else []

        async with opened_for_an_example(tmp_path_factory, killed=True) as drivers:
            topics = await transient(drivers, TOPICS)
            connections = [Connection(room=0), Connection(room=100)]
            visiting = Connection(room=150)
            visits: dict[Driver, Subscription] = {}
            every = {
                topic: [Subscription(connection, topic) for connection in connections] for topic in topics
            }
            posted: dict[int, list[tuple[int, bytes]]] = {}
            for step in steps:
                match step:
                    case list():
                        read = {topics[place]: [b"x" * size] * count for place, count, size, _ in step}
                        is_routed = codec.COMPILED and step[0][-1]
                        for topic, bodies in read.items():
                            ids = range(topic.next_id, topic.next_id + len(bodies))
                            posted.setdefault(topic.topic.id, []).extend(zip(ids, bodies, strict=True))
                        # Nobody is left out to whom something can be pushed, and nobody is overtaken.
                        followers = {
                            topic: [
                                each
                                for each in (*every[topic], *visits_of(topic))
                                if topic.subscriber_count() <= most and each.follows(is_routed=is_routed)
                            ]
                            for topic in read
                        }
                        before = {topic: topic.statistics().messages_out for topic in read}
                        rest = (
                            route(drivers, read)
                            if is_routed
                            else {topic: read[topic] for topic in push(read)}
                        )
                        assert rest.keys() == {topic for topic in read if not followers[topic]}
                        for topic, bodies in read.items():
                            sent = topic.statistics().messages_out - before[topic]
                            pushed = len(followers[topic]) * len(bodies)
                            assert sent == pushed if is_routed else sent <= pushed
                        for topic, bodies in rest.items():
                            await topic.post(Bodies(bodies))
                    case int(place):
                        visit = visits.pop(topics[place], None)
                        if visit is None:
                            visits[topics[place]] = Subscription(visiting, topics[place])
                        else:
                            visit.channel.close()
                            visiting.ready.pop(visit, None)
                    case (int(place), int(room)):
                        connections[place].room = room
                        await connections[place].drain()
            await quiet()
            for connection in connections:
                await connection.drain()
                assert connection.got() == posted
            visiting.octets += visiting.rest + b"".join(visiting.backlog.parts(1000, visiting.backlog.end))
            visited = visiting.got()
            assert [topic.statistics().messages_out for topic in topics] == [
                2 * len(posted.get(topic.topic.id, ())) + len(visited.get(topic.topic.id, ()))
                for topic in topics
            ]
            await quiet()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omq.drivers.broadcast.MOST_FOLLOWERS", most)
        trio.run(run)
