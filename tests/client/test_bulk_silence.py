"""The synchronous client and a server or a network that fails silently."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from certificates import Authority
from client_helpers import OpenServer, connect_to
from relays import Relay, relayed

from omq.bulk.credentials import Credentials
from omq.bulk.errors import Unreachable
from omq.bulk.remote import RemoteServer as Blocking
from omq.bulk.remote import RetryPolicy, parse_servers
from omq.bulk.sinks import SinkConnection, send
from omq.client import Client, ConnectionLost, Delivery, Transient
from omq.protocol.dmp.writer import for_sink
from omq.server import Server

# The synchronous client waits in threads and measures real time, so these tests let real time pass.
SILENCE = 2.0
"""The seconds that the server may be silent: far longer than a busy machine keeps it from sending its pings.
"""

RETRY_POLICY = RetryPolicy(retries=0, seconds=0, silence=SILENCE)
MIB = 1 << 20

SETTINGS = {"ping_seconds": 0.4, "missed_pings": 0, "memory_bytes": 4 * MIB, "max_message_bytes": MIB}
"""Here only the client gives up. The server would do so first when a busy machine keeps the client from
answering pings that come so often.
"""

T = TypeVar("T")


@pytest.fixture
async def server(open_omq: OpenServer) -> AsyncIterator[Server]:
    async with open_omq(**SETTINGS) as running:
        yield running


def blocking(url: str) -> Blocking:
    return Blocking(parse_servers(url), RETRY_POLICY)


async def in_thread(call: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(call)


async def is_lost_in_time(call: Callable[[], object], kind: type[Exception]) -> None:
    begun = time.monotonic()
    with pytest.raises(kind):
        await in_thread(call)
    assert time.monotonic() - begun >= 0.9 * SILENCE


async def test_an_answer_that_never_comes(relay: Relay) -> None:
    with blocking(relay.url) as client:
        await in_thread(client.topics)
        relay.swallow()
        await is_lost_in_time(client.topics, Unreachable)
        relay.mend()
        assert await in_thread(client.topics) == {}


async def test_a_fetch_that_stops_in_the_middle(server: Server, relay: Relay) -> None:
    async with connect_to(server) as other, other.sink("t") as sink:
        await sink.publish_many([b"x" * 1000] * 4000)
    with blocking(relay.url) as client:
        topic = (await in_thread(client.topics))["t"]
        relay.swallow(after=2 * MIB)
        found = client.fetch(topic, 1, topic.next, lambda block, messages: len(messages))
        assert 0 < await in_thread(lambda: next(found)) < 4000
        await is_lost_in_time(lambda: list(found), Unreachable)


async def sink_is_lost_in_time(client: Blocking, relay: Relay) -> None:
    """Send a message to a sink, and assert that its connection is lost when no answer comes."""
    sink = await in_thread(lambda: SinkConnection(client, b"t"))
    await in_thread(lambda: sink.send(for_sink([b"1"])))
    relay.swallow()
    with sink:
        await is_lost_in_time(lambda: sink.finish(1), ConnectionLost)


async def test_a_sink_that_is_never_answered(relay: Relay) -> None:
    with blocking(relay.url) as client:
        await sink_is_lost_in_time(client, relay)


async def take_late(client: Client, count: int, seconds: float) -> None:
    """Take the messages of a topic after some time, so that a sink must wait for longer than SILENCE."""
    await trio.sleep(seconds)  # time is what is tested
    async with client.subscribe("jobs") as subscription:
        for _ in range(count):
            await anext(subscription)


@pytest.mark.parametrize("waits_to", ["send", "finish"])
async def test_a_sink_that_waits_for_longer_is_not_lost_while_there_are_pings(
    server: Server, relay: Relay, waits_to: str
) -> None:
    # Messages that nobody takes fill the memory of the server, and it makes publishers wait.
    bodies = [b"x" * 16000] * (2000 if waits_to == "send" else 300)
    async with connect_to(server) as other, trio.open_nursery() as nursery:
        await other.declare("jobs", Delivery.ROUND_ROBIN, Transient())

        begun = time.monotonic()
        nursery.start_soon(take_late, other, len(bodies), 3 * SILENCE)
        with blocking(relay.url) as client:
            await in_thread(lambda: send(client, RETRY_POLICY, b"jobs", for_sink(bodies), len(bodies)))
            assert time.monotonic() - begun >= 2 * SILENCE


async def test_with_tls_a_sink_waits_and_gives_up_as_well(open_omq: OpenServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    shown = authority.issue("127.0.0.1")
    settings = {"tls_cert": str(shown.cert), "tls_key": str(shown.key), **SETTINGS}
    bodies = [b"x" * 16000] * 300
    async with (
        open_omq(**settings) as server,
        relayed(server.port) as relay,
        connect_to(server) as other,
        trio.open_nursery() as nursery,
    ):
        await other.declare("jobs", Delivery.ROUND_ROBIN, Transient())

        nursery.start_soon(take_late, other, len(bodies), 2 * SILENCE)
        addresses = parse_servers(relay.url.replace("omq://", "omqs://"))
        with Blocking(addresses, RETRY_POLICY, Credentials(ca=str(authority.file))) as client:
            await in_thread(lambda: send(client, RETRY_POLICY, b"jobs", for_sink(bodies), len(bodies)))
            await sink_is_lost_in_time(client, relay)


async def test_pings_are_answered_beside_a_sink(
    open_omq: OpenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omq.bulk.sinks.LOOK_SECONDS", 0.05)
    # A client that answers no ping is given up after 3 seconds, which is far longer than a busy machine keeps
    # a client from answering.
    async with open_omq(ping_seconds=1) as server:
        with blocking(f"omq://127.0.0.1:{server.port}") as client:
            with await in_thread(lambda: SinkConnection(client, b"t")) as sink:
                for _ in range(45):
                    await trio.sleep(0.1)  # time is what is tested: these are more than 3 seconds together
                    await in_thread(lambda: sink.send(for_sink([b"1"])))
                await in_thread(lambda: sink.finish(45))
            # It is the same connection that answers now.
            connection = client.connected()
            assert [info.messages for info in await in_thread(connection.topics)] == [45]
