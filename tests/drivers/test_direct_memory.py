"""The memory of nodes without queues: one that holds much, or a topic, leaves something to the others."""

import pytest
from test_direct_nodes import Consumer, NodeScenario, Producer

from omq.drivers.direct import SHORT_CREDIT, DirectNode
from omq.drivers.direct_channel import DirectChannel
from omq.drivers.reasons import Refused
from omq.drivers.seam import ACCEPTED, CreditKind
from omq_storage.batches import Bodies

CREDIT = 1000

RESERVE = 2 << 20 >> 4
"""The octets of the reserve in the scenario: 128 KiB."""


class Light:
    """A node beside that of the scenario."""

    def __init__(self, scene: NodeScenario) -> None:
        self.node = DirectNode(b"light", scene.memory, scene.totals, scene.begin, scene.forgotten.append)
        self.channel: DirectChannel = self.node.open(Consumer())
        self.channel.grant(CREDIT, CreditKind.COUNT)
        self.producer = Producer()

    def room(self) -> int:
        return self.node.room(self.producer, CREDIT)

    def send(self, octets: int) -> None:
        self.node.offer(Bodies([bytes(octets)]), b"", lambda _, __: None)


def fill(scene: NodeScenario) -> DirectChannel:
    """Send messages to a consumer that settles nothing, until there is no memory for more."""
    slow = scene.consumer(CREDIT)
    for _ in range(scene.shared.limit // 2 // 20_100):
        scene.send(bytes(20_000))
    with pytest.raises(Refused):
        scene.send(bytes(20_000))
    assert scene.room() == 0
    return slow


async def test_a_node_that_holds_little_goes_on_while_another_holds_much() -> None:
    scene = NodeScenario()
    light = Light(scene)
    assert light.room() == CREDIT
    slow = fill(scene)
    assert light.room() == SHORT_CREDIT
    for _ in range(SHORT_CREDIT):
        light.send(1000)
    with pytest.raises(Refused):
        scene.send(bytes(1000))
    light.channel.close()
    assert light.node.held == 0
    slow.close()
    assert (scene.node.held, scene.shared.used) == (0, 0)


async def test_a_node_goes_on_while_topics_use_all_the_memory() -> None:
    scene = NodeScenario()
    light = Light(scene)
    scene.shared.force(scene.shared.limit)
    assert light.room() == SHORT_CREDIT
    light.send(1000)
    light.channel.close()
    assert scene.shared.used == scene.shared.limit
    assert light.node.held == 0


async def test_the_reserve_is_for_nodes_that_hold_little() -> None:
    scene = NodeScenario()
    fill(scene)
    light = Light(scene)
    with pytest.raises(Refused):
        light.send(RESERVE // 4)
    light.send(RESERVE // 5)
    assert light.room() == 0  # more than an eighth of what is left
    light.channel.close()
    assert Light(scene).room() == SHORT_CREDIT


async def taken_ids(channel: DirectChannel) -> list[int]:
    """Take all messages, as a terminal does."""
    return [selection.ids[0] for selection in channel.take_at_once(1 << 20)]


async def test_producers_hear_that_their_node_holds_little_again() -> None:
    scene = NodeScenario()
    fill(scene)
    light = Light(scene)
    light.send(RESERVE // 5)
    assert light.room() == 0
    (message,) = await taken_ids(light.channel)
    light.channel.written(1)
    light.channel.settle_as(range(message, message + 1), ACCEPTED, b"")
    assert light.producer.credited_times == 1
    assert light.room() == SHORT_CREDIT


async def test_no_node_gets_credit_while_half_of_the_reserve_is_used() -> None:
    scene = NodeScenario()
    fill(scene)
    others: list[Light] = []
    while (last := Light(scene)).room():
        last.send(4000)
        others.append(last)
    assert RESERVE // 2 <= len(others) * 4000 < RESERVE
    last.send(1000)  # there is still memory for what its producers send with their former credit
    assert last.producer.credited_times == 0
    for other in others[: len(others) // 3]:
        other.channel.close()
    assert last.room() == 0
    for other in others[len(others) // 3 :]:
        other.channel.close()
    assert last.producer.credited_times == 1
    assert last.room() == SHORT_CREDIT
