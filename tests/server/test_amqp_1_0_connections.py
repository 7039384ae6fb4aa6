"""Connections of AMQP 1.0: clients authenticate, have rights, and are closed when they are silent."""

import socket
import threading
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from quietness import pass_time, stopped
from trio.testing import MockClock

from omq.config import ClientConfig
from omq.protocol.amqp_1_0 import decoding, performatives
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Close,
    Detach,
    Open,
)
from omq.protocol.amqp_1_0.types import NULL, Map, Symbol
from omq.terminals.amqp_1_0.offer import IDLE_SECONDS
from omq_storage.catalogue import StoreCatalogue
from omq_storage.topics import TopicRecord

from .amqp_1_0_peer import (
    HEADER,
    SASL_HEADER,
    condition,
    opened,
    peer,
    target,
)
from .client_accounts import HASH, SECRET
from .conversation import serving


async def test_the_server_says_who_it_is(store: Path) -> None:
    """oslo.messaging chooses the form of its addresses by the product, clients with a JMS interface by the
    prefixes.
    """
    async with serving(store) as host, peer(host.port) as client:
        said = await client.open()
        assert said.container_id == f"omq-{socket.gethostname()}"
        assert decoding.read_all(said.properties) == Map(
            (
                (Symbol("product"), "omq"),
                (Symbol("version"), version("omq-server")),
                (Symbol("queue-prefix"), "queue://"),
                (Symbol("topic-prefix"), "topic://"),
            )
        )


