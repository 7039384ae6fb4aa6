"""Messages survive restarts, killed processes and power failures, with retention, in a full store."""

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from quietness import pass_time
from trio.testing import MockClock

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Deleted, Error, Message, Subscribed
from omq_storage.levels import Level

from .conversation import (
    EVERY,
    STORED,
    Host,
    InProcess,
    declared,
    eventually,
    numbered,
    publish,
    serving,
    serving_process,
    tidied,
)

CHECKPOINTED = pytest.mark.parametrize("level", [Level.WEAK, Level.ASYNC])

MIB = 1 << 20


async def replayed(
    host: Host, topic: bytes = b"t", replay: bytes = b"From_beginning"
) -> list[Message | Error]:
    """Return everything that a replay gives up to what is there now."""
    client = await host.connect()
    await client.say(b"(Subscribe %s %s)" % (topic, replay))
    await client.done()
    subscribed, *frames = await client.rest()
    assert isinstance(subscribed, Subscribed), subscribed
    assert all(isinstance(frame, Message | Error) for frame in frames)
    return [frame for frame in frames if isinstance(frame, Message | Error)]


def sequence(first: int, bodies: list[bytes], topic: int = 0) -> list[Message]:
    """Return messages with consecutive ids."""
    return [Message(first + index, topic, body) for index, body in enumerate(bodies)]


@EVERY
async def test_ids_go_on_over_clean_restarts(store: Path, persistence: bytes) -> None:
    for round in range(3):
        async with serving(store) as host:
            publisher = await declared(host, b"Broadcast " + persistence)
            subscriber = await host.connect()
            await subscriber.ask(b"(Subscribe t From_current)")
            first = round * 10 + 1
            await publisher.send(publish(b"t", numbered(first, first + 9)))
            assert await subscriber.messages(10) == sequence(first, numbered(first, first + 9))
            await publisher.confirm()


@STORED
async def test_a_clean_restart_keeps_all_messages(store: Path, persistence: bytes) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.send(publish(b"t", numbered(1, 5000)))
        await publisher.confirm()
        before = await host.topics()
    async with serving(store) as host:
        after = await host.topics()
        assert after.keys() == before.keys()
        info = after[b"t"]
        assert (info.id, info.messages, info.first, info.last) == (0, 5000, 1, 5000)
        assert (info.delivery, info.persistence) == (before[b"t"].delivery, before[b"t"].persistence)
        assert await replayed(host) == sequence(1, numbered(1, 5000))


