"""When the rounds of watchers begin, and what they tell in how many pieces."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from quietness import quiet
from served_control import NoServer, connected, control, known
from trio.testing import MockClock

from omq import watching
from omq.access.control import AccessControl
from omq.access.watches import Watcher
from omq.config import Config
from omq.drivers.reasons import Refused
from omq.model import Delivery, Persistent, Sync, Transient

RIGHTS = {"declare": ["*"], "publish": ["*"], "subscribe": ["*"], "delete": ["*"]}


@dataclass
class Totals(NoServer):
    """A server with this log. Its version is the number of its watchers."""

    lines: list[watching.Line] = field(default_factory=list)

    def totals(self, watchers: int) -> watching.Server:
        return watching.Server(
            time_us=0, version=b"%d" % watchers, uptime=0, connections=0, max_connections=0, protocols=(),
            subscriptions=0, max_subscriptions=0, topics=0, max_topics=0, leases=0, watchers=watchers,
            turned_away=0, memory=(), writers=(), disk_free=0, disk_reserve=0, store_octets=0, spool=0,
            spool_limit=0,
        )  # fmt: skip

    def warnings(self, after: int) -> tuple[watching.Line, ...]:
        return tuple(line for line in self.lines if line.number > after)


class Terminal:
    """The terminal's side of a watcher."""

    def __init__(self, access: AccessControl) -> None:
        self.woken: list[float] = []
        """When its rounds began."""
        self._access = access
        self.watcher: Watcher

    async def watch(self, id: bytes, period: int) -> None:
        session = await connected(self._access, id)
        watcher = self._access.administration(session).watch(period, self._wake)
        assert watcher is not None
        self.watcher = watcher
        watcher.start()
        await quiet()

    def _wake(self) -> None:
        self.woken.append(trio.current_time())

    async def round(self) -> list[watching.Statistics]:
        """Take everything of a round."""
        found = []
        while (part := self.watcher.take()) is not None:
            found.append(part)
        await quiet()
        return found


@asynccontextmanager
async def watched(path: Path, server: Totals, **settings: object) -> AsyncIterator[AccessControl]:
    clients = [known("all", watch=["*"], **RIGHTS), known("few", watch=["t*"], **RIGHTS)]
    async with control(path, server, clients=clients, **settings) as access, trio.open_nursery() as nursery:
        nursery.start_soon(access.watches.run)
        yield access
        nursery.cancel_scope.cancel()


def names(round: list[watching.Statistics]) -> list[bytes]:
    """Return the topics of a round."""
    return sorted(topic.topic for part in round if isinstance(part, watching.Topics) for topic in part.list)


def gone(round: list[watching.Statistics]) -> list[int]:
    """Return the deleted topics of a round."""
    return [id for part in round if isinstance(part, watching.Gone) for id in part.ids]


