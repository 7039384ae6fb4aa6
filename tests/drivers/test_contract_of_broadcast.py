"""The promises of broadcast topics (docs/PROTOCOL.md, "Broadcast" and "Subscribe"), on a real store."""

from pathlib import Path

import pytest
import trio
from served_drivers import (
    BROADCAST,
    KIB,
    MIB,
    Client,
    Drivers,
    Kind,
    emptied,
    of_kinds,
    opened,
    post,
    quiet,
)

from omq.bulk.access import Gap
from omq.bulk.local import LocalStore
from omq.drivers.driver import Driver
from omq.drivers.housekeeping import tidy
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import LITTLE_OCTETS, SLOW_SECONDS, MessageTruncated, Piece, Unavailable
from omq.model import FromBeginning, FromCurrent, FromMessage, Replay
from omq_storage.batches import Bodies
from omq_storage.store import Store

STORED = of_kinds(lambda kind: kind.is_broadcast and kind.is_persistent)
NOT_DURABLE_AT_ONCE = of_kinds(lambda kind: kind.is_broadcast and str(kind)[-4:] in ("WEAK", "SYNC"))
IN_MEMORY = of_kinds(lambda kind: kind.is_broadcast and not kind.is_persistent)


def refusal(driver: Driver, replay: Replay) -> tuple[Reason, str]:
    with pytest.raises(Refused) as refused:
        Client(driver, replay)
    return refused.value.reason, str(refused.value)


