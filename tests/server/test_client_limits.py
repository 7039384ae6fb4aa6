"""Limits of configured clients: connections, subscriptions, and octets a second."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from omq.access.limits import BURST_SECONDS
from omq.drivers.stored_reads import READ_OCTETS
from omq.protocol.omq.frames import encode
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import Confirmed, Deleted, Error, Ping, Subscribed

from .client_accounts import SECRET, client, enter, open_as, passing
from .conversation import (
    PATIENCE,
    VERSION_ONE,
    Conversation,
    eventually,
    publish,
    serving,
)
from .dmp_conversation import envelopes, lease, response, said, short, show, stored


async def test_connections_of_a_client(store: Path) -> None:
    async with serving(store, clients=[client("some", max_connections=2), client("other")]) as host:
        first, second = await enter(host, "some"), await enter(host, "some")
        third = await open_as(host, "some")
        refused = b"Connect: this client has its 2 connections, the most it may have"
        assert await third.rest() == [Error(refused)]
        assert refusal_in(refused) is RefusalKind.PASSING
        await enter(host, "other")
        # A sink takes a place too.
        connection = await show(host, await lease(first, b"(Put t)"))
        too_many = b"530 NOT-ALLOWED The client has as many connections as it may have"
        assert await said(connection) == [too_many]
        second.close()
        await eventually(lambda: host.connections == 2)
        connection = await show(host, await lease(first, b"(Put t)"))
        assert await response(connection) == b"200 OK Sink 't' ready"
        assert await (await open_as(host, "some")).rest() == [Error(refused)]
        assert await stored(connection) == 0
        await eventually(lambda: host.connections == 2)
        await enter(host, "some")


@pytest.mark.parametrize("end", [Conversation.close, Conversation.reset])
async def test_a_client_with_all_its_connections_that_closes_one_may_connect_at_once(
    store: Path, end: Callable[[Conversation], None], mock_clock: MockClock
) -> None:
    """Time stands still, so the moment for which the server waits for a place is not over."""
    async with serving(store, clients=[client("some", max_connections=3)]) as host:
        others = [await enter(host, "some"), await enter(host, "some")]
        for _ in range(100):
            latest = await enter(host, "some")
            await latest.say(b"(Subscribe t From_current)")
            end(latest)
        for other in others:
            await other.confirm()


async def test_subscriptions_of_a_client(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_subscriptions=2)]) as host:
        one, two = await enter(host, "some"), await enter(host, "some")
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        get = await lease(two, b"(Get b From_current)")
        refused = b"this client has its 2 subscriptions, the most it may have"
        assert await two.refusal(b"(Subscribe c From_current)") == b"Subscribe c: " + refused
        assert await two.refusal(b"(Get c From_current)") == b"Get c: " + refused
        # One that is refused for another reason takes no place.
        await one.ask(b"(Unsubscribe a)")
        for command in (b"(Subscribe a (From_message 9))", b"(Get a (From_message 9))"):
            assert (await one.refusal(command)).endswith(b"the next one is 1")
        assert isinstance(await two.ask(b"(Subscribe c From_current)"), Subscribed)
        assert (await one.refusal(b"(Subscribe a From_current)")).endswith(refused)
        # A topic that is deleted gives its place back, and so does a lease that ends.
        assert isinstance(await one.ask(b"(Delete c)"), Deleted)
        assert isinstance(await one.ask(b"(Subscribe a From_current)"), Subscribed)
        clock.jump(61)
        await eventually(lambda: not host.server.statistics().leases)
        feed = await show(host, await lease(one, b"(Get b From_current)"))
        assert (await response(feed)).startswith(b"200 ")
        assert (await one.refusal(b"(Subscribe d From_current)")).endswith(refused)
        feed.close()
        await eventually(lambda: host.connections == 2)
        assert isinstance(await one.ask(b"(Subscribe d From_current)"), Subscribed)
        del get


async def test_connections_of_all(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store, max_connections=3, client_share=1.0) as host:
        clients = [await host.connect() for _ in range(3)]
        for _ in range(20):
            turned_away = await host.open()
            with trio.fail_after(PATIENCE):
                try:
                    assert await turned_away.stream.receive_some(1) == b""
                except trio.BrokenResourceError:
                    pass
        for one in clients:
            await one.confirm()
        clients[0].close()
        await eventually(lambda: host.connections == 2)
        await (await host.connect()).confirm()
    lines = [
        record.getMessage() for record in caplog.records if "as max_connections allows" in record.getMessage()
    ]
    assert 1 <= len(lines) <= 10


async def test_a_silent_newcomer_makes_room(store: Path) -> None:
    async with serving(store, max_connections=3, client_share=1.0) as host:
        known = await host.connect()
        silent = [await host.open(), await host.open()]
        await eventually(lambda: host.handshakes == 2)
        for _ in range(2):
            newcomer = await host.connect()
            await newcomer.confirm()
            await silent.pop(0).ended()
        await known.confirm()


async def received(conversation: Conversation, end: bytes) -> bytes:
    """Return the received octets, up to the first that end with `end`, without a limit of time."""
    octets = b""
    while not octets.endswith(end):
        data = await conversation.stream.receive_some(65536)
        assert data, f"the connection ended after {octets!r}"
        octets += data
    return octets


LINES_OF_100_KB = publish(b"t", [b"x" * 984] * 100)
CONFIRMED = encode(Confirmed(1))


async def seconds_to_publish(some: Conversation, clock: MockClock) -> float:
    """Publish the 100 KB, and return the number of seconds until they are confirmed."""
    began = trio.current_time()
    async with passing(clock):
        await some.stream.send_all(LINES_OF_100_KB + b"(Confirm 1)\n")
        await received(some, CONFIRMED)
    return trio.current_time() - began


async def test_octets_a_second_that_come_in(store: Path, clock: MockClock) -> None:
    """100 KB at 10 KB a second, of which the first come at once. Nothing is dropped."""
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        assert await seconds_to_publish(some, clock) >= 8
    async with serving(store) as host:
        assert (await host.topics())[b"t"].messages == 100


async def test_octets_that_come_with_the_first_command_count_in_the_rate(
    store: Path, clock: MockClock
) -> None:
    """A client that connects again for each burst is no faster than one that stays."""
    clients = [client("some", max_bytes_per_second=10_000)]
    connect = b'(Connect 1 "some:%s")\n' % SECRET.encode()
    async with serving(store, clients=clients, handshake_seconds=3600) as host:
        began = trio.current_time()
        for _ in range(4):
            connection = await host.open()
            await connection.send(VERSION_ONE)
            assert await connection.octets(8) == VERSION_ONE
            async with passing(clock):
                # The server may read it at once, or in parts.
                await connection.stream.send_all(connect + LINES_OF_100_KB[:60_000] + b'")\n(Confirm 1)\n')
                await received(connection, CONFIRMED)
            connection.close()
        # All but the last 60 KB, and a second's burst.
        assert trio.current_time() - began >= 17


async def test_octets_a_second_are_as_few_after_an_hour_without_any(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        clock.jump(3600)
        await some.confirm()
        assert await seconds_to_publish(some, clock) >= 8


async def test_octets_a_second_are_those_of_all_connections_together(store: Path, clock: MockClock) -> None:
    clients = [client("some", max_bytes_per_second=10_000), client("other")]
    async with serving(store, clients=clients) as host:
        both = [await enter(host, "some"), await enter(host, "some")]
        other = await enter(host, "other")
        for one in both:
            await one.stream.send_all(LINES_OF_100_KB[: len(LINES_OF_100_KB) // 2] + b"(Confirm 1)\n")
        # Nobody else has to wait meanwhile.
        await other.send(LINES_OF_100_KB)
        await other.confirm()
        began = trio.current_time()
        async with passing(clock), trio.open_nursery() as nursery:
            for one in both:
                nursery.start_soon(received, one, CONFIRMED)
        assert trio.current_time() - began >= 6


@pytest.mark.parametrize("way", ["subscription", "half-closed", "feed"])
async def test_octets_a_second_that_go_out(store: Path, clock: MockClock, way: str) -> None:
    """At this pace a client is sent nothing for longer than it takes to give up one that takes nothing."""
    clients = [client("some", max_bytes_per_second=5000), client("other")]
    bodies = [b"%02d" % number * 32_000 for number in range(20)]
    missed = 3 if way == "half-closed" else 0
    async with serving(store, clients=clients, ping_seconds=10, missed_pings=missed) as host:
        other, some = await enter(host, "other"), await enter(host, "some")
        for body in bodies:
            await other.send(publish(b"t", [body]))
            await other.confirm()
        connection = some
        if way == "feed":
            connection = await show(host, await lease(some, b"(Get t From_beginning)"))
            await response(connection)
        else:
            await some.say(b"(Subscribe t From_beginning)")
        if way == "half-closed":
            await some.done()
        began = trio.current_time()
        octets = b""
        async with passing(clock):
            while bodies[-1] not in octets:
                data = await connection.stream.receive_some(65536)
                assert data, "the connection ended"
                octets += data
        assert all(body in octets for body in bodies)
        # Octets that are read from the store at once may be sent in one turn, and nothing waits for the last
        # turn.
        assert trio.current_time() - began >= (sum(map(len, bodies)) - READ_OCTETS) / 5000 - BURST_SECONDS
        if way == "subscription":
            assert octets.count(encode(Ping(0))[:5]) >= 10


async def test_octets_a_second_of_a_sink(store: Path, clock: MockClock) -> None:
    async with serving(store, clients=[client("some", max_bytes_per_second=10_000)]) as host:
        some = await enter(host, "some")
        connection = await show(host, await lease(some, b"(Put t)"))
        assert await response(connection) == b"200 OK Sink 't' ready"
        began = trio.current_time()
        async with passing(clock):
            await connection.stream.send_all(envelopes([b"x" * 989] * 100))
            await connection.stream.send_eof()
            assert await received(connection, b" 100 messages stored") == short(b"200 OK 100 messages stored")
        assert trio.current_time() - began >= 8
