"""The objects of a connection are free as soon as it is over (`garbage`)."""

from pathlib import Path

import pytest
from garbage import uncollected
from quietness import quiet
from trio.testing import MockClock

from omq.protocol.amqp_1_0.performatives import Attach, Close, Flow, Transfer

from . import dmp_conversation as dmp
from .amqp_1_0_peer import Peer, data, source, target
from .conversation import InProcess, declared, eventually, numbered, publish, serving
from .stalled_readers import sending_little, stall


def stuck_answers(host: InProcess) -> int:
    """Return the number of octets of waiting answers, over all connections."""
    return sum(terminal.statistics().held.answers for terminal in host.server.terminals())


async def leave_omq(host: InProcess, how: str) -> None:
    """Use connections of omq and DMP, and end them."""
    client = await declared(host, b"Broadcast (Persistent Weak)")
    await client.ask(b"(Declare work Round_robin Transient)")
    await client.ask(b"(Subscribe t From_beginning)")
    await client.ask(b"(Subscribe work From_current)")
    await client.ask(b"(Put t)")
    await client.ask(b"(Get t From_current)")
    others = [await dmp.sink(host, client), (await dmp.feed(host, client)).connection]
    await others[0].send(dmp.envelopes([b"a", b"b"]) + b"\0\0\1")
    stuck = await host.connect(receive_octets=4096)
    # Answers that wait, of each kind, and a line that is not complete.
    await stuck.say(b"(Publish t x)")
    while not stuck_answers(host):  # the kernel decides how much it takes for a client that does not read
        await stuck.say(*[b"(Declare t Broadcast (Persistent Weak))"] * 500)
        await quiet()
    await stuck.say(b"(Fetch t 1 5)", b"(Confirm 1)", b"Topics", b"(Nonsense)", b"(Subscribe t From_current)")
    await stuck.send(b"(Publish t " + b"x" * 1000)
    await quiet()
    assert stuck_answers(host) > 0
    for each in (client, stuck, *others):
        if how == "reset":
            each.reset()
        else:
            each.close()


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_connections_leave_nothing_behind(store: Path, how: str) -> None:
    with uncollected() as left:
        async with serving(store) as host:
            await leave_omq(host, how)
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())


@pytest.mark.parametrize("how", ["closed", "reset", "stalled"])
async def test_workers_leave_nothing_behind(store: Path, clock: MockClock, how: str) -> None:
    """Messages were sent to them at once, which they read or not, and others get those."""
    with uncollected() as left:
        async with sending_little(store) as host:
            publisher = await declared(host, b"Round_robin Transient")
            await publisher.ask(b"(Declare kept Round_robin (Persistent Weak))")
            workers = [await host.connect(receive_octets=4096) for _ in range(2)]
            for each in workers:
                await each.ask(b"(Subscribe t From_current)")
                await each.ask(b"(Subscribe kept From_current)")
            await publisher.send(publish(b"t", numbered(1, 10_000)) + publish(b"kept", numbered(1, 10_000)))
            await publisher.confirm()
            if how == "stalled":
                await stall(clock, host, 1)
            for each in (*workers, publisher):
                if how == "reset":
                    each.reset()
                else:
                    each.close()
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())


async def use_links(peer: Peer) -> None:
    """Attach links of each kind. Leave messages unsettled and one incomplete."""
    await peer.sender("jobs", 1)
    for _ in range(2):
        await peer.accepted(await peer.publish(data(b"x")))
    await peer.receiver("jobs", 0, credit=1)
    await peer.message()
    await peer.receiver("exclusive.node", 2, credit=1)
    await peer.sender("exclusive.node", 3)
    await peer.publish(data(b"x"), 3)
    await peer.message()
    await peer.receiver("log", 4, credit=9, capabilities=("topic",))
    await peer.sender("log", 5, capabilities=("topic",))
    await peer.publish(data(b"x"), 5)
    await peer.message()
    for handle, address in ((6, target(None)), (7, target(None, dynamic=True))):
        await peer.say(Attach(f"s{handle}", handle, False, target=address, initial_delivery_count=0))
        await peer.until(Flow)
    await peer.say(Attach("dynamic", 8, True, source=source(None, dynamic=True), target=target("here")))
    await peer.until(Attach)
    await peer.say(Transfer(1, 99, b"99", 0, more=True), payload=b"x" * 1000)
    await peer.settle()


@pytest.mark.parametrize("how", ["closed", "ended", "reset", "stopped"])
async def test_connections_of_amqp_1_0_leave_nothing_behind(store: Path, how: str) -> None:
    with uncollected() as left:
        async with serving(store) as host:
            connection = await host.open()
            peer = Peer(connection.stream)
            await peer.open()
            await use_links(peer)
            match how:
                case "closed":
                    await peer.say(Close())
                    await peer.until(Close)
                case "ended":
                    connection.close()
                case "reset":
                    connection.reset()
                case "stopped":
                    await host.server.stop()
                    await peer.until(Close)
            connection.close()
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())


async def test_flows_that_wait_for_the_socket_leave_nothing_behind(store: Path) -> None:
    with uncollected() as left:
        async with serving(store) as host:
            connection = await host.open(receive_octets=4096)
            peer = Peer(connection.stream)
            await peer.open()
            await peer.sender("jobs", 1)
            while not stuck_answers(host):
                await peer.say(*[Flow(0, 1 << 20, 0, 1 << 20, echo=True)] * 500)
                await quiet()
            connection.reset()
            await eventually(lambda: host.server.connections == 0)
            await eventually(lambda: not left())
