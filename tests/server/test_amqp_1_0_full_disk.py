"""AMQP 1.0: what producers are told while the disk is full, and that they go on when it has room."""

from pathlib import Path

import pytest
from quietness import quiet

from omq.protocol.amqp_1_0.performatives import Detach, Disposition, Transfer
from omq.protocol.amqp_1_0.types import NULL, Symbol
from omq.terminals.amqp_1_0.terminal import Amqp1Terminal

from .amqp_1_0_peer import ACCEPTED, Peer, condition, data, from_filter, opened
from .conversation import PERSISTENCES, InProcess, eventually, serving
from .test_amqp_1_0_idempotent import numbered, ulong
from .test_amqp_1_0_relay import rejected, to
from .test_full_disk import fill_up

KEPT = pytest.mark.parametrize("level", ["Strong", "Weak", "Async"])

FULL = "amqp:resource-limit-exceeded"

BODY = b"%05d:" + bytes(50_000)


def body(number: int) -> bytes:
    """Return a message of 50 KB with this number."""
    return data(BODY % number)


async def outcomes(client: Peer, last: int) -> dict[int, bytes]:
    """Return the outcomes of the messages up to this delivery-id. Each of them comes once."""
    found: dict[int, bytes] = {}
    while last not in found or len(found) <= max(found) - min(found):
        said = await client.until(Disposition)
        for each in range(said.first, (said.first if said.last is None else said.last) + 1):
            assert each not in found
            found[each] = said.state
    return found


def undelivered(host: InProcess) -> int:
    """Return the number of messages of all links that were not accepted."""
    links = (terminal.links() for terminal in host.server.terminals() if isinstance(terminal, Amqp1Terminal))
    return sum(link.undelivered for each in links for link in each)


def renewed(host: InProcess) -> bool:
    """Return whether each link has no message without an outcome, and credit for 100 more."""
    terminals = [each for each in host.server.terminals() if isinstance(each, Amqp1Terminal)]
    return all(
        link.credit >= 100 and not link.unconfirmed for terminal in terminals for link in terminal.links()
    )


def make_room(disk: Path) -> None:
    (disk / "filler").unlink()


async def exchange(other: Peer, number: int) -> None:
    """See that a client of a transient topic notices nothing."""
    await other.publish(body(number), 2)
    assert (await other.message()).octets == body(number)


async def attach_other(other: Peer) -> None:
    await other.receiver("other", credit=100)
    await other.sender("other", 2)


