"""A server whose store gives it trouble while it runs, or does not fit together."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from quietness import pass_until
from trio.testing import MockClock

from omq.protocol.omq.types import Error, Message, Subscribed
from omq_storage.blocks import encode
from omq_storage.environment import Environment, Position
from omq_storage.errors import Limit, StoreError, StoreFull
from omq_storage.levels import Level
from omq_storage.merging import MergeStep
from omq_storage.runs import runs_of
from omq_storage.store import Store

from .conversation import Conversation, declared, eventually, numbered, publish, serving

MIB = 1 << 20
NOON = 1_700_000_000_000_000


async def test_a_position_that_could_not_be_stored_is_stored_later(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = stored = 0
    is_full = True
    set_positions = Environment.set_positions

    def refuse(self: Environment, positions: Mapping[int, Position]) -> None:
        nonlocal tried, stored
        tried += 1
        if is_full:
            raise StoreFull(Limit.DISK, "There is no room on disk.")
        stored += 1
        set_positions(self, positions)

    monkeypatch.setattr(Environment, "set_positions", refuse)
    async with serving(store, missed_pings=0) as host:
        client = await declared(host, b"Round_robin (Persistent Strong)")
        await client.send(publish(b"t", numbered(1, 5)))
        await client.say(b"(Request t 10)", b"(Subscribe t From_current)")
        await client.settle()
        await client.say(*(b"(Received t %d)" % id for id in range(1, 6)))
        await client.settle()
        environment = host.server.catalogue.writers[Level.STRONG].environment
        await pass_until(lambda: tried >= 3, clock, 0.25)
        is_full = False
        # Nothing moves any more, and still it is tried again.
        await pass_until(lambda: bool(stored), clock, 0.25)
        await eventually(lambda: environment.positions() == {0: Position(6)})


@pytest.mark.parametrize(("kept_from", "left"), [(6, [7]), (11, [])])
async def test_work_that_is_not_stored_any_more_is_told(store: Path, kept_from: int, left: list[int]) -> None:
    with Store.open(store) as opened:
        topic = opened.catalogue.create(b"t", "Round_robin", "Strong", True, reserved=100).id
        environment = opened.level(Level.STRONG)
        for first in (1, 6):
            environment.append([encode(topic, first, [b"%d" % (first + n) for n in range(5)], NOON)])
        environment.set_positions({topic: Position(11, runs_of((3, *left)))})
        environment.trim(topic, kept_from)
    async with serving(store) as host:
        worker = await host.connect()
        assert isinstance(await worker.ask(b"(Subscribe t From_current)"), Subscribed)
        news = await worker.frame()
        assert isinstance(news, Error)
        assert news.text == b"Subscribe t: messages 3 to 3 are gone: it is no longer kept"
        assert await worker.messages(len(left)) == [Message(id, topic, b"%d" % id) for id in left]


async def test_a_catalogue_that_is_older_than_the_messages_deletes_nothing(store: Path) -> None:
    with Store.open(store) as opened:
        opened.level(Level.STRONG).append([encode(5, 1, [b"precious"], NOON)])
    with pytest.raises(StoreError, match="messages of topic 5, which its catalogue never knew"):
        async with serving(store):
            pass
    with Store.open(store) as opened:
        assert opened.level(Level.STRONG).extent(5).messages == 1


async def test_a_start_deletes_the_positions_of_topics_that_never_had_messages(store: Path) -> None:
    """They may stay after a kill in the middle of a deletion, or if a topic was given another level."""
    with Store.open(store) as opened:
        deleted = opened.catalogue.create(b"deleted", "Round_robin", "Strong", True).id
        kept = opened.catalogue.create(b"kept", "Round_robin", "Weak", True).id
        position = Position(1, ())
        opened.level(Level.STRONG).set_positions({deleted: position, kept: position, kept + 1: position})
        opened.level(Level.WEAK).set_positions({kept: position})
        opened.catalogue.delete(deleted)
    async with serving(store) as host:
        writers = host.server.catalogue.writers
        # The topic with the next id is unknown: this may be another catalogue.
        assert writers[Level.STRONG].environment.positions() == {kept + 1: position}
        assert writers[Level.WEAK].environment.positions() == {kept: position}


async def publish_three(client: Conversation) -> None:
    """Publish messages that are stored in blocks of their own."""
    for body in (b"first", b"second", b"third"):
        await client.send(publish(b"t", [body]))
        await client.confirm()


def damage_second(store: Path) -> None:
    """Damage the second of the three."""
    file = store / "strong" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"second", b"SECOND"))


def damage_in(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of a server's log about the second of the three."""
    return [
        line for line in log.messages if line.startswith("'t' cannot be read: The block with messages 2 to 2")
    ]


