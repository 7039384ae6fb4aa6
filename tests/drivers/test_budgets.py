"""Shares of the memory, and ids that are reserved: who waits gets its own, and no more."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from trio.testing import wait_all_tasks_blocked

from omq.drivers.budget import Budget
from omq.drivers.reservations import IDS_RESERVED, Reservations
from omq.model import Topic


async def test_a_cancelled_task_gives_its_share_back() -> None:
    budget = Budget(10)
    await budget.take(10)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(budget.take, 5)
            await wait_all_tasks_blocked()
            scope.cancel()
            budget.give(10)  # it is granted before it hears that it was cancelled
            assert budget.used == 5
    assert scope.cancelled_caught
    assert budget.used == 0


async def test_a_cancelled_task_lets_the_tasks_behind_it_pass() -> None:
    budget = Budget(10)
    await budget.take(6)
    with trio.fail_after(60):
        await _cancelled_before_another(budget)
    assert budget.used == 9
    assert not budget.is_wanted


async def _cancelled_before_another(budget: Budget) -> None:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(budget.take, 8)
                await wait_all_tasks_blocked()
                nursery.start_soon(budget.take, 3)
                await wait_all_tasks_blocked()
                assert budget.used == 6
                scope.cancel()


def test_one_hears_each_time_that_half_is_free_again() -> None:
    budget = Budget(10)
    heard: list[int] = []
    budget.eased = lambda: heard.append(budget.used)
    assert budget.try_take(9)
    for octets, expected in ((3, []), (1, [5]), (2, [5]), (1, [5])):
        budget.give(octets)
        assert heard == expected
    assert budget.try_take(3)
    budget.give(1)  # half was used, and no more
    assert heard == [5]
    assert budget.try_take(4)
    budget.give(8)
    assert heard == [5, 0]


def test_shares_are_granted_in_order_to_those_that_fit() -> None:
    budget = Budget(10)
    granted: list[str] = []
    assert budget.try_take(9)
    for name, octets in (("small", 2), ("large", 8), ("tiny", 1)):
        assert not budget.try_take(octets)
        budget.enqueue(octets, lambda name=name: granted.append(name))  # type: ignore[misc]  # a lambda with a default has no type
    for freed, names in (
        (1, ["small"]),
        (7, ["small"]),
        (1, ["small", "large"]),
        (1, ["small", "large", "tiny"]),
    ):
        budget.give(freed)
        assert granted == names
    assert (budget.used, budget.waiting) == (10, 0)


@dataclass(eq=False)
class Numbers:
    """A driver that has ids to hand out."""

    topic: Topic = field(default_factory=lambda: Topic(1, b"t"))
    next_id: int = 1
    reserved: int = 1
    deleted: bool = False


async def test_reservations_that_come_together_make_one_commit() -> None:
    commits: list[Mapping[int, int]] = []
    go_on = trio.Event()

    async def commit(bounds: Mapping[int, int]) -> None:
        commits.append(bounds)
        await go_on.wait()

    numbers, reservations = Numbers(), Reservations(commit)
    async with trio.open_nursery() as nursery:
        for count in (5, 1000, 3):
            nursery.start_soon(reservations.reserve, {numbers: count})
            await wait_all_tasks_blocked()
        assert len(commits) == 1
        go_on.set()
    assert commits == [{1: 6 + IDS_RESERVED}]
    assert numbers.reserved == 6 + IDS_RESERVED
