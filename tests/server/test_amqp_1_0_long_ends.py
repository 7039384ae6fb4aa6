"""AMQP 1.0: connections and sessions with many links end in slices, and their messages return together."""

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from counted_steps import counted_calls, watched

from omq.drivers import slices
from omq.drivers.direct import DONE_IN_STEP, STEPS_AT_ONCE
from omq.drivers.queue import QueueDriver
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Modified,
    write,
)
from omq.protocol.amqp_1_0.types import NULL
from omq.terminals.amqp_1_0.terminal import Amqp1Terminal
from omq.terminals.connection.transport import BY_SHUTDOWN

from .amqp_1_0_peer import RELEASED, Peer, condition, data, opened, peer, source, target
from .conversation import InProcess, eventually, serving

LINKS = 40

AT_ONCE = DONE_IN_STEP * STEPS_AT_ONCE
"""The number of messages of a node that end in one step."""

IN_DOUBT = write(Modified(delivery_failed=True))


@asynccontextmanager
async def hosting(store: Path, monkeypatch: pytest.MonkeyPatch, queue: bytes) -> AsyncIterator[InProcess]:
    """Yield a server with a queue, in which each slice has one step."""
    async with serving(store) as host:
        await (await host.connect()).ask(b"(Declare q Round_robin %s)" % queue)
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        yield host


@asynccontextmanager
async def container(host: InProcess) -> AsyncIterator[Peer]:
    """Yield a connection of one and the same container."""
    async with peer(host.port) as made:
        await made.open(container="work")
        yield made


def the_queue(host: InProcess) -> QueueDriver:
    (driver,) = [each for each in host.server.catalogue if each.topic.topic == b"q"]
    assert isinstance(driver, QueueDriver)
    return driver


async def working(host: InProcess, client: Peer, sessions: int = 1) -> None:
    """Let a client attach links in turn to its sessions, each with one message of the queue that is not
    settled: the last link, which ends last, has the first message.
    """
    for channel in range(1, sessions):
        await client.say(Begin(None, 0, 1 << 20, 1 << 20), channel=channel)
        await client.heard(Begin)
    for number in range(LINKS):
        handle, channel = divmod(number, sessions)
        said = Attach(f"receiver-{number}", handle, True, 0, source=source("q"), target=target("here"))
        await client.say(said, channel=channel)
        await client.heard(Attach)
    async with opened(host.port) as producer:
        await producer.sender("q")
        for number in range(LINKS):
            handle, channel = divmod(LINKS - 1 - number, sessions)
            await client.say(flow(handle), channel=channel)
            await producer.accepted(await producer.publish(data(b"%d" % number)))
            assert (await client.message()).octets == data(b"%d" % number)


def flow(handle: int) -> Flow:
    """Return credit for one message."""
    return Flow(0, 1 << 20, 0, 1 << 20, handle, 0, 1)


async def arrive(client: Peer) -> None:
    """Check that the client gets the messages that the links had, in their order."""
    for number in range(LINKS):
        assert (await client.message()).octets.endswith(data(b"%d" % number))


async def begin_to_end(driver: QueueDriver) -> None:
    """Wait until some of the links have ended, and others have not."""
    while driver.subscriber_count() == LINKS:
        await trio.lowlevel.checkpoint()


async def cut(host: InProcess, client: Peer) -> None:
    await client.stream.aclose()


async def reset(host: InProcess, client: Peer) -> None:
    """End the connection so that the tasks of the server for it are cancelled."""
    assert isinstance(client.stream, trio.SocketStream)
    client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.stream.socket.close()


async def close(host: InProcess, client: Peer) -> None:
    await client.say(Close())
    await client.heard(Close)


async def fail(host: InProcess, client: Peer) -> None:
    await client.say(Detach(0), channel=9)
    assert condition(await client.heard(Close)) == "amqp:illegal-state"


async def disconnect(host: InProcess, client: Peer) -> None:
    (terminal,) = [each for each in host.server.terminals() if len(list(each.open_channels())) == LINKS]
    terminal.disconnect(BY_SHUTDOWN)
    assert condition(await client.heard(Close)) == "amqp:connection:forced"


