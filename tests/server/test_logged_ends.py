"""The reasons that the log gives for the ends of connections: `its client ended it` only where it did."""

import struct
from pathlib import Path

import pytest
from amqp_0_9 import wire
from quietness import pass_time
from trio.testing import MockClock

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.performatives import Begin, Close

from . import dmp_conversation as dmp
from .amqp_1_0_peer import opened
from .conversation import InProcess, declared, eventually, publish, serving

DELETED = "the topic was deleted"


@pytest.fixture(autouse=True)
def connections_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "omq.connections")


def reason(caplog: pytest.LogCaptureFixture, kind: str) -> str:
    """Return the reason that was logged for the end of the only connection of this kind."""
    (line,) = [line for line in caplog.messages if f" ({kind}) disconnected after " in line]
    return line.partition(" s: ")[2].partition(";")[0]


async def test_a_sink_and_a_feed_whose_topic_is_deleted(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast Transient")
        sink, feed = await dmp.sink(host, client), await dmp.feed(host, client)
        await client.say(b"(Delete t)")
        assert await feed.rest() == []
        feed.connection.close()
        await sink.send(dmp.envelopes([b"late"]))
        await dmp.said(sink)
        sink.close()
        await eventually(lambda: host.connections == 1)
    assert reason(caplog, "sink") == reason(caplog, "feed") == DELETED


async def test_a_feed_whose_client_sends_messages(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store) as host:
        feed = await dmp.feed(host, await declared(host, b"Broadcast Transient"))
        await feed.connection.send(dmp.envelopes([b"what for"]))
        await feed.rest()
        feed.connection.close()
        await eventually(lambda: host.connections == 1)
    assert reason(caplog, "feed") == "a feed takes no messages"


async def test_a_sink_whose_client_is_gone_is_logged_with_its_address(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omq.server")
    async with serving(store) as host:
        client = await declared(host, b"Broadcast Transient")
        sink = await dmp.sink(host, client)
        client.close()
        await eventually(lambda: host.connections == 1)
        address, port = sink.stream.socket.getsockname()
        await sink.send(dmp.envelopes([b"incomplete"])[:-1])
        sink.close()  # so the response resets the connection
        await eventually(lambda: host.connections == 0)
    (line,) = [line for line in caplog.messages if ": sink 't': " in line]
    assert line.startswith(f"{address}:{port}: ")


LOGIN = b"AMQP\0\0\x09\x01" + wire.method(
    0, 10, 11, wire.table({}) + wire.short("PLAIN") + wire.long(b"\0guest\0guest") + wire.short("en_US")
)
"""The beginning of a conversation of AMQP 0-9-1."""


async def test_an_amqp_client_that_logs_in_and_does_not_open(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await host.open()
        await client.send(LOGIN)
        await eventually(lambda: "'guest' connected" in caplog.text)
        await pass_time(clock, host.server.config.handshake_seconds + 2)
        await eventually(lambda: host.connections == 0)
    assert reason(caplog, "AMQP 0-9-1") == "it did not open the connection in time"


async def test_an_amqp_client_without_heartbeats(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await host.open()
        tune = wire.method(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 10))
        await client.send(LOGIN + tune + wire.method(0, 10, 40, wire.short("/") + b"\0\0"))
        await eventually(lambda: "'guest' connected" in caplog.text)
        await pass_time(clock, 40)
        await eventually(lambda: host.connections == 0)
    assert reason(caplog, "AMQP 0-9-1") == "no heartbeat came"


async def test_an_amqp_1_0_client_that_errs(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store) as host:
        async with opened(host.port) as peer:
            await peer.send(frames.write(0, performatives.write(Begin(None, 0, 9, 9))))
            await peer.heard(Close)
        await eventually(lambda: host.connections == 0)
    assert reason(caplog, "AMQP 1.0") != "its client ended it"


async def test_a_client_that_has_finished_and_reads_nothing(
    store: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast (Persistent Weak)")
        await publisher.send(publish(b"t", [b"x" * 100_000] * 100))
        await publisher.confirm(100)
        stuck = await host.connect(receive_octets=4096)
        await stuck.say(b"(Subscribe t From_beginning)")
        await stuck.done()
        publisher.close()
        await eventually(lambda: host.connections == 1)
        await wait_until_stuck(host)
        await pass_time(clock, 400, step=5)
        await eventually(lambda: host.connections == 0)
    ends = [line for line in caplog.messages if " (omq) disconnected after " in line]
    assert "its client has finished sending, and reads nothing; " in ends[-1]


async def wait_until_stuck(host: InProcess) -> None:
    """Wait until the only connection sends."""
    await eventually(lambda: all(each.statistics().is_sending for each in host.server.terminals()))
