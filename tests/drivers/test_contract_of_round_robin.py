"""Promises of round-robin topics (docs/PROTOCOL.md, "Round-robin"), with a fake client on a real store."""

from pathlib import Path

import pytest
import trio
from served_drivers import (
    KIB,
    MIB,
    NOTHING,
    ROUND_ROBIN,
    Client,
    Drivers,
    Kind,
    emptied,
    of_kinds,
    opened,
    post,
    quiet,
)

from omq.drivers.driver import Driver
from omq.drivers.housekeeping import tidy
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED, Piece
from omq.model import FromBeginning, FromMessage
from omq_storage.batches import Bodies
from omq_storage.store import Store

STORED = of_kinds(lambda kind: not kind.is_broadcast and kind.is_persistent)
IN_MEMORY = of_kinds(lambda kind: not kind.is_broadcast and not kind.is_persistent)


def with_credit(driver: Driver, credit: int) -> Client:
    client = Client(driver)
    client.request(credit)
    return client


@ROUND_ROBIN
async def test_workers_take_turns(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    clients = [Client(driver) for _ in range(3)]
    await post(driver, *[b"x"] * 7)
    await post(driver, b"y")
    for client in clients:
        await client.read()
    assert [client.ids for client in clients] == [[1, 4, 7], [2, 5, 8], [3, 6]]
    await post(driver, b"z")
    assert [client.channel.ready() for client in clients] == [False, False, True]
    await clients[2].read()
    assert driver.info().messages == 0
    for client in clients:
        client.close()


@ROUND_ROBIN
async def test_a_consumer_without_room_is_left_out(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    no_credit, held, full, able = (
        with_credit(driver, 0),
        Client(driver),
        with_credit(driver, 2),
        Client(driver),
    )
    held.channel.hold()
    await post(driver, *[b"x"] * 9)
    for client in (no_credit, held, full, able):
        await client.read()
    assert (no_credit.ids, held.ids, full.ids) == ([], [], [1, 3])
    assert able.ids == [2, 4, 5, 6, 7, 8, 9]
    for client in (no_credit, held, full, able):
        client.close()
    last = Client(driver)
    assert (await last.read()).ids == [1, 3]
    last.close()


@ROUND_ROBIN
async def test_messages_wait_for_a_worker(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    await post(driver, b"a", b"b")
    await post(driver, b"c")
    assert not driver.has_taker()
    assert (driver.info().messages, driver.info().first) == (3, 1)
    client = Client(driver)
    assert (await client.read()).bodies == [b"a", b"b", b"c"]
    assert driver.has_taker()
    client.close()


@ROUND_ROBIN
async def test_a_round_robin_topic_cannot_be_replayed(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    for replay in (FromBeginning(), FromMessage(1)):
        with pytest.raises(Refused, match=r"^a round-robin topic cannot be replayed$") as refused:
            Client(driver, replay)
        assert refused.value.reason is Reason.NO_REPLAY
    with pytest.raises(Refused, match=r"^a round-robin topic cannot be replayed$"):
        driver.check_replay(1)
    assert not list(driver.subscribers())


@ROUND_ROBIN
async def test_a_written_message_of_a_plain_worker_is_done(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    plain = Client(driver)
    await post(driver, *[b"x"] * 5)
    await plain.take()
    assert driver.info().messages == 5
    plain.channel.written(2, 3)  # of the third one, three octets of its body
    assert driver.info().messages == 3
    plain.close()
    other = Client(driver)
    assert (await other.read()).ids == [3, 4, 5]
    assert driver.info().messages == 0
    other.close()
    assert not other.channel.settles
    assert other.channel.settle(range(3, 4), ACCEPTED) == 0


@ROUND_ROBIN
async def test_a_closed_worker_returns_its_unconfirmed_messages_to_others(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    lost, other = with_credit(driver, 3), with_credit(driver, 100)
    await post(driver, *[b"x"] * 8)
    await lost.read()
    await other.read()
    assert (lost.ids, other.ids) == ([1, 3, 5], [2, 4, 6, 7, 8])
    lost.settle(3)
    await quiet()
    assert not lost.channel.ready()
    assert driver.info().messages == 7
    lost.close()
    assert (await other.read()).ids == [2, 4, 6, 7, 8, 1, 5]
    for message in (8, 1, 2, 7, 5, 4, 6):
        other.settle(message)
    assert driver.info().messages == 0
    other.close()


@ROUND_ROBIN
async def test_credit_limits_the_unconfirmed_messages_of_a_worker(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = with_credit(driver, 2)
    await post(driver, *[b"x"] * 9)
    assert (await client.read()).ids == [1, 2]
    client.settle(2)
    assert (await client.read()).ids == [1, 2, 3]
    client.request(0)  # pauses, and takes nothing back
    client.settle(1)
    assert (await client.read()).ids == [1, 2, 3]
    client.request(4)
    assert (await client.read()).ids == [1, 2, 3, 4, 5, 6]
    client.request(1)
    client.settle(3)
    client.settle(4)
    assert (await client.read()).ids == [1, 2, 3, 4, 5, 6]
    for message in (5, 6):
        client.settle(message)
    assert (await client.read()).ids == [1, 2, 3, 4, 5, 6, 7]
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == [7, 8, 9]
    last.close()


@ROUND_ROBIN
async def test_a_worker_confirms_only_its_own_messages_once(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    first, second = with_credit(driver, 5), with_credit(driver, 5)
    await post(driver, *[b"x"] * 4)
    await first.read()
    await second.read()
    first.settle(1)
    for client, message in ((first, 1), (first, 2), (second, 1), (second, 5), (second, 0), (second, -1)):
        assert client.channel.settle(range(message, message + 1), ACCEPTED) == 0
    assert driver.info().messages == 3
    for client, message in ((first, 3), (second, 4), (second, 2)):
        client.settle(message)
    assert driver.info().messages == 0
    first.close()
    second.close()


@ROUND_ROBIN
async def test_the_first_request_makes_unwritten_messages_unconfirmed(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, *[b"x"] * 4)
    await client.take()
    client.channel.written(1)
    assert driver.info().messages == 3
    client.request(10)
    await client.read()
    assert (client.ids, driver.info().messages) == ([2, 3, 4], 3)
    assert client.channel.settle(range(1, 2), ACCEPTED) == 0
    client.settle(3)
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == [2, 4]
    last.close()


@ROUND_ROBIN
@pytest.mark.parametrize("closes", [False, True])
async def test_a_message_can_be_confirmed_before_its_last_octet_left(
    shared_drivers: Drivers, kind: Kind, closes: bool
) -> None:
    driver = await shared_drivers.topic(kind)
    client = with_credit(driver, 1)
    await post(driver, b"x" * KIB, b"y")
    await client.take()
    client.channel.written(0, 10)
    client.settle(1)
    if not closes:
        if kind.is_persistent:
            await client.read_pieces(begin=10)
            client.got.clear()
        else:
            client.channel.written(1)
        assert (await client.read()).bodies == [b"y"]
        client.settle(2)
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == ([2] if closes else [])
    assert driver.info().messages == 0
    last.close()


@ROUND_ROBIN
@pytest.mark.parametrize("credit", [None, 100])
async def test_a_held_channel_leaves_unbegun_messages_to_others(
    shared_drivers: Drivers, kind: Kind, credit: int | None
) -> None:
    driver = await shared_drivers.topic(kind)
    stalled = Client(driver) if credit is None else with_credit(driver, credit)
    for _ in range(4):
        await post(driver, *[b"x" * 80 * KIB])
    first = await stalled.take()
    taken = [got.id for got in first]
    assert 1 < len(taken) <= 4
    other = Client(driver)
    # As a terminal whose client stalls: first nobody takes for now, then how much of the last take left.
    stalled.channel.hold()
    await other.read()
    assert other.ids == [*range(taken[-1] + 1, 5)]
    stalled.channel.written(0, 5)
    await other.read()
    assert sorted(other.ids) == [2, 3, 4]
    stalled.channel.release()
    if kind.is_persistent:
        await stalled.read_pieces(begin=5)
    else:
        stalled.channel.written(1)
    if credit is not None:
        stalled.settle(1)
    assert driver.info().messages == 0
    stalled.close()
    other.close()


@STORED
async def test_a_restart_keeps_messages_that_are_not_done(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        client = with_credit(driver, 6)
        await post(driver, *[b"%d" % number for number in range(1, 10)])
        await client.read()
        for message in (1, 2, 4, 6):
            client.settle(message)
        await quiet()
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        client = Client(driver)
        await post(driver, b"10")
        assert (await client.read()).ids == [3, 5, 7, 8, 9, 10]
        assert client.bodies == [b"%d" % message for message in client.ids]
        client.close()
        assert drivers.memory.statistics() == NOTHING


@STORED
async def test_a_kill_loses_no_undone_message(tmp_path: Path, kind: Kind) -> None:
    async with opened(tmp_path / "store", killed=True) as drivers:
        driver = await drivers.topic(kind)
        client = with_credit(driver, 6)
        await post(driver, *[b"%d" % number for number in range(1, 10)])
        await client.read()
        client.settle(1)
        client.settle(3)
        await drivers.save_positions()
        client.settle(4)
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        assert driver.next_id == 10
        client = Client(driver)
        await client.read()
        assert client.ids in ([2, 4, 5, 6, 7, 8, 9], [2, 5, 6, 7, 8, 9])
        client.close()


@STORED
async def test_done_messages_are_deleted_and_others_are_kept(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    assert driver.writer is not None
    client = with_credit(driver, 100)
    for number in range(6):
        await post(driver, *[b"%d" % number * 100])
    await client.read()
    for message in (1, 2, 3, 5):
        client.settle(message)
    await shared_drivers.save_positions()
    await tidy(driver, driver.writer)
    assert driver.info().messages == 2
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == [4, 6]
    assert last.bodies == [b"3" * 100, b"5" * 100]
    await shared_drivers.save_positions()
    await tidy(driver, driver.writer)
    assert (driver.info().messages, driver.info().bytes, driver.extent.messages) == (0, 0, 0)
    last.close()


@IN_MEMORY
async def test_publishers_wait_for_workers(shared_store: Store, kind: Kind) -> None:
    async with emptied(shared_store, memory=MIB) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.topic(kind)
        posted: list[int] = []

        async def publish() -> None:
            for number in range(40):
                await driver.post(Bodies([b"%d" % number * 10 * KIB]))
                posted.append(number)

        nursery.start_soon(publish)
        await quiet()
        assert 1 <= len(posted) < 40
        assert drivers.memory.statistics().waiting <= MIB // 4
        client = Client(driver)
        await client.read()
        assert posted == [*range(40)]
        assert client.bodies == [b"%d" % number * 10 * KIB for number in range(40)]
        client.close()


@STORED
async def test_the_messages_that_are_delivered_next_stay_in_memory(shared_store: Store, kind: Kind) -> None:
    """Of a long backlog, memory holds the oldest part; the newest would push it out before it is needed."""
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        for _ in range(12):
            await post(driver, bytes(32 * KIB))
            assert driver.tail.covers(1)
        assert driver.tail.octets <= drivers.memory.tail_octets
        client = Client(driver)
        assert (await client.read()).ids == [*range(1, 13)]
        client.close()


@STORED
async def test_a_large_message_that_waits_in_the_store_comes_in_pieces(
    shared_store: Store, kind: Kind
) -> None:
    body = bytes(range(256)) * 6 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"before")
        await post(driver, body)
        await post(driver, b"after")
        client = with_credit(driver, 10)
        await client.read()
        assert client.bodies == [b"before", body, b"after"]
        client.close()
        again = Client(driver)
        await quiet()
        again.channel.written(len(await again.take()))
        assert isinstance(await again.channel.take(), Piece)
        assert drivers.memory.statistics().replayed > 0
        again.close()  # in the middle of the message
        assert drivers.memory.statistics().replayed == 0
        last = Client(driver)
        assert sorted((await last.read()).bodies) == sorted([body, b"after"])
        last.close()


@STORED
async def test_a_channel_that_is_closed_while_a_lost_message_is_read_counts_it_once(
    shared_store: Store, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closed = trio.Event()

    async def look_at(driver: Driver, message: int) -> None:
        """Find no message, after the channel is closed."""
        await is_closed.wait()

    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"before")
        await post(driver, bytes(1536 * KIB))
        client = with_credit(driver, 10)
        await quiet()
        await client.read_once()
        client.settle(1)
        monkeypatch.setattr(Driver, "look_at", look_at)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.channel.take)
            await quiet()
            client.close()
            is_closed.set()
        assert driver.statistics().unsettled == 0
        other = with_credit(driver, 10)
        assert (await other.read()).ids == []
        assert [(gap.first, gap.last) for gap in other.gaps] == [(2, 2)]
        assert driver.statistics().unsettled == 0
        other.close()


@ROUND_ROBIN
async def test_a_channel_gives_a_limited_number_of_octets_at_once(
    shared_drivers: Drivers, kind: Kind
) -> None:
    """The other subscriptions of its connection have their turn after 256 KiB and one post more at most."""
    driver = await shared_drivers.topic(kind)
    client = with_credit(driver, 1000)
    for number in range(40):
        await post(driver, b"%d" % (number % 10) * 16 * KIB)
    await quiet()
    taken = await client.take()
    assert 256 * KIB <= sum(len(got.body) for got in taken) <= 256 * KIB + 16 * KIB
    client.channel.written(len(taken))
    await client.read()
    assert len(taken) + len(client.ids) == 40
    for message in range(1, 41):
        client.settle(message)
    client.close()


@ROUND_ROBIN
async def test_all_that_a_lost_worker_had_comes_to_the_next_one(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    lost = with_credit(driver, 1000)
    await post(driver, *[b"x"] * 600)
    assert (await lost.read()).ids == [*range(1, 601)]
    lost.close()
    client = with_credit(driver, 1000)
    assert (await client.read()).ids == [*range(1, 601)]
    assert client.channel.settle(range(1, 601), ACCEPTED) == 600
    assert driver.info().messages == 0
    client.close()


@of_kinds(lambda kind: not kind.is_broadcast and not kind.is_persistent)
async def test_an_idle_worker_has_a_message_in_the_moment_of_its_post(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"first")
    await client.read()
    driver.offer(Bodies([b"second"]))
    assert client.channel.ready()  # without the step of another task
    await client.read()
    assert client.bodies == [b"first", b"second"]
    client.close()


@ROUND_ROBIN
async def test_a_channel_that_is_cancelled_after_its_end_counts_no_more(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client, other = Client(driver), Client(driver)
    client.close()
    client.channel.cancel()
    assert driver.info().subscribers == 1
    other.close()
    assert driver.info().subscribers == 0
