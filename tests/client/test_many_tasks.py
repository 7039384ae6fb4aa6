"""Reports of refused or lost messages to several tasks that share a client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from client_helpers import OpenServer, Running, connect_to

from omq.client import (
    Client,
    ConnectionLost,
    FromBeginning,
    MessageRun,
    PublishRefused,
    Subscription,
    warn_of_gap,
)
from omq.server import Server


@asynccontextmanager
async def strict_client(open_omq: OpenServer) -> AsyncIterator[Client]:
    """Yield a client of a server that refuses all topics but "known"."""
    async with open_omq(allow_undeclared=False) as server:
        client = None
        try:
            async with connect_to(server) as client:
                await client.declare("known")
                yield client
        except PublishRefused:
            pass  # what a test has left for the end


@pytest.fixture
async def strict(open_omq: OpenServer) -> AsyncIterator[Client]:
    async with strict_client(open_omq) as client:
        yield client


async def in_a_task(call: Callable[[], Awaitable[object]]) -> None:
    """Await `call()` in a task of its own; raise what it raises."""
    raised: list[Exception] = []

    async def run() -> None:
        try:
            await call()
        except (PublishRefused, ConnectionLost) as error:
            raised.append(error)

    async with anyio.create_task_group() as nursery:
        nursery.start_soon(run)
    for error in raised:
        raise error


async def test_a_refusal_is_reported_to_every_task_that_published(strict: Client) -> None:
    asked = anyio.Event()
    outcomes: list[str] = []

    async def publish_early_and_ask_late() -> None:
        await strict.publish("unknown", b"x")
        published.set()
        await asked.wait()
        with pytest.raises(PublishRefused, match="Publish unknown: "):
            await strict.confirm()
        outcomes.append("told")
        await strict.confirm()  # once

    for _ in range(2):
        asked = anyio.Event()
        published = anyio.Event()
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(publish_early_and_ask_late)
            await published.wait()
            with pytest.raises(PublishRefused):
                await strict.confirm()
            await strict.confirm()
            asked.set()
    assert outcomes == ["told", "told"]


async def test_a_refusal_is_reported_to_all_concurrent_confirms(strict: Client) -> None:
    await strict.publish("unknown", b"x")
    told: list[PublishRefused] = []

    async def ask() -> None:
        try:
            await strict.confirm()
        except PublishRefused as error:
            told.append(error)

    async with anyio.create_task_group() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert len(told) == 5


async def test_a_ping_reports_no_refusal(strict: Client) -> None:
    await strict.publish("unknown", b"x")
    assert await strict.ping() > 0
    with pytest.raises(PublishRefused, match="Publish unknown: "):
        await strict.confirm()
    await strict.publish("unknown", b"x")
    await in_a_task(strict.ping)
    with pytest.raises(PublishRefused, match="Publish unknown: "):
        await strict.confirm()


async def test_a_cancelled_confirm_reports_no_refusal(strict: Client) -> None:
    for abandoned in (strict.confirm, lambda: strict.publish_confirmed("unknown", b"y")):
        await strict.publish("unknown", b"x")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await abandoned()
        assert scope.cancelled_caught
        await strict.ping()
        with pytest.raises(PublishRefused, match="Publish unknown: "):
            await strict.confirm()
        await strict.confirm()


async def test_a_refusal_after_a_cancelled_confirm_is_reported_at_the_end(open_omq: OpenServer) -> None:
    async def leave_after_a_cancelled_confirm(server: Server) -> None:
        async with connect_to(server) as client:
            await client.publish("unknown", b"x")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.confirm()
            await client.ping()

    async with open_omq(allow_undeclared=False) as server:
        with pytest.raises(PublishRefused, match="Publish unknown: "):
            await leave_after_a_cancelled_confirm(server)


async def test_publish_confirmed_reports_to_each_task_its_own_message(strict: Client) -> None:
    refused: list[str] = []

    async def publish(topic: str) -> None:
        for _ in range(100):
            try:
                await strict.publish_confirmed(topic, b"x")
            except PublishRefused:
                refused.append(topic)

    async with anyio.create_task_group() as nursery:
        for topic in ("known", "unknown", "known", "other"):
            nursery.start_soon(publish, topic)
    assert refused.count("unknown") == refused.count("other") == 100
    assert refused.count("known") == 0
    infos = {info.topic: info.messages for info in await strict.topics()}
    assert infos == {b"known": 200}


async def test_pings_beside_do_not_hide_a_refusal(strict: Client) -> None:
    async def ping() -> None:
        while True:
            await strict.ping()

    async with anyio.create_task_group() as nursery:
        for _ in range(3):
            nursery.start_soon(ping)
        for _ in range(100):
            await strict.publish("unknown", b"x")
            with pytest.raises(PublishRefused):
                await strict.confirm()
        nursery.cancel_scope.cancel()


async def test_a_refusal_that_publish_confirmed_reported_is_not_repeated(open_omq: OpenServer) -> None:
    async with open_omq(allow_undeclared=False) as server, connect_to(server) as client:
        with pytest.raises(PublishRefused):
            await client.publish_confirmed("unknown", b"x")
        await client.confirm()
        with pytest.raises(PublishRefused):
            await in_a_task(lambda: client.publish_confirmed("unknown", b"x"))


async def test_many_refusals_without_a_confirm_are_reported_at_the_end(strict: Client) -> None:
    for _ in range(200):
        await strict.publish("unknown", b"x")
        await strict.ping()
    with pytest.raises(PublishRefused) as caught:
        await strict.confirm()
    assert len(caught.value.refusals) == 16
    await strict.confirm()


async def test_a_lost_connection_is_reported_to_every_task_that_published(
    open_omq: OpenServer, nursery: TaskGroup
) -> None:
    running = await Running.start(nursery, open_omq())
    async with running.connect(reconnect=True) as client:
        port = running.server.port
        asked = anyio.Event()
        published = anyio.Event()
        told: list[str] = []

        async def publish_early_and_ask_late() -> None:
            await client.publish("t", b"1")
            published.set()
            await asked.wait()
            with pytest.raises(ConnectionLost):
                await client.confirm()
            told.append("one")
            await client.publish_confirmed("t", b"2")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish_early_and_ask_late)
            await published.wait()
            await running.stop()
            await Running.start(nursery, open_omq(port=port))
            await in_a_task(client.topics)  # connected again
            await in_a_task(client.ping)
            with pytest.raises(ConnectionLost):
                await in_a_task(client.confirm)
            asked.set()
        assert told == ["one"]


async def test_tasks_that_share_a_subscription_get_every_message() -> None:
    subscription = Subscription(b"t", FromBeginning(), None, 1000, warn_of_gap)
    shares: list[list[int]] = [[], []]

    async def take(share: list[int]) -> None:
        async for message in subscription:
            share.append(message.id)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        for share in shares:
            tasks.start_soon(take, share)
        await anyio.wait_all_tasks_blocked()
        subscription.put(MessageRun(0, [1, 2, 3], [b""] * 3))
        subscription.put(MessageRun(0, [4, 5], [b""] * 2))
        await anyio.wait_all_tasks_blocked()
        subscription.end()
    assert sorted(shares[0] + shares[1]) == [1, 2, 3, 4, 5]
    assert all(shares)