@KEPT
@pytest.mark.parametrize("delivery", ["Broadcast", "Round_robin"])
async def test_messages_for_which_the_disk_has_no_room_are_rejected(
    disk: Path, level: str, delivery: str
) -> None:
    """Each gets its own outcome though many are on their way; those that were accepted are kept."""
    async with (
        serving(disk / "store", disk_reserve_bytes=0, default_persistence="transient") as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        principal = await host.connect()
        await principal.ask(b"(Declare t %s %s)" % (delivery.encode(), PERSISTENCES[level]))
        await attach_other(other)
        await client.sender("t")
        accepted: list[int] = []
        for turn in range(2):
            refused = 0
            while not refused:
                numbers = [await client.publish(body(number)) for number in range(20)]
                told = await outcomes(client, numbers[-1])
                assert list(told) == sorted(told)
                for number, delivery_id in enumerate(numbers):
                    if told[delivery_id] == ACCEPTED:
                        accepted.append(number)
                    else:
                        assert rejected(told[delivery_id]) == FULL
                        refused += 1
                if not turn and not refused:
                    fill_up(disk)
            await exchange(other, turn)
            if not turn:
                make_room(disk)
        assert len(accepted) > 40
        from_beginning = from_filter("omq:from", Symbol("beginning"))
        await client.receiver(
            "t", credit=len(accepted), filter=from_beginning if delivery == "Broadcast" else NULL
        )
        for number in accepted:
            assert (await client.message()).octets.endswith(body(number))
        assert host.server.statistics().defects == 0


@KEPT
async def test_settled_messages_for_which_the_disk_has_no_room_are_counted(disk: Path, level: str) -> None:
    """Their link goes on: it gets credit for them, and later ones are stored."""
    async with (
        serving(disk / "store", disk_reserve_bytes=0, default_persistence="transient") as host,
        opened(host.port) as client,
        opened(host.port) as other,
    ):
        principal = await host.connect()
        await principal.ask(b"(Declare t Broadcast %s)" % PERSISTENCES[level])
        await attach_other(other)
        await client.sender("t")
        fill_up(disk)
        for first in range(0, 400, 100):  # in all twice the credit
            for number in range(first, first + 100):
                await client.publish(body(number), settled=True)
            await client.settle()
            await eventually(lambda: renewed(host))
        assert undelivered(host) > 300
        await exchange(other, 1)
        make_room(disk)
        await quiet()
        await client.receiver("t", credit=100)
        await client.publish(body(400), settled=True)
        assert (await client.message()).octets == body(400)
        await client.accepted(await client.publish(body(401)))
        assert host.server.statistics().defects == 0


async def test_every_kind_of_producer_is_told_that_the_disk_is_full(disk: Path) -> None:
    async with (
        serving(disk / "store", disk_reserve_bytes=0, default_persistence="strong") as host,
        opened(host.port) as client,
    ):
        long = data(bytes(3 << 20))
        await client.sender("t")
        await client.sender("u", 2)
        await client.sender(None, 3)  # the anonymous relay
        fill_up(disk)
        assert rejected((await outcomes(client, await client.publish_long(long)))[0]) == FULL
        # Each address of a relay has its own outcome.
        for number, address in ((1, "t"), (2, "u"), (3, "new")):
            assert await client.publish(to(address, bytes(50_000)), 3) == number
        told = await outcomes(client, 3)
        assert [rejected(told[number]) for number in (1, 2, 3)] == [FULL] * 3
        # Later messages of an idempotent producer must not be stored without this one.
        await client.publish(numbered("p", ulong(1), bytes(50_000)), 2)
        assert rejected((await client.until(Disposition)).state) == FULL
        assert condition(await client.until(Detach)) == FULL
        make_room(disk)
        await client.accepted(await client.publish_long(long))
        await client.accepted(await client.publish(to("new", b"x"), 3))


async def test_a_long_message_that_comes_while_the_disk_fills_up(disk: Path) -> None:
    """Before its last part the client is told nothing."""
    async with (
        serving(disk / "store", disk_reserve_bytes=0, default_persistence="strong") as host,
        opened(host.port) as client,
    ):
        octets = data(bytes(3 << 20))
        await client.sender("t")
        for turn in range(2):
            await client.say(Transfer(1, turn, b"%d" % turn, 0, False, True), payload=octets[:60_000])
            await client.settle()
            if turn:
                make_room(disk)
            else:
                fill_up(disk)
            for at in range(60_000, len(octets), 60_000):
                part = octets[at : at + 60_000]
                await client.say(Transfer(1, more=at + len(part) < len(octets)), payload=part)
            state = (await outcomes(client, turn))[turn]
            assert state == ACCEPTED if turn else rejected(state) == FULL


async def test_numbers_after_a_long_message_without_room_are_not_stored(disk: Path) -> None:
    """Else the long message would be taken for a repeated one when the producer sends it again."""
    long, short = numbered("p", ulong(1), bytes(3 << 20)), numbered("p", ulong(2), b"short")
    async with (
        serving(disk / "store", disk_reserve_bytes=0, default_persistence="strong") as host,
        opened(host.port) as client,
    ):
        principal = await host.connect()
        await principal.ask(b"(Declare t Broadcast (Persistent Strong))")
        await client.sender("t")
        await client.accepted(await client.publish(data(b"before")))
        fill_up(disk)
        delivery = await client.publish_long(long)
        make_room(disk)
        await client.publish(short)
        assert rejected((await outcomes(client, delivery))[delivery]) == FULL
        assert condition(await client.until(Detach)) == FULL
        await client.sender("t", 2)
        await client.publish_long(long, 2)
        await client.accepted(await client.publish(short, 2))
        await principal.ask(b"(Subscribe t From_beginning)")
        found = [(await principal.message()).body for _ in range(3)]
        assert found == [b"before", bytes(3 << 20), b"short"]


async def test_messages_are_rejected_while_the_disk_has_only_its_reserve(store: Path) -> None:
    for reserve, expected in ((0, None), (1 << 52, FULL)):
        async with serving(store, disk_reserve_bytes=reserve) as host, opened(host.port) as client:
            principal = await host.connect()
            await principal.ask(b"(Declare t Broadcast (Persistent Weak))")
            await client.sender("t")
            for _ in range(50):
                await client.publish(data(b"x"))
            told = await outcomes(client, 49)
            states = set(told.values())
            assert {None if state == ACCEPTED else rejected(state) for state in states} == {expected}