async def end(host: InProcess, client: Peer) -> None:
    await client.say(End())
    await client.heard(End)


async def fail_one(host: InProcess, client: Peer) -> None:
    await client.say(Detach(999))
    assert condition(await client.heard(End)) == "amqp:session:unattached-handle"


@pytest.mark.parametrize(
    ("finish", "sessions"),
    [(cut, 2), (reset, 2), (close, 2), (fail, 2), (disconnect, 2), (end, 1), (fail_one, 1)],
    ids=["cut", "reset", "close", "fail", "disconnect", "end", "fail_one"],
)
async def test_many_links_end_one_after_another_and_their_messages_return_in_order(
    finish: Callable[[InProcess, Peer], Awaitable[None]],
    sessions: int,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosting(store, monkeypatch, b"Transient") as host, opened(host.port) as other:
        driver = the_queue(host)
        async with peer(host.port) as client:
            await client.open()
            await working(host, client, sessions)
            await other.receiver("q", credit=LINKS)
            await other.settle()
            with (
                watched(driver.subscriber_count) as consumers,
                watched(lambda: driver.ready + driver.statistics().unsettled) as undone,
            ):
                await finish(host, client)
                told = driver.subscriber_count()
                await eventually(lambda: driver.subscriber_count() == 1)
            assert consumers.largest_fall() == 1
            assert set(undone.all) == {LINKS}
            assert told == 1 or finish in (cut, reset)  # the client is told when they have ended
            await arrive(other)


async def test_a_link_takes_the_name_of_one_that_is_about_to_end(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        hosting(store, monkeypatch, b"Transient") as host,
        container(host) as after,
        container(host) as before,
    ):
        await working(host, before)
        driver = the_queue(host)
        await cut(host, before)
        await begin_to_end(driver)
        await after.receiver("q", handle=LINKS - 1, credit=LINKS, snd=0)
        assert driver.subscriber_count() > 1
        await arrive(after)
        assert driver.subscriber_count() == 1
        await after.told(0, LINKS - 1)
        await after.say(Flow(0, 1 << 20, 0, 1 << 20, echo=True))
        await after.heard(Flow)  # and no detach
        async with container(host) as last:
            await last.receiver("q", handle=LINKS - 1)
            assert condition(await after.heard(Detach)) == "amqp:link:stolen"


async def test_a_server_that_stops_keeps_what_many_links_had(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch, b"(Persistent Weak)") as host, peer(host.port) as client:
        await client.open()
        await working(host, client)
        driver = the_queue(host)
        await cut(host, client)
        await begin_to_end(driver)
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("q", credit=LINKS)
        await arrive(client)


@pytest.mark.parametrize("finish", [cut, end])
async def test_many_consumers_of_a_node_end_one_after_another(
    finish: Callable[[InProcess, Peer], Awaitable[None]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of one of them does not go to the next one."""
    async with (
        hosting(store, monkeypatch, b"Transient") as host,
        opened(host.port) as producer,
        opened(host.port) as client,
    ):
        for handle in range(LINKS):
            await client.receiver("unicast.x", handle, credit=2)
        await client.settle()
        await producer.sender("unicast.x")
        for _ in range(LINKS):
            await producer.publish(data(b"x"))
            await client.message()
        with watched(lambda: host.server.statistics().subscriptions) as subscriptions:
            await finish(host, client)
            told = 0
            while told < LINKS:
                outcome = await producer.outcome()
                assert outcome.state == IN_DOUBT
                told += 1 + (outcome.first if outcome.last is None else outcome.last) - outcome.first
            await eventually(lambda: not host.server.statistics().subscriptions)
        assert subscriptions.largest_fall() == 1
        await producer.publish(data(b"x"))
        assert (await producer.outcome()).state == RELEASED


@pytest.mark.parametrize("finish", [cut, end])
async def test_a_consumer_of_a_node_with_many_messages_ends_in_short_steps(
    finish: Callable[[InProcess, Peer], Awaitable[None]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 4 * AT_ONCE

    def unconfirmed(host: InProcess) -> int:
        terminals = [each for each in host.server.terminals() if isinstance(each, Amqp1Terminal)]
        return sum(link.unconfirmed for each in terminals for link in each.links())

    async with (
        hosting(store, monkeypatch, b"Transient") as host,
        opened(host.port) as producer,
        opened(host.port) as client,
    ):
        await client.receiver("unicast.x", credit=count)
        await client.settle()
        await producer.sender("unicast.x")
        for _ in range(count):
            await producer.publish(data(b"x"))
            await client.message()
        with watched(lambda: unconfirmed(host)) as messages:
            await finish(host, client)
            await eventually(lambda: not unconfirmed(host))
        assert messages.all[0] == count
        assert messages.largest_fall() == AT_ONCE
        told = 0
        while told < count:
            outcome = await producer.outcome()
            assert outcome.state == IN_DOUBT
            told += 1 + (outcome.first if outcome.last is None else outcome.last) - outcome.first


@pytest.mark.parametrize("finish", [cut, end])
async def test_many_dynamic_nodes_end_one_after_another(
    finish: Callable[[InProcess, Peer], Awaitable[None]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch, b"Transient") as host, opened(host.port) as client:
        for handle in range(LINKS // 2):
            await client.receiver(None, handle, dynamic=True)
            await client.sender(None, LINKS + handle, dynamic=True)
        with watched(lambda: host.server.statistics().direct_nodes) as nodes:
            await finish(host, client)
            await eventually(lambda: not host.server.statistics().direct_nodes)
        assert nodes.all[0] == LINKS
        assert nodes.largest_fall() == 1


@pytest.mark.parametrize("finish", [cut, end])
async def test_the_many_producers_of_a_dynamic_node_end_one_after_another(
    finish: Callable[[InProcess, Peer], Awaitable[None]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not granted the credit of producers whose node has no consumer, before that."""
    async with (
        hosting(store, monkeypatch, b"Transient") as host,
        opened(host.port) as client,
        opened(host.port) as producers,
    ):
        address = await client.made()
        for handle in range(LINKS):
            await producers.sender(address, handle)
        await producers.settle()
        terminals = [each for each in host.server.terminals() if isinstance(each, Amqp1Terminal)]
        (terminal,) = [each for each in terminals if len(each.links()) == LINKS]
        with watched(lambda: len(terminal.links())) as links:
            await finish(host, client)
            gone = [await producers.heard(Detach) for _ in range(LINKS)]
        assert {each.error for each in gone} == {NULL}
        assert sorted(each.handle for each in gone) == list(range(LINKS))
        assert (links.all[0], links.all[-1], links.largest_fall()) == (LINKS, 0, 1)
        assert not host.server.statistics().direct_nodes
        await producers.sender(address, LINKS)
        assert condition(await producers.heard(Detach)) == "amqp:not-found"


async def test_many_attaches_and_detaches_of_one_packet_are_executed_one_after_another(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(store, monkeypatch, b"Transient") as host, opened(host.port) as client:
        driver = the_queue(host)
        with watched(driver.subscriber_count) as consumers:
            await client.say(
                *[
                    Attach(f"{handle}", handle, True, source=source("q"), target=target("here"))
                    for handle in range(LINKS)
                ]
            )
            for _ in range(LINKS):
                await client.heard(Attach)
            await client.say(*[Detach(handle, closed=True) for handle in range(LINKS)])
            for _ in range(LINKS):
                await client.heard(Detach)
        assert (consumers.largest_rise(), consumers.largest_fall()) == (1, 1)


@pytest.mark.parametrize("delivery", [b"Round_robin", b"Broadcast"])
async def test_a_session_with_many_links_ends_in_short_steps(delivery: bytes, store: Path) -> None:
    links = 1000
    async with serving(store) as host, opened(host.port) as client:
        await (await host.connect()).ask(b"(Declare q %s Transient)" % delivery)
        for begin in range(0, links, 250):
            handles = range(begin, begin + 250)
            await client.say(
                *[
                    Attach(f"receiver-{each}", each, True, 0, source=source("q"), target=target("here"))
                    for each in handles
                ]
            )
            for _ in handles:
                await client.heard(Attach)
        assert host.server.statistics().subscriptions == links
        with counted_calls() as calls:
            await client.say(End())
            await client.until(End)
        assert host.server.statistics().subscriptions == 0
        assert calls.longest < 4 * links
