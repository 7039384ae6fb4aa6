"""A round-robin topic keeps messages until they are done, also beyond the end of the server."""

from pathlib import Path

import pytest
from quietness import pass_time
from trio.testing import MockClock

from omq import management
from omq.protocol.omq import types

from .conversation import (
    STORED,
    declared,
    numbered,
    publish,
    serving,
    serving_process,
    tidied,
)
from .round_robin_workers import received, worker


@STORED
async def test_done_messages_are_deleted(store: Path, persistence: bytes, clock: MockClock) -> None:
    async with serving(store, missed_pings=0) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        client = await worker(host, credit=1000)
        for first in (1, 101, 201):
            await publisher.send(publish(b"t", numbered(first, first + 99)))
            await publisher.confirm()
        assert await client.ids(300) == list(range(1, 301))
        await received(client, range(1, 300))
        info = await tidied(publisher, clock, b"t", lambda info: info.messages <= 100)
        assert info.messages >= 1  # message 300 is not done
        await received(client, [300])
        info = await tidied(publisher, clock, b"t", lambda info: info.messages == 0)
        assert (info.bytes, info.first, info.last) == (0, 301, 300)


async def test_done_messages_of_a_transient_topic_are_forgotten(store: Path) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin Transient")
        client = await worker(host, credit=1000)
        await publisher.send(publish(b"t", numbered(1, 300)))
        assert await client.ids(300) == list(range(1, 301))
        assert (await publisher.topics())[b"t"].messages == 300
        # In another order than they came.
        await received(client, range(300, 0, -1))
        assert (await publisher.topics())[b"t"].messages == 0
        assert host.memory_used == 0


@STORED
async def test_retention_never_deletes_undone_messages(
    store: Path, persistence: bytes, clock: MockClock
) -> None:
    async with serving(store, retention_bytes=1, retention_seconds=0.001) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        for first in (1, 101, 201):
            await publisher.send(publish(b"t", numbered(first, first + 99)))
            await publisher.confirm()
        await pass_time(clock, 10, step=2)
        client = await worker(host)
        assert await client.ids(300) == list(range(1, 301))


@STORED
async def test_confirmed_work_is_not_repeated_after_a_clean_restart(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        client = await worker(host, credit=20)
        await publisher.send(publish(b"t", numbered(1, 50)))
        assert await client.ids(20) == list(range(1, 21))
        await received(client, [1, 2, 3, 5, 8, 13])
        done = {1, 2, 3, 5, 8, 13}
        more = await client.ids(6)
        assert more == list(range(21, 27))
        await received(client, [22])
        done.add(22)
        assert await client.ids(1) == [27]
    async with serving(store) as host:
        client = await worker(host, credit=1000)
        left = await client.messages(50 - len(done))
        assert sorted(message.id for message in left) == sorted(set(range(1, 51)) - done)
        assert all(message.body == b"%d" % message.id for message in left)
        await client.confirm()
        publisher = await host.connect()
        await publisher.say(b"(Publish t next)")
        assert await client.ids(1) == [51]


async def test_a_clean_restart_repeats_no_message_of_a_plain_subscriber(
    store: Path,
) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Round_robin (Persistent Strong)")
        client = await worker(host)
        await publisher.send(publish(b"t", numbered(1, 50)))
        assert await client.ids(50) == list(range(1, 51))
    async with serving(store) as host:
        client = await worker(host)
        publisher = await host.connect()
        await publisher.say(b"(Publish t next)")
        assert await client.ids(1) == [51]


@STORED
async def test_unconfirmed_messages_survive_the_end_of_the_process(store: Path, persistence: bytes) -> None:
    async with serving_process(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        client = await worker(host, credit=20)
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        assert await client.ids(20) == list(range(1, 21))
        await received(client, [1, 2, 3, 10])
        await host.kill()
    async with serving_process(store) as host:
        client = await worker(host, credit=1000)
        publisher = await host.connect()
        await publisher.say(b"(Publish t last)")
        bodies: list[bytes] = []
        while not bodies or bodies[-1] != b"last":
            message = await client.message()
            assert message.body in (b"%d" % message.id, b"last")
            bodies.append(message.body)
        # Confirmed work may come again, nothing else may be missing.
        missing = set(numbered(1, 100)) - set(bodies)
        assert missing <= {b"1", b"2", b"3", b"10"}
        assert len(set(bodies)) == len(bodies)
        assert await host.stop() == 0


@STORED
@pytest.mark.parametrize("purge", [b"(Purge t)", b"(Manage (Purge (queue t)))"])
async def test_deleted_messages_do_not_come_back_after_a_kill(
    store: Path, persistence: bytes, purge: bytes
) -> None:
    async with serving_process(store) as host:
        publisher = await declared(host, b"Round_robin " + persistence)
        await publisher.send(publish(b"t", numbered(1, 50)))
        await publisher.confirm()
        assert await publisher.ask(purge) in (types.Done(50), types.Managed(management.Done(50)))
        await host.kill()
    async with serving_process(store) as host:
        client = await worker(host, credit=1000)
        publisher = await host.connect()
        await publisher.say(b"(Publish t next)")
        assert await client.ids(1) == [51]
        assert await host.stop() == 0
