"""When all connections are taken, those that have not shown whose they are give way to new ones."""

from pathlib import Path
from typing import Any

import pytest

from omq.config import ClientConfig

from .conversation import VERSION_ONE, Conversation, Host, eventually, serving
from .dmp_conversation import GREETING, HEADER, envelopes, feed, sink, stored

CROWD = 300

SCRYPT = (
    "$scrypt$ln=14,r=8,p=1$cjlfUX8QXZDgvQwGrQa2zA$K2pjpd/gtUics5+I/taNPkPptCUVkUWJZbleuNrapNg"  # of "sesame"
)

ANYBODY: list[ClientConfig] = []
ALICE = [ClientConfig(name="alice", secret=SCRYPT, publish=["*"], subscribe=["*"], declare=["*"])]


async def only_version(host: Host) -> Conversation:
    """Return a connection that says that it speaks omq, and nothing else."""
    opened = await host.open()
    await opened.send(VERSION_ONE)
    assert await opened.octets(8) == VERSION_ONE
    return opened


async def only_header(host: Host) -> Conversation:
    """Return a connection that says that it speaks DMP, and nothing else."""
    opened = await host.open()
    await opened.send(HEADER)
    assert await opened.octets(len(GREETING)) == GREETING
    return opened


async def only_a_wrong_lease(host: Host) -> Conversation:
    """Return a connection that shows half of a lease."""
    opened = await only_header(host)
    await opened.send(b"\x20no-lease")
    return opened


async def enter(host: Host, clients: list[ClientConfig]) -> Conversation:
    """Return a connection whose client is known."""
    opened = await host.open()
    await opened.send(VERSION_ONE + b"(Connect 1 %s)\n" % (b"alice:sesame" if clients else b"me"))
    assert await opened.octets(8) == VERSION_ONE
    await opened.confirm()
    return opened


@pytest.mark.parametrize("clients", [ANYBODY, ALICE], ids=["anybody", "configured"])
@pytest.mark.parametrize("say", [Host.open, only_version, only_header, only_a_wrong_lease])
async def test_many_unknown_connections_keep_no_client_out(
    store: Path, say: Any, clients: list[ClientConfig]
) -> None:
    # None of them may end because a slow machine takes long for so many.
    settings: dict[str, Any] = {"max_connections": CROWD, "client_share": 1.0, "handshake_seconds": 3600}
    async with serving(store, **settings, clients=clients) as host:
        crowd = [await say(host) for _ in range(CROWD)]
        await eventually(lambda: host.server.connections == CROWD)
        newcomers = [await enter(host, clients) for _ in range(CROWD)]
        for connection in crowd:
            assert not await connection.receive()
        for newcomer in newcomers:
            await newcomer.confirm()


async def test_the_oldest_gives_way_whatever_it_said(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(store, max_connections=4, client_share=1.0) as host:
        known = await host.connect()
        silent = await host.open()
        await eventually(lambda: host.handshakes == 1)
        crowd = [silent, await only_version(host), await only_header(host)]
        for number, connection in enumerate(crowd, 1):
            await (await host.connect()).confirm()
            await connection.ended()
            assert host.server.statistics().turned_away == number
            why = "closed for a newer connection: there are as many as max_connections allows: 4"
            assert sum(line.endswith(why) for line in caplog.messages) == number
        await known.confirm()


async def test_a_known_client_does_not_give_way(store: Path) -> None:
    async with serving(store, max_connections=3, client_share=1.0) as host:
        client = await host.connect()
        put, get = await sink(host, client), await feed(host, client)
        for _ in range(5):
            turned_away = await host.open()
            await eventually_closed(turned_away)
        await client.confirm()
        await put.send(envelopes([b"hello"]))
        assert await get.bodies(1) == [b"hello"]
        assert await stored(put) == 1


async def eventually_closed(connection: Conversation) -> None:
    """Wait until the server closes it without a word."""
    assert not await connection.receive()
