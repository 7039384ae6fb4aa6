"""The stored position of a round-robin topic, found while its messages move between thousands of channels."""

import random

import pytest
import trio
from counted_steps import counted_calls
from hypothesis import given
from hypothesis import strategies as st
from served_drivers import Client, Drivers, Kind, of_kinds, post

from omq.drivers import slices
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.seam import ACCEPTED, RELEASED, Outcome
from omq.drivers.undone import UndoneMessages
from omq_storage.environment import Position
from omq_storage.runs import RUN_IDS, Run

STORED = of_kinds(lambda kind: not kind.is_broadcast and kind.is_persistent)

CHANNELS = 30

WINDOW = 3


@pytest.fixture
def _slices_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give other tasks their turn after each step."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)


def ids_of(position: Position) -> list[int]:
    ids = sorted(id for run in position.undone for id in run.ids())
    assert len(ids) == len(set(ids))
    assert not ids or ids[-1] < position.cursor
    return ids


def worker(driver: RoundRobinDriver) -> Client:
    client = Client(driver)
    client.request(WINDOW)
    return client


class Workers:
    """Subscribers that settle, release, leave and come at random. It knows which messages are done."""

    def __init__(self, driver: RoundRobinDriver, seed: int) -> None:
        self.driver = driver
        self.random = random.Random(seed)
        self.workers = [worker(driver) for _ in range(CHANNELS)]
        self.done: set[int] = set()

    async def act(self) -> None:
        """Let one of them do something, mostly one of the first or the last ones."""
        place = self.random.choice((0, 1, CHANNELS // 2, CHANNELS - 2, CHANNELS - 1))
        client = self.workers[place]
        if self.random.random() < 0.1:
            await self.replace_two()
        else:
            await client.read_once()
            self.settle(client, self.random.choice((ACCEPTED, RELEASED, RELEASED)))

    async def replace_two(self) -> None:
        """Let the last workers leave together, one after the other."""
        leaving = self.workers[-1], self.workers[-2]
        for client in leaving:
            client.channel.retire()
        for client in leaving:
            for _ in range(CHANNELS // 2):
                await trio.lowlevel.checkpoint()
            client.close()
        self.workers[-2:] = [worker(self.driver), worker(self.driver)]

    def settle(self, client: Client, outcome: Outcome) -> None:
        while client.got:
            id = client.got.pop(0).id
            if client.channel.settle(range(id, id + 1), outcome):
                if outcome is ACCEPTED:
                    self.done.add(id)
                return

    def must_have(self) -> set[int]:
        return set(range(1, self.driver.next_id)) - self.done


@STORED
@pytest.mark.usefixtures("_slices_are_over")
@pytest.mark.parametrize("seed", range(5))
async def test_no_message_is_missed_while_messages_move(drivers: Drivers, kind: Kind, seed: int) -> None:
    driver = await drivers.topic(kind)
    assert isinstance(driver, RoundRobinDriver)
    workers = Workers(driver, seed)
    await post(driver, *[b"x"] * (CHANNELS * WINDOW + 10))
    moving = trio.CancelScope()

    async def move() -> None:
        with moving:
            while True:
                await workers.act()
                await trio.lowlevel.checkpoint()

    found = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(move)
        for _ in range(20):
            position = await driver.position()
            ids = ids_of(position)
            assert workers.must_have() <= {*ids, *range(position.cursor, driver.next_id)}
            found += len(ids)
        moving.cancel()
    assert found > CHANNELS
    for client in workers.workers:
        client.close()
    position = await driver.position()
    assert {*ids_of(position), *range(position.cursor, driver.next_id)} == workers.must_have()


@STORED
@pytest.mark.usefixtures("_slices_are_over")
async def test_other_tasks_run_between_the_channels(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    assert isinstance(driver, RoundRobinDriver)
    clients = [worker(driver) for _ in range(CHANNELS)]
    turns = 0
    counting = trio.CancelScope()

    async def count() -> None:
        nonlocal turns
        with counting:
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        await driver.position()
        counting.cancel()
    assert turns >= CHANNELS
    for client in clients:
        client.close()


async def test_a_message_that_moved_counts_once() -> None:
    undone = UndoneMessages(100, [Run(1, 1, 0b1, 1)])
    undone.add_outstanding([Run(2, 2, 0b111), Run(3, 1, 0b1, 4), Run(99, 1, 0b11)])
    undone.add_moved([Run(4, 1, 0b1, 1), Run(100, 1, 0b1)])
    undone.add_moved([Run(4, 1, 0b1, 2)])
    undone.add_outstanding([Run(1, 1, 0b1, 3), Run(20, 10, 0b11)])
    found = Position(100, await undone.in_slices(slices.Slices()))
    assert ids_of(found) == [1, 2, 3, 4, 6, 20, 30, 99]
    assert {id: run.deliveries for run in found.undone for id in run.ids() if run.deliveries} == {
        1: 1,
        3: 4,
        4: 2,
    }


runs = st.lists(
    st.builds(Run, st.integers(1, 3 * RUN_IDS), st.integers(1, 3), st.integers(1, 1 << 40), st.integers(0, 2))
)


@given(runs, runs, st.integers(1, 4 * RUN_IDS))
def test_what_moved_last_replaces_what_was_found_before(
    moved: list[Run], held: list[Run], cursor: int
) -> None:
    undone = UndoneMessages(cursor, moved)
    expected = {id: run.deliveries for run in moved for id in run.ids() if id < cursor}
    free = {id for run in held for id in run.ids() if id < cursor} - expected.keys()
    given_back: set[int] = set()
    for run in held:  # no two channels have one message
        if given_back.isdisjoint(run.ids()):
            undone.add_outstanding([run])
            given_back |= set(run.ids())
            expected |= dict.fromkeys(free & set(run.ids()), run.deliveries)
    found = Position(cursor, trio.run(undone.in_slices, slices.Slices()))
    assert ids_of(found) == sorted(expected)
    assert {id: run.deliveries for run in found.undone for id in run.ids()} == expected


async def test_long_runs_that_moved_in_the_order_of_their_return_are_found_with_little_work() -> None:
    """The last messages return first when a client stalls."""
    count = 8
    moved = [Run(number * RUN_IDS + 1, 1, (1 << RUN_IDS) - 1) for number in reversed(range(count))]
    undone = UndoneMessages((count + 1) * RUN_IDS, moved)
    undone.add_outstanding([Run(RUN_IDS, 1, (1 << RUN_IDS) - 1, 1)])
    with counted_calls() as calls:
        found = await undone.in_slices(slices.Slices())
    assert calls.total < RUN_IDS
    assert sorted(id for run in found for id in run.ids()) == list(range(1, count * RUN_IDS + 1))
