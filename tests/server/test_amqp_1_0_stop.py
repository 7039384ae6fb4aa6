"""AMQP 1.0: the outcomes of messages that clients are told before the server ends their connections."""

from pathlib import Path

import pytest
import trio
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.protocol.amqp_1_0.performatives import Close, Disposition, Performative, Transfer
from omq.terminals.connection.last_outcomes import CONFIRMING_SECONDS
from omq.terminals.connection.statistics import Kind
from omq_storage.levels import Level

from .amqp_1_0_peer import ACCEPTED, Peer, condition, data, opened
from .conversation import InProcess, declared, eventually, serving
from .test_amqp_1_0_long_messages import BODY
from .test_amqp_1_0_relay import to

TYPES = {"queue": b"Round_robin (Persistent Strong)", "topic": b"Broadcast (Persistent Strong)"}

KINDS = pytest.mark.parametrize("kind", TYPES)


async def declare(host: InProcess, kind: str) -> None:
    """Make the topic `t`."""
    (await declared(host, TYPES[kind])).close()


def unconfirmed(host: InProcess) -> int:
    """Return the number of messages of AMQP 1.0 without an outcome."""
    found = [terminal.statistics() for terminal in host.server.terminals()]
    return sum(each.unconfirmed for each in found if each.kind is Kind.AMQP_1_0)


async def stored(store: Path, kind: str) -> list[bytes]:
    """Return the bodies of the messages of the topic after a restart."""
    async with serving(store) as host:
        client = await host.connect()
        count = (await client.topics())[b"t"].messages
        if kind == "queue":
            await client.say(b"(Request t 1000)")
        await client.ask(b"(Subscribe t %s)" % (b"From_current" if kind == "queue" else b"From_beginning"))
        return await client.bodies(count)


async def told(client: Peer) -> tuple[list[tuple[int, int]], Performative]:
    """Return the deliveries that are accepted before anything else is said, and that."""
    accepted = []
    while isinstance(said := (await client.next())[0], Disposition):
        assert said.state == ACCEPTED
        accepted.append((said.first, said.first if said.last is None else said.last))
    return accepted, said


async def closed(client: Peer, said: Performative) -> None:
    """Answer a close of the server, after which it says nothing more."""
    assert isinstance(said, Close)
    assert condition(said) == "amqp:connection:forced"
    await client.say(Close())
    with pytest.raises(EOFError):
        await client.next()


async def begin(client: Peer, message: bytes) -> None:
    """Send the first frame of a message."""
    delivery = client.delivery()
    await client.send_part(message, 0, 60_000, Transfer(1, delivery, b"%d" % delivery, 0, False))


async def end(client: Peer, message: bytes) -> None:
    """Send the rest of it."""
    await client.send_part(message, 60_000, len(message), Transfer(1))


@KINDS
@pytest.mark.parametrize("address", ["t", None])
@pytest.mark.parametrize("ended", ["stop", "disconnect"])
async def test_outcomes_come_before_the_close_of_the_server(
    store: Path, ended: str, address: str | None, kind: str, slow_clock: MockClock
) -> None:
    def message(body: bytes) -> bytes:
        return data(body) if address else to("t", body)

    async with serving(store) as host:
        await declare(host, kind)
        async with opened(host.port) as client:
            await client.sender(address)
            async with host.server.catalogue.writers[Level.STRONG].paused():
                await client.publish(message(b"first"))
                await client.publish(message(b"second"))
                await client.settle()
                assert unconfirmed(host) == 2
                (terminal,) = (each for each in host.server.terminals() if each.statistics().unconfirmed)
                if ended == "stop":
                    await host.server.stop()
                else:
                    terminal.disconnect("for a test")
                await client.publish(message(b"late"))
                await client.settle()
                assert unconfirmed(host) == 2
            accepted, said = await told(client)
            assert accepted in ([(0, 1)], [(0, 0), (1, 1)])
            await closed(client, said)
    assert await stored(store, kind) == [b"first", b"second"]


