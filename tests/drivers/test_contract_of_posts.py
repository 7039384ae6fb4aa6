"""The promises of drivers to publishers (docs/PROTOCOL.md, "Publish", "Confirm", "Idempotent producers")."""

import logging
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
from served_drivers import (
    NOTHING,
    Client,
    Drivers,
    Kind,
    emptied,
    of_kinds,
    opened,
    post,
    quiet,
    settled,
)
from trio.testing import wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.housekeeping import NOT_IN_PLACE, look_at_disk
from omq.drivers.reasons import DELETED, Failure, Reason, Refused
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.uploads import PORTION_OCTETS, StoredUpload
from omq.model import Delivery, FromBeginning, FromCurrent, Persistent, Sync, Transient
from omq_storage.batches import Bodies
from omq_storage.environment import Environment
from omq_storage.fragments import FRAGMENT_OCTETS
from omq_storage.store import Store

STORED = of_kinds(lambda kind: kind.is_persistent)
IN_MEMORY = of_kinds(lambda kind: not kind.is_persistent)


@of_kinds()
async def test_ids_begin_with_1_and_rise_by_1_in_the_order_of_the_posts(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    confirmations = [
        await driver.post(Bodies([b"%d %d" % (number, place) for place in range(number)]))
        for number in range(1, 20)
    ]
    assert [await settled(confirmation) for confirmation in confirmations] == [None] * 19
    assert driver.next_id == 191
    await client.read()
    assert client.ids == [*range(1, 191)]
    assert client.bodies == [b"%d %d" % (number, place) for number in range(1, 20) for place in range(number)]
    client.close()


@IN_MEMORY
async def test_a_post_to_a_transient_topic_is_confirmed_at_once(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    confirmation = await driver.post(Bodies([b"a"]))
    assert confirmation.settled
    assert confirmation.failure is None
    assert driver.next_id == 2
    await shared_drivers.catalogue.delete(b"t")


@STORED
async def test_a_message_is_stored_before_it_is_confirmed_and_before_it_is_sent(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    stored: list[tuple[str, int]] = []

    class Watching(Client):
        def wake(self) -> None:
            stored.append(("woken", driver.environment.extent(driver.topic.id).last))

    client = Watching(driver)
    confirmation = await driver.post(Bodies([b"a", b"b"]))
    assert not confirmation.settled
    assert not client.channel.ready()
    confirmation.listen(lambda: stored.append(("confirmed", driver.environment.extent(driver.topic.id).last)))
    await quiet()
    assert sorted(set(stored)) == [("confirmed", 2), ("woken", 2)]
    assert [what for what, _ in stored].count("confirmed") == 1
    assert (await client.read()).ids == [1, 2]
    client.close()


@STORED
async def test_large_messages_have_their_places_between_others_of_a_commit(
    shared_drivers: Drivers, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await shared_drivers.topic(kind)
    assert driver.writer is not None
    body = bytes(-(-PORTION_OCTETS // FRAGMENT_OCTETS) * FRAGMENT_OCTETS)
    large, larger = [await StoredUpload.begin(driver) for _ in range(2)]
    for upload in (large, larger):
        await upload.add(body)  # which stores all of it
    async with driver.writer.paused():
        posts = [await driver.post(Bodies([b"first"]))]
        await quiet()  # the writer has taken the first post; the others wait for its next commit
        posts.append(await driver.post(Bodies([b"a", b"b"])))
        posts.append(await large.post(b"", None))
        posts.append(await driver.post(Bodies([b"c"])))
        posts.append(await larger.post(b"head", None))
        posts.append(await driver.post(Bodies([b"d"])))
    assert [await settled(confirmation) for confirmation in posts] == [None] * 6
    assert driver.failures == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    large.close()
    larger.close()
    client = Client(driver) if driver.delivery is Delivery.ROUND_ROBIN else Client(driver, FromBeginning())
    await client.read()
    assert client.ids == [1, 2, 3, 4, 5, 6, 7]
    assert client.bodies == [b"first", b"a", b"b", body, b"c", body, b"d"]
    assert [got.head for got in client.got] == [b"", b"", b"", b"", b"", b"head", b""]
    client.close()


@of_kinds()
async def test_a_repeated_message_is_confirmed_and_dropped(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    first = [(b"p", 1), None, (b"q", 1), (b"p", 5)]
    await post(driver, b"p1", b"-", b"q1", b"p5", origins=first)
    await post(driver, b"p1", b"-", b"q1", b"p5", origins=first)
    await post(driver, b"p5", b"p3", origins=[(b"p", 5), (b"p", 3)], heads=[b"\0" * 4] * 2)
    await post(
        driver, b"p5", b"p6", b"p6", origins=[(b"p", 5), (b"p", 6), (b"p", 6)], heads=[b"", b"\0" * 4, b""]
    )
    await client.read()
    assert client.bodies == [b"p1", b"-", b"q1", b"p5", b"-", b"p6"]
    assert client.ids == [1, 2, 3, 4, 5, 6]
    assert [got.head for got in client.got] == [b""] * 5 + [b"\0" * 4]
    client.close()


@of_kinds()
async def test_as_many_heads_and_origins_as_messages(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    with pytest.raises(ValueError, match="1 heads for 2 messages"):
        await driver.post(Bodies([b"a", b"b"]), [b"head"])
    with pytest.raises(ValueError, match="3 origins for 2 messages"):
        await driver.post(Bodies([b"a", b"b"]), origins=[None] * 3)
    assert driver.next_id == 1
    assert driver.is_empty


@IN_MEMORY
async def test_a_post_to_a_deleted_transient_topic_is_refused(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    await shared_drivers.catalogue.delete(b"t")
    with pytest.raises(Refused) as refused:
        await driver.post(Bodies([b"a"]))
    assert refused.value.failure == DELETED


@STORED
async def test_a_post_to_a_deleted_persistent_topic_fails(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    confirmation = await driver.post(Bodies([b"a"]))
    await shared_drivers.catalogue.delete(b"t")
    assert await settled(confirmation) in (None, DELETED)  # it was stored before, or not at all
    assert await settled(await driver.post(Bodies([b"b"]))) == DELETED
    assert driver.environment.extent(driver.topic.id).messages == 0


@STORED
async def test_a_topic_that_is_deleted_during_a_commit_keeps_nothing_in_memory(
    shared_drivers: Drivers, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, has_stored, may_go_on = Environment.append, threading.Event(), threading.Event()

    def append_slowly(*of_posts: Any) -> Any:
        extents = append(*of_posts)
        has_stored.set()
        may_go_on.wait(60)
        return extents

    driver = await shared_drivers.topic(kind)
    monkeypatch.setattr(Environment, "append", append_slowly)
    confirmation = await driver.post(Bodies([b"a"]))
    await trio.to_thread.run_sync(has_stored.wait, 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shared_drivers.catalogue.delete, b"t")
        while not driver.deleted:
            await wait_all_tasks_blocked()
        may_go_on.set()
    assert await settled(confirmation) is None
    assert shared_drivers.memory.statistics() == NOTHING


@STORED
async def test_a_full_disk_refuses_posts_and_subscribers_go_on(shared_store: Store, kind: Kind) -> None:
    reserve = 1 << 60
    full = Config(store=str(shared_store.path), disk_reserve_bytes=reserve)
    async with emptied(shared_store) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"a", origins=[(b"p", 1)])
        await look_at_disk(drivers.catalogue, full)
        confirmation = await driver.post(Bodies([b"b"]), origins=[(b"p", 2)])
        text = f"the disk has less free than the {reserve >> 20} MiB kept in reserve"
        assert await settled(confirmation) == Failure(Reason.NO_ROOM, text)
        client = Client(driver, FromBeginning() if kind.is_broadcast else FromCurrent())
        assert (await client.read()).bodies == [b"a"]
        await look_at_disk(drivers.catalogue, Config(store=str(shared_store.path), disk_reserve_bytes=0))
        await post(driver, b"b", origins=[(b"p", 2)])
        assert (await client.read()).bodies == [b"a", b"b"]
        assert client.ids == [1, 2]
        client.close()


@STORED
async def test_a_store_that_is_not_in_its_directory_refuses_posts_and_subscribers_go_on(
    shared_store: Store, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start would not find the messages."""
    config = Config(store=str(shared_store.path), disk_reserve_bytes=0)
    path, elsewhere = shared_store.path, shared_store.path.with_name("elsewhere")
    async with emptied(shared_store) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"a")
        for has_other in (False, True):
            path.rename(elsewhere)
            try:
                if has_other:
                    Store.open(path).close()
                await look_at_disk(drivers.catalogue, config)
                await look_at_disk(drivers.catalogue, config)
                confirmation = await driver.post(Bodies([b"b"]))
                assert await settled(confirmation) == NOT_IN_PLACE
                with pytest.raises(Refused, match=str(NOT_IN_PLACE)):
                    await drivers.catalogue.delete(driver.topic.topic)
                with pytest.raises(Refused, match=str(NOT_IN_PLACE)):
                    await drivers.catalogue.declare(b"new", Delivery.BROADCAST, Transient())
            finally:
                shutil.rmtree(path, ignore_errors=True)
                elsewhere.rename(path)
            await look_at_disk(drivers.catalogue, config)
            await drivers.catalogue.declare(b"new", Delivery.BROADCAST, Transient())
            await drivers.catalogue.delete(b"new")
        client = Client(driver, FromBeginning() if kind.is_broadcast else FromCurrent())
        assert (await client.read()).bodies == [b"a"]
        await post(driver, b"b")
        assert (await client.read()).bodies == [b"a", b"b"]
        assert client.ids == [1, 2]
        client.close()
    assert (
        caplog.messages
        == [f"{path}: {NOT_IN_PLACE}; nothing more is stored", f"{path}: the store is in its directory again"]
        * 2
    )


@STORED
async def test_a_post_is_stored_or_refused_where_the_disk_has_room_again_during_its_commit(
    tmp_path: Path, kind: Kind
) -> None:
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        refusal = Failure(Reason.NO_ROOM, "no room")
        writers = drivers.catalogue.writers.values()
        outcomes: list[Failure | None] = []
        for steps in range(30):
            for writer in writers:
                writer.refusal = refusal
            confirmation = await driver.post(Bodies([b"a"]))
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            for writer in writers:
                writer.refusal = None
            outcomes.append(await settled(confirmation))
            assert driver.next_id == 1 + outcomes.count(None)
        assert set(outcomes) == {None, refusal}


@of_kinds()
@pytest.mark.parametrize("killed", [False, True])
async def test_no_id_is_used_twice_over_restarts(tmp_path: Path, kind: Kind, killed: bool) -> None:
    ids: list[int] = []
    for _ in range(2):
        async with opened(tmp_path / "store", killed=killed) as drivers:
            driver = await drivers.topic(kind)
            client = Client(driver)
            await post(driver, b"a", b"b")
            await client.read()
            ids += client.ids
            client.close()
            assert drivers.memory.statistics() == NOTHING
    if kind.is_persistent or not killed:
        new = sorted(set(ids))  # after a kill, what was done of a round-robin topic may come again
        assert new == [1, 2, 3, 4]
    else:
        assert ids[:2] == [1, 2]
        assert ids == sorted(set(ids))


@of_kinds()
async def test_producers_are_remembered_as_long_as_the_messages(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store") as drivers:
        await post(await drivers.topic(kind), b"a", origins=[(b"p", 7)])
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        before = driver.next_id
        await post(driver, b"again", origins=[(b"p", 7)])
        assert driver.next_id == before + (0 if kind.is_persistent else 1)
        await drivers.catalogue.delete(b"t")
        driver = await drivers.topic(kind)
        await post(driver, b"new", origins=[(b"p", 7)])
        assert driver.next_id == 2


@of_kinds()
async def test_a_cancelled_post_takes_nothing_with_it(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a")
    with trio.CancelScope() as scope:
        scope.cancel()
        await driver.post(Bodies([b"b"]))
    await quiet()
    await post(driver, b"c")
    await client.read()
    assert client.bodies in ([b"a", b"c"], [b"a", b"b", b"c"])
    assert client.ids == [*range(1, len(client.ids) + 1)]
    client.close()


async def test_an_undeclared_topic_may_get_other_types_after_a_kill(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", killed=True, default_persistence="transient") as drivers:
        await drivers.catalogue.lookup_or_declare(b"t")  # as for a subscriber
    async with opened(tmp_path / "store", boot_id="second") as drivers:
        driver = await drivers.catalogue.declare(b"t", Delivery.ROUND_ROBIN, Persistent(Sync.STRONG))
        assert isinstance(driver, RoundRobinDriver)
