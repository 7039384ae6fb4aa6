"""Nodes without queues that have thousands of consumers: a message costs the same, however many these are."""

import random

import pytest
from counted_steps import counted_calls
from test_direct_nodes import NodeScenario, Producer, taken

from omq.drivers.direct_channel import DirectChannel
from omq.drivers.seam import ACCEPTED, RELEASED, CreditKind, Outcome

CONSUMERS = 1000

FEW_CALLS = CONSUMERS // 2
"""A number of calls of functions that a message does not need, and that would be needed to ask each of the
consumers once.
"""


@pytest.mark.parametrize("others", [0, 2], ids=["idle", "busy"])
async def test_a_message_asks_few_of_many_consumers(others: int) -> None:
    scene = NodeScenario()
    one, *rest = [scene.consumer(2) for _ in range(CONSUMERS)]
    for other in rest:
        other.grant(2 - others, CreditKind.COUNT)
    producer = Producer()
    before = scene.node.room(producer, 1 << 20)
    with counted_calls() as calls:
        scene.send(b"a")
        assert scene.node.room(producer, 1 << 20) == before - 1
        assert await taken(one) == [b"a"]
        one.written(1)
        one.settle(range(1, 2), ACCEPTED)
        one.grant(2, CreditKind.COUNT)
        assert scene.node.room(producer, 1 << 20) == scene.node.statistics().credit == before
    assert scene.told == [(b"a", ACCEPTED)]
    assert calls.total < FEW_CALLS


async def test_a_message_without_a_consumer_that_has_credit_asks_few() -> None:
    scene = NodeScenario()
    consumers = [scene.consumer(0) for _ in range(CONSUMERS)]
    with counted_calls() as calls:
        scene.send(b"a")
        consumers[700].suspend()
        consumers[700].give_back()
        consumers[800].close()
        consumers[500].grant(1, CreditKind.COUNT)
    assert await taken(consumers[500]) == [b"a"]
    assert calls.total < FEW_CALLS


@pytest.mark.parametrize("seed", range(20))
async def test_the_credit_of_a_node_is_the_sum_of_that_of_its_consumers(seed: int) -> None:
    chance = random.Random(seed)
    scene = NodeScenario()
    consumers: list[DirectChannel] = []
    outcomes: list[Outcome] = [ACCEPTED, RELEASED]
    for _ in range(400):
        operation = chance.randrange(13) if consumers else 0
        channel = chance.choice(consumers) if consumers else scene.consumer(0)
        match operation:
            case 0:
                consumers += [channel] if not consumers else [scene.consumer(chance.randrange(4))]
            case 1 | 2 | 3:
                scene.send(b"x")
            case 4 | 5:
                channel.grant(chance.randrange(4), CreditKind.COUNT)
            case 6 | 7:
                count = len(await taken(channel))
                channel.written(chance.randint(0, count))
            case 8:
                channel.settle(range(1, 1000), chance.choice(outcomes))
            case 9:
                chance.choice([channel.hold, channel.suspend, channel.give_back])()
            case 10:
                channel.release()
            case 11:
                channel.drain(print)
            case _:
                chance.choice([channel.cancel, channel.retire])()
                channel.close()
                consumers.remove(channel)
        assert scene.node.statistics().credit == sum(each.room() for each in consumers)
    for channel in consumers:
        channel.close()
    for steps in scene.begun:
        for _ in steps:
            pass
    assert scene.node.held == scene.shared.used == 0


async def test_credit_is_told_to_many_producers_in_steps() -> None:
    scene = NodeScenario()
    consumer = scene.consumer(0)
    producers = [Producer() for _ in range(CONSUMERS)]
    for producer in producers:
        scene.node.attach(producer)
        assert scene.node.room(producer, 100) == 0

    def told() -> int:
        return sum(producer.credited_times for producer in producers)

    consumer.grant(5, CreditKind.COUNT)
    assert not told()
    (steps,) = scene.begun
    next(steps)
    assert 0 < told() < CONSUMERS // 10
    scene.node.detach(producers[-1])
    ready = told()
    # Those that wait are told of later credit at the same time.
    consumer.grant(9, CreditKind.COUNT)
    assert len(scene.begun) == 1
    for _ in steps:
        pass
    assert told() >= CONSUMERS - 1 > ready
    assert [producer.credited_times for producer in producers[-2:]] == [1, 0]
    # When the node ends, nobody is told of the credit any more.
    for producer in producers[:-1]:
        assert scene.node.room(producer, 100) == 9
    consumer.grant(20, CreditKind.COUNT)
    _, steps = scene.begun
    ready = told()
    for _ in scene.node.end():
        pass
    assert not list(steps)
    assert told() == ready
    consumer.close()