@STORED
async def test_confirmed_messages_survive_the_kill_of_the_process(store: Path, persistence: bytes) -> None:
    async with serving_process(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        for first in range(1, 501, 100):
            await publisher.send(publish(b"t", numbered(first, first + 99)))
            await publisher.confirm()
        # And some that are not confirmed: they may be there or not, but only from the front.
        await publisher.send(publish(b"t", numbered(501, 3000)))
        await host.kill()
    async with serving_process(store) as host:
        kept = await replayed(host)
        assert kept == sequence(1, numbered(1, len(kept)))
        assert len(kept) >= 500
        publisher = await host.connect()
        await publisher.say(b"(Publish t next)")
        await publisher.confirm()
        assert await replayed(host, replay=b"(From_message %d)" % len(kept)) == [
            Message(len(kept), 0, b"%d" % len(kept)),
            Message(len(kept) + 1, 0, b"next"),
        ]
        assert await host.stop() == 0


async def test_a_transient_topic_never_gives_an_id_twice_though_the_process_was_killed(store: Path) -> None:
    last = 0
    for _ in range(2):
        async with serving_process(store) as host:
            publisher = await declared(host, b"Broadcast Transient")
            subscriber = await host.connect()
            await subscriber.ask(b"(Subscribe t From_current)")
            await publisher.send(publish(b"t", numbered(1, 10)))
            ids = await subscriber.ids(10)
            assert ids == list(range(ids[0], ids[0] + 10))
            assert ids[0] > last
            last = ids[-1]
            await host.kill()


async def test_a_stop_while_publishing_keeps_confirmed_messages(store: Path) -> None:
    async with serving_process(store) as host:
        topics = [b"strong", b"weak", b"async"]
        confirmed = dict.fromkeys(topics, 0)
        clients = {
            topic: await declared(host, b"Broadcast (Persistent %s)" % topic.title(), topic)
            for topic in topics
        }

        async def keep_publishing(topic: bytes) -> None:
            n = 0
            try:
                while True:
                    await clients[topic].send(publish(topic, numbered(n + 1, n + 100)))
                    n += 100
                    answer = await clients[topic].ask(b"(Confirm %d)" % n)
                    assert answer == Confirmed(n)
                    confirmed[topic] = n
            except (trio.BrokenResourceError, AssertionError):
                pass  # the server has ended

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(keep_publishing, topic)
            await eventually(lambda: min(confirmed.values()) >= 1000)
            assert await host.stop() == 0
    # Also after the machine was restarted: the stores were closed properly.
    async with serving_process(store, boot_id="another-boot") as host:
        for topic in topics:
            kept = await replayed(host, topic)
            assert [frame.body for frame in kept if isinstance(frame, Message)] == numbered(1, len(kept))
            assert len(kept) >= confirmed[topic]


async def test_a_stop_does_not_wait_for_clients_that_read_nothing(store: Path) -> None:
    async with serving_process(store) as host:
        publisher = await declared(host, b"Broadcast (Persistent Weak)")
        stuck = await host.connect(receive_octets=4096)
        await stuck.say(b"(Subscribe t From_current)")
        await host.open()  # and one that says nothing
        for _ in range(10):
            await publisher.send(publish(b"t", [b"x" * 16000] * 50))
            await publisher.confirm()
        assert await host.stop() == 0


# -- power failures -----------------------------------------------------------------------------------------


async def checkpoint(host: InProcess, level: Level, clock: MockClock, seconds: float) -> None:
    """Let the time until the next checkpoint pass, and wait for it."""
    environment = host.server.catalogue.writers[level].environment
    wanted = environment.usage().transaction
    clock.jump(seconds)
    await eventually(lambda: environment.usage().durable >= wanted)


def cut_power(store: Path, name: str) -> Path:
    """Return a copy of the store as it is on the disk now, as a start after a power failure finds it."""
    copy = store.with_name(name)
    shutil.copytree(store, copy)
    return copy


FLUSH = 1000.0
"""Seconds between checkpoints: the tests decide when they pass."""


@asynccontextmanager
async def until_the_power_fails(store: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[InProcess]:
    """Yield a server of the first boot. What a test starts after it belongs to the second one."""
    monkeypatch.setenv("OMQ_BOOT_ID", "first")
    async with serving(store, weak_flush_seconds=FLUSH, async_flush_seconds=FLUSH, missed_pings=0) as host:
        yield host
    monkeypatch.setenv("OMQ_BOOT_ID", "second")


@CHECKPOINTED
async def test_a_power_failure_takes_back_messages_after_the_last_checkpoint(
    store: Path, clock: MockClock, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = b"(Persistent %s)" % level.value.title().encode()
    async with until_the_power_fails(store, monkeypatch) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        strong = await declared(host, b"Broadcast (Persistent Strong)", b"strong")
        await strong.send(publish(b"strong", numbered(1, 100)))
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        await checkpoint(host, level, clock, FLUSH)
        await publisher.send(publish(b"t", numbered(101, 150)))
        await publisher.confirm()
        await strong.send(publish(b"strong", numbered(101, 150)))
        await strong.confirm()
        after = cut_power(store, "after")
    async with serving(after) as host:
        *kept, news = await replayed(host)
        assert kept == sequence(1, numbered(1, 100))
        assert isinstance(news, Error)
        assert news.text.startswith(b"Subscribe t: messages 101 to "), news
        assert await replayed(host, b"strong") == sequence(1, numbered(1, 150), topic=1)
        # Somebody may have seen 101 to 150, and asks for what comes after: it hears of the gap.
        follower = await host.connect()
        assert isinstance(await follower.ask(b"(Subscribe t (From_message 151))"), Subscribed)
        publisher = await host.connect()
        text = await follower.error()
        assert text.startswith(b"Subscribe t: messages 151 to "), text
        gone = int(text.split()[5])
        await publisher.say(b"(Publish t new)")
        new = await follower.message()
        assert new == Message(gone + 1, 0, b"new")
        assert new.id > 150
        kept = await replayed(host, replay=b"(From_message 100)")
        assert kept[0] == Message(100, 0, b"100")
        assert isinstance(kept[1], Error)
        assert kept[1].text.startswith(b"Subscribe t: messages 101 to %d are gone" % gone)
        assert kept[2:] == [new]


@CHECKPOINTED
@pytest.mark.parametrize("restarts", [1, 2, 3])
async def test_an_id_that_was_lost_is_never_used_again(
    store: Path, clock: MockClock, level: Level, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = b"(Persistent %s)" % level.value.title().encode()
    async with until_the_power_fails(store, monkeypatch) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        after = cut_power(store, "after")
    # Also when the server is started some more times before anything is published.
    for _ in range(restarts):
        async with serving(after) as host:
            await host.topics()
    async with serving(after) as host:
        subscriber, publisher = await host.connect(), await host.connect()
        await subscriber.ask(b"(Subscribe t From_current)")
        await publisher.say(b"(Publish t new)")
        assert (await subscriber.message()).id > 100


@CHECKPOINTED
async def test_work_is_repeated_rather_than_lost_in_a_power_failure(
    store: Path, clock: MockClock, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    persistence = b"(Persistent %s)" % level.value.title().encode()
    async with until_the_power_fails(store, monkeypatch) as host:
        publisher = await host.connect()
        await publisher.ask(b"(Declare t Round_robin %s)" % persistence)
        await publisher.send(publish(b"t", numbered(1, 10)))
        await publisher.confirm()
        await checkpoint(host, level, clock, FLUSH)
        worker = await host.connect()
        await worker.say(b"(Request t 100)", b"(Subscribe t From_current)")
        await worker.frame()
        assert await worker.ids(10) == list(range(1, 11))
        await worker.say(*(b"(Received t %d)" % id for id in range(1, 11)))
        await worker.confirm()
        # The position is stored, and the done messages deleted, but all of it after the checkpoint.
        await tidied(publisher, clock, b"t", lambda info: info.messages == 0)
        after = cut_power(store, "after")
    async with serving(after) as host:
        worker, publisher = await host.connect(), await host.connect()
        await publisher.say(b"(Publish t new)")
        await worker.ask(b"(Subscribe t From_current)")
        assert await worker.bodies(11) == [*numbered(1, 10), b"new"]


# -- retention, merging, a full store -----------------------------------------------------------------------


@STORED
async def test_retention_by_age_deletes_the_oldest(store: Path, persistence: bytes, clock: MockClock) -> None:
    async with serving(store, retention_seconds=0.3, missed_pings=0) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        info = await tidied(publisher, clock, b"t", lambda info: info.messages == 0)
        assert (info.first, info.last) == (101, 100)
        await publisher.say(b"(Publish t new)")
        await publisher.confirm()
        kept = await replayed(host, replay=b"(From_message 51)")
        assert isinstance(kept[0], Error)
        assert kept[0].text.startswith(b"Subscribe t: messages 51 to 100 are gone")
        assert kept[1:] in ([Message(101, 0, b"new")], [])  # it may be too old already


@STORED
async def test_without_a_retention_everything_is_kept(
    store: Path, persistence: bytes, clock: MockClock
) -> None:
    async with serving(store) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.send(publish(b"t", numbered(1, 100)))
        await publisher.confirm()
        await pass_time(clock, 200, step=10)
        assert await replayed(host) == sequence(1, numbered(1, 100))


@STORED
async def test_small_blocks_are_merged_and_read_as_before(
    store: Path, persistence: bytes, clock: MockClock
) -> None:
    level = Level(persistence.split()[1].rstrip(b")").decode().lower())
    async with serving(store) as host:
        environment = host.server.catalogue.writers[level].environment
        publisher = await declared(host, b"Broadcast " + persistence)
        early = await host.connect()
        await early.ask(b"(Subscribe t From_current)")
        for n in range(1, 201):
            await publisher.say(b"(Publish t %d)" % n)
            await publisher.confirm()
        # Each was confirmed before the next, so each had a block of its own.
        clock.jump(2)
        await eventually(lambda: len(environment.blocks(0, 0)) < 20)
        assert await replayed(host) == sequence(1, numbered(1, 200))
        assert await replayed(host, replay=b"(From_message 77)") == sequence(77, numbered(77, 200))
        assert await early.messages(200) == sequence(1, numbered(1, 200))
        info = (await publisher.topics())[b"t"]
        assert (info.messages, info.first, info.last) == (200, 1, 200)


@STORED
async def test_a_full_store_refuses_and_recovers(store: Path, persistence: bytes, clock: MockClock) -> None:
    async with serving(
        store, map_bytes=2 * MIB, weak_flush_seconds=1, async_flush_seconds=1, missed_pings=0
    ) as host:
        publisher = await declared(host, b"Broadcast " + persistence)
        await publisher.ask(b"(Declare old Broadcast %s)" % persistence)
        subscriber = await host.connect()
        await subscriber.ask(b"(Subscribe t From_current)")
        await publisher.send(publish(b"old", [b"x" * 8000] * 50))
        await publisher.confirm()
        stored = 0
        while True:
            await publisher.send(publish(b"t", [b"%d " % stored + b"x" * 8000] * 10))
            answer = await publisher.ask(b"(Confirm 1)")
            if answer != Confirmed(1):
                break
            stored += 10
            assert stored < 1000, "the store is never full"
        # An Error for those that were read together, as many as that may be, and that of the Confirm.
        refused = 0
        assert isinstance(answer, Error)
        text = answer.text
        while found := re.fullmatch(rb"Publish t: (?:(\d+) messages: )?the store is full", text):
            refused += int(found[1] or 1)
            text = await publisher.error()
        assert text.startswith(b"Confirm 1: %d published before it" % refused)
        assert 0 < refused <= 10
        stored += 10 - refused
        assert stored > 0
        # Nothing stored is lost, and subscribers go on.
        assert await subscriber.ids(stored) == list(range(1, stored + 1))
        assert [frame.id for frame in await replayed(host) if isinstance(frame, Message)] == list(
            range(1, stored + 1)
        )
        await publisher.say(b"(Declare light Broadcast Transient)", b"(Publish light x)")
        await publisher.frame()
        await publisher.confirm()
        # It recovers when there is room again; ids were not used up by what was refused.
        assert isinstance(await publisher.ask(b"(Delete old)"), Deleted)
        await publisher.say(b"(Publish t again)")
        while not isinstance(await publisher.ask(b"(Confirm 2)"), Confirmed):
            await publisher.error()
            await pass_time(clock, 2, step=2)
            await publisher.say(b"(Publish t again)")
        assert await subscriber.message() == Message(stored + 1, 0, b"again")
    async with serving(store, map_bytes=64 * MIB) as host:
        assert [frame.id for frame in await replayed(host) if isinstance(frame, Message)] == list(
            range(1, stored + 2)
        )


# -- deletion -----------------------------------------------------------------------------------------------


@STORED
async def test_a_deleted_topic_stays_deleted_and_its_id_is_not_used_again(
    store: Path, persistence: bytes
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast " + persistence)
        await client.send(publish(b"t", numbered(1, 100)))
        await client.confirm()
        assert await client.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))
    async with serving(store) as host:
        assert await host.topics() == {}
        client = await declared(host, b"Broadcast " + persistence)
        info = (await client.topics())[b"t"]
        assert (info.id, info.messages, info.first, info.last) == (1, 0, 0, 0)
        assert await replayed(host) == []
        await client.say(b"(Publish t new)")
        await client.confirm()
        assert await replayed(host) == [Message(1, 1, b"new")]
