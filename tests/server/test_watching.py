"""Watch, Connections, Subscribers, Disconnect, Purge and Retain: what clients see of them."""

import logging
import re
from pathlib import Path

import pytest
from trio.testing import MockClock

from omq import watching as w
from omq.client import connect
from omq.config import Config
from omq.logs import CONNECTION_LINES
from omq.protocol.omq.types import ConnectionList, Done, Error, Message, SubscriberList, Watched
from omq.server import open_server

from . import dmp_conversation as dmp
from .client_accounts import client as configured
from .client_accounts import enter
from .conversation import Conversation, InProcess, eventually, publish, serving, tidied
from .counted_turns import counted_turns
from .test_long_answers import declare

PERIOD = 100
"""Milliseconds: the shortest period of a Watch."""


async def watched(connection: Conversation) -> w.Statistics:
    """Return the next Statistics frame."""
    frame = await connection.frame()
    assert isinstance(frame, Watched)
    return frame.statistics


async def round_of(connection: Conversation) -> list[w.Statistics]:
    """Return the Statistics frames up to the end of a round."""
    found: list[w.Statistics] = []
    while not found or not isinstance(found[-1], w.Complete):
        found.append(await watched(connection))
    return found


async def begin(connection: Conversation, period: int = PERIOD) -> list[w.Statistics]:
    """Watch, and return the first round."""
    assert await connection.ask(b"(Watch %d)" % period) == Watched(w.Began(period))
    return await round_of(connection)


def topics(round: list[w.Statistics]) -> dict[bytes, w.TopicWatch]:
    """Return the topics of a round, by their names."""
    return {topic.topic: topic for part in round if isinstance(part, w.Topics) for topic in part.list}


async def changes(connection: Conversation, name: bytes) -> w.TopicWatch:
    """Return the state of this topic in the next round that has it."""
    while True:
        found = topics(await round_of(connection))
        if name in found:
            return found[name]


async def gone(connection: Conversation) -> list[w.Gone]:
    """Return the topics that are gone in the next round that has some."""
    while True:
        if found := [part for part in await round_of(connection) if isinstance(part, w.Gone)]:
            return found


async def test_the_first_round_has_all_topics_and_later_ones_changed_ones(store: Path) -> None:
    async with serving(store) as host:
        client, watcher = await host.connect(), await host.connect()
        await declare(client, 120)
        first = await begin(watcher)
        assert len(topics(first)) == 120
        assert isinstance(first[0], w.Server)
        assert max(len(part.list) for part in first if isinstance(part, w.Topics)) <= 50
        assert topics(await round_of(watcher)) == {}
        await client.send(publish(b"topic-00007", [b"one", b"two"]))
        await client.confirm()
        seven = await changes(watcher, b"topic-00007")
        assert (seven.messages_in, seven.last, seven.behind) == (2, 2, 0)
        await client.ask(b"(Declare new Round_robin Transient)")
        assert (await changes(watcher, b"new")).id == 120
        await client.ask(b"(Delete new)")
        assert await gone(watcher) == [w.Gone((120,))]


async def test_another_watch_begins_again_and_0_ends_it(store: Path) -> None:
    async with serving(store) as host:
        watcher = await host.connect()
        await declare(watcher, 3)
        assert len(topics(await begin(watcher))) == 3
        assert len(topics(await begin(watcher, 3_600_000))) == 3
        assert await watcher.ask(b"(Watch 0)") == Watched(w.Began(0))
        await watcher.say(b"(Watch 0)")
        assert await watcher.frame() == Watched(w.Began(0))
        await watcher.done()


async def test_others_are_served_while_the_topics_are_looked_at(store: Path) -> None:
    async with serving(store) as host:
        client, watcher = await host.connect(), await host.connect()
        await declare(client, 700)
        async with counted_turns() as turns:
            before = turns()
            first = await begin(watcher)
            assert turns() - before >= len(first) >= 16


