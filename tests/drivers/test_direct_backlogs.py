"""Nodes without queues that hold thousands of messages: each step gives few to others, or finishes few."""

from itertools import islice

from counted_steps import counted_calls
from test_direct_nodes import NodeScenario, taken

from omq.drivers.direct import DONE_IN_STEP, STEPS_AT_ONCE
from omq.drivers.direct_channel import DirectChannel
from omq.drivers.seam import ACCEPTED, RELEASED, CreditKind, Modified

MESSAGES = 1000

AT_ONCE = DONE_IN_STEP * STEPS_AT_ONCE
"""The number of messages that are given or finished before others have their turn."""

FEW_CALLS = MESSAGES
"""A number of calls of functions that is not enough for a look at each message at each of ten flows."""


def go_on(scene: NodeScenario) -> None:
    """Do the work that the node has left for later."""
    while scene.begun:
        for _ in scene.begun.pop():
            pass


async def with_messages(scene: NodeScenario, *, sent: bool) -> DirectChannel:
    """Return a consumer with messages, which was sent them or not."""
    one = scene.consumer(MESSAGES)
    for _ in range(MESSAGES):
        scene.send(b"x")
    if sent:
        while one.ready():
            one.written(len(await taken(one)))
    return one


async def draining(scene: NodeScenario) -> tuple[DirectChannel, list[int]]:
    """Return a consumer that drains its five credits while others are finished, and its answers."""
    one = await with_messages(scene, sent=True)
    two = scene.consumer(5)
    one.close()
    left: list[int] = []
    two.drain(left.append)
    return two, left


async def test_messages_in_doubt_are_finished_in_steps() -> None:
    scene = NodeScenario()
    one = await with_messages(scene, sent=True)
    one.close()
    assert scene.told == [(b"x", Modified(delivery_failed=True))] * AT_ONCE
    (steps,) = scene.begun
    before = len(scene.told)
    for _ in steps:
        assert len(scene.told) - before <= DONE_IN_STEP
        before = len(scene.told)
    assert len(scene.told) == MESSAGES
    assert scene.shared.used == 0


async def test_messages_that_a_consumer_leaves_go_to_others_in_steps() -> None:
    scene = NodeScenario()
    one = await with_messages(scene, sent=False)
    two = scene.consumer(MESSAGES)
    one.close()
    assert two.statistics().behind == AT_ONCE
    scene.send(b"y")  # it does not pass the others
    (steps,) = scene.begun
    before = two.statistics().behind
    for _ in steps:
        assert two.statistics().behind - before <= DONE_IN_STEP
        before = two.statistics().behind
    assert two.statistics().behind == MESSAGES
    two.grant(MESSAGES + 1, CreditKind.COUNT)
    bodies: list[bytes] = []
    while two.ready():
        bodies += await taken(two)
    assert bodies == [b"x"] * MESSAGES + [b"y"]


async def test_messages_in_doubt_are_finished_while_others_are_given() -> None:
    scene = NodeScenario()
    other = await with_messages(scene, sent=True)
    one = await with_messages(scene, sent=False)
    two = scene.consumer(MESSAGES)
    one.close()
    other.close()
    go_on(scene)
    assert len(scene.told) == MESSAGES
    assert two.statistics().behind == MESSAGES


async def test_a_lower_credit_gives_back_in_steps() -> None:
    scene = NodeScenario()
    one = await with_messages(scene, sent=False)
    two = scene.consumer(MESSAGES)
    one.grant(MESSAGES // 2, CreditKind.COUNT)
    assert (one.statistics().behind, two.statistics().behind) == (MESSAGES // 2, AT_ONCE)
    assert scene.node.statistics().waiting == MESSAGES // 2 - AT_ONCE
    assert scene.room() == MESSAGES // 2  # the credit that is not for those that wait
    go_on(scene)
    assert two.statistics().behind == MESSAGES // 2


async def test_a_flow_looks_at_few_messages_that_its_consumer_has_released() -> None:
    scene = NodeScenario()
    other = scene.consumer(0)
    one = await with_messages(scene, sent=True)
    one.settle(range(1, MESSAGES + 1), RELEASED)
    assert scene.node.statistics().waiting == MESSAGES
    with counted_calls() as calls:
        for number in range(10):
            one.grant(0, CreditKind.COUNT)
            one.grant(2 * MESSAGES + number, CreditKind.COUNT)
    assert calls.total < FEW_CALLS  # a few steps at the first flow with credit
    assert scene.node.statistics().waiting == MESSAGES
    assert scene.room() == MESSAGES + 9  # the credit that is not for those that wait
    go_on(scene)
    with counted_calls() as calls:
        for number in range(10):
            one.grant(3 * MESSAGES + number, CreditKind.COUNT)
    assert calls.total < FEW_CALLS
    assert not scene.begun  # none of them can be given to it
    one.grant(0, CreditKind.COUNT)
    one.grant(1, CreditKind.COUNT)
    go_on(scene)
    assert not one.ready()
    other.grant(MESSAGES, CreditKind.COUNT)
    go_on(scene)
    assert other.statistics().behind == MESSAGES


async def test_messages_whose_last_consumer_leaves_behind_others_are_told() -> None:
    """A message that waits for its first consumer stands before them."""
    scene = NodeScenario()
    one, two = scene.consumer(1), scene.consumer(0)
    scene.send(b"a")
    one.written(len(await taken(one)))
    scene.send(b"b")
    one.settle(range(1, 2), RELEASED)  # `b` waits for any consumer, and `a` behind it for `two`
    two.close()
    assert scene.told == [(b"a", RELEASED)]
    one.grant(1, CreditKind.COUNT)
    assert await taken(one) == [b"b"]


async def test_a_drain_waits_until_the_messages_that_wait_are_given() -> None:
    scene = NodeScenario()
    one = await with_messages(scene, sent=False)
    two = scene.consumer(0)
    one.close()
    left: list[int] = []
    two.grant(MESSAGES + 5, CreditKind.COUNT)
    while two.ready():
        two.written(len(await taken(two)))
    two.drain(left.append)
    assert left == []
    go_on(scene)
    while two.ready():
        two.written(len(await taken(two)))
    assert left == [5]


async def test_a_drain_waits_while_messages_are_finished() -> None:
    scene = NodeScenario()
    _, left = await draining(scene)
    assert left == []
    go_on(scene)
    assert left == [5]


async def test_a_drain_of_a_consumer_that_leaves_meanwhile_has_no_answer() -> None:
    scene = NodeScenario()
    two, left = await draining(scene)
    two.close()
    go_on(scene)
    assert left == []


async def test_a_node_that_stops_or_ends_finishes_what_is_left() -> None:
    for finish in ("stop", "end"):
        scene = NodeScenario()
        one = await with_messages(scene, sent=True)
        one.close()
        (steps,) = scene.begun
        list(islice(steps, 3))
        assert len(scene.told) < MESSAGES
        list(getattr(scene.node, finish)())
        assert len(scene.told) == MESSAGES
        list(steps)
        assert len(scene.told) == MESSAGES
        assert scene.shared.used == 0


async def test_outcomes_of_many_messages_that_are_being_written() -> None:
    scene = NodeScenario()
    one = await with_messages(scene, sent=False)
    count = len(await taken(one))
    assert count > MESSAGES // 2
    with counted_calls() as calls:
        assert one.settle(range(1, count + 1), ACCEPTED) == count
    assert calls.total < 10 * count  # and not one for each pair of them
    one.written(count)
    assert scene.told == [(b"x", ACCEPTED)] * count