@BROADCAST
async def test_every_subscriber_gets_every_message_from_its_start_on(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    clients = [Client(driver)]
    for number in range(5):
        await post(driver, b"%d" % number, b"and")
        clients.append(Client(driver))
    for begin, client in enumerate(clients):
        await client.read()
        assert client.ids == [*range(2 * begin + 1, 11)]
        assert client.bodies[::2] == [b"%d" % number for number in range(begin, 5)]
        assert client.gaps == []
        client.close()


@BROADCAST
async def test_a_subscriber_that_has_read_all_takes_the_next_message(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    assert not driver.has_taker()
    client = Client(driver)
    for count in (1, 1, 500):  # Python has one object only for each small number
        await post(driver, *[b"x"] * count)
        assert driver.has_taker()
        await client.read()
        assert driver.has_taker()
    client.close()
    assert not driver.has_taker()


@STORED
async def test_a_replay_begins_where_it_was_asked_to(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    empty = [Client(driver, replay) for replay in (FromBeginning(), FromCurrent(), FromMessage(1))]
    for _ in range(4):
        await post(driver, b"x")
    replays: list[Replay] = [FromBeginning(), FromCurrent(), *map(FromMessage, range(1, 6))]
    clients = [*empty, *(Client(driver, replay) for replay in replays)]
    await post(driver, b"live")
    for client, first in zip(clients, [1, 1, 1, 1, 5, 1, 2, 3, 4, 5], strict=True):
        await client.read()
        assert client.ids == [*range(first, 6)]
        assert client.gaps == []
        client.close()


@BROADCAST
async def test_a_replay_that_cannot_be_had_is_refused(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    await post(driver, b"a", b"b")
    replays = {
        FromMessage(0): (Reason.INVALID, "message ids begin with 1"),
        FromMessage(-5): (Reason.INVALID, "message ids begin with 1"),
        FromMessage(4): (Reason.NO_REPLAY, "there is no message 4 yet, the next one is 3"),
    }
    if not kind.is_persistent:
        replays = dict.fromkeys(
            [*replays, FromMessage(1)], (Reason.NO_REPLAY, "a transient topic cannot be replayed")
        )
        assert refusal(driver, FromBeginning()) == (Reason.NO_REPLAY, "a transient topic cannot be replayed")
    for replay, expected in replays.items():
        assert refusal(driver, replay) == expected
        with pytest.raises(Refused) as refused:
            driver.check_replay(replay.id)
        assert (refused.value.reason, str(refused.value)) == expected
    assert not list(driver.subscribers())


@STORED
async def test_a_slow_subscriber_misses_nothing_that_is_kept(shared_store: Store, kind: Kind) -> None:
    """With little memory, so that it goes on from memory to the store and back."""
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        fast, slow = Client(driver), Client(driver)
        for number in range(30):
            await post(driver, b"%d" % number * 15 * KIB)
            await fast.read()
            if number % 11 == 10:
                await slow.read_once()
        await slow.read()
        assert fast.bodies == slow.bodies == [b"%d" % number * 15 * KIB for number in range(30)]
        assert fast.gaps == slow.gaps == []
        await post(driver, b"live")
        assert (await slow.read()).ids == [*range(1, 32)]
        fast.close()
        slow.close()


@STORED
async def test_old_and_new_messages_join(shared_store: Store, kind: Kind) -> None:
    """A client that reads from the beginning while others publish gets each message once, in order."""
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.topic(kind)
        for _ in range(20):
            await post(driver, *[b"old" * KIB] * 5)

        async def publish() -> None:
            for _ in range(50):
                await driver.post(Bodies([b"new" * KIB] * 3))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(publish)
        clients = [Client(driver, FromBeginning()) for _ in range(3)]
        for client in clients:
            with trio.fail_after(60):
                while client.ids[-1:] != [250]:
                    if client.channel.ready():
                        await client.read_once()
                    else:
                        await trio.lowlevel.checkpoint()
        for client in clients:
            assert client.ids == [*range(1, 251)]
            client.close()


@IN_MEMORY
async def test_a_subscriber_too_far_behind_hears_of_the_gap_and_continues(
    shared_store: Store, kind: Kind
) -> None:
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        fast, slow = Client(driver), Client(driver)
        for _ in range(40):
            await post(driver, b"x" * 15 * KIB)
            await fast.read()
        oldest = driver.info().first
        assert 1 < oldest < 40
        await slow.read()
        assert slow.gaps == [Unavailable(1, oldest - 1, "the subscriber was too slow")]
        assert slow.ids == [*range(oldest, 41)]
        assert fast.gaps == []
        assert fast.ids == [*range(1, 41)]
        fast.close()
        slow.close()


@IN_MEMORY
async def test_the_fastest_subscriber_sets_the_pace_and_no_other(
    shared_store: Store, kind: Kind, mock_clock: trio.testing.MockClock
) -> None:
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.topic(kind)
        fast, stuck = Client(driver), Client(driver)
        posted = 0

        async def publish() -> None:
            nonlocal posted
            for _ in range(40):
                await driver.post(Bodies([b"x" * 15 * KIB]))
                posted += 1

        nursery.start_soon(publish)
        await quiet()
        assert 0 < posted < 40
        before = posted
        await fast.read_once()
        await quiet()
        assert before < posted < 40
        await fast.read()
        assert (posted, fast.ids, fast.gaps) == (40, [*range(1, 41)], [])
        # A stalled one sets no pace either.
        nursery.start_soon(publish)
        await quiet()
        assert posted < 80
        mock_clock.jump(10)
        await quiet()
        assert posted == 80
        fast.close()
        stuck.close()


@STORED
async def test_messages_that_are_no_longer_kept_are_told_as_gone(shared_store: Store, kind: Kind) -> None:
    async with emptied(shared_store, retention_bytes=100 * KIB) as drivers:
        driver = await drivers.topic(kind)
        assert driver.writer is not None
        for number in range(20):
            await post(driver, b"%d" % (number % 10) * 30 * KIB)
        await tidy(driver, driver.writer)
        first = driver.info().first
        assert 10 < first <= 20
        clients = {1: Client(driver, FromMessage(1)), first - 1: Client(driver, FromMessage(first - 1))}
        for begin, client in clients.items():
            await client.read()
            assert client.gaps == [Unavailable(begin, first - 1, "they are no longer kept")]
            assert client.ids == [*range(first, 21)]
            client.close()
        whole = Client(driver, FromBeginning())
        assert (await whole.read()).ids == [*range(first, 21)]
        assert whole.gaps == []
        whole.close()


@NOT_DURABLE_AT_ONCE
async def test_ids_that_a_power_failure_took_are_skipped_and_told(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store", killed=True) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"a", b"b")
        await trio.to_thread.run_sync(driver.environment.checkpoint)
        await post(driver, b"lost", b"lost", b"lost")
    async with opened(tmp_path / "store", boot_id="second") as drivers:
        driver = await drivers.topic(kind)
        resumed = driver.next_id
        assert 5 < resumed <= 5 + 1_048_576  # "up to a million ids later"
        await post(driver, b"c")
        client = Client(driver, FromBeginning())
        await client.read()
        assert client.bodies == [b"a", b"b", b"c"]
        assert client.ids == [1, 2, resumed]
        assert client.gaps == [Unavailable(3, resumed - 1, "they were lost before they were durable")]
        client.close()


@NOT_DURABLE_AT_ONCE
async def test_the_loss_of_all_messages_of_a_topic_is_told(tmp_path: Path, kind: Kind) -> None:
    """By this start and by later ones, also when there are messages again."""
    async with opened(tmp_path / "store", killed=True) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"lost", b"lost")
    resumed = 0
    kept: list[bytes] = []
    for boot_id, body in (("second", b"a"), ("second", b"b"), ("third", b"c")):
        async with opened(tmp_path / "store", boot_id=boot_id) as drivers:
            driver = await drivers.topic(kind)
            resumed = resumed or driver.next_id
            assert resumed > 2
            for when in ("before", "after"):
                if when == "after":
                    await post(driver, body)
                    kept.append(body)
                for begin, replay in ((1, FromBeginning()), (1, FromMessage(1)), (2, FromMessage(2))):
                    client = Client(driver, replay)
                    await client.read()
                    assert client.bodies == kept
                    assert client.gaps == [
                        Unavailable(begin, resumed - 1, "they were lost before they were durable")
                    ]
                    client.close()
    with LocalStore(str(tmp_path / "store")) as store:
        (topic,) = store.topics().values()
        found = list(store.fetch(topic, 1, topic.next, lambda block, ids: None))
        assert found[0] == Gap(1, resumed - 1, "they were lost before they were durable")


@NOT_DURABLE_AT_ONCE
async def test_deleted_and_lost_messages_are_reported_as_separate_gaps(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store", killed=True) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"deleted", b"deleted")
        await trio.to_thread.run_sync(driver.environment.trim, driver.topic.id, 3)
        await trio.to_thread.run_sync(driver.environment.checkpoint)
        await post(driver, b"lost")
    async with opened(tmp_path / "store", boot_id="second") as drivers:
        driver = await drivers.topic(kind)
        resumed = driver.next_id
        await post(driver, b"new")
        client = Client(driver, FromMessage(1))
        await client.read()
        assert client.gaps == [
            Unavailable(1, 2, "they are no longer kept"),
            Unavailable(3, resumed - 1, "they were lost before they were durable"),
        ]
        assert client.bodies == [b"new"]
        client.close()
    with LocalStore(str(tmp_path / "store")) as store:
        (topic,) = store.topics().values()
        assert list(store.fetch(topic, 1, topic.next, lambda block, ids: None))[:2] == [
            Gap(1, 2, "they are no longer kept"),
            Gap(3, resumed - 1, "they were lost before they were durable"),
        ]


@of_kinds(lambda kind: str(kind) == "BROADCAST-STRONG")
async def test_confirmed_strong_messages_survive_a_power_failure(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store", killed=True) as drivers:
        await post(await drivers.topic(kind), b"a", b"b")
    async with opened(tmp_path / "store", boot_id="second") as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"c")
        client = Client(driver, FromBeginning())
        assert (await client.read()).ids == [1, 2, 3]
        client.close()


@STORED
async def test_a_large_message_comes_in_pieces_when_memory_is_spent(shared_store: Store, kind: Kind) -> None:
    body = bytes(range(256)) * 6 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        for each in (b"before" * 20 * KIB, body, b"after"):
            await post(driver, each, heads=[b"\0" * 4])
        assert drivers.memory.statistics().tails == 0
        holder, client = Client(driver, FromBeginning()), Client(driver, FromMessage(2))
        await holder.take()  # it holds all of the memory for what is read
        taken = await client.channel.take()
        assert isinstance(taken, Piece)
        assert (taken.begin, len(taken.octets), taken.size) == (0, LITTLE_OCTETS, len(body))
        pieces = await client.read_pieces(taken)
        assert {len(piece.octets) for piece in pieces} == {LITTLE_OCTETS}
        assert (client.got[0].id, client.got[0].body, client.got[0].head) == (2, body, b"\0" * 4)
        holder.close()
        assert drivers.memory.statistics().replayed == 0
        assert (await client.read()).bodies == [body, b"after"]
        client.close()


@STORED
async def test_empty_messages_beside_a_large_one(shared_store: Store, kind: Kind) -> None:
    body = bytes(range(256)) * 6 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"", body, b"")
        client = Client(driver, FromBeginning())
        assert (await client.read()).bodies == [b"", body, b""]
        client.close()


@STORED
@pytest.mark.parametrize("each", [1, 3])
async def test_a_slow_subscriber_gets_little_at_a_time(
    shared_drivers: Drivers, kind: Kind, mock_clock: trio.testing.MockClock, each: int
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    for _ in range(20):
        await post(driver, *[b"x" * 10 * KIB] * each, heads=[b"\0" * 4] * each)
    await client.take()
    mock_clock.jump(SLOW_SECONDS)
    client.channel.written(1)
    little = await client.take()
    assert [got.id for got in little] == [*range(2, 2 + len(little))]
    assert {got.head for got in little} == {b"\0" * 4}
    assert sum(len(got.body) for got in little) <= LITTLE_OCTETS
    assert shared_drivers.memory.statistics().replayed == 0
    client.channel.written(len(little))
    much = await client.take()
    assert sum(len(got.body) for got in much) > LITTLE_OCTETS
    client.channel.written(0)
    await client.read()
    assert client.ids == [*range(2 + len(little), 20 * each + 1)]
    client.close()


@STORED
async def test_the_rest_of_a_message_that_is_deleted_meanwhile_is_torn(
    shared_store: Store, kind: Kind
) -> None:
    async with emptied(shared_store, memory=MIB, retention_bytes=1) as drivers:
        driver = await drivers.topic(kind)
        assert driver.writer is not None
        client = Client(driver)
        await post(driver, b"x" * 300 * KIB, b"y" * 300 * KIB)
        await client.take()
        client.channel.written(0, 1000)
        for _ in range(3):
            await post(driver, b"z" * 300 * KIB)
        await tidy(driver, driver.writer)
        with pytest.raises(MessageTruncated, match="it is no longer kept"):
            await client.channel.take()
        assert drivers.memory.statistics().replayed == 0
        client.close()


@BROADCAST
async def test_a_closed_channel_holds_nothing_that_others_need(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    clients = [Client(driver) for _ in range(3)]
    await post(driver, *[b"x" * KIB] * 10)
    for client in clients:
        assert shared_drivers.memory.statistics().tails > 0
        await client.take()
        client.close()
    assert shared_drivers.memory.statistics().tails == 0