async def test_what_follows_a_message_without_effect_has_none_either(
    store: Path, slow_clock: MockClock
) -> None:
    """A worker that publishes a result and settles its work loses neither both nor one."""
    async with serving(store) as host:
        await declare(host, "queue")
        async with opened(host.port) as client:
            await client.sender("t")
            await client.publish(data(b"work"))
            await client.accepted(0)
            await client.receiver("t", credit=10)
            work = await client.message()
            async with host.server.catalogue.writers[Level.STRONG].paused():
                await client.publish(data(b"first"))
                await client.settle()
                await host.server.stop()
                await client.publish(data(b"result"))
                await client.told(work.delivery, work.delivery)
                await client.settle()
            accepted, said = await told(client)
            assert accepted == [(1, 1)]
            await closed(client, said)
    assert await stored(store, "queue") == [b"work", b"first"]


async def test_no_message_comes_while_outcomes_are_waited_for(store: Path, slow_clock: MockClock) -> None:
    async with serving(store) as host:
        await declare(host, "queue")
        other = await declared(host, b"Broadcast Transient", b"prices")
        async with opened(host.port) as client:
            await client.sender("t")
            await client.receiver("prices", credit=10)
            await client.receiver("exclusive.node", handle=2, credit=10)
            await client.settle()
            async with host.server.catalogue.writers[Level.STRONG].paused(), opened(host.port) as caller:
                await caller.sender("exclusive.node")
                await client.publish(data(b"first"))
                await client.settle()
                (terminal,) = (each for each in host.server.terminals() if each.statistics().unconfirmed)
                terminal.disconnect("for a test")
                await other.say(b"(Publish prices 1)")
                await other.confirm()
                await caller.publish(data(b"call"))
                await caller.settle()
                await client.settle()
                assert terminal.statistics().messages_out == 0
            accepted, said = await told(client)
            assert accepted == [(0, 0)]
            await closed(client, said)


@KINDS
async def test_an_incomplete_message_is_dropped(store: Path, kind: str, slow_clock: MockClock) -> None:
    message = data(BODY)
    async with serving(store) as host:
        await declare(host, kind)
        async with opened(host.port) as client, opened(host.port) as other:
            await client.sender("t")
            await other.sender("t")
            async with host.server.catalogue.writers[Level.STRONG].paused():
                await other.publish(data(b"first"))
                await other.settle()
                await begin(other, message)
                await begin(client, message)
                await client.settle()
                await other.settle()
                await host.server.stop()
                await end(other, message)
                await end(client, message)
            assert (await told(other))[0] == [(0, 0)]
            assert (await told(client))[0] == []
    assert await stored(store, kind) == [b"first"]


@KINDS
async def test_the_close_of_the_server_does_not_wait_for_long(
    store: Path, slow_clock: MockClock, kind: str
) -> None:
    async with serving(store) as host:
        await declare(host, kind)
        async with opened(host.port) as client:
            await client.sender("t")
            async with host.server.catalogue.writers[Level.STRONG].paused():
                await client.publish(data(b"x"))
                await client.settle()
                await host.server.stop()
                await quiet()
                assert unconfirmed(host) == 1
                await pass_time(slow_clock, CONFIRMING_SECONDS)
                accepted, said = await told(client)
                assert accepted == []
                slow_clock.rate = 10.0  # the server waits a second for the client to close
                await closed(client, said)
                await eventually(lambda: not host.server.terminals())
    assert await stored(store, kind) == [b"x"]


async def test_a_client_that_leaves_meanwhile_is_not_waited_for(store: Path, slow_clock: MockClock) -> None:
    async with serving(store) as host:
        await declare(host, "queue")
        async with opened(host.port) as client:
            await client.sender("t")
            async with host.server.catalogue.writers[Level.STRONG].paused():
                await client.publish(data(b"x"))
                await client.settle()
                began = trio.current_time()
                await host.server.stop()
                await client.say(Close())
                await client.until(Close)
                with pytest.raises(EOFError):
                    await client.next()
                await client.stream.aclose()
                await eventually(lambda: not host.server.terminals())
                assert trio.current_time() - began < CONFIRMING_SECONDS