async def test_the_server_stops(store: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(store) as host:
            client = await stack.enter_async_context(opened(host.port))
            await client.receiver("q", credit=1)
        assert condition(await client.until(Close)) == "amqp:connection:forced"


async def test_a_client_that_says_nothing_is_closed(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await pass_time(clock, 100)
        await client.heartbeat()
        await client.settle()
        await pass_time(clock, 115)
        await client.settle()
        await pass_time(clock, 125)
        assert condition(await client.until(Close)) == "amqp:resource-limit-exceeded"


async def test_a_client_is_not_silent_while_a_topic_is_made_for_it(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes, may_make = threading.Event(), threading.Event()
    create = StoreCatalogue.create

    def slow_create(catalogue: StoreCatalogue, *of: Any, **more: Any) -> TopicRecord:
        makes.set()
        assert may_make.wait(60)
        return create(catalogue, *of, **more)

    monkeypatch.setattr(StoreCatalogue, "create", slow_create)
    async with serving(store) as host, opened(host.port) as client:
        await client.say(Attach("sender", 1, False, target=target("q"), initial_delivery_count=0))
        assert await trio.to_thread.run_sync(makes.wait, 60)
        try:
            with stopped(clock):
                for _ in range(4 * int(IDLE_SECONDS)):
                    clock.jump(1)
                    await trio.testing.wait_all_tasks_blocked()
        finally:
            may_make.set()
        assert (await client.until(Attach)).name == "sender"


async def test_the_server_sends_heartbeats(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, peer(host.port) as client:
        await client.open(idle_ms=8000)
        before = host.server.terminals()[0].statistics().octets_out
        await pass_time(clock, 9, step=0.5)
        assert host.server.terminals()[0].statistics().octets_out - before == 16


async def test_a_client_that_does_not_open_is_closed(store: Path, clock: MockClock) -> None:
    async with serving(store) as host, peer(host.port) as client:
        await client.send(HEADER)
        assert await client.header() == HEADER
        await pass_time(clock, host.server.config.handshake_seconds + 2)
        with pytest.raises(EOFError):
            await client.next()


RIGHTS = {"declare": ["mine*"], "publish": ["mine*", "unicast.mine"], "subscribe": ["mine*", "unicast.mine"]}


async def test_links_need_the_rights_of_their_client(store: Path) -> None:
    clients = [ClientConfig(name="some", secret=HASH, **RIGHTS)]
    async with serving(store, clients=clients) as host:
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0some\0wrong")).code == 1
        async with peer(host.port) as client:
            await client.send(HEADER)  # without SASL
            assert await client.header() == SASL_HEADER
            with pytest.raises(EOFError):
                await client.next()
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0some\0" + SECRET.encode())).code == 0
            await client.open()
            allowed = ("mine", "unicast.mine")
            refused = ("yours", "unicast.yours", "openstack.org/om/notify/x")
            handle = 0
            for address in (*allowed, *refused):
                for attach in (client.sender, client.receiver):
                    handle += 1
                    answer = await attach(address, handle)
                    terminus = answer.source if answer.role is False else answer.target
                    assert (terminus != NULL) is (address in allowed), address
                    if address in refused:
                        assert condition(await client.until(Detach)) == "amqp:unauthorized-access"


async def test_clients_authenticate(store: Path) -> None:
    async with serving(store) as host:
        async with peer(host.port) as client:
            assert (await client.authenticate("ANONYMOUS")).code == 0
            await client.open()
            await client.sender("q")
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"\0me\0x")).code == 0
            await client.open()
            assert host.server.terminals()[-1].statistics().client == b"me"
        for identity, code in ((b"me", 0), (b"you", 1)):
            async with peer(host.port) as client:
                assert (await client.authenticate("PLAIN", identity + b"\0me\0x")).code == code
        async with peer(host.port) as client:
            assert (await client.authenticate("PLAIN", b"me")).code == 1
            with pytest.raises(EOFError):
                await client.next()
        async with peer(host.port) as client:
            await client.send(SASL_HEADER + HEADER)
            assert await client.header() == SASL_HEADER
            await client.heard(performatives.SaslMechanisms)
            with pytest.raises(EOFError):
                await client.next()


async def test_a_client_with_all_its_connections_is_told_so(store: Path) -> None:
    """Its secret is right, so it is not told that it is wrong: it may try again later."""
    clients = [ClientConfig(name="some", secret=HASH, max_connections=1)]
    async with serving(store, clients=clients) as host, peer(host.port) as first, peer(host.port) as client:
        for each in (first, client):
            assert (await each.authenticate("PLAIN", b"\0some\0" + SECRET.encode())).code == 0
        await first.open()
        await client.send(HEADER)
        assert await client.header() == HEADER
        await client.say(Open("test"))
        await client.heard(Open)
        assert condition(await client.heard(Close)) == "amqp:resource-limit-exceeded"
        assert host.server.statistics().defects == 0


async def test_a_client_without_sasl_has_all_its_connections(store: Path) -> None:
    async with (
        serving(store, max_connections=4, client_share=0.25) as host,
        opened(host.port),
        peer(host.port) as client,
    ):
        await client.send(HEADER)
        assert await client.header() == HEADER
        await client.say(Open("test"))
        await client.heard(Open)
        assert condition(await client.heard(Close)) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    ("hostname", "end"),
    [
        ("omq.example.com", ": to the host 'omq.example.com'"),
        ("a'\n\x1b[2Jb", ": to the host 'a\\'\\n\\x1b[2Jb'"),
        ("", ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("has_sasl", [True, False])
async def test_the_host_name_is_logged(
    store: Path, caplog: pytest.LogCaptureFixture, hostname: str | None, end: str, *, has_sasl: bool
) -> None:
    caplog.set_level("INFO", "omq.connections")
    async with serving(store) as host, peer(host.port) as client:
        if has_sasl:
            assert (await client.authenticate("PLAIN", b"\0somebody\0secret")).code == 0
        await client.send(HEADER)
        assert await client.header() == HEADER
        await client.say(Open("test", hostname))
        await client.heard(Open)
        assert isinstance(client.stream, trio.SocketStream)
        name = "{}:{}".format(*client.stream.socket.getsockname())
        lines = [line for line in caplog.messages if "' connected" in line]
        who = "somebody" if has_sasl else ""
        assert lines == [f"{name}: '{who}' connected{end}"]
