"""Turns in which a connection sends the messages of several round-robin topics with one system call."""

import math
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pushed_connections import Connection
from served_drivers import WEAK, Drivers, opened_for_an_example, quiet

from omq.drivers.driver import Driver
from omq.drivers.seam import Channel, EndReason
from omq.model import Delivery, FromCurrent, Persistence, Transient
from omq.terminals.connection.forms import Form
from omq.terminals.connection.shared_turns import MOST_SHARED_SELECTIONS, MOST_SHARES, SharedTurns
from omq.terminals.omq.forms import Frames
from omq_storage.batches import Bodies

FRAMES: Form = Frames()


@dataclass(eq=False)
class Source:
    """A subscription to a round-robin topic."""

    ready: dict["Source", None]
    after: int = 0
    direct = None
    is_exempt = False
    flow = None

    def subscribe(self, driver: Driver) -> "Source":
        self.channel = driver.open(self, FromCurrent())
        return self

    @property
    def work(self) -> tuple[Channel, Form]:
        return self.channel, FRAMES

    async def take_turn(self) -> bool:
        raise AssertionError("the sender gives turns")

    def wake(self) -> None:
        self.ready[self] = None

    def replaced(self, channel: Channel) -> None:
        raise AssertionError("no topic is given other types here")

    def ended(self, end: EndReason) -> None:
        pass


async def topics_with_work(drivers: Drivers, persistence: Persistence, counts: list[int]) -> list[Driver]:
    """Return round-robin topics with these numbers of messages, which wait for workers."""
    topics = []
    for number, count in enumerate(counts):
        topic = await drivers.declare(persistence, Delivery.ROUND_ROBIN, b"work %d" % number)
        await topic.post(Bodies([b"m"] * count))
        topics.append(topic)
    await drivers.drain()
    return topics


async def subscribed(topics: list[Driver]) -> list[Source]:
    """Return a subscription to each topic, all of them in the turns of one connection."""
    ready: dict[Source, None] = {}
    sources = [Source(ready).subscribe(topic) for topic in topics]
    await quiet()
    assert set(ready) == set(sources)
    return sources


@pytest.mark.parametrize("persistence", [Transient(), WEAK])
async def test_the_messages_of_several_topics_take_one_call(
    shared_drivers: Drivers, persistence: Persistence
) -> None:
    topics = await topics_with_work(shared_drivers, persistence, [1, 2, 3])
    first, *others = await subscribed(topics)
    ready = dict.fromkeys(others)
    connection = Connection()
    assert SharedTurns().give(first, ready, math.inf, connection)
    assert connection.calls == 1
    assert [len(connection.got()[topic.topic.id]) for topic in topics] == [1, 2, 3]
    assert (connection.delivered, ready) == (6, {})
    assert [topic.statistics().messages for topic in topics] == [0, 0, 0]
    assert [topic.statistics().octets_out for topic in topics] == [18, 36, 54]


async def test_a_source_alone_or_behind_a_backlog_has_a_turn_of_its_own(
    shared_drivers: Drivers,
) -> None:
    topics = await topics_with_work(shared_drivers, Transient(), [1, 1, 1])
    first, second, third = await subscribed(topics)
    connection = Connection()
    assert not SharedTurns().give(first, {}, math.inf, connection)
    second.after = 5
    assert not SharedTurns().give(second, {third: None}, 4, connection)
    ready = {second: None, third: None}
    assert SharedTurns().give(first, ready, 4, connection)
    assert list(connection.got()) == [topics[0].topic.id]
    assert list(ready) == [second, third]
    assert SharedTurns().give(second, {third: None}, 5, connection)
    assert len(connection.got()) == 3


async def test_a_turn_has_few_sources(shared_drivers: Drivers) -> None:
    topics = await topics_with_work(shared_drivers, Transient(), [1] * (MOST_SHARES + 3))
    first, *others = await subscribed(topics)
    ready = dict.fromkeys(others)
    assert SharedTurns().give(first, ready, math.inf, connection := Connection())
    assert (connection.delivered, len(ready)) == (MOST_SHARES, 3)
    while ready:
        source = ready.popitem()[0]
        ready[others[0]] = None  # which has nothing more
        assert SharedTurns().give(source, ready, math.inf, connection)
        ready.pop(others[0], None)
    assert connection.delivered == MOST_SHARES + 3


async def test_a_turn_has_few_messages_that_came_one_by_one(shared_drivers: Drivers) -> None:
    topics = []
    each = MOST_SHARED_SELECTIONS // 2
    for number, count in enumerate([each, each - 1, 2, 1]):
        topic = await shared_drivers.declare(Transient(), Delivery.ROUND_ROBIN, b"work %d" % number)
        for _ in range(count):
            await topic.post(Bodies([b"m"]))
        topics.append(topic)
    first, second, third, last = await subscribed(topics)
    ready = dict.fromkeys([second, third, last])
    assert SharedTurns().give(first, ready, math.inf, connection := Connection())
    assert (connection.delivered, list(ready)) == (2 * each - 1, [third, last])
    del ready[third]
    assert SharedTurns().give(third, ready, math.inf, connection)
    assert (connection.delivered, list(ready)) == (2 * each + 2, [])


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    rooms=st.lists(st.integers(0, 80), max_size=20),
    persistence=st.sampled_from([Transient(), WEAK]),
)
def test_each_message_is_sent_once_however_much_the_socket_takes(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], rooms: list[int], persistence: Persistence
) -> None:
    async def main() -> None:
        async with opened_for_an_example(tmp_path_factory) as drivers:
            topics = await topics_with_work(drivers, persistence, counts)
            sources = await subscribed(topics)
            ready = sources[0].ready
            connection, turns = Connection(), SharedTurns()
            for room in [*rooms, *([1 << 20] * 20)]:
                await quiet()
                if not ready:
                    break
                connection.end_rest(has_left=True)  # which goes before anything else
                connection.room = room
                source = next(iter(ready))
                del ready[source]
                before = len(connection.octets)
                sent = turns.give(source, ready, math.inf, connection)
                assert sent == (len(connection.octets) > before)
                if not sent and room == 1 << 20:  # the last one has its turn alone
                    selections = source.channel.take_at_once(1 << 20)
                    connection.octets += b"".join(FRAMES.whole(selections))
                    source.channel.written(FRAMES.framed)
                elif source.channel.ready():
                    source.wake()
            connection.end_rest(has_left=True)
            got = connection.got()
            assert [[id for id, _ in got[topic.topic.id]] for topic in topics] == [
                list(range(1, count + 1)) for count in counts
            ]
            assert [topic.statistics().messages for topic in topics] == [0] * len(topics)

    trio.run(main)
