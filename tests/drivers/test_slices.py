"""Work in slices lets other tasks run when its slice is over, however many pieces of work it consists of."""

import pytest
import trio
import trio.testing
from counted_steps import steps

from omq.drivers.slices import SLICE_SECONDS, Slices


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def read(self) -> float:
        return self.now

    def pass_part(self, part: float) -> None:
        """Pass a part of a slice."""
        self.now += part * SLICE_SECONDS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock.read)
    return clock


async def test_others_run_when_a_slice_is_over(clock: Clock) -> None:
    slices = Slices()
    async with steps() as counted:
        await slices.step()
        clock.pass_part(0.9)
        await slices.step()
        assert (slices.turns, counted.count) == (0, 0)
        clock.pass_part(0.2)
        await slices.step()
        assert (slices.turns, counted.count) == (1, 1)
        clock.pass_part(0.9)
        await slices.step()
        assert (slices.turns, counted.count) == (1, 1)


async def test_work_within_other_work_goes_on_with_its_slice(clock: Clock) -> None:
    outer = Slices()
    clock.pass_part(0.9)
    inner = Slices()
    assert not inner.is_over
    clock.pass_part(0.2)
    assert inner.is_over
    async with steps() as counted:
        await inner.step()
        assert counted.count == 1
    assert not inner.is_over
    assert outer.is_over


async def test_work_after_a_slice_begins_another_one(clock: Clock) -> None:
    Slices()
    clock.pass_part(1.5)
    later = Slices()
    clock.pass_part(0.9)
    assert not later.is_over


async def test_a_pause_begins_a_slice(clock: Clock) -> None:
    slices = Slices()
    clock.pass_part(0.9)
    async with steps() as counted:
        await slices.pause()
        assert counted.count == 1
    clock.pass_part(0.9)
    assert not slices.is_over
    assert not Slices().is_over
    clock.pass_part(0.2)
    assert slices.is_over


async def test_each_task_has_slices_of_its_own(clock: Clock) -> None:
    async def begin() -> None:
        Slices()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        await trio.testing.wait_all_tasks_blocked()
        clock.pass_part(0.9)
        own = Slices()
        clock.pass_part(0.2)
        assert not own.is_over


async def test_a_longer_slice_than_one_can_be_is_not_continued(clock: Clock) -> None:
    """A slice that was begun by another clock, as tests use them."""
    Slices()
    clock.now = 0.0
    slices = Slices()
    clock.pass_part(1.1)
    assert slices.is_over
