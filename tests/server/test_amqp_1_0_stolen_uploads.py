"""AMQP 1.0: a link is taken over while its long message waits, within the server, to be written or posted."""

from pathlib import Path
from typing import Any

import trio

from omq.drivers.writer import Writer
from omq.protocol.amqp_1_0.performatives import Detach

from .amqp_1_0_peer import ACCEPTED, Peer, condition, data
from .conversation import InProcess, declared, eventually, serving
from .large_messages import MIB, body, leftovers
from .spooled_messages import SETTINGS
from .test_amqp_1_0_stolen import container
from .test_amqp_1_0_uploads import begun

PERSISTENT = b"Broadcast (Persistent Weak)"


def the_writer(host: InProcess) -> Writer:
    (writer,) = [each for level, each in host.server.catalogue.writers.items() if level.value == "weak"]
    return writer


async def stolen(before: Peer, after: Peer) -> None:
    """Let a link take the place of the one of its name."""
    await after.sender("t")
    assert condition(await before.until(Detach)) == "amqp:link:stolen"


async def test_a_post_that_waits_for_memory_fails_no_other(store: Path) -> None:
    settings: dict[str, Any] = {**SETTINGS, "memory_bytes": 64 * MIB, "fragment_octets": 1 << 17}
    long = body(3 * MIB + 17, 1)
    async with (
        serving(store, **settings) as host,
        container(host, "work") as before,
        container(host, "work") as after,
        container(host, "other") as other,
    ):
        await declared(host, PERSISTENT)
        await other.sender("t", 2)
        await before.sender("t")
        posted, writer = host.server.memory.posted, the_writer(host)
        taken = posted.limit - posted.used
        posted.force(taken)
        await before.publish_long(data(long))
        await eventually(lambda: posted.waiting == 1)
        await stolen(before, after)
        while writer.environment.sweep():
            pass
        await other.publish(data(b"beside it"), 2)
        await eventually(lambda: posted.waiting == 2)
        posted.give(taken)
        assert (await other.outcome()).state == ACCEPTED
        await eventually(lambda: not host.memory_used)
        assert host.server.statistics().writers[1].failures == 0


async def test_a_part_that_waits_for_its_commit_leaves_nothing_on_the_disk(store: Path) -> None:
    octets = data(body(5 * MIB, 1))
    async with (
        serving(store, **SETTINGS) as host,
        container(host, "work") as before,
        container(host, "work") as after,
    ):
        await declared(host, PERSISTENT)
        await before.sender("t")
        writer = the_writer(host)
        first = await begun(before, octets)
        await eventually(writer.environment.bodies.are_loose)
        lock = writer.paused()
        assert isinstance(lock, trio.Lock)
        async with trio.open_nursery() as sending, lock:
            sending.start_soon(before.send_part, octets, 2 * MIB, 4 * MIB, first)
            await eventually(lambda: lock.statistics().tasks_waiting > 0)
            await stolen(before, after)
            while writer.environment.sweep():
                pass
        await before.settle()
        while writer.environment.sweep():
            pass
    assert leftovers(store) == (0, 0)
