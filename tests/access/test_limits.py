"""Quotas, and octets a second."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.access.limits import MOMENT_SECONDS, Quota, RateLimit


def test_a_quota_counts() -> None:
    quota = Quota(2)
    assert [quota.take() for _ in range(4)] == [True, True, False, False]
    assert quota.used == 2
    quota.give()
    assert [quota.take() for _ in range(2)] == [True, False]


def test_without_a_limit_a_quota_is_never_spent() -> None:
    quota = Quota(None)
    assert all(quota.take() for _ in range(1000))
    assert quota.used == 1000


async def test_a_waiting_task_takes_the_first_unit_that_a_quota_gets_back(mock_clock: MockClock) -> None:
    quota = Quota(1)
    assert await quota.take_soon()
    taken: list[bool] = []

    async def take() -> None:
        taken.append(await quota.take_soon())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        mock_clock.jump(MOMENT_SECONDS - 0.01)
        await wait_all_tasks_blocked()
        assert taken == []
        quota.give()
        await wait_all_tasks_blocked()
        assert taken == [True]
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        mock_clock.jump(MOMENT_SECONDS)
    assert taken == [True, False]
    assert quota.used == 1


@pytest.mark.parametrize("idle", [0, 1, 3600, 1_000_000])
async def test_octets_take_their_time_after_any_idleness(idle: float, mock_clock: MockClock) -> None:
    limit = RateLimit(1000)
    mock_clock.jump(idle)
    assert limit.is_open()
    for _ in range(5):
        assert limit.is_open()
        limit.spend(1000)
        assert limit.until == trio.current_time()  # the octets of a second may come together
        mock_clock.jump(1)
    limit.spend(3000)
    assert not limit.is_open()
    mock_clock.jump(1.99)
    assert not limit.is_open()
    mock_clock.jump(0.01)
    assert limit.is_open()


@pytest.mark.parametrize(("rate", "seconds"), [(500, 9), (1000, 4), (5000, 0), (10_000, -0.5), (1 << 60, -1)])
async def test_a_debt_is_paid_off_at_the_changed_rate(
    rate: int, seconds: float, mock_clock: MockClock
) -> None:
    limit = RateLimit(1000)
    limit.change(1000)  # before anything has passed
    mock_clock.jump(100)
    limit.spend(5000)
    passed: list[float] = []

    async def wait() -> None:
        await limit.wait()
        passed.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert passed == []
        limit.change(rate)
        assert limit.octets_per_second == rate
        assert limit.until == pytest.approx(100 + seconds)
        mock_clock.autojump_threshold = 0
    assert passed == [pytest.approx(max(100, 100 + seconds))]


def test_reads_of_a_limited_client_are_neither_long_nor_empty() -> None:
    assert [RateLimit(rate).piece for rate in (1, 100, 1 << 14, 1 << 30)] == [1, 100, 1 << 14, 1 << 14]
