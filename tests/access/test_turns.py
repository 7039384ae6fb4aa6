"""Turns: a lock whose next holder is the group that ranks lowest, also when other tasks give up."""

import random

import trio
from trio.testing import wait_all_tasks_blocked

from omq.access.turns import Turns


class TurnTasks:
    """Tasks that wait for turns; each one's turn lasts until it is told to end."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.ranks: dict[bytes, float] = {}
        self.turns = Turns(lambda group: self.ranks.get(group, 0.0))
        self.begun: list[str] = []
        self._nursery = nursery
        self.scopes: dict[str, trio.CancelScope] = {}
        self.ends: dict[str, trio.Event] = {}

    async def wait(self, *names: str) -> None:
        """Let tasks wait, in this order. A task's group is the first letter of its name."""
        for name in names:
            self._nursery.start_soon(self._run, name)
            await wait_all_tasks_blocked()

    async def end(self, *names: str) -> None:
        """End turns."""
        for name in names:
            self.ends[name].set()
            await wait_all_tasks_blocked()

    def cancel(self, *names: str) -> None:
        """Let tasks give up, all at once."""
        for name in names:
            self.scopes[name].cancel()

    async def _run(self, name: str) -> None:
        self.ends[name] = trio.Event()
        with trio.CancelScope() as self.scopes[name]:
            async with self.turns.turn(name[:1].encode()):
                self.begun.append(name)
                await self.ends[name].wait()


async def test_groups_take_turns_and_tasks_of_a_group_come_in_order() -> None:
    async with trio.open_nursery() as nursery:
        rig = TurnTasks(nursery)
        await rig.wait("a1", "a2", "a3", "b1", "b2", "c1")
        assert rig.begun == ["a1"]
        for name in ("a1", "b1", "c1", "a2", "b2", "a3"):
            assert rig.begun[-1] == name
            await rig.end(name)
        assert rig.begun == ["a1", "b1", "c1", "a2", "b2", "a3"]
        assert not rig.turns.in_use


async def test_the_lowest_rank_comes_first() -> None:
    async with trio.open_nursery() as nursery:
        rig = TurnTasks(nursery)
        rig.ranks = {b"a": 3, b"b": 2, b"c": 1}
        await rig.wait("a1", "a2", "b1", "c1", "c2")
        await rig.end("a1")
        rig.ranks[b"c"] = 4
        await rig.end("c1", "b1", "a2", "c2")
        assert rig.begun == ["a1", "c1", "b1", "a2", "c2"]


async def test_a_cancelled_task_is_passed_over() -> None:
    async with trio.open_nursery() as nursery:
        rig = TurnTasks(nursery)
        await rig.wait("a1", "a2", "a3", "b1", "b2", "c1")
        rig.cancel("a2", "a3", "b1", "b2")
        await rig.wait("b3", "a4")
        await rig.end("a1", "c1", "b3", "a4")
        assert rig.begun == ["a1", "c1", "b3", "a4"]
        assert not rig.turns.in_use


async def test_a_task_cancelled_during_the_handover_does_not_keep_the_lock() -> None:
    """Whether the waiting task is cancelled just before or just after, in the same step of the loop."""
    async with trio.open_nursery() as nursery:
        rig = TurnTasks(nursery)
        await rig.wait("a1", "b1", "c1")
        rig.cancel("a1", "b1")
        await wait_all_tasks_blocked()
        assert rig.begun == ["a1", "c1"]
        await rig.wait("d1", "e1")
        await rig.end("c1")
        rig.cancel("d1")
        rig.cancel("e1")
        await wait_all_tasks_blocked()
        assert rig.begun == ["a1", "c1", "d1"]
        assert not rig.turns.in_use


async def test_any_order_of_coming_ending_and_giving_up_leaves_the_lock_free() -> None:
    chance = random.Random(15)
    for _ in range(30):
        async with trio.open_nursery() as nursery:
            rig = TurnTasks(nursery)
            rig.ranks = {letter.encode(): chance.randrange(3) for letter in "abcd"}
            names = [f"{chance.choice('abcd')}{number}" for number in range(30)]
            for name in names:
                await rig.wait(name)
                for other in chance.sample(rig.begun, 1) + chance.sample(list(rig.scopes), 1):
                    match chance.randrange(3):
                        case 0:
                            rig.cancel(other)
                        case 1:
                            rig.ends[other].set()
                        case _:
                            rig.ranks[other[:1].encode()] = chance.randrange(3)
                await wait_all_tasks_blocked()
            assert len(set(rig.begun)) == len(rig.begun)
            while rig.turns.in_use:
                await rig.end(rig.begun[-1])
            for name in names:  # each of them had a turn or gave up
                assert name in rig.begun or rig.scopes[name].cancelled_caught