async def test_a_watcher_that_does_not_read_is_told_less(store: Path, clock: MockClock) -> None:
    async with serving(store, missed_pings=100) as host:
        client, reader = await host.connect(), await host.connect()
        slow = await host.connect(receive_octets=4096)
        await declare(client, 700)
        await slow.say(b"(Watch 1000)")
        await begin(reader, 1000)
        for number in range(20):
            await client.send(publish(b"topic-00000", [b"%d" % number]))
            await client.confirm()
            clock.jump(1)
            while b"topic-00000" not in topics(await round_of(reader)):
                clock.jump(1)
        held = [terminal.statistics().held for terminal in host.server.terminals()]
        assert max(each.answers for each in held) < 4096
        assert await slow.frame() == Watched(w.Began(1000))
        rounds = [await round_of(slow) for _ in range(2)]
        # The numbers are those of the time when they were sent, and all changes since are in one round.
        assert len(topics(rounds[0])) == 700
        assert topics(rounds[1])[b"topic-00000"].messages_in == 20


async def test_waiting_messages_and_the_lag_of_a_subscriber_are_watched(store: Path) -> None:
    async with serving(store) as host:
        client, watcher, worker = [await host.connect() for _ in range(3)]
        await client.ask(b"(Declare jobs Round_robin (Persistent Weak))")
        await begin(watcher)
        await client.send(publish(b"jobs", [b"1", b"2", b"3"]))
        await client.confirm()
        jobs = await changes(watcher, b"jobs")
        assert (jobs.ready, jobs.unconfirmed, jobs.subscribers) == (3, 0, 0)
        await worker.say(b"(Request jobs 2)", b"(Subscribe jobs From_current)")
        await worker.frame()
        assert await worker.ids(2) == [1, 2]
        while (jobs.ready, jobs.unconfirmed) != (1, 2):
            jobs = await changes(watcher, b"jobs")
        assert (jobs.subscribers, jobs.messages_out) == (1, 2)
        await worker.say(b"(Received jobs 1)")
        assert await worker.ids(1) == [3]


async def stalled_reader(host: InProcess, client: Conversation, clock: MockClock) -> Conversation:
    """Return a subscriber of the topic t, persistent, that does not read what is published."""
    await client.ask(b"(Declare t Broadcast (Persistent Weak))")
    slow = await host.connect(receive_octets=4096)
    await slow.ask(b"(Subscribe t From_current)")
    for _ in range(8):
        await client.send(publish(b"t", [b"x" * 500_000] * 2))
        await client.confirm()
    clock.jump(3)
    terminals = host.server.terminals()
    await eventually(lambda: any(each.statistics().stalled_seconds is not None for each in terminals))
    return slow


