"""The outcomes of publishes that clients are told before the server ends their connections."""

from pathlib import Path

import pytest
import trio
from amqp_0_9.raw_client import Client
from amqp_0_9.served_broker import brokered
from amqp_0_9.wire import (
    ack,
    commit,
    consume,
    declare_queue,
    get,
    method,
    publish,
    select_confirms,
    select_tx,
)
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.terminals.connection.last_outcomes import CONFIRMING_SECONDS
from omq_storage.levels import Level

from .conversation import InProcess, eventually

in_thread = trio.to_thread.run_sync

CLOSE = "connection.close 320 CONNECTION_FORCED (0,0)"

CLOSE_OK = method(0, 10, 51)


def said(client: Client, count: int) -> list[str]:
    """Return N (`count`) methods as they are told."""
    return [client.wait().told() for _ in range(count)]


async def read(host: InProcess, octets: int) -> None:
    """Wait until the server has executed this number of octets more of its only connection."""
    (terminal,) = host.server.terminals()
    expected = terminal.statistics().octets_in + octets
    await eventually(lambda: terminal.statistics().octets_in == expected)


async def stored(store: Path) -> list[bytes]:
    """Return the bodies of the messages of the queue after a restart."""
    async with brokered(store) as (_, broker):

        def take() -> list[bytes]:
            client, bodies = broker.channel(), []
            while (reply := client.call(get(1, "q", no_ack=1))).name == "get-ok":
                bodies.append(reply.body)
            return bodies

        return await in_thread(take)


@pytest.mark.parametrize("ended", ["stop", "disconnect"])
async def test_confirms_come_before_the_close_of_the_server(
    store: Path, ended: str, slow_clock: MockClock
) -> None:
    async with brokered(store) as (host, broker):
        client = await in_thread(broker.channel)
        await in_thread(client.said, declare_queue(1, "q", durable=1), select_confirms(1))
        async with host.server.catalogue.writers[Level.STRONG].paused():
            client.send(publish(1, "", "q", b"first"), publish(1, "", "q", b"second"))
            (terminal,) = host.server.terminals()
            await eventually(lambda: terminal.statistics().unconfirmed == 2)
            if ended == "stop":
                host.server.stop()
            else:
                terminal.disconnect("for a test")
            late = publish(1, "", "q", b"late")
            client.send(late)
        assert await in_thread(said, client, 2) == ["ack tag=2 bits=1", CLOSE]
        client.send(CLOSE_OK)
        assert (await in_thread(client.wait)).name == "EOF"
    assert await stored(store) == [b"first", b"second"]


async def test_a_commit_ends_before_the_close_of_the_server(store: Path, slow_clock: MockClock) -> None:
    async with brokered(store) as (host, broker):
        client = await in_thread(broker.channel)
        await in_thread(
            client.said, declare_queue(1, "q", durable=1), select_tx(1), publish(1, "", "q", b"x") + commit(1)
        )
        assert (await in_thread(client.call, get(1, "q"))).body == b"x"
        async with host.server.catalogue.writers[Level.STRONG].paused():
            octets = publish(1, "", "q", b"y") + ack(1, 1) + commit(1)
            client.send(octets)
            await read(host, len(octets))
            host.server.stop()
            client.send(publish(1, "", "q", b"z") + commit(1))
        assert await in_thread(said, client, 2) == ["commit-ok", CLOSE]
        client.send(CLOSE_OK)
        assert (await in_thread(client.wait)).name == "EOF"
    assert await stored(store) == [b"y"]


async def test_what_follows_a_publish_without_effect_has_none_either(
    store: Path, slow_clock: MockClock
) -> None:
    """A worker that publishes a result and acknowledges its work loses neither both nor one."""
    async with brokered(store) as (host, broker):
        client = await in_thread(broker.channel)
        await in_thread(client.said, declare_queue(1, "q", durable=1), select_confirms(1))
        await in_thread(client.said, publish(1, "", "q", b"work"), consume(1, "q", "t"))
        assert (await in_thread(client.wait)).body == b"work"
        async with host.server.catalogue.writers[Level.STRONG].paused():
            client.send(publish(1, "", "q", b"first"))
            (terminal,) = host.server.terminals()
            await eventually(lambda: terminal.statistics().unconfirmed == 1)
            host.server.stop()
            octets = publish(1, "", "q", b"result") + ack(1, 1)
            client.send(octets)
            await read(host, len(octets))
        assert await in_thread(said, client, 2) == ["ack tag=2 bits=0", CLOSE]
    assert await stored(store) == [b"work", b"first"]


async def test_the_close_of_the_server_does_not_wait_for_long(store: Path, slow_clock: MockClock) -> None:
    async with brokered(store) as (host, broker):
        client = await in_thread(broker.channel)
        await in_thread(client.said, declare_queue(1, "q", durable=1), select_confirms(1))
        async with host.server.catalogue.writers[Level.STRONG].paused():
            client.send(publish(1, "", "q", b"x"))
            (terminal,) = host.server.terminals()
            await eventually(lambda: terminal.statistics().unconfirmed == 1)
            host.server.stop()
            await quiet()
            assert terminal.statistics().unconfirmed == 1
            await pass_time(slow_clock, CONFIRMING_SECONDS)
            assert terminal.statistics().unconfirmed == 0
            assert (await in_thread(client.wait)).told() == CLOSE
            client.send(CLOSE_OK)
            assert (await in_thread(client.wait)).name == "EOF"
    assert await stored(store) == [b"x"]
