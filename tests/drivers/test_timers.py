"""Alarms, periodic rounds, and the ages of messages, by a clock that stands still between the looks."""

import logging
import time
import tracemalloc
from functools import partial

import pytest
import trio
from counted_steps import counted_calls, watched
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.drivers.ages import MARKS, Ages
from omq.drivers.alarms import Alarms
from omq.drivers.rounds import repeat
from omq.drivers.signal import Signal
from omq_storage.errors import StoreError

MICROSECONDS = 1_000_000


async def test_calls_are_made_when_they_are_due_in_their_order(mock_clock: MockClock) -> None:
    alarms = Alarms()
    now = trio.current_time()
    called: list[tuple[str, float]] = []

    def at(seconds: float, name: str) -> None:
        alarms.at(now + seconds, lambda: called.append((name, trio.current_time() - now)))

    at(2, "two")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        await wait_all_tasks_blocked()
        at(3, "three")
        at(1, "one")  # earlier than what is waited for
        at(2, "another two")
        at(0, "now")
        at(-1, "past")
        await wait_all_tasks_blocked()
        assert [name for name, _ in called] == ["past", "now"]
        for _ in range(6):
            mock_clock.jump(0.5)
            await wait_all_tasks_blocked()
        assert called[2:] == [("one", 1.0), ("two", 2.0), ("another two", 2.0), ("three", 3.0)]
        at(4, "four")
        mock_clock.jump(0.9)
        await wait_all_tasks_blocked()
        assert len(called) == 6
        mock_clock.jump(0.1)
        await wait_all_tasks_blocked()
        assert called[6:] == [("four", 4.0)]
        nursery.cancel_scope.cancel()


async def test_a_call_may_set_another(mock_clock: MockClock) -> None:
    alarms = Alarms()
    times: list[float] = []

    def again() -> None:
        times.append(trio.current_time() - began)
        if len(times) < 4:
            alarms.at(trio.current_time() + len(times) - 1, again)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        alarms.at(began + 1, again)
        for _ in range(5):
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert times == [1, 1, 2, 4]


async def test_a_cancelled_call_is_not_made(mock_clock: MockClock) -> None:
    alarms = Alarms()
    made: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        for time in (3, 1, 2):
            alarms.at(time, partial(made.append, f"{time}"))
        cancelled = alarms.at(1.5, lambda: made.append("cancelled"))
        last = alarms.at(4, lambda: alarms.cancel(last))  # which it is already
        alarms.cancel(cancelled)
        alarms.cancel(cancelled)
        for expected in (["1"], ["1", "2"], ["1", "2", "3"], ["1", "2", "3"]):
            await wait_all_tasks_blocked()
            mock_clock.jump(1)
            await wait_all_tasks_blocked()
            assert made == expected
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("others", [0, 10])
async def test_cancelled_calls_take_no_memory(others: int, mock_clock: MockClock) -> None:
    alarms = Alarms()
    made: list[None] = []
    tracemalloc.start()
    try:
        for _ in range(others):
            alarms.at(1, lambda: made.append(None))
        for _ in range(20_000):
            alarms.cancel(alarms.at(1_000_000, lambda: None))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1_000_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        mock_clock.jump(1)
        await wait_all_tasks_blocked()
        assert len(made) == others
        nursery.cancel_scope.cancel()


async def test_a_signal_wakes_once_and_is_not_lost() -> None:
    signal = Signal()
    signal.set()
    signal.set()
    await signal.wait()
    with trio.move_on_after(0) as scope:
        await signal.wait()
    assert scope.cancelled_caught
    signal.set()
    await signal.wait()


async def test_rounds_keep_their_time_and_survive_failures(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    began = trio.current_time()
    times: list[float] = []

    async def act() -> None:
        times.append(trio.current_time() - began)
        match len(times):
            case 1:
                await trio.sleep(3)
            case 2:
                await trio.sleep(25)  # longer than two rounds
            case 4:
                raise StoreError("The disk is away.")
            case 5:
                raise OSError("no descriptor")
            case 6:
                raise KeyError("a defect")
            case _:
                pass

    async with trio.open_nursery() as nursery:
        with caplog.at_level(logging.INFO):
            nursery.start_soon(repeat, logging.getLogger("omq.test"), "tidying", 10, act)
            for _ in range(100):
                await wait_all_tasks_blocked()
                mock_clock.jump(1)
        nursery.cancel_scope.cancel()
    # Two rounds are late, and come at once; no others are made up for.
    assert times == [10, 20, 45, 45, 55, 65, 75, 85, 95]
    told = [record.getMessage() for record in caplog.records]
    assert "tidying" in told[0]
    assert "The disk is away." in told[0]


class SettableClock:
    """The clock of the machine, which an operator may set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_700_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.seconds * 10**9)


async def test_messages_of_this_run_age_by_the_monotonic_clock(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = SettableClock(monkeypatch)
    began = wall.seconds
    ages = Ages(next_id=50, seconds=MARKS)  # so that marks are a second apart
    old = ages.too_old()
    assert (old.time, old.time_below, old.below) == ((began - MARKS) * MICROSECONDS, 50, 0)
    for second in range(1, MARKS):
        mock_clock.jump(1)
        wall.seconds += 1
        ages.mark(50 + second)
    assert ages.too_old().below == 0
    assert ages.too_old().time == (began - 1) * MICROSECONDS
    mock_clock.jump(1)
    wall.seconds += 1
    ages.mark(1000)
    assert ages.too_old().below == 50  # what was there at the start is older than the limit now
    mock_clock.jump(1)
    ages.mark(1000)
    assert ages.too_old().below == 51
    mock_clock.jump(10)
    ages.mark(1000)
    assert ages.too_old().below == 61
    mock_clock.jump(MARKS - 11)
    ages.mark(1000)
    assert ages.too_old().below == 1000
    assert ages.too_old().time_below == 50


async def test_recent_events_that_come_fast_are_not_all_kept(mock_clock: MockClock) -> None:
    ages = Ages(next_id=1, seconds=2 * MARKS)
    mock_clock.jump(1.9)
    ages.mark(100)  # too early for a mark
    mock_clock.jump(0.1)
    ages.mark(200)
    mock_clock.jump(2 * MARKS - 2)
    ages.mark(300)
    assert ages.too_old().below == 1
    mock_clock.jump(1.9)
    ages.mark(300)
    assert ages.too_old().below == 1
    mock_clock.jump(0.1)
    ages.mark(300)
    assert ages.too_old().below == 200


@pytest.mark.parametrize(("moved", "counted"), [(0, 10), (3600, 10), (-3600, -3590), (-5, 5)])
async def test_a_wall_clock_that_is_set_makes_nothing_older(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, moved: int, counted: int
) -> None:
    wall = SettableClock(monkeypatch)
    began = wall.seconds
    ages = Ages(next_id=50, seconds=100)
    mock_clock.jump(10)
    wall.seconds += 10 + moved
    assert ages.too_old().time == (began + counted - 100) * MICROSECONDS


async def test_many_calls_that_are_due_together_are_made_in_slices(autojump_clock: MockClock) -> None:
    alarms = Alarms()
    made: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.run)
        for number in range(1000):
            alarms.at(trio.current_time() + 1, partial(made.append, number))
        with watched(lambda: len(made)) as numbers, counted_calls():
            await trio.sleep(2)
        assert made == list(range(1000))
        assert numbers.largest_rise() <= 150
        nursery.cancel_scope.cancel()