async def test_why_a_connection_is_slow(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client, watcher = await host.connect(), await host.connect()
        slow = await stalled_reader(host, client, clock)
        behind = topics(await begin(watcher, 3_600_000))[b"t"].behind
        assert 10 < behind <= 16
        listed = await client.ask(b"(Connections 0)")
        assert isinstance(listed, ConnectionList)
        reads, _, stalled = listed.connections
        assert (reads.slow, reads.stalled, reads.behind) == (None, None, 0)
        assert stalled.slow == b"its client reads nothing"
        assert stalled.stalled is not None
        assert (stalled.behind, stalled.subscriptions, stalled.protocol) == (behind, 1, b"omq")
        assert [(each.topic, each.behind) for each in stalled.furthest] == [(b"t", behind)]
        subscribers = await client.ask(b"(Subscribers t)")
        assert isinstance(subscribers, SubscriberList)
        assert [(each.connection, each.behind) for each in subscribers.subscribers] == [(stalled.id, behind)]
        slow.reset()


async def test_a_worker_without_credit_is_named(store: Path) -> None:
    async with serving(store) as host:
        client, worker = await host.connect(), await host.connect()
        await client.ask(b"(Declare jobs Round_robin Transient)")
        await worker.say(b"(Request jobs 1)", b"(Subscribe jobs From_current)")
        await worker.frame()
        await client.send(publish(b"jobs", [b"1", b"2"]))
        assert await worker.ids(1) == [1]
        listed = await client.ask(b"(Subscribers jobs)")
        assert isinstance(listed, SubscriberList)
        (subscriber,) = listed.subscribers
        assert (subscriber.credit, subscriber.unconfirmed) == (1, 1)


async def test_connections_are_listed_in_several_answers(store: Path) -> None:
    async with serving(store) as host:
        opened = [await host.connect() for _ in range(25)]
        found: list[int] = []
        sizes = []
        while True:
            listed = await opened[0].ask(b"(Connections %d)" % (found[-1] + 1 if found else 0))
            assert isinstance(listed, ConnectionList)
            if not listed.connections:
                break
            sizes.append(len(listed.connections))
            found += [each.id for each in listed.connections]
        assert found == sorted(set(found))
        assert sizes == [20, 5]


async def test_a_disconnected_client_is_told_and_logged(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        client = await host.connect()
        other = await host.open()
        await other.send(bytes.fromhex("0000000000000001") + b"(Connect 1 bad\\nguy)\n")
        await other.octets(8)
        await other.confirm()
        listed = await client.ask(b"(Connections 2)")
        assert isinstance(listed, ConnectionList)
        (found,) = listed.connections
        assert found.client == b"bad\\nguy"
        assert await client.ask(b"(Disconnect %d)" % found.id) == Done(1)
        assert await other.error() == b"Connect: an operator ended the connection"
        await other.ended()
        other.close()
        await eventually(lambda: host.connections == 1)
        assert await client.ask(b"(Disconnect %d)" % found.id) == Done(0)
    ends = [line for line in caplog.messages if " disconnected after " in line]
    assert "an operator ended the connection; " in ends[0]
    assert "(omq) disconnected after" in ends[0]


@pytest.mark.skipif(not Path("/proc/sys/net/ipv6").exists(), reason="the machine has no IPv6")
async def test_the_log_has_brackets_around_an_ipv6_address(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with (
        open_server(Config(listen=["[::1]:0"], store=str(store))) as server,
        connect(f"omq://[::1]:{server.port}", id="somebody"),
    ):
        pass
    assert re.fullmatch(r"\[::1\]:\d+: 'somebody' connected", caplog.messages[0])


async def test_the_log_counts_connects_and_ends_that_are_too_many_to_write(
    store: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        for _ in range(CONNECTION_LINES + 1):
            await host.connect()
    lines = [record.getMessage() for record in caplog.records if record.name == "omq.connections"]
    for what in ("' connected", "' (omq) disconnected after"):
        assert sum(what in line for line in lines) == CONNECTION_LINES
    assert lines[-2:] == ["clients connected: 1 more", "connections ended: 1 more"]


async def test_a_connect_is_logged(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        client = await host.open()
        await client.send(bytes.fromhex("0000000000000001") + b"(Connect 1 somebody)\n")
        await client.octets(8)
        await client.confirm()
    assert [line for line in caplog.messages if line.endswith(": 'somebody' connected")]


async def test_the_connect_of_a_sink_and_of_a_feed_is_logged(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        client = await host.open()
        await client.send(bytes.fromhex("0000000000000001") + b"(Connect 1 somebody)\n")
        await client.octets(8)
        sink = await dmp.sink(host, client)
        feed = await dmp.feed(host, client)
        peers = [
            "{}:{}".format(*each.stream.socket.getsockname()) for each in (client, sink, feed.connection)
        ]
    assert [line for line in caplog.messages if "' connected" in line] == [
        f"{peers[0]}: 'somebody' connected",
        f"{peers[1]}: 'somebody' connected: sink 't'",
        f"{peers[2]}: 'somebody' connected: feed 't'",
    ]


async def test_the_end_of_a_connection_is_logged_with_its_messages(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        await client.send(publish(b"t", [b"a", b"b"]))
        await client.messages(2)
        await client.confirm()
        await client.done()
        await client.ended()
        client.close()
        await eventually(lambda: host.connections == 0)
    (line,) = [line for line in caplog.messages if " disconnected after " in line]
    assert re.search(r"; 2 messages and \d+ octets in, 2 messages and \d+ octets out$", line)


async def test_the_last_warnings_are_sent_once(store: Path) -> None:
    async with serving(store) as host:
        watcher = await host.connect()
        log = logging.getLogger("omq.test")
        for number in range(150):
            log.warning("warning %d", number)
        log.info("nothing to worry about")
        parts = [part.list for part in await begin(watcher) if isinstance(part, w.Warnings)]
        assert [len(part) for part in parts] == [10] * 10
        lines = [line for part in parts for line in part]
        assert [line.text for line in lines] == [b"warning %d" % n for n in range(50, 150)]
        assert {(line.level, line.logger) for line in lines} == {(b"WARNING", b"omq.test")}
        assert not [part for part in await round_of(watcher) if isinstance(part, w.Warnings)]
        log.error("x" * 5000)
        found: list[w.Warnings] = []
        while not found:
            found = [part for part in await round_of(watcher) if isinstance(part, w.Warnings)]
        assert [(line.number, line.text) for line in found[0].list] == [(151, b"x" * 1000)]


async def test_a_watcher_sees_the_topics_of_its_right(store: Path) -> None:
    clients = [configured("all"), configured("few", watch=["topic-0000*"])]
    async with serving(store, clients=clients) as host:
        client, watcher = await enter(host, "all"), await enter(host, "few")
        await declare(client, 12)
        first = await begin(watcher)
        assert sorted(topics(first)) == [b"topic-%05d" % n for n in range(10)]
        assert {type(part) for part in first} == {w.Topics, w.Complete}
        await client.ask(b"(Delete topic-00011)")
        await client.ask(b"(Delete topic-00003)")
        assert await gone(watcher) == [w.Gone((3,))]


async def test_one_client_leaves_others_room_to_watch(store: Path) -> None:
    clients = [configured(name, watch=["*"]) for name in ("one", "other")]
    async with serving(store, clients=clients) as host:
        watchers = [await enter(host, "one") for _ in range(51)]
        for each in watchers[:-1]:
            await begin(each, 3_600_000)
        refused = await watchers[-1].refusal(b"(Watch 1000)")
        what = b"this client has its 50 watching connections, the most it may have"
        assert refused == b"Watch 1000: " + what
        await begin(await enter(host, "other"), 3_600_000)
        await begin(watchers[0], 3_600_000)  # in place of its first
        assert await watchers[0].ask(b"(Watch 0)") == Watched(w.Began(0))
        await begin(watchers[-1], 3_600_000)


async def test_a_hundred_connections_may_watch(store: Path) -> None:
    async with serving(store, client_share=1) as host:
        watchers = [await host.connect() for _ in range(101)]
        for each in watchers[:-1]:
            await begin(each, 3_600_000)
        refused = await watchers[-1].refusal(b"(Watch 1000)")
        assert refused == b"Watch 1000: there are 100 connections that watch, the most there may be"
        await begin(watchers[0], 3_600_000)  # in place of its own
        assert await watchers[0].ask(b"(Watch 0)") == Watched(w.Began(0))
        await begin(watchers[-1], 3_600_000)


# -- changes ------------------------------------------------------------------------------------------------


async def test_a_purged_topic_keeps_nothing_and_goes_on(store: Path) -> None:
    async with serving(store) as host:
        client, reader = await host.connect(), await host.connect()
        await client.send(publish(b"t", [b"1", b"2", b"3"]))
        await client.confirm()
        assert await client.ask(b"(Purge t)") == Done(3)
        assert await client.ask(b"(Purge t)") == Done(0)
        await client.send(publish(b"t", [b"4"]))
        await client.confirm()
        await reader.ask(b"(Subscribe t (From_message 2))")
        assert await reader.frame() == Error(
            b"Subscribe t: messages 2 to 3 are gone: they are no longer kept"
        )
        assert await reader.frame() == Message(4, 0, b"4")
        await client.ask(b"(Declare ticks Broadcast Transient)")
        assert await client.ask(b"(Purge ticks)") == Done(0)
        await client.ask(b"(Declare jobs Round_robin Transient)")
        await client.send(publish(b"jobs", [b"1", b"2"]))
        assert await client.ask(b"(Purge jobs)") == Done(2)


async def test_a_changed_retention_is_applied_and_survives_a_restart(store: Path, clock: MockClock) -> None:
    name = b"t"
    async with serving(store, retention_bytes=1 << 20, missed_pings=0) as host:
        client = await host.connect()
        await client.send(publish(name, [b"x" * 10_000] * 20))
        await client.confirm()
        assert await client.ask(b"(Retain t (Limits (octets (50000)) (ms ())))") == Done(1)
        await client.send(publish(name, [b"last"]))
        await client.confirm()
        await tidied(client, clock, name, lambda info: info.messages < 20)
        assert topics(await begin(client, 3_600_000))[name].retention_octets == 50_000
    async with serving(store, retention_bytes=1 << 20, missed_pings=0) as host:
        client = await host.connect()
        found = topics(await begin(client, 3_600_000))[name]
        assert (found.retention_octets, found.retention_ms) == (50_000, None)
        assert await client.ask(b"(Retain t Configured)") == Done(1)
        found = topics(await begin(client, 3_600_000))[name]
        assert (found.retention_octets, found.retention_ms) == (1 << 20, None)
        assert await client.ask(b"(Retain t (Limits (octets ()) (ms (60000))))") == Done(1)
        clock.jump(120)
        await tidied(client, clock, name, lambda info: not info.messages)
