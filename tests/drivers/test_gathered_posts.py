"""A commit waits a little for publishers that the last one confirmed: they are about to publish again."""

import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import trio

from omq.drivers.gathering import QUIET_SECONDS, Gathering

LONG = 1e6
"""The seconds of a commit: no test waits until the next one may begin for this reason."""


@dataclass
class Posts:
    """Posts that wait for a commit."""

    messages: int
    is_full: bool = False

    async def arrive(self, most: int) -> None:
        """Add a message in each round of the scheduler."""
        while self.messages < most:
            self.messages += 1
            await trio.lowlevel.checkpoint()


async def gathered(gathering: Gathering, posts: Posts, most: int) -> int:
    """Return the number of messages that wait after `gather`, while one arrives in each round up to this
    number.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(posts.arrive, most)
        await gathering.gather(posts)
        nursery.cancel_scope.cancel()
    return posts.messages


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> Gathering:
    # With real time these tests would depend on the speed of the machine: a message of the next round comes
    # late when the process has to wait for a processor. So each look at this clock takes a tenth of the time
    # in which a message must come.
    looks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(looks) * QUIET_SECONDS / 10)
    monkeypatch.setattr("omq.drivers.gathering.time", clock)
    monkeypatch.setattr("omq.drivers.gathering.LONGEST_SECONDS", LONG)
    return Gathering()


async def test_a_commit_waits_for_those_who_were_confirmed(gathering: Gathering) -> None:
    gathering.committed(30, 10, LONG)
    assert gathering.lacks(Posts(39))
    assert 40 <= await gathered(gathering, Posts(11), 100) <= 41


def test_it_does_not_wait_when_as_many_are_there(gathering: Gathering) -> None:
    gathering.committed(1, 0, LONG)
    assert not gathering.lacks(Posts(1))


async def test_it_does_not_wait_when_no_more_come(gathering: Gathering) -> None:
    gathering.committed(1000, 0, LONG)
    with trio.fail_after(60):
        assert await gathered(gathering, Posts(10), 20) == 20


async def test_it_does_not_wait_longer_than_half_of_the_last_commit(gathering: Gathering) -> None:
    gathering.committed(1000, 0, 0.0)
    assert not gathering.lacks(Posts(10))


async def test_it_does_not_wait_beyond_a_full_commit(gathering: Gathering) -> None:
    gathering.committed(1000, 0, LONG)
    assert not gathering.lacks(Posts(10, is_full=True))


def test_a_slow_disk_does_not_let_it_wait_for_long() -> None:
    gathering = Gathering()
    gathering.committed(1000, 0, LONG)
    while gathering.lacks(Posts(10)):
        pass
