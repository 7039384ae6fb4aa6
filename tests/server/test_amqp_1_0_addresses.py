"""The meaning of an address of AMQP 1.0: the table of prefixes, the terminus, and the answers to it."""

import re
from pathlib import Path
from typing import Any

import pytest

from omq.access.direct import DYNAMIC
from omq.model import Delivery, Persistence, Persistent, Sync, Transient
from omq.protocol.amqp_1_0 import encoding, performatives, types
from omq.protocol.amqp_1_0.performatives import Detach, Source
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import NULL, Described, Map, Symbol, Value

from .amqp_1_0_peer import ACCEPTED, RELEASED, Peer, condition, data, from_filter, opened
from .conversation import InProcess, serving

STRONG = Persistent(Sync.STRONG)
"""The persistence of a topic about which neither its address nor its client says anything, in these tests."""

QUEUE, TOPIC = Delivery.ROUND_ROBIN, Delivery.BROADCAST


def made(host: InProcess) -> dict[bytes, tuple[Delivery, Persistence]]:
    """Return the topics of a server, and their types."""
    return {each.topic.topic: (each.delivery, each.persistence) for each in host.server.catalogue.in_turn()}


async def answered(client: Peer, address: str, **fields: Any) -> Source:
    """Attach a consumer, and return the source in the server's answer."""
    said = performatives.read_all((await client.receiver(address, **fields)).source)
    assert isinstance(said, Source)
    return said


@pytest.mark.parametrize(
    ("address", "name", "expected"),
    [
        ("openstack.org/om/rpc/multicast/nova/compute", None, (TOPIC, Transient())),
        ("openstack.org/om/notify/multicast/nova/info", None, (TOPIC, Transient())),
        ("broadcast.nova.compute.all", None, (TOPIC, Transient())),
        ("openstack.org/om/notify/anycast/nova/info", None, (QUEUE, Persistent(Sync.WEAK))),
        ("openstack.org/om/notify/unicast/nova/info", None, (QUEUE, Persistent(Sync.WEAK))),
        ("queue://jobs", "jobs", (QUEUE, STRONG)),
        ("topic://news", "news", (TOPIC, STRONG)),
        ("anything", None, (QUEUE, STRONG)),
        ("amqp://anything", None, (QUEUE, STRONG)),  # nothing else is taken from a name
        ("/queue/anything", None, (QUEUE, STRONG)),
        ("ü" * 127 + "u", None, (QUEUE, STRONG)),
    ],
)
@pytest.mark.parametrize("is_source", [True, False], ids=["source", "target"])
async def test_an_address_makes_a_topic(
    store: Path, address: str, name: str | None, expected: tuple[Delivery, Persistence], *, is_source: bool
) -> None:
    async with serving(store, default_persistence="strong") as host, opened(host.port) as client:
        await (client.receiver if is_source else client.sender)(address)
        assert made(host) == {(name or address).encode(): expected}


@pytest.mark.parametrize(
    "address",
    [
        "openstack.org/om/rpc/unicast/nova/compute/one",
        "openstack.org/om/rpc/anycast/nova/compute",
        "exclusive.nova.compute.one",
        "unicast.nova.compute",
    ],
)
async def test_an_address_names_a_node(store: Path, address: str) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver(address)
        await client.sender(address)
        assert {node.name for node in host.server.nodes()} == {address.encode()}
        assert made(host) == {}


@pytest.mark.parametrize("address", ["$management", "$cbs", "/management", "/management/queues"])
async def test_an_address_that_is_reserved_is_refused(store: Path, address: str) -> None:
    async with serving(store) as host, opened(host.port) as client:
        for handle, attach in enumerate((client.receiver, client.sender)):
            await attach(address, handle)
            assert condition(await client.until(Detach)) == "amqp:not-found"
        assert made(host) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, QUEUE),
        ({"capabilities": ("queue",)}, QUEUE),
        ({"capabilities": ("temporary-queue",)}, QUEUE),
        ({"capabilities": ("topic",)}, TOPIC),
        ({"capabilities": ("temporary-topic",)}, TOPIC),
        ({"capabilities": ("shared", "topic")}, TOPIC),
        ({"distribution_mode": "copy"}, TOPIC),
        ({"distribution_mode": "move"}, QUEUE),
        ({"distribution_mode": "copy", "capabilities": ("queue",)}, QUEUE),
    ],
)
async def test_a_terminus_says_what_is_made(
    store: Path, fields: dict[str, object], expected: Delivery
) -> None:
    async with serving(store, default_persistence="strong") as host, opened(host.port) as client:
        said = await answered(client, "anything", **fields)
        assert made(host) == {b"anything": (expected, STRONG)}
        usual = "move" if expected is QUEUE else "copy"
        assert said.distribution_mode == fields.get("distribution_mode", usual)


