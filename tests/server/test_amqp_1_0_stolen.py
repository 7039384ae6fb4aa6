"""AMQP 1.0: a link takes the place of the link of its name (section 2.6.1, "Naming a Link")."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omq.access.rights import Right
from omq.protocol.amqp_1_0.performatives import Detach, Flow

from .amqp_1_0_peer import Peer, condition, data, peer
from .conversation import Host, eventually, serving
from .test_operations import client as configured


@asynccontextmanager
async def container(host: Host, name: str, client: str | None = None) -> AsyncIterator[Peer]:
    """Yield a connection of this container, with one session."""
    async with peer(host.port) as made:
        if client is not None:
            assert (await made.authenticate("PLAIN", b"\0%s\0sesame" % client.encode())).code == 0
        await made.open(container=name)
        yield made


async def test_a_consumer_that_attaches_again_gets_the_unsettled_messages(store: Path) -> None:
    async with (
        serving(store) as host,
        container(host, "work") as before,
        container(host, "work") as after,
    ):
        await before.receiver("tasks", credit=1, snd=0)
        await after.sender("tasks", 1)
        await after.accepted(await after.publish(data(b"first"), 1))
        assert (await before.message()).octets == data(b"first")
        await after.receiver("tasks", credit=10, snd=0)
        said = await before.until(Detach)
        assert (said.handle, said.closed, condition(said)) == (0, True, "amqp:link:stolen")
        assert (await after.message()).octets.endswith(data(b"first"))
        # The older connection goes on, and the end of its handle is not that of the newer link.
        await before.say(Detach(0, closed=True))
        await before.sender("tasks", 2)
        await before.accepted(await before.publish(data(b"second"), 2))
        assert (await after.message()).octets == data(b"second")
        async with container(host, "work") as last:
            await last.receiver("tasks", snd=0)
            assert condition(await after.until(Detach)) == "amqp:link:stolen"


async def test_a_producer_that_attaches_again_begins_again(store: Path) -> None:
    async with (
        serving(store) as host,
        container(host, "work") as before,
        container(host, "work") as after,
    ):
        await before.sender("tasks", 1)
        await after.sender("tasks", 1)
        assert condition(await before.until(Detach)) == "amqp:link:stolen"
        await before.publish(data(b"too late"), 1)
        await after.accepted(await after.publish(data(b"in time"), 1))
        await after.receiver("tasks", credit=10)
        await before.settle()
        assert (await after.message()).octets == data(b"in time")
        await after.settle()


@pytest.mark.parametrize("other", ["container", "direction", "name", "client"])
async def test_other_links_keep_their_names(store: Path, other: str) -> None:
    clients = [configured(name, *Right) for name in ("one", "two")]
    async with (
        serving(store, clients=clients) as host,
        container(host, "work", "one") as first,
        container(
            host, "home" if other == "container" else "work", "two" if other == "client" else "one"
        ) as second,
    ):
        await first.receiver("tasks", credit=1, snd=0)
        if other == "direction":
            await second.sender("tasks", 0)
        else:
            await second.receiver("tasks", handle=int(other == "name"), snd=0)
        await second.sender("tasks", 5)
        await second.publish(data(b"hello"), 5)
        assert (await first.message()).octets == data(b"hello")
        await first.told(0, 0)
        await first.say(Flow(0, 1 << 20, 0, 1 << 20, echo=True))
        await first.heard(Flow)


async def test_a_name_is_free_when_its_link_or_its_connection_is_over(store: Path) -> None:
    async with serving(store) as host, container(host, "work") as last:
        async with container(host, "work") as gone:
            await gone.receiver("tasks", handle=0)
            await gone.receiver("tasks", handle=1)
            await gone.say(Detach(0, closed=True))
            await gone.heard(Detach)
            await last.receiver("tasks", handle=0)
            await gone.settle()
        await eventually(lambda: host.server.statistics().connections == 1)
        await last.receiver("tasks", handle=1, credit=1)
        await last.sender("tasks", 2)
        await last.publish(data(b"hello"), 2)
        assert (await last.message()).octets == data(b"hello")


async def test_a_link_that_is_refused_has_no_name(store: Path) -> None:
    async with (
        serving(store) as host,
        container(host, "work") as refused,
        container(host, "work") as other,
    ):
        await refused.receiver("$management")
        assert condition(await refused.heard(Detach)) == "amqp:not-found"
        await other.receiver("tasks")
        await refused.settle()
