"""The rights that the operations of AMQP 1.0 take (docs/AMQP-1.0.md, "Security").

An Attach names a node, and so does a message to the anonymous relay. The table has each kind of address in
each of these places. It is compared with the termini of the protocol and the treatments of addresses.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from omq.access.rights import Right
from omq.config import TopicConfig
from omq.protocol.amqp_1_0 import encoding, performatives
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Flow,
    Frame,
    Open,
    Source,
    Target,
    Terminus,
    Transfer,
)
from omq.protocol.amqp_1_0.types import NULL
from omq.terminals.amqp_1_0.addresses import Prefixes, Treatment

from .amqp_1_0_peer import ACCEPTED, REJECTED, RELEASED, Peer, condition, data, peer, source, target
from .conversation import Host, serving
from .test_amqp_1_0_relay import make, rejected, relay, to
from .test_operations import client as configured

FORBIDDEN = "amqp:unauthorized-access"

TOPICS = [
    TopicConfig(name="jobs", delivery="round-robin"),
    TopicConfig(name="news", delivery="broadcast"),
    TopicConfig(name="unicast.jobs", delivery="round-robin"),
]

EXISTING = ("jobs", "queue://jobs", "news", "topic://news", "unicast.jobs", "unicast.node")
"""Addresses of topics that are there, and of a node, which is there for everybody."""

NEW = ("new", "queue://new", "topic://new", "openstack.org/om/notify.new", "broadcast.new")
"""Addresses of topics that a client must be allowed to declare."""


@dataclass(frozen=True)
class Operation:
    """The request of a client, and the rights that it takes."""

    terminus: Terminus | None
    """The terminus that its Attach names; None stands for no target."""
    rights: frozenset[Right]
    to: str | None = None
    """The address of a message that is sent to the anonymous relay."""


def operations() -> dict[str, Operation]:
    """Return every kind of address, in every place that names one."""
    found = {
        "source that is dynamic": Operation(Source(NULL, dynamic=True), frozenset()),
        "target that is dynamic": Operation(Target(NULL, dynamic=True), frozenset()),
        "target without an address": Operation(Target(NULL), frozenset()),
        "no target": Operation(None, frozenset()),
    }
    for address in (*EXISTING, *NEW):
        encoded = encoding.write(address)
        makes = {Right.DECLARE} if address in NEW else set[Right]()
        publishing = frozenset(makes | {Right.PUBLISH})
        found[f"source {address}"] = Operation(Source(encoded), frozenset(makes | {Right.SUBSCRIBE}))
        found[f"target {address}"] = Operation(Target(encoded), publishing)
        found[f"message to {address}"] = Operation(Target(NULL), publishing, address)
    return found


OPERATIONS = operations()


def test_the_table_has_every_terminus_and_every_treatment() -> None:
    named = {type(operation.terminus) for operation in OPERATIONS.values()} - {type(None)}
    assert named | {Coordinator} == set(get_args(Terminus))
    entries = [Prefixes({}).find(address.encode()) for address in (*EXISTING, *NEW)]
    assert {entry.treatment for entry in entries if entry is not None} == set(Treatment)
    assert None in entries


@asynccontextmanager
async def entered(host: Host, name: str) -> AsyncIterator[Peer]:
    """Yield a connection of a configured client, with one session."""
    async with peer(host.port) as client:
        assert (await client.authenticate("PLAIN", b"\0%s\0sesame" % name.encode())).code == 0
        await client.open()
        yield client


async def attach(client: Peer, terminus: Terminus | None, handle: int = 0) -> str | None:
    """Attach a link; return the condition with which the server refuses it."""
    name = f"link {handle}"
    encoded = NULL if terminus is None else performatives.write(terminus)
    is_source = isinstance(terminus, Source)
    if is_source:
        said = Attach(name, handle, True, source=encoded, target=target("here"))
    else:
        said = Attach(name, handle, False, source=source("here"), target=encoded, initial_delivery_count=0)
    await client.say(said)
    answer = await client.until(Attach)
    if (answer.source if is_source else answer.target) != NULL:
        return None
    return condition(await client.until(Detach))


async def attempt(host: Host, name: str, operation: Operation) -> str | None:
    """Let a client do it; return the condition with which the server refuses it."""
    async with entered(host, name) as client:
        if operation.to is None:
            return await attach(client, operation.terminus)
        await relay(client)
        await client.publish(to(operation.to))
        state = (await client.outcome()).state
        return None if state in (ACCEPTED, RELEASED) else rejected(state)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_takes_exactly_its_rights(store: Path, name: str) -> None:
    operation = OPERATIONS[name]
    others = [configured(missing.name, *(set(Right) - {missing})) for missing in operation.rights]
    clients = [configured("with", *operation.rights), *others]
    async with serving(store, clients=clients, topics=TOPICS) as host:
        before = [driver.topic.topic for driver in host.server.catalogue.in_turn()]
        for missing in operation.rights:
            assert await attempt(host, missing.name, operation) == FORBIDDEN
        assert [driver.topic.topic for driver in host.server.catalogue.in_turn()] == before
        assert await attempt(host, "with", operation) is None


async def test_transactions_and_nodes_of_other_clients_are_refused(store: Path) -> None:
    async with (
        serving(store, clients=[configured("all", *Right), configured("none")]) as host,
        entered(host, "none") as owner,
        entered(host, "all") as client,
        entered(host, "none") as sender,
    ):
        address = encoding.write(await make(owner))
        assert await attach(client, Coordinator(), 1) == "amqp:not-implemented"
        assert await attach(client, Source(address), 2) == "amqp:not-found"
        assert await attach(sender, Target(address)) is None  # any client that knows the name may send


async def test_using_its_own_node_takes_no_right(store: Path) -> None:
    """It needs every frame of the protocol."""
    assert set(get_args(Frame)) == {
        Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close,
    }  # fmt: skip
    async with serving(store, clients=[configured("none")]) as host, entered(host, "none") as client:
        address = await make(client)  # whose link has the handle 1
        assert await attach(client, Source(encoding.write(address)), 2) is None
        await client.credit(1, 2)
        sent = await client.publish(data(b"x"))
        message = await client.message()
        await client.told(message.delivery, message.delivery, REJECTED)
        outcome = await client.outcome()
        assert (outcome.first, outcome.state) == (sent, REJECTED)
        await client.say(Detach(2, closed=True))
        assert (await client.until(Detach)).error == NULL
        await client.say(End())
        assert (await client.until(End)).error == NULL
        await client.say(Close())
        assert (await client.until(Close)).error == NULL
