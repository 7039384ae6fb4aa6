"""A client that reconnects, and a server that stops and starts again."""

from contextlib import AsyncExitStack
from functools import partial
from itertools import pairwise

import anyio
import pytest
import trio.testing
from anyio.abc import SocketListener, TaskGroup
from client_helpers import OpenServer, Running, connect_to
from relays import Relay

from omq.client import (
    Client,
    ConnectionLost,
    Delivery,
    FromBeginning,
    FromCurrent,
    Gap,
    Persistent,
    Replay,
    Subscription,
    Sync,
    Transient,
    connect,
    connections,
)
from omq.protocol.handshake import hello
from omq.protocol.omq.frames import encode
from omq.protocol.omq.types import Error
from omq.server import Server
from omq_storage.levels import Level


async def restarted(running: Running, open_omq: OpenServer, nursery: TaskGroup) -> Running:
    port = running.server.port
    await running.stop()
    return await Running.start(nursery, open_omq(port=port))


async def numbers(subscription: Subscription, count: int) -> list[int]:
    return [int((await anext(subscription)).body) for _ in range(count)]


async def publish(running: Running, topic: str, first: int, last: int) -> None:
    async with running.connect() as publisher:
        await publisher.publish_many(topic, [b"%d" % n for n in range(first, last + 1)])
        await publisher.confirm()


@pytest.mark.parametrize("replay", [FromBeginning(), FromCurrent()])
@pytest.mark.parametrize("sync", [Sync.STRONG, Sync.WEAK])
async def test_a_persistent_subscription_goes_on_without_loss_or_repeat(
    open_omq: OpenServer, nursery: TaskGroup, sync: Sync, replay: Replay
) -> None:
    gaps: list[Gap] = []
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True, on_gap=gaps.append) as client:
        await client.declare("t", Delivery.BROADCAST, Persistent(sync))
        async with client.subscribe("t", replay) as subscription:
            last = 0
            for _ in range(3):
                await publish(running, "t", last + 1, last + 100)
                assert await numbers(subscription, 50) == list(range(last + 1, last + 51))
                running = await restarted(running, open_omq, nursery)
                await publish(running, "t", last + 101, last + 200)
                assert await numbers(subscription, 150) == list(range(last + 51, last + 201))
                last += 200
    assert gaps == []


async def test_from_current_without_a_message_yet_loses_nothing(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    await publish(running, "t", 1, 10)
    async with running.connect(reconnect=True) as client, client.subscribe("t") as subscription:
        port = running.server.port
        await running.stop()
        # A port that nobody else uses, so that messages come before the client is back.
        elsewhere = await Running.start(nursery, open_omq())
        await publish(elsewhere, "t", 11, 20)
        await elsewhere.stop()
        await Running.start(nursery, open_omq(port=port))
        assert await numbers(subscription, 10) == list(range(11, 21))


async def test_the_gap_of_a_transient_topic_is_reported(open_omq: OpenServer, nursery: TaskGroup) -> None:
    gaps: list[Gap] = []
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True, on_gap=gaps.append) as client:
        await client.declare("t", Delivery.BROADCAST, Transient())
        async with client.subscribe("t") as subscription:
            await publish(running, "t", 1, 3)
            assert await numbers(subscription, 3) == [1, 2, 3]
            port = running.server.port
            await running.stop()
            elsewhere = await Running.start(nursery, open_omq())
            await publish(elsewhere, "t", 4, 6)
            await elsewhere.stop()
            running = await Running.start(nursery, open_omq(port=port))
            await client.confirm()  # connected again, and subscribed before that
            await publish(running, "t", 7, 8)
            message = await anext(subscription)
            assert message.body == b"7"
            first, last = gaps[0].first, gaps[-1].last
            assert (first, last) == (4, message.id - 1)
            for before, after in pairwise(gaps):
                assert after.first == before.last + 1


