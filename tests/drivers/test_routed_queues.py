"""Round-robin topics whose messages reach workers without the dealer: by the codec, or after a commit."""

from collections.abc import Iterable

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pushed_connections import Connection, Subscription
from served_drivers import STRONG, WEAK, Drivers, opened_for_an_example, quiet, settled
from test_pushes import route

from omq.drivers.backlog import GIVEN_BACK
from omq.drivers.competing import FREE_OCTETS
from omq.drivers.confirmation import Confirmation
from omq.drivers.driver import Driver
from omq.drivers.offer import PendingOffer
from omq.drivers.queue import QueueDriver
from omq.drivers.seam import ACCEPTED, CreditKind
from omq.drivers.spilling import offer_or_spill
from omq.model import Delivery, Persistent, Transient
from omq_storage import codec
from omq_storage.batches import Bodies
from omq_storage.levels import Level
from omq_storage.records import Position

FRAME = 18
"""The octets of a Message frame with a body of one octet."""

needs_codec = pytest.mark.skipif(not codec.COMPILED, reason="only the compiled codec routes messages")


async def queues(drivers: Drivers, count: int) -> list[Driver]:
    """Return transient round-robin topics, with ids to assign."""
    topics = [
        await drivers.declare(Transient(), Delivery.ROUND_ROBIN, b"queue %d" % number)
        for number in range(count)
    ]
    await drivers.catalogue.ids.reserve(dict.fromkeys(topics, 1000))
    return topics


def bodies(letters: str) -> list[bytes]:
    return [letter.encode() for letter in letters]


def ids(connection: Connection, topic: Driver) -> list[int]:
    """Return the ids of the messages of a topic that a client has got."""
    return [id for id, _ in connection.got().get(topic.topic.id, [])]


def stall(connection: Connection, subscriptions: Iterable[Subscription]) -> None:
    """Give everything back but the message that is begun, as a sender does whose client takes nothing."""
    own = [each for each in subscriptions if each.connection is connection]
    for each in own:
        each.channel.suspend()
    while connection.backlog.give_back():
        pass
    for each in own:
        while each.channel.give_back():
            pass


async def drain(connections: Iterable[Connection]) -> None:
    """Let all clients read until there is nothing more."""
    connections = list(connections)
    for connection in connections:
        connection.room = 1 << 30
    while True:
        await quiet()
        if all(connection.is_clear() for connection in connections):
            return
        for connection in connections:
            await connection.drain()


@needs_codec
async def test_the_codec_gives_messages_to_workers_in_turn(shared_drivers: Drivers) -> None:
    first, second = await queues(shared_drivers, 2)
    one, other = Connection(), Connection()
    for topic in (first, second):
        Subscription(one, topic)
    Subscription(other, first)
    assert route(shared_drivers, {first: bodies("abc"), second: bodies("xy")}) == {}
    assert route(shared_drivers, {first: bodies("de")}) == {}
    assert [ids(one, first), ids(other, first), ids(one, second)] == [[1, 3, 5], [2, 4], [1, 2]]
    assert (one.calls, other.calls) == (2, 2)
    assert [topic.statistics().messages_out for topic in (first, second)] == [5, 2]
    assert [topic.statistics().octets_out for topic in (first, second)] == [5 * FRAME, 2 * FRAME]
    assert [topic.statistics().messages for topic in (first, second)] == [0, 0]


@needs_codec
async def test_the_turns_go_on_when_the_dealer_takes_over_and_when_it_is_done(
    shared_drivers: Drivers,
) -> None:
    (topic,) = await queues(shared_drivers, 1)
    connections = [Connection() for _ in range(3)]
    for connection in connections:
        Subscription(connection, topic)
    for number in range(12):
        if number % 3 == 1:
            await topic.post(Bodies([b"p"]))
        else:
            assert route(shared_drivers, {topic: [b"r"]}) == {}
        for connection in connections:
            await connection.drain()
    assert [ids(connection, topic) for connection in connections] == [
        [1, 4, 7, 10],
        [2, 5, 8, 11],
        [3, 6, 9, 12],
    ]