async def test_a_round_begins_when_the_period_is_over_and_the_last_one_is_taken(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with watched(tmp_path, Totals()) as access:
        terminal = Terminal(access)
        await terminal.watch(b"few:s", 1000)
        assert terminal.woken == [0]
        assert not terminal.watcher.is_idle
        await terminal.round()
        assert terminal.watcher.is_idle
        for seconds, expected in ((0.9995, [0]), (0.0005, [0, 1]), (5, [0, 1])):
            mock_clock.jump(seconds)
            await quiet()
            assert terminal.woken == expected
        await terminal.round()  # it was due long ago
        assert terminal.woken == [0, 1, 6]
        await terminal.round()
        terminal.watcher.close()
        assert terminal.watcher.take() is None
        mock_clock.jump(5)
        await quiet()
        assert terminal.woken == [0, 1, 6]


async def test_a_round_ends_with_the_time(tmp_path: Path) -> None:
    async with watched(tmp_path, Totals()) as access:
        client, terminal = await connected(access, b"all:s"), Terminal(access)
        await client.declare(b"t", Delivery.BROADCAST, Transient())
        before = time.time_ns() // 1000
        await terminal.watch(b"few:s", 1000)
        topics, complete = await terminal.round()
        assert isinstance(topics, watching.Topics)
        assert isinstance(complete, watching.Complete)
        assert before <= topics.time_us <= complete.time_us <= time.time_ns() // 1000


async def test_each_watcher_has_its_own_period_and_is_told_each_change_once(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with watched(tmp_path, Totals()) as access:
        client = await connected(access, b"all:s")
        often, seldom = Terminal(access), Terminal(access)
        topics = {
            name: await client.declare(name, Delivery.BROADCAST, Transient()) for name in (b"t1", b"t2", b"u")
        }
        await often.watch(b"few:s", 1000)
        await seldom.watch(b"few:s", 3000)
        assert [names(await each.round()) for each in (often, seldom)] == [[b"t1", b"t2"]] * 2
        told = []
        for second in range(1, 4):
            name = b"t%d" % (second + 2)
            topics[name] = await client.declare(name, Delivery.BROADCAST, Transient())
            await client.delete(b"t%d" % second)
            mock_clock.jump(1)
            await quiet()
            round = await often.round()
            told.append((names(round), gone(round)))
        ids = [topics[b"t%d" % number].id for number in range(1, 4)]
        assert told == [([b"t3"], ids[:1]), ([b"t4"], ids[1:2]), ([b"t5"], ids[2:])]
        round = await seldom.round()
        assert (names(round), gone(round)) == ([b"t4", b"t5"], ids)
        assert (often.woken, seldom.woken) == ([0, 1, 2, 3], [0, 3])


async def test_a_watcher_with_other_rights_begins_again(tmp_path: Path, mock_clock: MockClock) -> None:
    async with watched(tmp_path, Totals()) as access:
        client = await connected(access, b"all:s")
        for name in (b"t", b"u"):
            await client.declare(name, Delivery.BROADCAST, Transient())
        terminal = Terminal(access)
        await terminal.watch(b"few:s", 2500)
        first, second = await terminal.round(), []
        for watch in (["t*"], ["u"], ["u"]):
            clients = [known("all", watch=["*"], **RIGHTS), known("few", watch=watch, **RIGHTS)]
            await access.reload(Config(store=str(tmp_path), clients=clients))
            mock_clock.jump(2.5)
            await quiet()
            second.append(await terminal.round())
        assert [names(each) for each in (first, *second)] == [[b"t"], [], [b"u"], []]
        began = [[part for part in each if isinstance(part, watching.Began)] for each in (first, *second)]
        assert began == [[], [], [watching.Began(2500)], []]


async def test_only_clients_that_may_watch_everything_are_told_of_the_server(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    def lines(*numbers: int) -> list[watching.Line]:
        return [watching.Line(number, 0, b"WARNING", b"omq", b"") for number in numbers]

    server = Totals(lines(3, 4, 5))
    async with watched(tmp_path, server) as access:
        everything, few = Terminal(access), Terminal(access)
        await everything.watch(b"all:s", 1000)
        assert access.watches.used == 1
        await few.watch(b"few:s", 1000)
        for expected, later in ((lines(3, 4, 5), []), ([], lines(6)), (lines(6), []), ([], [])):
            told = await everything.round()
            (totals,) = [part for part in told if isinstance(part, watching.Server)]
            assert totals.version == b"2"
            warnings = [part for part in told if isinstance(part, watching.Warnings)]
            assert warnings == ([watching.Warnings(tuple(expected))] if expected else [])
            assert {type(part) for part in await few.round()} == {watching.Complete}
            server.lines += later
            mock_clock.jump(1)
            await quiet()


@pytest.mark.parametrize(("seconds", "milliseconds"), [(90, 90_000), (None, None)])
async def test_the_retention_of_a_topic_is_told(
    tmp_path: Path, seconds: int | None, milliseconds: int | None
) -> None:
    async with watched(tmp_path, Totals(), retention_seconds=seconds, retention_bytes=1 << 20) as access:
        client = await connected(access, b"all:s")
        await client.declare(b"t", Delivery.BROADCAST, Persistent(Sync.WEAK))
        terminal = Terminal(access)
        await terminal.watch(b"few:s", 1000)
        (topic,) = [
            each for part in await terminal.round() if isinstance(part, watching.Topics) for each in part.list
        ]
        assert (topic.retention_octets, topic.retention_ms) == (1 << 20, milliseconds)


async def test_deleted_topics_are_told_a_thousand_at_a_time(tmp_path: Path) -> None:
    async with watched(tmp_path, Totals()) as access:
        terminal = Terminal(access)
        await terminal.watch(b"few:s", 1000)
        await terminal.round()
        for count, sizes in ((1000, [1000]), (2001, [1000, 1000, 1])):
            terminal.watcher.begin([], list(range(count)), again=False)
            round = await terminal.round()
            assert [len(part.ids) for part in round if isinstance(part, watching.Gone)] == sizes
            assert gone(round) == list(range(count))


async def test_a_replacing_watcher_takes_the_place_of_the_replaced_one(tmp_path: Path) -> None:
    async with watched(tmp_path, Totals(), client_share=0.02) as access:
        session = await connected(access, b"few:s")
        administration = access.administration(session)
        first, second = [administration.watch(1000, lambda: None) for _ in range(2)]
        with pytest.raises(Refused, match="this client has its 2 watching connections"):
            administration.watch(1000, lambda: None)
        for _ in range(3):
            assert first is not None
            replaced = administration.watch(1000, lambda: None, first)
            first.close()
            first.close()  # changes nothing
            first = replaced
            with pytest.raises(Refused):
                administration.watch(1000, lambda: None)
        assert second is not None
        second.close()
        assert administration.watch(1000, lambda: None) is not None


async def test_a_round_leaves_out_topics_deleted_or_forbidden_meanwhile(tmp_path: Path) -> None:
    async with watched(tmp_path, Totals()) as access:
        client, terminal = await connected(access, b"all:s"), Terminal(access)
        for name in (b"t1", b"t2", b"t3"):
            await client.declare(name, Delivery.BROADCAST, Transient())
        await terminal.watch(b"few:s", 1000)
        await client.delete(b"t1")
        fewer = [known("all", watch=["*"], **RIGHTS), known("few", watch=["t1", "t3"], **RIGHTS)]
        await access.reload(Config(store=str(tmp_path), clients=fewer))
        assert names(await terminal.round()) == [b"t3"]
