"""Shares of the memory by themselves: when those who wait for one are woken, and who has to give way."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.drivers.memory import Memory
from omq.drivers.signal import Signal
from omq.drivers.stalled import FRAMES, Stalled
from omq.drivers.unconfirmed import FREE_OCTETS, Unconfirmed
from omq.drivers.unfinished import Holding, UnfinishedMemory


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


def test_the_memory_is_shared_out_as_documented() -> None:
    """docs/ARCHITECTURE.md, "Memory"."""
    memory = Memory(32 * 64)
    limits = {
        "tails": memory.tails.limit,
        "one tail": memory.tail_octets,
        "waiting": memory.waiting.limit,
        "one topic that waits": memory.waiting_octets,
        "posted": memory.posted.limit,
        "reading": memory.reading.limit,
        "replayed": memory.replayed.limit,
        "fetched": memory.fetched.limit,
        "listed": memory.listed.limit,
        "stalled": memory.stalled.limit,
        "unconfirmed": memory.unconfirmed.limit,
        "unfinished": memory.unfinished.limit,
        "uploaded": memory.uploaded.limit,
    }
    assert {what: limit // 64 for what, limit in limits.items()} == {
        "tails": 7,
        "one tail": 7,
        "waiting": 6,
        "one topic that waits": 2,
        "posted": 4,
        "reading": 3,
        "replayed": 2,
        "fetched": 2,
        "listed": 1,
        "stalled": 2,
        "unconfirmed": 1,
        "unfinished": 3,
        "uploaded": 1,
    }
    assert all(limit % 64 == 0 for limit in limits.values())


async def test_a_waiting_worker_is_woken_when_a_sixteenth_is_free() -> None:
    share = Unconfirmed(1600)
    share.change(1599)
    assert share.may_grow(FREE_OCTETS + 1)
    share.change(1)
    assert [share.may_grow(octets) for octets in (0, FREE_OCTETS, FREE_OCTETS + 1)] == [True, True, False]
    woken = 0
    signal = Signal()
    share.call_when_free(signal)

    async def wait() -> None:
        nonlocal woken
        while True:
            await signal.wait()
            woken += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for change, count in ((-99, 0), (-1, 1), (-1500, 1), (1600, 1)):
            share.change(change)
            await wait_all_tasks_blocked()
            assert woken == count
        share.call_when_free(signal)
        share.forget(signal)
        share.change(-1600)
        share.call_when_free(signal)  # there is room, so there is nothing to wait for
        share.change(1)
        share.change(-1)
        await wait_all_tasks_blocked()
        assert woken == 1
        nursery.cancel_scope.cancel()


async def test_every_octet_of_an_unfinished_line_is_counted(clock: MockClock) -> None:
    share = UnfinishedMemory(100)
    one, two = (Holding(trio.CancelScope()) for _ in range(2))
    await share.hold(one, 99)
    await share.hold(one, 98)  # it holds them already
    assert share.used == one.octets == 99
    await share.hold(two, 1)
    assert (share.used, share.holders) == (100, 2)
    share.release(one)
    await share.hold(two, 2)
    assert (share.used, share.holders, share.waiting) == (2, 1, 0)
    share.release(two)
    assert (share.used, share.holders) == (0, 0)


async def test_a_client_that_leaves_lets_those_behind_it_pass(clock: MockClock) -> None:
    share = UnfinishedMemory(100)
    one, other, exceeding, large, small = (Holding(trio.CancelScope()) for _ in range(5))
    await share.hold(one, 95)
    await share.hold(other, 5)
    await share.hold(exceeding, 10)
    assert exceeding.exceeds
    share.release(one)
    scope = trio.CancelScope()

    async def wait_for_much() -> None:
        with scope:
            await share.hold(large, 96)  # no second one may exceed the limit

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_much)
        await wait_all_tasks_blocked()
        nursery.start_soon(share.hold, small, 40)
        await wait_all_tasks_blocked()
        assert (share.waiting, large.octets, small.octets) == (2, 0, 0)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert (share.waiting, large.octets, small.octets) == (0, 0, 40)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("octets", "seconds", "evicted_at"),
    [
        ([], [], 2.0),
        ([16383], [1.5], 2.0),
        ([16384], [1.5], 3.5),
        ([8192, 8192], [1.0, 0.5], 3.5),
        ([16384] * 6, [1.5] * 6, 10.0),
    ],
)
async def test_a_client_that_sends_little_gives_way_to_waiting_ones(
    clock: MockClock, octets: list[int], seconds: list[float], evicted_at: float
) -> None:
    """Less than 16 KiB in two seconds, or not everything in ten."""
    holding = Holding(trio.CancelScope())
    await UnfinishedMemory(100).hold(holding, 50)
    assert holding.evicted_at() > 1e9  # the server does not wait for it
    began = trio.current_time()
    for more, passed in zip(octets, seconds, strict=True):
        holding.begin_wait()
        clock.jump(passed)
        holding.end_wait(more)
    holding.begin_wait()
    assert holding.evicted_at() == pytest.approx(began + evicted_at)


async def test_of_equally_slow_clients_the_one_that_exceeds_the_limit_gives_way(clock: MockClock) -> None:
    share = UnfinishedMemory(100)
    small, exceeding, waiting = (Holding(trio.CancelScope()) for _ in range(3))
    await share.hold(small, 60)
    await share.hold(exceeding, 60)
    assert exceeding.exceeds
    small.begin_wait()
    exceeding.begin_wait()
    clock.jump(2)
    await share.hold(waiting, 50)
    assert (small.is_evicted, exceeding.is_evicted) == (False, True)


async def test_one_stalled_message_is_held_however_large_it_is() -> None:
    stalled = Stalled(100)
    told: list[str] = []
    with stalled.holding(1, 1, 500, lambda _: told.append("first"), 1):
        with stalled.holding(1, 1, 500, lambda _: told.append("second"), 2):
            assert stalled.used == 500
            assert told == []
        with stalled.holding(2, 1, 500, lambda _: told.append("other topic"), 3):
            assert told == ["first"]
            assert stalled.used == 500
    assert stalled.used == 0


async def test_frames_that_wait_count_beside_the_message_of_their_client() -> None:
    stalled = Stalled(100)
    told: list[str] = []
    with (
        stalled.holding(1, 1, 500, lambda _: told.append("first"), 1),
        stalled.holding(FRAMES, 1, 50, lambda _: told.append("frames"), 1),
    ):
        assert (stalled.used, told) == (550, [])
        with stalled.holding(2, 1, 10, lambda _: told.append("second"), 2):
            assert (stalled.used, len(told)) == (10, 1)
    assert stalled.used == 0
