"""Requests of clients that watch or control a server: the allowed ones, and the pieces of their answers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from served_control import connected, control

from omq import watching
from omq.access.administration import (
    LONGEST_PERIOD,
    MOST_CONNECTIONS,
    MOST_SUBSCRIBERS,
    SHORTEST_PERIOD,
    Administration,
)
from omq.drivers.reasons import Reason, Refused
from omq.model import LONGEST_RETENTION, Delivery, Persistent, Sync, Topic

SUBSCRIBER = watching.SubscriberInfo(
    connection=0, client=b"", peer=b"", protocol=b"omq", position=None, behind=0, credit=None, unconfirmed=0,
    octets=0, stalled=None,
)  # fmt: skip
CONNECTION = watching.ConnectionInfo(
    id=0, client=b"", peer=b"", protocol=b"omq", encrypted=False, age=0, octets_in=0, octets_out=0,
    unconfirmed=0, answers=0, subscriptions=0, behind=0, held=0, stalled=None, slow=None, furthest=(),
)  # fmt: skip


@dataclass
class Busy:
    """A server with these connections and subscribers. Between two of them there are steps that give none."""

    behind: list[int] = field(default_factory=list)
    """The number of messages that each subscriber is behind."""
    count: int = 0
    """The number of connections."""
    disconnected: list[tuple[int, bytes]] = field(default_factory=list)

    def totals(self, watchers: int) -> watching.Server:
        raise AssertionError

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        raise AssertionError

    def connections(self, first: int) -> Iterator[watching.ConnectionInfo | None]:
        for id in range(first, self.count):
            yield None
            yield replace(CONNECTION, id=id)

    def subscribers(self, topic: Topic) -> Iterator[watching.SubscriberInfo | None]:
        for number, behind in enumerate(self.behind):
            yield None
            yield replace(SUBSCRIBER, connection=number, behind=behind)

    def disconnect(self, connection: int, by: bytes) -> bool:
        self.disconnected.append((connection, by))
        return connection < self.count


@asynccontextmanager
async def administered(path: Path, server: Busy) -> AsyncIterator[Administration]:
    async with control(path, server) as access:
        session = await connected(access)
        await session.declare(b"t", Delivery.BROADCAST, Persistent(Sync.WEAK))
        yield access.administration(session)
        session.close()


async def test_the_subscribers_that_are_the_furthest_behind_are_listed(tmp_path: Path) -> None:
    behind = [7 * number % 151 for number in range(151)]
    async with administered(tmp_path, Busy(behind=behind)) as administration:
        listed = await administration.subscribers(b"t")
        assert [each.behind for each in listed] == list(range(150, 100, -1))
        assert all(behind[each.connection] == each.behind for each in listed)
    assert MOST_SUBSCRIBERS == 50


async def test_few_subscribers_are_all_listed(tmp_path: Path) -> None:
    async with administered(tmp_path, Busy(behind=[2, 9, 4])) as administration:
        assert [each.behind for each in await administration.subscribers(b"t")] == [9, 4, 2]
        with pytest.raises(Refused, match="there is no such topic"):
            await administration.subscribers(b"other")


async def test_connections_are_listed_from_an_id_on(tmp_path: Path) -> None:
    async with administered(tmp_path, Busy(count=25)) as administration:
        for first in (0, 3, 20, 25):
            listed = await administration.connections(first)
            assert [each.id for each in listed] == list(range(first, min(25, first + MOST_CONNECTIONS)))
        with pytest.raises(Refused) as refused:
            await administration.connections(-1)
        assert refused.value.reason is Reason.INVALID
    assert MOST_CONNECTIONS == 20


async def test_a_connection_is_ended_in_the_name_of_the_client(tmp_path: Path) -> None:
    server = Busy(count=2)
    async with administered(tmp_path, server) as administration:
        assert [administration.disconnect(number) for number in (1, 2)] == [1, 0]
    assert server.disconnected == [(1, b"tester"), (2, b"tester")]


@pytest.mark.parametrize("period", [-1, 1, SHORTEST_PERIOD - 1, LONGEST_PERIOD + 1])
async def test_a_period_is_refused(tmp_path: Path, period: int) -> None:
    async with administered(tmp_path, Busy()) as administration:
        with pytest.raises(Refused, match="a period is 0, or 100 to 3600000 milliseconds"):
            administration.watch(period, lambda: None)


@pytest.mark.parametrize("period", [SHORTEST_PERIOD, LONGEST_PERIOD])
async def test_a_period_is_accepted(tmp_path: Path, period: int) -> None:
    async with administered(tmp_path, Busy()) as administration:
        watcher = administration.watch(period, lambda: None)
        assert watcher is not None
        watcher.close()
        assert administration.watch(0, lambda: None) is None


async def test_a_retention_has_limits(tmp_path: Path) -> None:
    assert LONGEST_RETENTION == 2**53
    async with administered(tmp_path, Busy()) as administration:
        for wrong in (-1, 0, 2**53 + 1):
            for limits in (watching.Limits(wrong, None), watching.Limits(None, wrong)):
                with pytest.raises(Refused, match="a limit is 1 to 9007199254740992"):
                    await administration.retain(b"t", limits)
        for limits in (
            watching.Limits(None, None), watching.Limits(1, 2**53), watching.Limits(2**53, 1),
        ):  # fmt: skip
            await administration.retain(b"t", limits)
        await administration.retain(b"t", watching.Configured())