@pytest.mark.parametrize("missed", [0, 2])
async def test_messages_that_pass_while_a_transient_topic_is_resumed_are_a_gap(
    server: Server, relay: Relay, missed: int
) -> None:
    gaps: list[Gap] = []
    async with (
        connect_to(server) as other,
        connect(relay.url, reconnect=True, on_gap=gaps.append) as client,
    ):
        await client.declare("t", Delivery.BROADCAST, Transient())
        async with client.subscribe("t") as subscription:
            await other.publish_confirmed("t", b"1")
            assert await numbers(subscription, 1) == [1]
            held = relay.hold(b"Subscribe t")
            _, lost = await other.connections()
            await other.disconnect(lost.id)
            await held.arrived.wait()  # the client has the list of the topics
            for _ in range(missed):
                await other.publish_confirmed("t", b"0")
            held.released.set()
            await client.ping()
            await other.publish_confirmed("t", b"2")
            assert await numbers(subscription, 1) == [2]
    assert [(gap.first, gap.last) for gap in gaps] == ([(2, 1 + missed)] if missed else [])


async def test_a_server_that_does_not_list_its_topics_is_tried_again(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    port = running.server.port
    async with (
        running.connect(reconnect=True) as client,
        client.subscribe("t", FromBeginning()) as subscription,
    ):
        await running.stop()
        async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listeners:
            (listener,) = listeners.listeners
            assert isinstance(listener, SocketListener)
            async with await listener.accept() as connection:
                await connection.send(hello() + encode(Error(b"Topics: there is no memory for the list now")))
                async for _ in connection:
                    pass
        running = await Running.start(nursery, open_omq(port=port))
        await publish(running, "t", 1, 3)
        assert await numbers(subscription, 3) == [1, 2, 3]


async def test_commands_wait_for_the_next_connection(open_omq: OpenServer, nursery: TaskGroup) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client:
        await client.publish_confirmed("t", b"1")
        running = await restarted(running, open_omq, nursery)
        await client.publish_confirmed("t", b"2")
        (info,) = await client.topics()
        assert info.messages == 2


async def test_publishes_of_unknown_fate_fail_the_next_confirm_once(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client:
        await client.publish("t", b"1")
        running = await restarted(running, open_omq, nursery)
        with pytest.raises(ConnectionLost):
            await client.confirm()
        await client.publish_confirmed("t", b"2")


async def test_unconfirmed_jobs_come_again(open_omq: OpenServer, nursery: TaskGroup) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client:
        await client.declare("jobs", Delivery.ROUND_ROBIN, Persistent(Sync.STRONG))
        await publish(running, "jobs", 1, 10)
        async with client.subscribe("jobs", credit=4) as subscription:
            assert await numbers(subscription, 2) == [1, 2]
            await client.confirm()  # behind the confirmation of 1
            running = await restarted(running, open_omq, nursery)
            assert await numbers(subscription, 9) == list(range(2, 11))


async def test_a_topic_deleted_meanwhile_ends_its_subscription(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client, client.subscribe("t") as subscription:
        port = running.server.port
        await running.stop()
        elsewhere = await Running.start(nursery, open_omq())
        async with elsewhere.connect() as other:
            await other.delete("t")
        await elsewhere.stop()
        await Running.start(nursery, open_omq(port=port))
        assert [message async for message in subscription] == []


async def test_leaving_while_there_is_no_server(open_omq: OpenServer, nursery: TaskGroup) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client, client.subscribe("t"):
        await client.publish_confirmed("t", b"1")
        await running.stop()


async def test_a_loss_of_which_all_tasks_were_told_is_not_repeated_at_the_end(
    server: Server, relay: Relay
) -> None:
    confirms = relay.hold(b"(Confirm ")
    told: list[ConnectionLost] = []

    async def publish_until_it_is_stored() -> None:
        try:
            await client.publish_confirmed("t", b"x")
        except ConnectionLost as lost:
            told.append(lost)
            await client.publish_confirmed("t", b"x")

    async with connect(relay.url, id="test", reconnect=True) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_until_it_is_stored)
            tasks.start_soon(publish_until_it_is_stored)
            await confirms.arrived.wait()
            for terminal in server.terminals():
                terminal.disconnect("the administrator ends this connection")
            confirms.released.set()
        assert len(told) == 2


async def test_a_subscription_left_while_another_is_resumed_ends_at_the_server(
    server: Server, relay: Relay
) -> None:
    async with (
        connect_to(server) as other,
        connect(relay.url, reconnect=True) as client,
        AsyncExitStack() as left,
    ):
        await left.enter_async_context(client.subscribe("left"))
        async with client.subscribe("kept"):
            held = relay.hold(b"Subscribe kept")
            _, lost = await other.connections()
            await other.disconnect(lost.id)
            await held.arrived.wait()  # "left" is resumed
            await left.aclose()
            held.released.set()
            await client.ping()
            assert {info.topic: info.subscribers for info in await other.topics()} == {b"left": 0, b"kept": 1}
            async with client.subscribe("left"):
                pass


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("reconnect", [True, False])
async def test_tasks_that_outlast_the_block_see_the_end_of_the_client(
    open_omq: OpenServer, nursery: TaskGroup, connected: bool, reconnect: bool
) -> None:
    running = await Running.start(nursery, open_omq())
    subscribed = anyio.Event()
    endings: list[str] = []

    async def iterate(client: Client) -> None:
        try:
            async with client.subscribe("t") as subscription:
                subscribed.set()
                async for _ in subscription:
                    pass
        except ConnectionLost as error:
            endings.append(str(error))

    async with anyio.create_task_group() as outer, running.connect(reconnect=reconnect) as client:
        outer.start_soon(iterate, client)
        await subscribed.wait()
        if not connected:
            await running.stop()
    assert len(endings) == 1
    assert client.ended
    for call in (client.publish("t", b"x"), client.confirm(), client.topics(), client.ping()):
        with pytest.raises(ConnectionLost):
            await call


@pytest.mark.parametrize("reconnect", [False, True])
async def test_nothing_is_published_behind_the_end_of_a_client(
    open_omq: OpenServer, nursery: TaskGroup, reconnect: bool
) -> None:
    async with open_omq() as server:
        published = anyio.Event()
        left = anyio.Event()
        clients: list[Client] = []

        async def leave() -> None:
            async with connect_to(server, reconnect=reconnect) as client:
                clients.append(client)
                await client.declare("t", Delivery.BROADCAST, Persistent(Sync.STRONG))
                await client.publish("t", b"x")
                published.set()
            left.set()

        # The server stores nothing, so it does not close the connection of a client that leaves.
        async with server.catalogue.writers[Level.STRONG].paused():
            nursery.start_soon(leave)
            await published.wait()
            await trio.testing.wait_all_tasks_blocked()
            for publish in (
                partial(clients[0].publish, "t", b"y"),
                partial(clients[0].publish_many, "t", [b"y", b"y"]),
                partial(clients[0].publish_confirmed, "t", b"y"),
            ):
                with pytest.raises(ConnectionLost, match="the client was closed"):
                    await publish()
            assert not left.is_set()
        await left.wait()
        async with connect_to(server) as client:
            assert [info.last for info in await client.topics()] == [1]


@pytest.mark.parametrize("subscribed", [True, False])
async def test_restarts_in_a_row_do_not_make_the_pauses_longer(
    open_omq: OpenServer, nursery: TaskGroup, monkeypatch: pytest.MonkeyPatch, subscribed: bool
) -> None:
    pauses: list[float] = []

    def longest(shortest: float, longest: float) -> float:
        pauses.append(longest)
        return shortest

    monkeypatch.setattr(connections.random, "uniform", longest)
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client, AsyncExitStack() as stack:
        if subscribed:
            await stack.enter_async_context(client.subscribe("t"))
        await client.topics()
        first_pauses = []
        for _ in range(4):
            before = len(pauses)
            running = await restarted(running, open_omq, nursery)
            await client.topics()
            first_pauses.append(pauses[before])
    assert first_pauses == [connections.SHORTEST_PAUSE] * 4
