"""AMQP 1.0: messages that say themselves where they go, and nodes that are made for a producer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from omq.config import ClientConfig
from omq.model import Delivery
from omq.protocol.amqp_1_0 import decoding, encoding, performatives, types
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Modified,
    Rejected,
    Target,
    Transfer,
)
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import NULL

from .amqp_1_0_peer import ACCEPTED, REJECTED, RELEASED, Peer, condition, data, opened, peer, target, text
from .client_accounts import HASH, SECRET
from .conversation import serving


def to(address: types.Value, body: bytes = b"x") -> bytes:
    """Return a message that says where it goes."""
    return b"\x00\x53%c%s" % (Section.PROPERTIES, encoding.write(types.List((None, None, address)))) + data(
        body
    )


async def relay(client: Peer, terminus: bytes = target(None)) -> Attach:
    """Attach a sender to the anonymous relay."""
    await client.say(Attach("relay", 1, False, target=terminus, initial_delivery_count=0))
    attach = await client.until(Attach)
    await client.until(Flow)
    return attach


@asynccontextmanager
async def beside_a_worker(store: Path, credit: int, of_worker: int) -> AsyncIterator[Peer]:
    """Serve, and connect a client to which the server gives this credit, and a worker with a credit of its
    own at the node `exclusive.work`. Yield the client.
    """
    async with (
        serving(store, amqp1_credit=credit) as host,
        opened(host.port) as client,
        opened(host.port) as worker,
    ):
        await worker.receiver("exclusive.work", credit=of_worker)
        await worker.settle()
        yield client


async def senders(client: Peer) -> AsyncIterator[tuple[int, Flow]]:
    """Attach a link of each kind on which the client sends: to a topic, to a node without a queue, and to the
    anonymous relay. Yield the handle and the first credit of each.
    """
    for handle, address in enumerate(("jobs", "exclusive.work", None), 1):
        await client.say(Attach(f"{handle}", handle, False, target=target(address), initial_delivery_count=0))
        yield handle, await client.until(Flow)


def rejected(state: bytes) -> str:
    """Return the condition of a rejection."""
    said = performatives.read_all(state)
    assert isinstance(said, Rejected)
    error = performatives.read_all(said.error)
    assert isinstance(error, performatives.Error)
    return error.condition


@pytest.mark.parametrize("terminus", [NULL, target(None), target(None, capabilities=("x",))])
async def test_a_message_goes_where_it_says(store: Path, terminus: bytes) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        attach = await relay(client, terminus)
        answered = performatives.read_all(attach.target)
        assert isinstance(answered, Target)
        assert answered.address == NULL
        await other.receiver("one", 0, credit=9)
        await other.receiver("two", 2, credit=9)
        await other.receiver("exclusive.three", 3, credit=9)
        await other.settle()
        sent = [to(address) for address in ("one", "two", "exclusive.three", "one")]
        for message in sent:
            await client.publish(message)
        got = [await other.message() for _ in sent]
        assert sorted(message.octets for message in got) == sorted(sent)
        for each in got:
            await other.told(each.delivery, each.delivery)
        told: set[int] = set()
        while len(told) < len(sent):
            outcome = await client.outcome()
            assert outcome.state == ACCEPTED
            told |= set(range(outcome.first, (outcome.last or outcome.first) + 1))


async def test_the_server_offers_the_relay(store: Path) -> None:
    async with serving(store) as host, peer(host.port) as client:
        assert (await client.open()).offered_capabilities == ("ANONYMOUS-RELAY",)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (data(b"x"), "amqp:not-found"),
        (to(None), "amqp:not-found"),
        (to(""), "amqp:not-found"),
        (to("$management"), "amqp:not-found"),
        (to("amqp:/_omq/temp.nobody"), "amqp:not-found"),
        (to(True), "amqp:invalid-field"),
        (b"\x41", "amqp:decode-error"),
    ],
)
async def test_a_message_without_a_good_address_is_rejected(
    store: Path, message: bytes, expected: str
) -> None:
    async with serving(store) as host, opened(host.port) as client:
        await relay(client)
        bad = await client.publish(message)
        outcome = await client.outcome()
        assert (outcome.first, rejected(outcome.state)) == (bad, expected)
        good = await client.publish(to("q"))
        outcome = await client.outcome()
        assert (outcome.first, outcome.state) == (good, ACCEPTED)


async def test_outcomes_of_nodes_come_back(store: Path) -> None:
    failed = performatives.write(Modified(delivery_failed=True))
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as worker:
        await relay(client)
        await client.publish(to("exclusive.work"))
        assert (await client.outcome()).state == RELEASED  # there is no consumer
        await client.publish(to("exclusive.work"), settled=True)
        await client.settle()
        assert host.server.statistics().undelivered == 2
        assert host.server.statistics().direct_nodes == 0
        await worker.receiver("exclusive.work", credit=2)
        await worker.settle()
        for state in (REJECTED, failed):
            delivery = await client.publish(to("exclusive.work"))
            message = await worker.message()
            await worker.told(message.delivery, message.delivery, state)
            outcome = await client.outcome()
            assert (outcome.first, outcome.state) == (delivery, state)


async def test_a_slow_consumer_holds_up_the_relay_also_for_settled_messages(store: Path) -> None:
    async with serving(store, amqp1_credit=4) as host, opened(host.port) as client, opened(host.port) as slow:
        await slow.receiver("exclusive.slow", credit=1)
        await slow.settle()
        await relay(client)
        for _ in range(4):
            await client.publish(to("exclusive.slow"), settled=True)
        await client.settle()
        message = await slow.message()
        await slow.told(message.delivery, message.delivery)
        await slow.credit(3, count=1)
        for _ in range(3):
            message = await slow.message()
        await slow.told(1, message.delivery)
        flow = await client.until(Flow)
        while flow.delivery_count != 4 or flow.link_credit != 4:
            flow = await client.until(Flow)
        assert host.server.statistics().undelivered == 0


RIGHTS = {"declare": ["mine*"], "publish": ["mine*", "exclusive.mine", "there"], "subscribe": ["*"]}


async def test_each_message_needs_the_right_to_publish_to_its_address(store: Path) -> None:
    clients = [ClientConfig(name="some", secret=HASH, **RIGHTS)]
    admin = ClientConfig(name="admin", secret=HASH, declare=["*"], publish=["*"], subscribe=["*"])
    async with serving(store, clients=[*clients, admin]) as host, AsyncExitStack() as stack:
        client, other = [await stack.enter_async_context(peer(host.port)) for _ in range(2)]
        for each, name in ((client, b"some"), (other, b"admin")):
            assert (await each.authenticate("PLAIN", b"\0%s\0%s" % (name, SECRET.encode()))).code == 0
            await each.open()
        await other.receiver("yours", 0, credit=9)
        await other.receiver("exclusive.yours", 1, credit=9)
        await other.settle()
        await relay(client)
        told: list[bytes] = []
        for address in ("yours", "nobodys", "exclusive.yours", "exclusive.nobodys", "$x"):
            await client.publish(to(address))
            told.append((await client.outcome()).state)
        assert len(set(told[:4])) == 1  # whether there is such a topic or node, or not
        assert rejected(told[0]) == "amqp:unauthorized-access"
        assert rejected(told[4]) == "amqp:not-found"
        for address, state in (("mine", ACCEPTED), ("exclusive.mine", RELEASED)):
            await client.publish(to(address))
            assert (await client.outcome()).state == state
        await client.publish(to("there"))  # it may publish it, and not make it
        assert rejected((await client.outcome()).state) == "amqp:unauthorized-access"


# -- nodes that are made for a producer ---------------------------------------------------------------------


async def make(client: Peer) -> str:
    """Attach a sender to a new node; return the name of the node."""
    await client.say(Attach("made", 1, False, target=target(None, dynamic=True), initial_delivery_count=0))
    answered = performatives.read_all((await client.until(Attach)).target)
    assert isinstance(answered, Target)
    assert answered.dynamic
    address = decoding.read_all(answered.address)
    assert isinstance(address, str)
    assert address.startswith("amqp:/_omq/temp.")
    await client.until(Flow)
    return address


async def test_a_dynamic_target_makes_a_node(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as client, opened(host.port) as other:
        address = await make(client)
        attach = await other.receiver(address, 0)
        assert attach.source == NULL  # only its own connection consumes it
        assert condition(await other.until(Detach)) == "amqp:not-found"
        await client.receiver(address, 0, credit=9)
        await client.settle()
        await client.publish(text("own"))
        assert (await client.message()).octets == text("own")
        await other.sender(address, 2)  # any client that knows the name may send to it
        await other.publish(text("other"), 2)
        assert (await client.message()).octets == text("other")
        assert host.server.statistics().direct_nodes == 1
        await client.say(Detach(1, closed=True))
        assert (await other.until(Detach)).error == NULL
        await client.settle()
        assert host.server.statistics().direct_nodes == 0
        await client.receiver(address, 3)
        assert condition(await client.until(Detach)) == "amqp:not-found"


async def test_a_node_of_a_producer_ends_with_its_connection(store: Path) -> None:
    async with serving(store) as host, opened(host.port) as other:
        async with opened(host.port) as client:
            address = await make(client)
            await other.sender(address, 2)
        assert (await other.until(Detach)).error == NULL
        await other.settle()
        assert host.server.statistics().direct_nodes == 0


async def test_prefixes_are_configured(store: Path) -> None:
    prefixes = {"rpc.": "direct", "rpc.all.": "multicast", "unicast.": "queue", "work.": "queue"}
    async with serving(store, amqp1_prefixes=prefixes) as host, opened(host.port) as client:
        for handle, address in enumerate(("rpc.x", "rpc.all.x", "unicast.x", "work.x", "exclusive.x")):
            assert (await client.sender(address, handle)).target != NULL
        assert {node.name for node in host.server.nodes()} == {b"rpc.x", b"exclusive.x"}
        told = {}
        for name in (b"rpc.all.x", b"unicast.x", b"work.x"):
            driver = host.server.catalogue.lookup(name)
            assert driver is not None
            told[name] = driver.delivery
        assert told == {
            b"rpc.all.x": Delivery.BROADCAST,
            b"unicast.x": Delivery.ROUND_ROBIN,
            b"work.x": Delivery.ROUND_ROBIN,
        }


async def test_a_producer_gets_credit_again_when_memory_is_free(store: Path) -> None:
    async with (
        serving(store, memory_bytes=16 << 20, amqp1_credit=9) as host,
        opened(host.port) as client,
        opened(host.port) as worker,
    ):
        # So that 5 messages, after which credit is due, are more than half of the memory, and 9 fit.
        size = host.server.memory.waiting.limit // 2 * 10 // 95
        await worker.receiver("exclusive.work", credit=1000)
        await worker.settle()
        await client.sender("exclusive.work")
        for _ in range(9):
            await client.publish_long(data(bytes(size)))
        last = [await worker.message() for _ in range(9)][-1].delivery
        await client.settle()
        await worker.told(0, last)
        missing = {"the last outcome", "credit"}  # in either order: the outcomes may be told in steps
        while missing:
            match await client.next():
                case Disposition(first=first, last=last, state=state), _ if 8 in (first, last):
                    assert state == ACCEPTED
                    missing.discard("the last outcome")
                case Flow(delivery_count=9, link_credit=9), _:
                    missing.discard("credit")


async def test_aborted_messages_give_their_credit_back(store: Path) -> None:
    """On links of each kind, whether they were aborted in their first frame or later."""
    async with beside_a_worker(store, 2, of_worker=2) as client:
        async for handle, flow in senders(client):
            assert flow.link_credit == 2
            first = handle * 10
            await client.say(Transfer(handle, first, b"t", 0, False, True), Transfer(handle, aborted=True))
            await client.say(Transfer(handle, first + 1, b"t", aborted=True))
            while flow.delivery_count != 2 or flow.link_credit != 2:
                flow = await client.until(Flow)


@pytest.mark.parametrize("is_begun", [False, True], ids=["between messages", "within a message"])
async def test_a_client_that_uses_up_its_credit_itself_gets_more(store: Path, is_begun: bool) -> None:
    """On links of each kind: it sets its delivery-count, as senders do that have nothing to send."""
    async with beside_a_worker(store, 4, of_worker=100) as client:
        async for handle, flow in senders(client):
            if is_begun:
                await client.say(Transfer(handle, handle, b"t", 0, False, True))
            for count in (flow.link_credit, 2 * flow.link_credit):
                await client.say(Flow(0, 100, 0, 100, handle, count, 0))
                while flow.delivery_count != count or not flow.link_credit:
                    flow = await client.heard(Flow)
                assert flow.link_credit == 4
            if is_begun:
                await client.say(Transfer(handle, aborted=True))
