"""Connections and channels with many consumers: these end in slices, and their messages return as one."""

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from counted_steps import watched
from server.conversation import InProcess, eventually, serving

from omq.drivers import slices
from omq.drivers.queue import QueueDriver
from omq.model import Delivery

from .raw_client import Client, Reply
from .wire import ack, close_channel, consume, declare_queue, method, open_channel, publish, qos, short

CONSUMERS = 40

PREFETCH = 3

MESSAGES = CONSUMERS * PREFETCH


@asynccontextmanager
async def hosting(store: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcess]:
    """Yield a server in which each slice has one step."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    async with serving(store) as host:
        yield host


OPENAMQ = "OpenAMQ Kernel Client"
"""The product that OpenAMQ's clients name: they may turn the flow off."""


async def connected(host: InProcess, product: str = "probe") -> Client:
    """Return a connection with channel 1."""
    client = Client(("127.0.0.1", host.port))
    shake_hands = partial(client.shake_hands, product=product)
    await trio.to_thread.run_sync(shake_hands, "guest", "guest")
    await answer(client, open_channel(1))
    return client


async def answer(client: Client, *frames: bytes) -> str:
    """Send, and return the next method as it is told."""
    return (await trio.to_thread.run_sync(client.call, *frames)).told()


async def replies(client: Client, count: int) -> list[Reply]:
    """Return the next N (`count`) methods, read in one thread."""
    return await trio.to_thread.run_sync(lambda: [client.wait() for _ in range(count)])


async def deliveries(client: Client, count: int) -> list[str]:
    """Return the next deliveries as they are told, without their tags."""
    found = []
    for reply in await replies(client, count):
        assert reply.name == "deliver", reply
        found.append(reply.told().split(" ", 2)[2])
    return found


async def consuming(
    host: InProcess, queue: bytes, count: int = CONSUMERS, prefetch: int = PREFETCH, product: str = "probe"
) -> Client:
    """Return a connection that makes a queue, with N (`count`) consumers."""
    client = await connected(host, product)
    assert (await answer(client, queue)).startswith("queue.declare-ok")
    await answer(client, qos(1, prefetch))
    for number in range(count):
        assert await answer(client, consume(1, "q", f"tag {number}")) == "consume-ok"
    return client


def the_queue(host: InProcess) -> QueueDriver:
    (driver,) = [each for each in host.server.catalogue if each.topic.topic == b"q"]
    assert isinstance(driver, QueueDriver)
    return driver


def told(numbers: range, redelivered: int) -> list[str]:
    return [f"redelivered={redelivered} {b'%d' % number!r}" for number in numbers]


def cut(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    """End the connection so that the tasks of the server for it are cancelled."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def close(client: Client) -> None:
    assert client.call(method(0, 10, 50, struct.pack(">H", 200) + short("") + bytes(4))).name == "close-ok"


def close_one(client: Client) -> None:
    assert client.call(close_channel(1)).name == "channel.close-ok"


def fail_one(client: Client) -> None:
    assert client.call(ack(1, 999_999)).told().startswith("channel.close 406")


def fail(client: Client) -> None:
    assert client.call(open_channel(1)).told().startswith("connection.close 504")


@pytest.mark.parametrize("end", [cut, reset, close, close_one, fail_one, fail])
async def test_many_consumers_end_one_after_another_and_their_messages_return_in_order(
    end: Callable[[Client], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q"), prefetch=1)
        client.send(*[publish(1, "", "q", b"") for _ in range(CONSUMERS)])
        await deliveries(client, CONSUMERS)
        for number in range(CONSUMERS):  # the first consumer, which is closed first, has the last message
            client.send(ack(1, CONSUMERS - number), publish(1, "", "q", b"%d" % number))
            assert await deliveries(client, 1) == told(range(number, number + 1), 0)
        other = await connected(host)
        assert await answer(other, consume(1, "q", "other")) == "consume-ok"
        driver = the_queue(host)
        with (
            watched(driver.subscriber_count) as consumers,
            watched(lambda: driver.ready + driver.statistics().unsettled) as undone,
        ):
            await trio.to_thread.run_sync(end, client)
            assert await deliveries(other, CONSUMERS) == told(range(CONSUMERS), 1)
            await eventually(lambda: host.server.statistics().subscriptions == 1)
        assert consumers.largest_fall() == 1
        assert set(undone.all) == {CONSUMERS}
        assert driver.subscriber_count() == 1
        client.close()
        other.close()


async def test_the_next_single_active_consumer_gets_the_messages_of_the_last_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q", x_single_active_consumer=True), 1)
        other = await connected(host)
        assert await answer(other, consume(1, "q", "other")) == "consume-ok"
        for number in range(1, CONSUMERS):
            assert await answer(client, consume(1, "q", f"tag {number}")) == "consume-ok"
        client.send(*[publish(1, "", "q", b"%d" % number) for number in range(MESSAGES)])
        assert await deliveries(client, PREFETCH) == told(range(PREFETCH), 0)
        client.close()
        expected = told(range(PREFETCH), 1) + told(range(PREFETCH, MESSAGES), 0)
        assert await deliveries(other, MESSAGES) == expected
        other.close()


@pytest.mark.parametrize("options", [{"auto_delete": 1}, {"exclusive": 1}], ids=["auto-delete", "exclusive"])
async def test_many_queues_end_with_their_consumers(
    options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await connected(host)
        for number in range(CONSUMERS):
            await answer(client, declare_queue(1, f"q{number}", **options))
            assert await answer(client, consume(1, f"q{number}", f"tag {number}")) == "consume-ok"
        with watched(lambda: host.server.statistics().subscriptions) as subscriptions:
            await trio.to_thread.run_sync(close, client)
            assert host.server.statistics().subscriptions == 0
        assert subscriptions.largest_fall() == 1
        await eventually(
            lambda: not [each for each in host.server.catalogue if each.delivery is Delivery.ROUND_ROBIN]
        )
        client.close()


async def test_a_channel_that_fails_leaves_nothing_when_its_client_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q"))
        await answer(client, declare_queue(1, "alone"))
        alone = consume(1, "alone", "alone", exclusive=1)
        assert await answer(client, alone) == "consume-ok"
        await trio.to_thread.run_sync(fail_one, client)
        await answer(client, method(1, 20, 41) + open_channel(1))
        assert await answer(client, alone) == "consume-ok"
        assert (
            await answer(client, declare_queue(1, "q", passive=1))
            == "queue.declare-ok messages=0 consumers=0"
        )
        client.close()


async def test_a_server_that_stops_keeps_what_many_consumers_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q", durable=1))
        client.send(*[publish(1, "", "q", b"%d" % number) for number in range(MESSAGES)])
        await deliveries(client, MESSAGES)
        driver = the_queue(host)
        client.close()
        await eventually(lambda: driver.subscriber_count() < CONSUMERS)
    async with serving(tmp_path) as host:
        client = await connected(host)
        assert await answer(client, consume(1, "q", "tag")) == "consume-ok"
        assert await deliveries(client, MESSAGES) == told(range(MESSAGES), 1)
        client.close()
