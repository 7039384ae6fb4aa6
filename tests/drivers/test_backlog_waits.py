"""Publishers that wait for room in the backlogs of connections, and connections that take nothing."""

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.drivers.alarms import Alarms
from omq.drivers.backlog import MOST_OCTETS, Backlog
from omq.drivers.errands import Errands
from omq.drivers.tail import TailMemory
from omq.drivers.waiting_publishers import MOST_LOOKED, WaitingPublishers

STALL_SECONDS = 5.0


@pytest.fixture
async def waiting(nursery: trio.Nursery) -> WaitingPublishers:
    alarms = Alarms()
    nursery.start_soon(alarms.run)
    return WaitingPublishers(alarms, STALL_SECONDS)


class ReadingConnection:
    """A connection whose client takes its backlog."""

    def __init__(self) -> None:
        self.backlog = Backlog(TailMemory(64 << 20))
        self.backlog.add(bytes(MOST_OCTETS))
        self.stalled_at: int | None = None
        self.sent = 0

    def take(self, octets: int) -> None:
        self.sent += octets
        self.backlog.sent(octets)


@pytest.mark.parametrize(
    "freed",
    [
        lambda filled: filled.take(MOST_OCTETS // 2),
        lambda filled: filled.backlog.close(Errands().begin),
    ],
)
async def test_publishers_wait_until_a_backlog_has_room(
    freed: Callable[[ReadingConnection], None], waiting: WaitingPublishers, autojump_clock: MockClock
) -> None:
    slow, fast = ReadingConnection(), ReadingConnection()
    done = trio.Event()

    async def wait() -> None:
        await waiting.room((slow, fast))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        for _ in range(3):  # somebody moves, if slowly
            await trio.sleep(4.0)
            fast.take(1)
            await wait_all_tasks_blocked()
            assert not done.is_set()
        freed(fast)
        await done.wait()
    assert trio.current_time() == pytest.approx(12.0, abs=0.1)
    assert (slow.stalled_at, fast.stalled_at) == (0, None)


async def test_publishers_do_not_wait_for_stalled_connections(
    waiting: WaitingPublishers, autojump_clock: MockClock
) -> None:
    filled = ReadingConnection(), ReadingConnection()
    begin = trio.current_time()
    await waiting.room(filled)
    assert trio.current_time() - begin == pytest.approx(STALL_SECONDS)
    assert [each.stalled_at for each in filled] == [0, 0]


async def test_each_publisher_waits_for_its_own_time(
    waiting: WaitingPublishers, autojump_clock: MockClock
) -> None:
    """Also if they are more than one step of the alarm looks at, and when others end their wait."""
    many = MOST_LOOKED + 1
    ended: list[tuple[int, float]] = []
    begin = trio.current_time()
    moving = ReadingConnection()

    async def publish(second: int) -> None:
        await waiting.room((ReadingConnection(),))
        ended.append((second, trio.current_time() - begin))

    leaving = trio.CancelScope()

    async def leave() -> None:
        with leaving:
            await waiting.room((ReadingConnection(),))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        nursery.start_soon(waiting.room, (moving,))
        for second in range(3):
            for _ in range(many):
                nursery.start_soon(publish, second)
            await trio.sleep(1.0)
            leaving.cancel()
            moving.backlog.close(Errands().begin)
    assert len(ended) == 3 * many
    for second, seconds in ended:
        assert seconds == pytest.approx(second + STALL_SECONDS, abs=0.01)


async def test_a_publisher_does_not_wait_when_there_is_room_again(
    waiting: WaitingPublishers, autojump_clock: MockClock
) -> None:
    slow, fast = ReadingConnection(), ReadingConnection()
    fast.take(MOST_OCTETS)
    begin = trio.current_time()
    await waiting.room((slow, fast))
    assert trio.current_time() == begin
    assert fast.stalled_at is None


async def test_publishers_that_wait_have_their_turns_while_there_is_room(
    waiting: WaitingPublishers, autojump_clock: MockClock
) -> None:
    """Most of a hundred would find the backlog full again. And some have nothing more for it by then."""
    filled = ReadingConnection()
    went_on: list[int] = []
    begin = trio.current_time()

    async def publish(number: int) -> None:
        await waiting.room((filled,))
        assert not filled.backlog.is_full()
        went_on.append(number)
        if number % 3:
            filled.backlog.add(bytes(MOST_OCTETS // 16))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(publish, number)
            await wait_all_tasks_blocked()  # so that they wait in this order
        while len(went_on) < 100:
            assert filled.backlog.is_full(), "nobody waits while there is room"
            filled.take(MOST_OCTETS // 2)
            await wait_all_tasks_blocked()
    assert trio.current_time() - begin < STALL_SECONDS
    # Eight at a time go on in any order, and nobody much later than those who came later.
    assert all(abs(place - number) < 32 for place, number in enumerate(went_on))
