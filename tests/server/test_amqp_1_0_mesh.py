"""AMQP 1.0 behind a router: the frames that qdrouterd and skupper-router send to a broker (deploy/mesh).

All clients are on one connection and one session. The names of their links end with `@` and their container.
Termini and filters are those of the clients, unchanged.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from omq.protocol.amqp_1_0 import encoding, performatives
from omq.protocol.amqp_1_0.performatives import Attach, Begin, Detach, Flow, Open, Source, Transfer
from omq.protocol.amqp_1_0.types import NULL, Described, Map, Symbol

from .amqp_1_0_peer import ACCEPTED, HEADER, RELEASED, Peer, condition, data, peer, source, target
from .conversation import eventually, serving

CAPACITY = 250
"""The credit that a router gives for its own links (`linkCapacity`)."""

NOTIFY = "openstack.org/om/notify/anycast/nova/info"


@asynccontextmanager
async def router(port: int) -> AsyncIterator[Peer]:
    """Yield the connection of a router with the role `route-container`, and its session."""
    async with peer(port) as made:
        assert (await made.authenticate("ANONYMOUS", b"")).code == 0
        await made.send(HEADER)
        assert await made.header() == HEADER
        properties = Map(((Symbol("product"), "qpid-dispatch-router"), (Symbol("qd.conn-id"), 1 > 0)))
        opened = Open(
            "router-1",
            hostname="omq.example.com",
            max_frame_size=16384,
            channel_max=32767,
            idle_time_out=8000,
            offered_capabilities=("ANONYMOUS-RELAY", "qd.streaming-links"),
            desired_capabilities=("ANONYMOUS-RELAY", "qd.streaming-links"),
            properties=encoding.write(properties),
        )
        await made.say(opened, Begin(None, 0, 2**31 - 1, 2**31 - 1))
        await made.until(Begin)
        yield made


def producer(name: str, handle: int, address: str) -> Attach:
    """Return the link of a client that sends, as the router passes it on."""
    return Attach(
        name, handle, False, 2, 0, source=source(None), target=target(address), initial_delivery_count=0
    )


def consumer(name: str, handle: int, address: str, **fields: object) -> Attach:
    """Return the link of a client that receives."""
    return Attach(name, handle, True, 2, 0, source=source(address, **fields), target=target(None))


async def test_links_of_several_clients_come_on_one_session(store: Path) -> None:
    async with serving(store) as host, router(host.port) as mesh:
        await mesh.say(producer("notify@nova-1", 0, NOTIFY), producer("notify@nova-2", 1, NOTIFY))
        for _ in range(2):
            assert (await mesh.until(Attach)).target == target(NOTIFY)
        first = await mesh.publish(data(b"one"), 0)
        second = await mesh.publish(data(b"two"), 1)
        await mesh.accepted(first)
        await mesh.accepted(second)
        await mesh.say(consumer("listen@ceilometer-1", 2, NOTIFY), consumer("listen@ceilometer-2", 3, NOTIFY))
        handles = [(await mesh.until(Attach)).handle for _ in range(2)]
        await mesh.credit(1, 3)
        said, payload = await mesh.next()
        assert isinstance(said, Transfer)
        assert (said.handle, payload) == (handles[1], data(b"one"))
        # The first consumer gives no credit, and its client goes: nobody else notices.
        await mesh.say(Detach(2, closed=True))
        await mesh.until(Detach)
        await mesh.told(0, 0, RELEASED)
        await mesh.credit(3, 3, count=1)
        got = {(await mesh.message()).octets for _ in range(2)}
        assert got == {data(b"one"), data(b"two")}
        await mesh.told(1, 2, ACCEPTED)


async def test_the_same_link_name_of_two_clients_is_two_links(store: Path) -> None:
    async with serving(store) as host, router(host.port) as mesh:
        await mesh.say(producer("link@a", 0, "jobs"), producer("link@b", 1, "jobs"))
        for _ in range(2):
            assert (await mesh.until(Attach)).target != NULL
        assert await mesh.publish(data(b"a"), 0) == 0
        await mesh.accepted(0)


async def test_a_link_that_is_refused_leaves_those_of_other_clients(store: Path) -> None:
    async with serving(store) as host, router(host.port) as mesh:
        await mesh.say(producer("good@a", 0, "jobs"), producer("bad@b", 1, "$management"))
        await mesh.until(Attach)
        assert (await mesh.until(Attach)).target == NULL
        assert condition(await mesh.until(Detach)) == "amqp:not-found"
        await mesh.say(Detach(1, closed=True))
        await mesh.publish(data(b"x"), 0)
        await mesh.accepted(0)


async def test_filters_and_termini_are_answered_to_the_client(store: Path) -> None:
    replay = encoding.write(Map(((Symbol("from"), Described(Symbol("omq:from"), Symbol("beginning"))),)))
    async with serving(store) as host, router(host.port) as mesh:
        omq = await host.connect()
        await omq.say(b"(Declare log Broadcast (Persistent Weak))", b"(Publish log one)")
        await omq.settle()
        await mesh.say(consumer("replay@client", 0, "log", filter=replay))
        answered = performatives.read_all((await mesh.until(Attach)).source)
        assert isinstance(answered, Source)
        assert (answered.address, answered.filter) == (encoding.write("log"), replay)
        await mesh.credit(1, 0)
        assert (await mesh.message()).octets.endswith(data(b"one"))


async def test_a_waypoint_stores_messages_no_consumer_takes(store: Path) -> None:
    """Both links of an autoLink are attached when the router connects, and again when it comes back."""
    async with serving(store) as host:
        async with router(host.port) as mesh:
            await mesh.say(producer("auto-out", 0, "jobs"), consumer("auto-in", 1, "jobs"))
            for _ in range(2):
                await mesh.until(Attach)
            for number in range(3):
                last = await mesh.publish(data(b"%d" % number), 0)
            await mesh.accepted(last)
            await mesh.credit(CAPACITY, 1)
            for _ in range(3):
                await mesh.message()
            await mesh.told(0, 0, ACCEPTED)
            await mesh.settle()
        await eventually(lambda: not host.server.terminals())
        async with router(host.port) as mesh:
            await mesh.say(consumer("auto-in", 0, "jobs"))
            await mesh.until(Attach)
            await mesh.credit(CAPACITY, 0)
            again = [await mesh.message() for _ in range(2)]
            assert [message.octets[-1:] for message in again] == [b"1", b"2"]


async def test_skupper_router_uses_one_queue_under_two_names(store: Path) -> None:
    """`externalAddress` is what omq sees on both links."""
    async with serving(store) as host, router(host.port) as mesh:
        await mesh.say(producer("jobs.in", 0, "jobs"), consumer("jobs.out", 1, "jobs"))
        for _ in range(2):
            await mesh.until(Attach)
        await mesh.credit(CAPACITY, 1)
        await mesh.say(Flow(0, 2**31 - 1, 0, 2**31 - 1))  # the session's own, as routers send it
        await mesh.publish(data(b"x"), 0, settled=True)
        assert (await mesh.message()).octets == data(b"x")
