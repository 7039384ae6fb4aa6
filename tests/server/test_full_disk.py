"""A disk that the store itself has filled: what is deleted makes room, also after a restart."""

from pathlib import Path

import pytest
from quietness import pass_time, quiet, stopped
from small_disk import DISK_OCTETS
from trio.testing import MockClock

from omq.model import Topic
from omq.protocol.omq.types import Confirmed, Deleted, Error
from omq_storage.blocks import encode
from omq_storage.levels import Level
from omq_storage.reserved_space import SPARE_FILE, SPARE_OCTETS
from omq_storage.store import Store

from .conversation import PERSISTENCES, Conversation, Host, eventually, publish, serving
from .http_conversation import ask, request

KEPT = {name: persistence for name, persistence in PERSISTENCES.items() if name != "Transient"}
NOON = 1_700_000_000_000_000


async def fill(client: Conversation, topic: bytes) -> int:
    """Publish until nothing more is stored; how many octets are."""
    for octets in (200_000, 5_000, 500):
        while True:
            await client.send(publish(topic, [b"x" * octets] * 5))
            await client.say(b"(Confirm 1)")
            answers = [await client.frame()]
            while not (isinstance(answers[-1], Confirmed) or b"Confirm" in answers[-1].text):  # type: ignore[union-attr]  # the other answers are Errors
                answers.append(await client.frame())
            if isinstance(answers[0], Error):
                assert b" is full" in answers[0].text
                break
    return (await client.topics())[topic].bytes


def fill_up(disk: Path) -> None:
    """Take every octet that is left."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass  # it is full


@pytest.mark.parametrize("name", KEPT)
async def test_deleted_topics_make_room_again_and_again(disk: Path, clock: MockClock, name: str) -> None:
    store = disk / "store"
    for turn in range(5):
        async with serving(store, disk_reserve_bytes=0, missed_pings=0) as host:
            client = await host.connect()
            if turn:
                deleted = await client.ask(b"(Delete %d)" % (turn - 1))
                assert deleted == Deleted(Topic(turn - 1, b"%d" % (turn - 1)))
                assert b"%d" % (turn - 1) not in await client.topics()
            await client.ask(b"(Declare %d Broadcast %s)" % (turn, KEPT[name]))
            # Until a checkpoint does not need any more what was deleted.
            while await fill(client, b"%d" % turn) <= DISK_OCTETS / 4:
                clock.jump(2)
                await quiet()


async def test_one_more_topic_can_be_deleted_each_time(disk: Path, clock: MockClock) -> None:
    """Without a restart, and at levels that have nothing free."""
    store = disk / "store"
    async with serving(store, disk_reserve_bytes=0, missed_pings=0) as host:
        client = await host.connect()
        for name, persistence in KEPT.items():
            await client.ask(b"(Declare %s Broadcast %s)" % (name.encode(), persistence))
            await client.send(publish(name.encode(), [b"x" * 10_000] * 100))
            await client.confirm()
        await client.ask(b"(Declare t Broadcast (Persistent Strong))")
        await fill(client, b"t")
        for id, name in enumerate(KEPT):
            assert await client.ask(b"(Delete %s)" % name.encode()) == Deleted(Topic(id, name.encode()))
        for level in Level:
            environment = host.server.catalogue.writers[level].environment
            assert environment.extents().keys() <= {3}
        assert (store / SPARE_FILE).stat().st_size > SPARE_OCTETS / 2


async def test_a_full_disk_keeps_nothing_from_starting_over_a_leftover(
    disk: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A deletion that was cut short is completed when there is room."""
    store = disk / "store"
    with Store.open(store) as opened:
        for _ in range(2):
            topic = opened.catalogue.create(b"t", "Broadcast", "Strong", True, reserved=10_000).id
            for first in range(1, 301):  # more than one commit deletes
                opened.level(Level.STRONG).append([encode(topic, first, [b"x" * 6000], NOON)])
                opened.level(Level.STRONG).checkpoint()  # so that the file has few free pages
            opened.catalogue.delete(topic)
    (store / SPARE_FILE).write_bytes(b"")
    fill_up(disk)
    async with serving(store, disk_reserve_bytes=0, missed_pings=0) as host:
        assert "not all of a deleted topic could be deleted yet" in caplog.text
        environment = host.server.catalogue.writers[Level.STRONG].environment
        assert environment.extents() != {}
        (disk / "filler").unlink()
        clock.jump(2)
        await eventually(lambda: environment.extents() == {})
        await eventually(lambda: (store / SPARE_FILE).stat().st_size == SPARE_OCTETS)


async def is_ready(host: Host) -> bool:
    return (await ask(host, request("/readyz"))).status == 200


async def fill_for_good(host: Host, client: Conversation, clock: MockClock) -> None:
    """Publish until checkpoints free nothing more."""
    while True:
        with stopped(clock):  # the server tidies, and makes room, once in a while
            await fill(client, b"t")
            assert not await is_ready(host)
        await pass_time(clock, 10)
        if not await is_ready(host):
            return


async def ready_again(host: Host, clock: MockClock) -> None:
    """Let time pass until the server is ready: as long as deletions and checkpoints take."""
    for _ in range(5):
        await pass_time(clock, 2)
        if await is_ready(host):
            return
    raise AssertionError((await ask(host, request("/readyz"))).body)


@pytest.mark.parametrize("name", KEPT)
async def test_the_server_is_ready_again_when_the_disk_has_room(
    disk: Path, clock: MockClock, name: str
) -> None:
    """No client publishes meanwhile."""
    async with serving(disk / "store", disk_reserve_bytes=0, missed_pings=0) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % KEPT[name])
        (disk / "filler").write_bytes(bytes(DISK_OCTETS // 4))
        await fill_for_good(host, client, clock)
        (disk / "filler").unlink()
        await ready_again(host, clock)
        assert await client.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("map_bytes", [2 << 20, 1 << 30])
async def test_the_server_is_ready_again_when_messages_were_deleted(
    disk: Path, clock: MockClock, name: str, map_bytes: int
) -> None:
    """The disk is full, or the map."""
    limits = {"disk_reserve_bytes": 0, "missed_pings": 0, "map_bytes": map_bytes}
    async with serving(disk / "store", **limits) as host:
        client = await host.connect()
        await client.ask(b"(Declare t Broadcast %s)" % KEPT[name])
        await fill_for_good(host, client, clock)
        assert await client.ask(b"(Delete t)") == Deleted(Topic(0, b"t"))
        await ready_again(host, clock)
