"""Pings, and what becomes of a client that gives no sign of life (docs/PROTOCOL.md, "Pings and silence")."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from quietness import pass_time, quiet
from trio.testing import MockClock

from omq.drivers.catalogue import Catalogue
from omq.protocol.omq.sentences import RefusalKind, refusal_in
from omq.protocol.omq.types import Confirmed, Declared, Error, Subscribed

from .conversation import Conversation, InProcess, declared, eventually, publish, serving

MIB = 1 << 20
ACK = b"(Ack (2026-01-01 00:00:00Z))"


async def pinged(client: Conversation, count: int) -> None:
    """Wait until N (`count`) pings have come in all."""
    while len(client.pings) < count:
        assert await client.receive(), "the connection ended"


async def test_a_silent_client_is_pinged_at_least_every_50_seconds(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for number in range(1, 6):
            await pass_time(clock, 48)
            await pinged(client, number)
            await client.say(ACK)
            await client.settle()
        assert all(abs(ping.time - time.time()) < 60 for ping in client.pings)


@pytest.mark.parametrize("step", [0.25, 0.7])
async def test_a_ping_comes_at_most_one_look_early_and_never_late(
    store: Path, clock: MockClock, step: float
) -> None:
    """The server looks at its clock every second for pings that are due every 45."""
    async with serving(store) as host:
        client = await host.connect()
        clock.rate = 0  # time passes in the steps below only
        came: list[float] = []
        while len(came) < 4:
            clock.jump(step)
            await quiet()  # the server has looked at its clock
            await client.settle()
            came += [trio.current_time()] * (len(client.pings) - len(came))
        clock.rate = 1
    gaps = [later - earlier for earlier, later in pairwise(came)]
    assert all(44 <= gap <= 45 for gap in gaps), gaps


async def test_a_busy_client_is_pinged_as_well(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.connect()
        assert isinstance(await client.ask(b"(Subscribe t From_current)"), Subscribed)
        for number in range(1, 101):
            await client.say(b"(Publish t %d)" % number)
            assert (await client.message()).id == number
            await pass_time(clock, 1)
        await pinged(client, 2)


@pytest.mark.parametrize("command", [ACK, b"Topics", b"(Publish t x)", b"(Nonsense)"])
async def test_any_command_is_a_sign_of_life(store: Path, clock: MockClock, command: bytes) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for _ in range(8):
            await pass_time(clock, 50, step=10)
            await client.say(command)
            await client.settle()
        assert len(client.pings) >= 6


async def test_three_pings_unanswered_end_the_connection(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        silent, subscriber = await host.connect(), await host.connect()
        await subscriber.ask(b"(Subscribe t From_current)")
        await pass_time(clock, 3 * 45 + 20, step=5)
        assert host.connections == 2
        # Messages to it are no sign of life from it.
        publisher = await host.connect()
        await publisher.say(b"(Publish t x)")
        await pass_time(clock, 30, step=5)
        for client in (silent, subscriber):
            frames = await client.rest()
            assert len(client.pings) == 3
            assert isinstance(frames[-1], Error)
            assert frames[-1].text == b"Ping: 3 in a row were not answered, the connection is closed"
            assert refusal_in(frames[-1].text) is RefusalKind.PASSING
        await eventually(lambda: host.connections == 1)
        assert (await host.topics())[b"t"].subscribers == 0


async def test_one_answer_is_enough_for_all_pings_before_it(store: Path, clock: MockClock) -> None:
    async with serving(store) as host:
        client = await host.connect()
        for round in range(1, 4):
            await pass_time(clock, 3 * 45 + 5, step=5)
            await pinged(client, 3 * round)
            await client.say(ACK)
            await client.settle()
        await client.confirm()


async def test_no_missed_pings_are_too_many_when_it_is_turned_off(store: Path, clock: MockClock) -> None:
    async with serving(store, missed_pings=0) as host:
        client = await host.connect()
        await pass_time(clock, 20 * 45, step=45)
        await client.confirm()
        assert len(client.pings) >= 15


@pytest.mark.parametrize("persistence", [b"Transient", b"(Persistent Weak)"])
async def test_a_subscriber_that_reads_nothing_is_closed(
    store: Path, clock: MockClock, persistence: bytes
) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare t Broadcast %s)" % persistence)
        stuck = await host.connect(receive_octets=4096)
        await stuck.say(b"(Subscribe t From_current)")
        await stuck.frame()
        for _ in range(20):
            await publisher.send(publish(b"t", [b"x" * 16000] * 50))
            await publisher.settle()
        await stuck.say(ACK)  # however long that took, it has all its time from here on
        await quiet()
        for _ in range(4):
            await publisher.say(ACK)
            await publisher.settle()
            await pass_time(clock, 30, step=5)
        assert host.connections == 2
        await publisher.say(ACK)
        await publisher.settle()
        await pass_time(clock, 60, step=5)
        await eventually(lambda: host.connections == 1)
        assert (await publisher.topics())[b"t"].subscribers == 0


async def test_waiting_for_room_is_not_the_publishers_silence(store: Path, clock: MockClock) -> None:
    async with serving(store, memory_bytes=4 * MIB, max_message_bytes=MIB) as host:
        publisher = await declared(host, b"Round_robin Transient")
        count = 500

        async def publish_all() -> None:
            # Without a limit of the test's own, as the clock jumps meanwhile.
            await publisher.stream.send_all(publish(b"t", [b"x" * 16000] * count))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_all)
            await wait_until_full(host)
            # Far longer than a silent client would be given.
            await pass_time(clock, 400, step=10)
            worker = await host.connect()
            await worker.ask(b"(Subscribe t From_current)")
            await worker.messages(count)
        await publisher.confirm()


@pytest.mark.parametrize(
    ("step", "command"),
    [
        ("declare", b"(Declare t Broadcast Transient)"),
        ("lookup_or_declare", b"(Publish t x)\n(Confirm 1)"),
        ("make", b"(Declare t Broadcast Transient)\n(Declare u Broadcast Transient)"),
    ],
)
async def test_a_long_command_is_not_its_clients_silence(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, step: str, command: bytes
) -> None:
    goes_on = trio.Event()
    take = getattr(Catalogue, step)

    async def slowly(*given: Any, **named: Any) -> Any:
        await goes_on.wait()
        return await take(*given, **named)

    async with serving(store) as host:
        client = await host.connect()
        monkeypatch.setattr(Catalogue, step, slowly)
        await client.say(command)
        await pass_time(clock, 400, step=10)
        goes_on.set()
        assert isinstance(await client.frame(), Declared | Confirmed)
        assert len(client.pings) > 4


async def wait_until_full(host: InProcess) -> None:
    """Wait until the server takes nothing more from its publisher."""
    taken = -1
    while taken != host.memory_used or taken < host.server.memory.waiting_octets // 2:
        taken = host.memory_used
        await trio.sleep(0.05)
