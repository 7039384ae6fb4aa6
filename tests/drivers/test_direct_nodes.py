"""Nodes without queues: who gets a message, and what its producer learns."""

from collections.abc import Iterator

import pytest

from omq.drivers.budget import Budget
from omq.drivers.direct import SHORT_CREDIT, DirectNode, DirectTotals
from omq.drivers.direct_channel import DirectChannel
from omq.drivers.direct_memory import SHORT_OUTCOME, DirectMemory
from omq.drivers.publisher_queue import PublisherQueue, PublisherQueues, RoomAnswer
from omq.drivers.reasons import Refused
from omq.drivers.seam import (
    ACCEPTED,
    RELEASED,
    Channel,
    CreditKind,
    EndReason,
    Granted,
    Modified,
    Outcome,
    TakenMessages,
)
from omq.drivers.statistics import NodeStatistics
from omq_storage.batches import Bodies


class Consumer:
    """A subscriber that takes notes."""

    direct = None

    def __init__(self) -> None:
        self.wakes = 0
        self.ends: list[EndReason] = []

    def wake(self) -> None:
        self.wakes += 1

    def replaced(self, channel: Channel) -> None:
        raise AssertionError("a node has no types")

    def ended(self, end: EndReason) -> None:
        self.ends.append(end)


class Producer:
    """A producer that takes notes."""

    def __init__(self) -> None:
        self.credited_times = 0
        self.has_ended = False

    def credited(self) -> None:
        self.credited_times += 1

    def node_ended(self) -> None:
        self.has_ended = True


class NodeScenario:
    """A node, and what its producer was told."""

    def __init__(self) -> None:
        self.shared = Budget(2 << 20)
        self.memory = DirectMemory(self.shared, PublisherQueues())
        self.forgotten: list[DirectNode] = []
        self.begun: list[Iterator[None]] = []
        self.totals = DirectTotals()
        self.node = DirectNode(b"n", self.memory, self.totals, self.begin, self.forgotten.append)
        self.told: list[tuple[bytes, Outcome]] = []

    def begin(self, steps: Iterator[None]) -> None:
        self.begun.append(steps)

    def consumer(self, credit: int) -> DirectChannel:
        channel = self.node.open(Consumer())
        channel.grant(credit, CreditKind.COUNT)
        return channel

    def room(self) -> int:
        return self.node.room(Producer(), 1 << 20)

    def send(self, body: bytes) -> None:
        self.node.offer(Bodies([body]), b"", lambda outcome, _: self.told.append((body, outcome)))


async def taken(channel: DirectChannel) -> list[bytes]:
    """Take the ready messages, as a terminal does; they are not written yet."""
    found = await channel.take()
    if found is None:
        return []
    assert isinstance(found, TakenMessages)
    return [bytes(selection.block.frame(selection.ids[0])[-1:]) for selection in found.selections]


@pytest.fixture
def scene() -> NodeScenario:
    return NodeScenario()


async def test_consumers_take_turns_within_their_credit(scene: NodeScenario) -> None:
    one, two = scene.consumer(1), scene.consumer(2)
    assert scene.room() == 3
    for body in (b"a", b"b", b"c", b"d"):
        scene.send(body)
    assert scene.room() == 0
    assert await taken(one) == [b"a"]
    assert await taken(two) == [b"b", b"c"]
    assert await taken(two) == []
    one.written(1)
    two.written(2)
    assert (one.granted(), two.granted()) == (Granted(count=0), Granted(count=0))
    assert one.settle(range(1, 2), ACCEPTED) == 1
    assert one.settle(range(1, 2), ACCEPTED) == 0
    assert scene.told == [(b"a", ACCEPTED)]
    two.grant(1, CreditKind.COUNT)
    assert await taken(two) == [b"d"]


async def test_statistics_count_messages_and_the_octets_of_their_bodies(scene: NodeScenario) -> None:
    unused = scene.node.statistics()
    assert unused == NodeStatistics(
        name=b"n", producers=0, consumers=0, credit=0, waiting=0, messages_in=0, octets_in=0, messages_out=0,
        octets_out=0, undelivered=0, stalls=0,
    )  # fmt: skip
    scene.node.attach(Producer())
    one = scene.consumer(1)
    scene.send(b"abc")
    scene.send(b"de")
    await taken(one)
    one.written(1)
    scene.node.count_stall()
    assert scene.node.statistics() == NodeStatistics(
        name=b"n", producers=1, consumers=1, credit=0, waiting=1, messages_in=2, octets_in=5, messages_out=1,
        octets_out=0, undelivered=0, stalls=1,
    )  # fmt: skip
    one.finish()
    assert scene.node.statistics().undelivered == 0  # the message that waits may find another consumer
    one.close()
    assert scene.node.statistics().undelivered == 1


