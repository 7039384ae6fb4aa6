"""A client and a server or a network that fails silently."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
from client_helpers import connect_to
from quietness import pass_time
from relays import Relay, relayed
from trio.testing import MockClock

from omq.bulk.remote import RemoteServer as Blocking
from omq.bulk.remote import RetryPolicy, parse_servers
from omq.bulk.sinks import SinkConnection
from omq.client import ConnectionLost, FromBeginning, connect
from omq.server import Server

SILENCE_SECONDS = 100
"""Twice the longest time between two pings that PROTOCOL.md allows."""

SECONDS = 60
"""A time limit for events that need no further jump of the clock."""


@pytest.fixture
def clock() -> MockClock:
    """Return the clock of the client, the server and the test: it runs as usual, and jumps on request."""
    return MockClock(rate=1.0)


@pytest.fixture
async def relay(clock: MockClock, server: Server) -> AsyncIterator[Relay]:
    async with relayed(server.port) as running:
        yield running


class Attempt:
    """An action of a client in a task of its own."""

    def __init__(self, doing: Callable[[], Awaitable[object]]) -> None:
        self.lost: ConnectionLost | None = None
        self.done = trio.Event()
        self._doing = doing

    async def run(self) -> None:
        try:
            await self._doing()
        except ConnectionLost as lost:
            self.lost = lost
        self.done.set()

    async def is_lost_in_time(self, clock: MockClock) -> None:
        """Assert that the action ends when the server was silent for SILENCE_SECONDS, and not before."""
        await pass_time(clock, SILENCE_SECONDS - 5)
        assert not self.done.is_set()
        clock.jump(10)
        with trio.fail_after(SECONDS):
            await self.done.wait()
        assert self.lost is not None
        assert "sent nothing for 100 s" in str(self.lost)


async def test_confirm_on_a_network_that_swallows_everything(
    clock: MockClock, relay: Relay, nursery: trio.Nursery
) -> None:
    async with connect(relay.url) as client:
        await client.publish_confirmed("t", b"1")
        relay.swallow()
        await client.publish("t", b"2")
        confirm = Attempt(client.confirm)
        nursery.start_soon(confirm.run)
        await confirm.is_lost_in_time(clock)
        for command in (client.topics, client.confirm):
            with pytest.raises(ConnectionLost):
                await command()


async def test_a_subscriber_gets_an_exception(clock: MockClock, relay: Relay, nursery: trio.Nursery) -> None:
    async with connect(relay.url) as client, client.subscribe("t") as subscription:
        relay.swallow()
        waiting = Attempt(subscription.__anext__)
        nursery.start_soon(waiting.run)
        await waiting.is_lost_in_time(clock)


async def test_with_reconnect_everything_continues(
    clock: MockClock, relay: Relay, server: Server, nursery: trio.Nursery
) -> None:
    async with (
        connect_to(server) as other,
        connect(relay.url, reconnect=True) as client,
        client.subscribe("t", FromBeginning()) as subscription,
    ):
        await other.publish_confirmed("t", b"1")
        assert (await anext(subscription)).body == b"1"
        relay.swallow()
        await client.publish("t", b"never arrives")
        confirm = Attempt(client.confirm)
        nursery.start_soon(confirm.run)
        await confirm.is_lost_in_time(clock)
        await pass_time(clock, 60)
        await other.publish_confirmed("t", b"2")
        relay.mend()
        await pass_time(clock, 20)
        assert (await anext(subscription)).body == b"2"
        with pytest.raises(ConnectionLost, match="may be lost"):
            await client.confirm()
        await client.publish_confirmed("t", b"3")
        assert (await anext(subscription)).body == b"3"


async def test_confirm_reports_a_loss_before_the_client_reconnects(clock: MockClock, relay: Relay) -> None:
    async with connect(relay.url, reconnect=True) as client:
        await client.publish_confirmed("t", b"1")
        relay.swallow()
        await client.publish("t", b"2")
        await pass_time(clock, SILENCE_SECONDS + 5)
        with pytest.raises(ConnectionLost, match="may be lost"):
            await client.confirm()


async def test_pings_alone_keep_a_client(clock: MockClock, relay: Relay) -> None:
    async with connect(relay.url) as client, client.subscribe("t"):
        await pass_time(clock, 10 * SILENCE_SECONDS)
        await client.publish_confirmed("t", b"1")
        assert relay.connections == 1


async def test_a_client_that_does_not_read_sees_no_silence(
    clock: MockClock, relay: Relay, server: Server
) -> None:
    async with (
        connect_to(server) as other,
        connect(relay.url) as client,
        client.subscribe("t", capacity=1) as subscription,
    ):
        await other.publish_many("t", [b"%d" % n for n in range(100)])
        await other.confirm()
        await pass_time(clock, 3 * SILENCE_SECONDS)
        for number in range(100):
            assert (await anext(subscription)).body == b"%d" % number


async def test_a_sink_is_given_up_with_the_connection_of_its_client(
    clock: MockClock, relay: Relay, nursery: trio.Nursery
) -> None:
    async with connect(relay.url) as client:
        swallowed = trio.Event()

        async def publish() -> None:
            async with client.sink("t") as sink:
                await sink.publish(b"1")
                relay.swallow()
                swallowed.set()

        publishing = Attempt(publish)
        nursery.start_soon(publishing.run)
        await swallowed.wait()
        await publishing.is_lost_in_time(clock)


async def test_a_feed_is_given_up_after_as_long(
    clock: MockClock, relay: Relay, nursery: trio.Nursery
) -> None:
    async with connect(relay.url) as client, client.feed("t") as feed:
        relay.swallow()
        waiting = Attempt(feed.__anext__)
        nursery.start_soon(waiting.run)
        await waiting.is_lost_in_time(clock)


async def test_null_messages_alone_keep_a_feed(clock: MockClock, relay: Relay, nursery: trio.Nursery) -> None:
    async with connect(relay.url) as client, client.feed("t") as feed:
        waiting = Attempt(feed.__anext__)
        nursery.start_soon(waiting.run)
        await pass_time(clock, 10 * SILENCE_SECONDS)
        assert not waiting.done.is_set()
        await client.publish("t", b"1")
        await waiting.done.wait()
        assert waiting.lost is None


async def test_a_fetch_is_given_up_after_as_long(
    clock: MockClock, relay: Relay, server: Server, nursery: trio.Nursery
) -> None:
    async with connect_to(server) as other:
        # More than the kernels hold on the way.
        for _ in range(8):
            async with other.sink("t") as sink:
                await sink.publish_many([b"x" * 1000] * 4000)
    async with connect(relay.url) as client, client.fetch("t") as blocks:
        await anext(blocks)
        relay.swallow()

        async def the_rest() -> None:
            async for _ in blocks:
                pass

        reading = Attempt(the_rest)
        nursery.start_soon(reading.run)
        await reading.is_lost_in_time(clock)


def idle_timers(port: int) -> list[str]:
    """Return the timer of each connection that this machine has to a port, as the kernel shows it: 02 for
    keepalive, 00 for none.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[5].partition(":")[0] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]


async def test_every_connection_has_keepalive(server: Server) -> None:
    addresses = parse_servers(f"127.0.0.1:{server.port}")
    async with connect_to(server) as client, client.sink("t"), client.feed("t"), client.fetch("t"):
        with Blocking(addresses, RetryPolicy()) as blocking:
            await trio.to_thread.run_sync(blocking.topics)
            with await trio.to_thread.run_sync(SinkConnection, blocking, b"t"):
                # Until what was sent last is acknowledged, there is another timer.
                while (timers := idle_timers(server.port)) != ["02"] * 6:
                    assert len(timers) == 6
                    await trio.sleep(0.01)  # the kernel tells nobody: one can only look again
