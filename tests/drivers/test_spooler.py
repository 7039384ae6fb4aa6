"""When the spooler searches, how long publishers wait for it, and which subscribers count as stalled."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.drivers.publisher_queue import PublisherQueue, PublisherQueues, RoomAnswer
from omq.drivers.scheduled_time import MOST_COUNTED
from omq.drivers.spool import Spool
from omq.drivers.spoolable import LEAST_COUNTED, StallWatch
from omq.drivers.spooler import BACKLOG_SECONDS, LOOK_SECONDS, Spooler
from omq.drivers.tail import Tail, TailMemory
from omq.drivers.unspooled import Unspooled
from omq_storage.blocks import FRAME_HEADER, encode

LIMIT = 1 << 20
SECONDS = 5.0


@dataclass(frozen=True)
class Parts:
    """A spooler that runs, and what it looks at."""

    spooler: Spooler
    tails: TailMemory
    publisher_queues: PublisherQueues

    def grow(self, octets: int) -> None:
        """Add a block to a tail whose blocks cannot be spooled."""
        tail = Tail(self.tails, LIMIT)
        tail.append(encode(1, 1, [bytes(octets - FRAME_HEADER)], 0))


@pytest.fixture
async def parts(tmp_path: Path, mock_clock: MockClock) -> AsyncIterator[Parts]:
    tails = TailMemory(LIMIT)
    spool = Spool(tmp_path, LIMIT, 0, tails, trio.CapacityLimiter(1))
    publisher_queues = PublisherQueues()
    spooler = Spooler(tails, publisher_queues, spool, SECONDS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(spooler.run)
        await wait_all_tasks_blocked()
        yield Parts(spooler, tails, publisher_queues)
        nursery.cancel_scope.cancel()


async def test_it_is_asked_when_more_than_half_of_the_memory_is_used(parts: Parts) -> None:
    assert parts.tails.relief is parts.spooler
    assert parts.spooler.asked_from == LIMIT // 2
    parts.grow(LIMIT // 2)
    assert parts.spooler.asked_from == LIMIT // 2
    parts.grow(FRAME_HEADER + 1)
    assert parts.spooler.asked_from == inf  # it searches


async def test_with_nothing_to_spool_it_searches_again_after_some_time(
    parts: Parts, mock_clock: MockClock
) -> None:
    parts.grow(LIMIT // 2 + 1)
    await wait_all_tasks_blocked()
    assert parts.spooler.asked_from == inf
    mock_clock.jump(LOOK_SECONDS * 0.99)
    await wait_all_tasks_blocked()
    assert parts.spooler.asked_from == inf
    mock_clock.jump(LOOK_SECONDS * 0.02)
    await wait_all_tasks_blocked()
    assert parts.spooler.asked_from == LIMIT // 2
    parts.grow(100)
    assert parts.spooler.asked_from == inf


async def test_it_is_asked_again_after_a_search_that_began_with_enough_room(parts: Parts) -> None:
    parts.spooler.ask()
    assert parts.spooler.asked_from == inf
    await wait_all_tasks_blocked()
    assert parts.spooler.asked_from == LIMIT // 2
    parts.grow(LIMIT // 2 + 1)
    assert parts.spooler.asked_from == inf


async def test_publishers_wait_for_a_search_and_only_so_long(parts: Parts, mock_clock: MockClock) -> None:
    spooler = parts.spooler

    def must_wait(octets: int, *, is_behind: bool = True, again: bool = False) -> bool:
        return spooler.must_wait(octets, is_behind=is_behind, again=again)

    parts.grow(LIMIT // 4)
    assert not must_wait(LIMIT // 4)
    assert not must_wait(LIMIT // 4 + 1)  # nobody has asked for room
    assert not must_wait(3 * LIMIT // 4)
    assert spooler.asked_from == LIMIT // 2
    assert not must_wait(LIMIT, again=True)
    assert spooler.asked_from == LIMIT // 2
    assert must_wait(3 * LIMIT // 4 + 1)
    assert spooler.asked_from == inf
    assert must_wait(LIMIT // 4 + 1)
    assert not must_wait(LIMIT // 4)
    mock_clock.jump(SECONDS * 0.99)
    assert must_wait(LIMIT // 4 + 1)
    mock_clock.jump(SECONDS * 0.02)
    assert not must_wait(LIMIT // 4 + 1)
    await wait_all_tasks_blocked()
    assert not must_wait(LIMIT // 4 + 1)


async def test_it_tells_the_room_for_messages_that_are_pushed_past_slower_subscribers(
    parts: Parts, mock_clock: MockClock
) -> None:
    tails = parts.tails
    assert tails.room() == LIMIT // 16  # nobody has asked for room
    parts.grow(LIMIT // 2 + 1)
    assert tails.room() == -1
    tails.used = tails.unstored = LIMIT // 2 - 100
    assert tails.room() == 100
    tails.used = tails.unstored = LIMIT // 2 + 1
    mock_clock.jump(SECONDS * 1.01)
    assert tails.room() == LIMIT // 16
    tails.relief = Unspooled(tails, SECONDS)
    assert tails.room() == LIMIT
    tails.relief = None
    assert tails.room() == LIMIT


async def test_admitted_posts_count_before_they_come(parts: Parts, mock_clock: MockClock) -> None:
    """Otherwise all waiting publishers would be admitted to the same room."""
    queue = PublisherQueue(
        lambda octets, in_turn: RoomAnswer.TAKEN, lambda octets: None, parts.publisher_queues
    )
    posts, gives_up = (queue.enqueue(octets, lambda: None) for octets in (LIMIT // 2, LIMIT // 4))
    parts.grow(LIMIT // 4)

    def must_wait(octets: int) -> bool:
        return parts.spooler.must_wait(octets, is_behind=True, again=True)

    assert must_wait(1)
    assert parts.spooler.asked_from == inf
    queue.go_on(posts)
    await wait_all_tasks_blocked()
    assert must_wait(LIMIT // 2 + 1)
    queue.leave(gives_up)
    mock_clock.jump(BACKLOG_SECONDS)
    await wait_all_tasks_blocked()
    assert not must_wait(LIMIT)  # none is admitted: so this one is, although it does not fit


async def test_after_a_search_publishers_wait_for_the_next_one_too(
    parts: Parts, mock_clock: MockClock
) -> None:
    parts.grow(LIMIT // 2 + 1)
    mock_clock.jump(SECONDS)
    await wait_all_tasks_blocked()
    # Also those of topics of which nobody is behind.
    assert parts.spooler.must_wait(LIMIT // 2, is_behind=False, again=False)


async def test_a_message_for_an_empty_memory_does_not_wait(parts: Parts) -> None:
    assert not parts.spooler.must_wait(2 * LIMIT, is_behind=True, again=False)
    assert parts.spooler.asked_from == LIMIT // 2


# -- subscribers that take nothing -------------------------------------------------------------------------


class Subscriber:
    """A subscriber at some place."""

    place = 0

    def pace(self) -> tuple[object, int]:
        return self, self.place


def look(watch: StallWatch, subscriber: Subscriber, clock: MockClock, seconds: float, times: int) -> bool:
    """Check it again and again, each time after some seconds."""
    moves = True
    for _ in range(times):
        clock.jump(seconds)
        moves = watch.moves(subscriber)
    return moves


async def test_a_subscriber_is_stalled_when_it_took_nothing_for_long_enough(mock_clock: MockClock) -> None:
    watch, one = StallWatch(1.0), Subscriber()
    assert watch.moves(one)
    assert (look(watch, one, mock_clock, 0.0625, 15), watch.has_found) == (True, False)
    assert (look(watch, one, mock_clock, 0.0625, 1), watch.has_found) == (False, True)
    one.place += 1
    assert watch.moves(one)
    assert look(watch, one, mock_clock, 0.0625, 15)
    assert not look(watch, one, mock_clock, 0.0625, 1)


async def test_of_a_long_time_between_two_checks_only_a_part_counts(mock_clock: MockClock) -> None:
    watch, one = StallWatch(5 * MOST_COUNTED - 0.001), Subscriber()
    assert watch.moves(one)
    assert look(watch, one, mock_clock, 100.0, 4)
    assert not look(watch, one, mock_clock, 100.0, 1)


async def test_checks_that_follow_at_once_count_together(mock_clock: MockClock) -> None:
    watch, one = StallWatch(2 * LEAST_COUNTED), Subscriber()
    assert watch.moves(one)
    assert look(watch, one, mock_clock, LEAST_COUNTED / 4, 7)
    assert not look(watch, one, mock_clock, LEAST_COUNTED / 4, 2)
