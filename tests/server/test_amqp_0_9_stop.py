"""The outcomes of publishes that clients are told before the server ends their connections."""

import math
import struct
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
    long,
    method,
    open_channel,
    publish,
    select_confirms,
    select_tx,
    short,
    table,
)
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.terminals.connection.duplex import WRITER_NAME
from omq.terminals.connection.last_outcomes import CONFIRMING_SECONDS
from omq_storage.levels import Level

from .conversation import InProcess, eventually, serving

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
                await host.server.stop()
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
            await host.server.stop()
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
            await host.server.stop()
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
            await host.server.stop()
            await quiet()
            assert terminal.statistics().unconfirmed == 1
            await pass_time(slow_clock, CONFIRMING_SECONDS)
            assert terminal.statistics().unconfirmed == 0
            assert (await in_thread(client.wait)).told() == CLOSE
            client.send(CLOSE_OK)
            assert (await in_thread(client.wait)).name == "EOF"
    assert await stored(store) == [b"x"]


OPENED = (
    b"AMQP\0\0\x09\x01"
    + method(0, 10, 11, table({}) + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
    + method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 10))
    + method(0, 10, 40, short("/") + b"\0\0")
    + open_channel(1)
)
"""The beginning of a conversation with heartbeats."""


class AtExits(trio.abc.Instrument):
    """Ends all connections whenever a writing task of one has ended."""

    def __init__(self, host: InProcess) -> None:
        self._host = host
        self.calls = 0
        self.raised: list[RuntimeError] = []

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.name == WRITER_NAME:
            for terminal in self._host.server.terminals():
                try:
                    terminal.disconnect("for a test")
                except RuntimeError as problem:
                    self.raised.append(problem)
                self.calls += 1


async def test_a_connection_that_is_just_over_is_ended_by_the_server(store: Path) -> None:
    """The server finds it until its task goes on, although its nursery takes no tasks any more."""
    async with serving(store) as host:
        exits = AtExits(host)
        trio.lowlevel.add_instrument(exits)
        client = await host.open()
        await client.send(OPENED + declare_queue(1, "q", durable=1))
        await eventually(lambda: host.server.catalogue.lookup(b"q") is not None)
        async with host.server.catalogue.writers[Level.STRONG].paused():
            for _ in range(10):  # which of its tasks ends last is left to chance
                other = await host.open()
                await other.send(OPENED + select_confirms(1) + publish(1, "", "q", b"x"))
                await eventually(lambda: host.server.terminals()[-1].statistics().unconfirmed == 1)
                host.server.terminals()[-1].sweep(math.inf)  # its client is silent
                await quiet()
        trio.lowlevel.remove_instrument(exits)
    assert exits.calls >= 10
    assert exits.raised == []