async def test_an_existing_topic_comes_before_the_table(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Declare broadcast.jobs Round_robin (Persistent Weak))")
        assert (await answered(client, "broadcast.jobs")).distribution_mode == "move"
        await client.receiver("broadcast.jobs", 1, capabilities=("topic",))
        assert condition(await client.until(Detach)) == "amqp:precondition-failed"
        assert made(host) == {b"broadcast.jobs": (QUEUE, Persistent(Sync.WEAK))}


async def test_a_durable_message_is_accepted_by_a_transient_topic(store: Path) -> None:
    durable = b"\x00\x53\x70\xc0\x02\x01\x41"
    async with serving(store) as host, opened(host.port) as client:
        await client.receiver("broadcast.x", credit=1)
        await client.sender("broadcast.x")
        await client.publish(durable + data(b"x"))
        told = set()
        while told != {"outcome", "message"}:
            said, payload = await client.next()
            if isinstance(said, performatives.Disposition):
                assert said.state == ACCEPTED
                told.add("outcome")
            else:
                assert payload == durable + data(b"x")
                told.add("message")


async def test_the_names_of_dynamic_nodes_cannot_be_guessed(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as one, opened(host.port) as other:
        names = {await one.made(), await other.made()}
        assert len(names) == 2
        pattern = re.escape(DYNAMIC.decode()) + "[A-Za-z0-9_-]{32}"
        assert all(re.fullmatch(pattern, name) for name in names)


@pytest.mark.parametrize(
    ("name", "value"), [("omq:from", Symbol("current")), ("rabbitmq:stream-offset-spec", "next")]
)
async def test_a_consumer_of_a_stored_topic_begins_with_new_messages(
    store: Path, name: str, value: Value
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Declare t Broadcast (Persistent Weak))")
        await client.sender("t")
        await client.accepted(await client.publish(data(b"old")))
        said = await answered(client, "t", filter=from_filter(name, value))
        assert said.filter == from_filter(name, value)
        await client.credit(9)
        await client.settle()
        await client.publish(data(b"new"))
        assert (await client.message()).octets.endswith(data(b"new"))


async def test_filters_that_the_server_does_not_know_are_left_out_of_its_answer(store: Path) -> None:
    selector = (Symbol("selector"), Described(Symbol("apache.org:selector-filter:string"), "a = 1"))
    beginning = (Symbol("from"), Described(Symbol("omq:from"), Symbol("beginning")))
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await omq.ask(b"(Declare t Broadcast (Persistent Weak))")
        await client.sender("t")
        await client.accepted(await client.publish(data(b"x")))
        said = await answered(client, "t", filter=encoding.write(Map((selector, beginning))))
        assert said.filter == encoding.write(Map((beginning,)))
        await client.credit(1)
        assert (await client.message()).octets.endswith(data(b"x"))
        said = await answered(client, "t", handle=2, filter=encoding.write(Map((selector,))))
        assert said.filter == NULL


@pytest.mark.parametrize("state", [RELEASED, performatives.write(performatives.Modified(True))])
async def test_outcomes_have_no_effect_on_a_broadcast_topic(store: Path, state: bytes) -> None:
    """Its messages are unsettled for a client that insists, and are not delivered again."""
    async with serving(store) as host, opened(host.port) as client:
        attach = await client.receiver("broadcast.x", credit=9, snd=0)
        assert attach.snd_settle_mode == 0
        await client.sender("broadcast.x")
        for body in (b"one", b"two"):
            await client.publish(data(body))
            message = await client.message()
            assert (message.octets, message.settled) == (data(body), False)
            await client.told(message.delivery, message.delivery, state)
            await client.settle()
        (channel,) = [
            each.channel for terminal in host.server.terminals() for each in terminal.subscriptions()
        ]
        assert channel.unsettled == 0


@pytest.mark.parametrize("is_relay", [False, True], ids=["link", "relay"])
async def test_a_topic_that_another_client_makes_at_the_same_time_is_used(
    store: Path, is_relay: bool
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        omq = await host.connect()
        await client.sender(None)
        for number in range(20):
            name = f"t{number}"
            await omq.say(b"(Declare %s Round_robin (Persistent Strong))" % name.encode())
            if is_relay:
                to = encoding.write(types.List((None, None, name)))
                message = b"\x00\x53%c%s" % (Section.PROPERTIES, to) + data(b"x")
                await client.accepted(await client.publish(message))
            else:
                assert (await client.sender(name, 2 + number)).target != NULL