async def test_messages_that_wait_for_credit_keep_their_order(scene: NodeScenario) -> None:
    one = scene.consumer(0)
    for body in (b"a", b"b", b"c"):
        scene.send(body)
    assert await taken(one) == []
    one.grant(3, CreditKind.COUNT)
    assert await taken(one) == [b"a", b"b", b"c"]


async def test_a_message_that_a_consumer_refused_stops_no_other_for_it(scene: NodeScenario) -> None:
    one, two = scene.consumer(1), scene.consumer(0)
    scene.send(b"a")
    assert await taken(one) == [b"a"]
    one.written(1)
    assert one.settle(range(1, 2), RELEASED) == 1
    scene.send(b"b")  # nobody has credit
    one.grant(1, CreditKind.COUNT)
    assert await taken(one) == [b"b"]
    two.grant(2, CreditKind.COUNT)
    assert await taken(two) == [b"a"]


async def test_a_held_consumer_leaves_its_messages_to_others(scene: NodeScenario) -> None:
    one = scene.consumer(5)
    scene.send(b"a")
    scene.send(b"b")
    one.hold()
    assert not one.ready()
    assert one.statistics().is_held
    two = scene.consumer(1)
    assert await taken(two) == [b"a"]
    one.release()
    assert await taken(one) == [b"b"]
    assert one.statistics().unsettled == 1
    two.grant(3, CreditKind.COUNT)
    assert scene.room() == 4 + 2
    one.hold()
    assert scene.room() == 2


async def test_a_drain_ends_with_a_stall_in_which_others_get_the_messages(scene: NodeScenario) -> None:
    one = scene.consumer(2)
    scene.send(b"a")
    left: list[int] = []
    one.drain(left.append)
    one.hold()
    two = scene.consumer(1)
    assert await taken(two) == [b"a"]
    assert left == []
    one.release()
    assert left == [2]


async def test_a_lower_credit_gives_back_in_order(scene: NodeScenario) -> None:
    one = scene.consumer(3)
    for body in (b"a", b"b", b"c"):
        scene.send(body)
    one.grant(1, CreditKind.COUNT)
    assert one.statistics().behind == 1
    one.grant(3, CreditKind.COUNT)
    assert await taken(one) == [b"a", b"b", b"c"]
    with pytest.raises(ValueError, match="window"):
        one.grant(1, CreditKind.WINDOW)


async def test_a_drain_ends_when_everything_is_written(scene: NodeScenario) -> None:
    one = scene.consumer(5)
    scene.send(b"a")
    left: list[int] = []
    one.drain(left.append)
    assert left == []
    assert await taken(one) == [b"a"]
    one.written(0)
    assert await taken(one) == [b"a"]  # it was not sent, so it is given again
    one.written(1)
    assert left == [4]
    assert one.granted() == Granted(count=0)


async def test_a_drain_gives_no_more_than_a_number_of_messages(scene: NodeScenario) -> None:
    one = scene.consumer(5)
    left: list[int] = []
    one.drain(left.append, 2)
    assert left == [2]
    assert one.granted() == Granted(count=0)


async def test_a_cancelled_consumer_keeps_its_messages(scene: NodeScenario) -> None:
    one = scene.consumer(5)
    scene.send(b"a")
    await taken(one)
    one.written(1)
    scene.send(b"b")
    one.finish()
    assert scene.told == [(b"b", RELEASED)]
    scene.send(b"c")
    assert scene.told[1:] == [(b"c", RELEASED)]
    one.settle(range(1, 2), ACCEPTED)
    assert scene.told[2:] == [(b"a", ACCEPTED)]
    one.close()
    one.close()
    one.written(1)
    assert scene.shared.used == 0
    assert scene.forgotten == [scene.node]


async def test_the_end_of_a_node(scene: NodeScenario) -> None:
    one, producer = scene.consumer(5), Producer()
    scene.node.attach(producer)
    scene.send(b"a")
    scene.send(b"b")
    await taken(one)
    list(scene.node.end())
    assert producer.has_ended
    assert isinstance(one.subscriber, Consumer)
    assert one.subscriber.ends == [EndReason.DELETED]
    assert scene.told == [(b"a", Modified(delivery_failed=True)), (b"b", Modified(delivery_failed=True))]
    assert scene.shared.used == 0