@needs_codec
async def test_messages_behind_a_backlog_are_sent_after_it(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    connection = Connection(room=FRAME + 5)
    subscription = Subscription(connection, topic)
    assert route(shared_drivers, {topic: bodies("abc")}) == {}
    assert len(connection.backlog) == 1
    assert subscription.channel.after == 0
    await topic.post(Bodies(bodies("de")))
    assert subscription.channel.after == connection.pushed == 3 * FRAME - (FRAME + 5)
    assert route(shared_drivers, {topic: bodies("f")}) == {topic: bodies("f")}  # the dealer has messages
    await drain([connection])
    assert ids(connection, topic) == [1, 2, 3, 4, 5]
    assert route(shared_drivers, {topic: bodies("f")}) == {}
    assert ids(connection, topic)[-1] == 6


@needs_codec
async def test_a_stalled_client_keeps_the_message_that_is_begun_and_others_get_the_rest(
    shared_drivers: Drivers,
) -> None:
    topics = first, second = await queues(shared_drivers, 2)
    slow, fast = Connection(room=FRAME + 5), Connection()
    every = [Subscription(connection, topic) for connection in (slow, fast) for topic in topics]
    assert route(shared_drivers, {first: bodies("abcd"), second: bodies("wxyz")}) == {}
    assert [topic.statistics().messages_out for topic in topics] == [4, 4]
    stall(slow, every)
    assert [topic.statistics().messages_out for topic in topics] == [4, 2]
    assert [topic.statistics().octets_out for topic in topics] == [4 * FRAME, 2 * FRAME]
    assert slow.backlog.unsent == FRAME - 5
    await drain([fast])
    assert [ids(fast, topic) for topic in topics] == [[2, 4], [2, 4, 1, 3]]
    await drain([slow])
    assert [ids(slow, topic) for topic in topics] == [[1, 3], []]
    assert slow.backlog.delivered == 2
    assert shared_drivers.memory.statistics().waiting == shared_drivers.memory.statistics().tails == 0
    # A client that takes again gets messages again.
    for each in every[:2]:
        each.channel.release()
    assert route(shared_drivers, {first: bodies("ef")}) == {}
    assert {ids(slow, first)[-1], ids(fast, first)[-1]} == {5, 6}


@needs_codec
async def test_what_a_connection_had_when_it_ended_goes_to_others(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    leaving, staying = Connection(room=FRAME + 5), Connection()
    subscription = Subscription(leaving, topic)
    Subscription(staying, topic)
    assert route(shared_drivers, {topic: bodies("abcdefgh")}) == {}
    leaving.backlog.close(shared_drivers.catalogue.begin)
    subscription.channel.close()
    assert route(shared_drivers, {topic: bodies("i")}) == {}
    await drain([staying])
    # Of the third one it had the beginning.
    assert ids(leaving, topic) == [1]
    assert sorted(ids(staying, topic)) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert topic.statistics().messages_out == 9
    assert topic.statistics().messages == 0
    assert shared_drivers.memory.statistics().waiting == shared_drivers.memory.statistics().tails == 0


@needs_codec
async def test_the_message_that_a_stalled_client_keeps_goes_to_others_when_it_ends(
    shared_drivers: Drivers,
) -> None:
    (topic,) = await queues(shared_drivers, 1)
    slow, fast = Connection(room=FRAME + 5), Connection()
    every = [Subscription(connection, topic) for connection in (slow, fast)]
    assert route(shared_drivers, {topic: bodies("abcdef")}) == {}
    stall(slow, every)
    slow.backlog.sent(1)
    await drain([fast])
    assert ids(fast, topic) == [2, 4, 6, 5]
    slow.backlog.close(shared_drivers.catalogue.begin)
    every[0].channel.close()
    await drain([fast])
    assert ids(fast, topic) == [2, 4, 6, 5, 3]
    assert fast.got()[topic.topic.id][-1] == (3, b"c")
    assert topic.statistics().messages_out == 6
    assert shared_drivers.memory.statistics().waiting == shared_drivers.memory.statistics().tails == 0


@needs_codec
async def test_what_a_connection_was_giving_back_when_it_ended_goes_to_others(
    shared_drivers: Drivers,
) -> None:
    topics = await queues(shared_drivers, 3 * GIVEN_BACK)
    leaving, staying = Connection(room=0), Connection()
    subscriptions = [Subscription(leaving, topic) for topic in topics]
    assert route(shared_drivers, {topic: bodies("a") for topic in topics[: 2 * GIVEN_BACK]}) == {}
    assert route(shared_drivers, {topic: bodies("b") for topic in topics[2 * GIVEN_BACK :]}) == {}
    for topic in topics:
        Subscription(staying, topic)
    for each in subscriptions:
        each.channel.suspend()
    assert leaving.backlog.give_back()
    assert leaving.backlog.give_back()
    leaving.backlog.close(shared_drivers.catalogue.begin)
    for each in subscriptions:
        each.channel.close()
    assert not leaving.backlog.give_back()
    await drain([staying])
    assert [ids(staying, topic) for topic in topics] == [[1]] * len(topics)
    assert shared_drivers.memory.statistics().waiting == shared_drivers.memory.statistics().tails == 0


@needs_codec
async def test_memory_pressure_drops_nothing_of_a_round_robin_topic(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    broadcast = await shared_drivers.declare(Transient())
    await shared_drivers.catalogue.ids.reserve({broadcast: 10})
    connection, worker = Connection(room=0), Connection(room=0)
    for each in (topic, broadcast):
        Subscription(connection, each)
    assert route(shared_drivers, {topic: bodies("ab"), broadcast: bodies("x")}) == {}
    Subscription(worker, topic)
    assert route(shared_drivers, {topic: bodies("cd")}) == {}
    publisher = trio.Event()
    worker.backlog.wait(publisher, again=False)
    assert not worker.backlog.forget(1 << 30, 0)
    assert not publisher.is_set()
    connection.backlog.wait(publisher, again=False)
    assert connection.backlog.forget(1 << 30, 0)
    assert publisher.is_set()
    assert connection.backlog.unsent == 3 * FRAME
    connection.octets += b"".join(connection.backlog.parts(9, connection.backlog.end))
    assert (ids(connection, topic), ids(connection, broadcast)) == ([1, 2, 3], [])


@needs_codec
async def test_messages_on_their_way_to_the_disk_end_the_routing(shared_drivers: Drivers) -> None:
    """They get their ids there, which routed messages must not get meanwhile."""
    (topic,) = await queues(shared_drivers, 1)
    connection = Connection()
    Subscription(connection, topic)
    assert route(shared_drivers, {topic: bodies("a")}) == {}
    waiting = shared_drivers.memory.waiting
    others = 2 * waiting.limit
    waiting.force(others)
    spilled = offer_or_spill(topic, Bodies([b"x" * (FREE_OCTETS + 1)]), ())
    assert isinstance(spilled, Confirmation)
    assert not spilled.settled
    assert route(shared_drivers, {topic: bodies("b")}) == {topic: bodies("b")}
    assert await settled(spilled) is None
    await topic.post(Bodies(bodies("b")))
    await drain([connection])
    assert ids(connection, topic) == [1, 2, 3]
    waiting.give(others)
    assert route(shared_drivers, {topic: bodies("c")}) == {}
    assert ids(connection, topic) == [1, 2, 3, 4]


@needs_codec
async def test_a_publisher_that_waits_ends_the_routing(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    connection = Connection()
    Subscription(connection, topic)
    assert route(shared_drivers, {topic: bodies("a")}) == {}
    waiting = shared_drivers.memory.waiting
    others = 2 * waiting.limit
    waiting.force(others)
    offered = topic.offer(Bodies([b"x" * (FREE_OCTETS + 1)]))
    assert isinstance(offered, PendingOffer)
    assert route(shared_drivers, {topic: bodies("b")}) == {topic: bodies("b")}
    waiting.give(others)
    offered.leave()
    assert route(shared_drivers, {topic: bodies("b")}) == {topic: bodies("b")}
    await topic.post(Bodies(bodies("b")))
    await drain([connection])
    assert route(shared_drivers, {topic: bodies("c")}) == {}
    assert ids(connection, topic) == [1, 2, 3]


@needs_codec
async def test_credit_ends_the_routing(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    connection = Connection()
    subscription = Subscription(connection, topic)
    assert route(shared_drivers, {topic: bodies("a")}) == {}
    subscription.channel.grant(1, CreditKind.WINDOW)
    assert route(shared_drivers, {topic: bodies("bc")}) == {topic: bodies("bc")}
    await topic.post(Bodies(bodies("bc")))
    await connection.drain()
    assert ids(connection, topic) == [1, 2]
    assert topic.statistics().unsettled == 1
    assert subscription.channel.settle(range(2, 3), ACCEPTED) == 1
    await drain([connection])
    assert ids(connection, topic) == [1, 2, 3]
    subscription.channel.settle(range(3, 4), ACCEPTED)


@needs_codec
async def test_a_purge_while_messages_are_routed_changes_nothing(shared_drivers: Drivers) -> None:
    (topic,) = await queues(shared_drivers, 1)
    connection = Connection()
    Subscription(connection, topic)
    assert route(shared_drivers, {topic: bodies("a")}) == {}
    assert isinstance(topic, QueueDriver)
    assert topic.purge() == 0
    route(shared_drivers, {topic: bodies("b")})
    await drain([connection])
    assert ids(connection, topic) == [1, 2]


@pytest.mark.parametrize("persistence", [WEAK, STRONG])
@pytest.mark.parametrize("workers", [1, 3])
async def test_stored_messages_are_pushed_to_workers_in_turn(
    shared_drivers: Drivers, persistence: Persistent, workers: int
) -> None:
    topic = await shared_drivers.declare(persistence, Delivery.ROUND_ROBIN)
    connections = [Connection() for _ in range(workers)]
    for connection in connections:
        Subscription(connection, topic)
    for count in (1, 2, 7):
        await topic.post(Bodies([b"m"] * count))
        await shared_drivers.drain()
    assert [ids(each, topic) for each in connections] == [
        list(range(1 + turn, 11, workers)) for turn in range(workers)
    ]
    assert not any(connection.ready for connection in connections)
    assert topic.statistics().messages == 0
    assert topic.statistics().messages_out == 10
    assert topic.statistics().octets_out == 10 * FRAME


async def test_a_worker_keeps_stored_messages_that_its_socket_refuses(shared_drivers: Drivers) -> None:
    """Others have later ones already: they would not get theirs in order."""
    topic = await shared_drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    slow, fast = Connection(room=FRAME + 5), Connection()
    every = [Subscription(connection, topic) for connection in (slow, fast)]
    await topic.post(Bodies([b"m"] * 8))
    await shared_drivers.drain()
    # One of them is begun: it is done when the rest of it has left.
    assert [each.channel.statistics().behind for each in every] == [3, 0]
    assert (topic.statistics().unsettled, topic.statistics().messages_out) == (3, 5)
    await drain([slow, fast])
    assert [ids(each, topic) for each in (slow, fast)] == [[1, 3, 5, 7], [2, 4, 6, 8]]
    assert topic.statistics().messages_out == 8
    assert topic.statistics().octets_out == 6 * FRAME  # a sender adds those of the turns
    await topic.post(Bodies([b"m"] * 2))
    await shared_drivers.drain()
    assert [ids(each, topic)[4:] for each in (slow, fast)] == [[9], [10]]


async def test_others_get_stored_messages_that_a_stalled_client_leaves(shared_drivers: Drivers) -> None:
    topic = await shared_drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    slow, fast = Connection(room=FRAME + 5), Connection()
    every = [Subscription(connection, topic) for connection in (slow, fast)]
    await topic.post(Bodies([b"m"] * 8))
    await shared_drivers.drain()
    stall(slow, every)
    await drain([slow, fast])
    assert ids(slow, topic) == [1, 3]
    assert ids(fast, topic) == [2, 4, 6, 8, 5, 7]
    assert topic.statistics().messages_out == 8


async def begun_by(drivers: Drivers, slow: Connection) -> tuple[Driver, Subscription, Connection]:
    """Return a topic with two messages, of which this worker has begun to send the second one; and another
    worker, who comes later.
    """
    topic = await drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    subscription = Subscription(slow, topic)
    await topic.post(Bodies([b"m"] * 2))
    await drivers.drain()
    assert len(slow.rest) == FRAME - 5
    assert topic.statistics().messages == 1
    other = Connection()
    Subscription(other, topic)
    return topic, subscription, other


async def test_others_get_a_begun_message_when_the_connection_of_its_worker_ends(
    shared_drivers: Drivers,
) -> None:
    slow = Connection(room=FRAME + 5)
    topic, subscription, other = await begun_by(shared_drivers, slow)
    slow.end_rest(has_left=False)
    subscription.channel.close()
    await drain([other])
    assert (ids(slow, topic), ids(other, topic)) == ([1], [2])
    assert topic.statistics().messages == topic.statistics().unsettled == 0


async def test_nobody_else_gets_a_begun_message_after_unsubscribe(
    shared_drivers: Drivers,
) -> None:
    slow = Connection(room=FRAME + 5)
    topic, subscription, other = await begun_by(shared_drivers, slow)
    subscription.channel.close()
    assert topic.subscriber_count() == 1
    await topic.post(Bodies([b"m"]))
    await drain([other])
    assert ids(other, topic) == [3]
    assert topic.statistics().messages == 1
    slow.end_rest(has_left=True)
    await drain([other])
    assert (ids(slow, topic), ids(other, topic)) == ([1, 2], [3])
    assert topic.statistics().messages == topic.statistics().unsettled == 0


async def test_a_worker_unsubscribes_and_leaves_in_the_middle_of_a_message(shared_drivers: Drivers) -> None:
    slow = Connection(room=FRAME + 5)
    topic, subscription, other = await begun_by(shared_drivers, slow)
    subscription.channel.close()
    slow.end_rest(has_left=False)
    await drain([other])
    assert (ids(slow, topic), ids(other, topic)) == ([1], [2])


async def test_a_topic_is_deleted_in_the_middle_of_a_message(shared_drivers: Drivers) -> None:
    slow = Connection(room=FRAME + 5)
    topic, subscription, other = await begun_by(shared_drivers, slow)
    await shared_drivers.catalogue.delete(topic.topic.topic)
    await quiet()
    assert len(subscription.ended_by) == 1
    slow.end_rest(has_left=True)
    await drain([other])
    assert (ids(slow, topic), ids(other, topic)) == ([1, 2], [])


@needs_codec
async def test_lines_are_routed_to_the_store(shared_drivers: Drivers) -> None:
    topic = await shared_drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    lane = shared_drivers.catalogue.writers[Level.WEAK].routed.lane
    passed = codec.native.Pass(shared_drivers.catalogue.routes, None, 1 << 20, 1 << 20)
    lines = b"(Publish t a)\n(Publish t b)\n"
    assert codec.native.deal_lines(lines, 0, len(lines), passed)[0] == []
    assert [(store, part.messages) for store, part in passed.parts] == [(lane, 2)]
    await shared_drivers.catalogue.delete(topic.topic.topic)


OPERATIONS = st.one_of(
    st.tuples(st.just("route"), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.tuples(st.just("post"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["starve", "drain", "stall", "recover", "leave"]), st.integers(0, 2)),
)


@needs_codec
@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(OPERATIONS, max_size=25), rooms=st.lists(st.integers(0, 200), min_size=3, max_size=3)
)
def test_each_message_reaches_one_worker(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, object]], rooms: list[int]
) -> None:
    """However messages come, and workers stall and leave. Without that, each gets them in their order."""

    async def main() -> None:
        async with opened_for_an_example(tmp_path_factory) as drivers:
            await each_reaches_one(drivers, operations, rooms)

    trio.run(main)


async def each_reaches_one(drivers: Drivers, operations: list[tuple[str, object]], rooms: list[int]) -> None:
    topics = await queues(drivers, 3)
    connections = [Connection() for _ in range(3)]
    every = [Subscription(connection, topic) for connection in connections for topic in topics]
    gone: set[int] = set()
    held: set[int] = set()
    published = [0, 0, 0]
    for operation, argument in operations:
        match operation, argument:
            case "route", list(counts):
                left = route(
                    drivers, {topic: [b"m"] * count for topic, count in zip(topics, counts, strict=False)}
                )
                for number, count in enumerate(counts):
                    published[number] += count
                for topic, messages in left.items():
                    await topic.post(Bodies(messages))
            case "post", int(number):
                published[number] += 1
                await topics[number].post(Bodies([b"m"]))
            case _, int(number) if number in gone:
                pass
            case "starve", int(number):
                connections[number].room = rooms[number]
            case "drain", int(number):
                connections[number].room = 1 << 30
                await connections[number].drain()
            case "stall", int(number):
                stall(connections[number], every)
                held.add(number)
            case "recover", int(number) if number in held:
                held.discard(number)
                for each in every[3 * number : 3 * number + 3]:
                    each.channel.release()
            case "leave", int(number) if len(gone) < 2:
                gone.add(number)
                connections[number].backlog.close(drivers.catalogue.begin)
                for each in every[3 * number : 3 * number + 3]:
                    each.channel.close()
            case _:
                pass
        await quiet()
    for number in held - gone:
        for each in every[3 * number : 3 * number + 3]:
            each.channel.release()
    await drain(connection for number, connection in enumerate(connections) if number not in gone)
    are_in_order = not any(operation in ("stall", "leave") for operation, _ in operations)
    lost = 0
    for topic, count in zip(topics, published, strict=True):
        got = [ids(connection, topic) for connection in connections]
        if are_in_order:
            assert got == [sorted(each) for each in got]
        flat = sorted(id for each in got for id in each)
        assert len(set(flat)) == len(flat)
        assert set(flat) <= set(range(1, count + 1))
        lost += count - len(flat)
        assert topic.statistics().messages == 0
    assert lost == 0
    assert drivers.memory.statistics().waiting == 0


async def test_a_position_without_undone_messages_needs_no_search(shared_drivers: Drivers) -> None:
    topic = await shared_drivers.declare(WEAK, Delivery.ROUND_ROBIN)
    assert isinstance(topic, QueueDriver)
    subscription = Subscription(Connection(), topic)
    await topic.post(Bodies([b"m"] * 3))
    await shared_drivers.drain()
    assert topic.position_without_undone() == await topic.position() == Position(4)
    subscription.channel.grant(1, CreditKind.WINDOW)
    await topic.post(Bodies([b"m"]))
    await quiet()
    assert topic.position_without_undone() is None  # a worker has it
    assert [run.lowest for run in (await topic.position()).undone] == [4]
    subscription.channel.close()
    assert topic.position_without_undone() is None  # it waits again
    assert [run.lowest for run in (await topic.position()).undone] == [4]
    await shared_drivers.catalogue.delete(topic.topic.topic)