async def test_one_damaged_block_loses_no_other_messages(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Broadcast (Persistent Strong)")
        await publish_three(client)
    damage_second(store)
    async with serving(store) as host:
        client = await host.connect()
        await client.say(b"(Subscribe t From_beginning)")
        await client.done()
        subscribed, first, news, third = await client.rest()
        assert isinstance(subscribed, Subscribed)
        assert (first, third) == (Message(1, 0, b"first"), Message(3, 0, b"third"))
        assert isinstance(news, Error)
        assert news.text.startswith(b"Subscribe t: messages 2 to 2 are gone: the store is damaged there")
    assert len(damage_in(caplog)) == 1


async def test_a_damaged_message_that_a_worker_returned_loses_no_other_messages(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(store) as host:
        client = await declared(host, b"Round_robin (Persistent Strong)")
        await publish_three(client)
        await client.say(b"(Request t 10)")
        await client.ask(b"(Subscribe t From_current)")
        assert await client.bodies(3) == [b"first", b"second", b"third"]
    damage_second(store)
    async with serving(store) as host:
        client = await host.connect()
        await client.ask(b"(Subscribe t From_current)")
        assert await client.bodies(1) == [b"first"]
        why = b"Subscribe t: messages 2 to 2 are gone: the store is damaged"
        assert (await client.error()).startswith(why)
        assert await client.bodies(1) == [b"third"]
    assert len(damage_in(caplog)) == 1


async def test_trouble_with_one_topic_keeps_no_other_from_being_tidied(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_small = Environment.merge_small

    def refuse(self: Environment, topic: int, start: int, span: int) -> MergeStep:
        if topic == 0:
            raise StoreError("It cannot be read.")
        return merge_small(self, topic, start, span)

    monkeypatch.setattr(Environment, "merge_small", refuse)
    async with serving(store, missed_pings=0) as host:
        client = await host.connect()
        for topic in (b"bad", b"good"):
            await client.ask(b"(Declare %s Broadcast (Persistent Strong))" % topic)
        environment = host.server.catalogue.writers[Level.STRONG].environment
        for n in range(20):
            await client.send(publish(b"bad", [b"%d" % n]) + publish(b"good", [b"%d" % n]))
            await client.confirm()
        await pass_until(lambda: len(environment.blocks(1, 0)) < 5, clock, 2)
        assert len(environment.blocks(0, 0)) == 20


async def test_a_disk_below_its_reserve_refuses_posts_and_is_logged_once(
    store: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0
    free = 8 * MIB
    actual = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        nonlocal looks
        looks += 1
        of_disk = list(actual(path))
        of_disk[1], of_disk[4] = 4096, free // 4096  # f_frsize and f_bavail
        return os.statvfs_result(of_disk)

    monkeypatch.setattr(os, "statvfs", statvfs)

    async def look() -> None:
        """Let the disk be looked at three times."""
        before = looks
        await pass_until(lambda: looks >= before + 3, clock, 2)

    def told() -> list[str]:
        return [message for message in caplog.messages if "disk" in message]

    async with serving(store, disk_reserve_bytes=8 * MIB, missed_pings=0) as host:
        client = await declared(host, b"Broadcast (Persistent Weak)")
        await look()
        await client.send(publish(b"t", [b"stored"]))
        await client.confirm()
        assert told() == []
        free -= 4096
        await look()
        await client.send(publish(b"t", [b"refused"]))
        assert b"the disk has less free than the 8 MiB kept in reserve" in await client.error()
        assert (await client.refusal(b"(Confirm 2)")).startswith(b"Confirm 2: ")
        assert told() == ["the disk has 7 MiB left: nothing more is stored until there is room"]
        free += 4096
        await look()
        await client.send(publish(b"t", [b"stored, too"]))
        await client.confirm()
        assert told()[1:] == ["there is room on the disk again"]
        assert (await client.topics())[b"t"].messages == 2