async def test_a_node_that_ends_is_forgotten_once(scene: NodeScenario) -> None:
    scene.consumer(1)
    list(scene.node.end())
    assert scene.forgotten == [scene.node]


async def test_memory_for_messages_is_limited(scene: NodeScenario) -> None:
    scene.consumer(5)
    scene.send(b"x" * 600_000)
    assert scene.room() == 0  # half of the memory is in use
    with pytest.raises(Refused, match="no memory"):
        scene.send(b"x" * 600_000)
    assert scene.totals.undelivered == 1


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "being written"])
async def test_a_long_outcome_takes_memory_until_its_message_is_done(
    scene: NodeScenario, *, is_written: bool
) -> None:
    told: list[bytes] = []
    one, two = scene.consumer(3), scene.consumer(0)
    for _ in range(3):
        scene.node.offer(Bodies([b"a"]), b"", lambda _, octets: told.append(octets))
    await taken(one)
    if is_written:
        one.written(3)
    before = scene.shared.used
    outcomes = b"x" * (1 << 19), b"y" * (1 << 20), b"z" * SHORT_OUTCOME
    for number, octets in enumerate(outcomes, 1):
        one.settle_as(range(number, number + 1), RELEASED, octets)
    assert scene.shared.used == before + (1 << 19)  # there is no memory for the second one
    if not is_written:
        one.written(3)
        assert scene.shared.used == before + (1 << 19)
    assert scene.node.statistics().waiting == 3
    two.close()
    assert told == [outcomes[0], b"", outcomes[2]]
    assert scene.shared.used == 0


async def test_producers_hear_when_memory_is_not_short_any_more(scene: NodeScenario) -> None:
    """Also those of a node whose own messages were not the reason, and when a topic used the memory."""
    other = DirectNode(b"m", scene.memory, scene.totals, scene.begin, scene.forgotten.append)
    other.open(Consumer()).grant(50, CreditKind.COUNT)
    producer = Producer()
    channel = scene.consumer(5)
    scene.send(b"x" * 600_000)
    assert other.room(producer, 30) == SHORT_CREDIT
    channel.close()
    assert (producer.credited_times, other.room(producer, 30)) == (1, 30)
    scene.shared.force(3 << 19)
    assert other.room(producer, 30) == SHORT_CREDIT
    scene.shared.give(3 << 19)
    assert (producer.credited_times, other.room(producer, 30)) == (2, 30)


async def test_topics_get_memory_that_nodes_held(scene: NodeScenario) -> None:
    topic: list[int] = []

    def take(octets: int, in_turn: bool) -> RoomAnswer:
        return RoomAnswer.TAKEN if scene.shared.try_take(octets) else RoomAnswer.MEMORY_FULL

    publisher_queues = PublisherQueues()
    scene.memory = DirectMemory(scene.shared, publisher_queues)
    scene.node = DirectNode(b"n", scene.memory, scene.totals, scene.begin, scene.forgotten.append)
    channel = scene.consumer(5)
    scene.send(b"x" * 1_000_000)
    with pytest.raises(Refused, match="no memory"):
        scene.send(b"x" * 500_000)  # the other half is for topics
    publisher_queue = PublisherQueue(take, scene.shared.give, publisher_queues)
    assert publisher_queue.try_enter(1_000_000)
    publisher_queue.enqueue(1_000_000, lambda: topic.append(1))
    assert not topic
    channel.close()
    assert topic


async def test_credit_of_a_consumer_wakes_only_producers_that_get_more(scene: NodeScenario) -> None:
    content, eager = Producer(), Producer()
    channel = scene.consumer(2)
    assert scene.node.room(content, 2) == 2
    assert scene.node.room(eager, 10) == 2
    for credit in (2, 1, 2):
        channel.grant(credit, CreditKind.COUNT)
    assert (content.credited_times, eager.credited_times) == (0, 0)
    channel.grant(3, CreditKind.COUNT)
    assert (content.credited_times, eager.credited_times) == (0, 1)


async def test_without_a_consumer(scene: NodeScenario) -> None:
    producer = Producer()
    scene.node.attach(producer)
    assert scene.room() == 10
    scene.send(b"a")
    assert scene.told == [(b"a", RELEASED)]
    scene.node.detach(producer)
    assert scene.forgotten == [scene.node]
