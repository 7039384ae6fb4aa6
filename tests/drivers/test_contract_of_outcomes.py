"""Outcomes in round-robin channels, and the numbers of earlier deliveries of a message."""

import logging
from pathlib import Path

import pytest
from served_drivers import (
    KIB,
    MIB,
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
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.round_robin_channel import MOST_UNDELIVERABLE
from omq.drivers.seam import (
    ACCEPTED,
    MOST_DELIVERIES,
    REJECTED,
    RELEASED,
    CreditKind,
    Modified,
    Outcome,
    Piece,
    TakenMessages,
)
from omq_storage.store import Store

FAILED = Modified(delivery_failed=True)
NOT_HERE = Modified(undeliverable_here=True)
FAILED_HERE = Modified(delivery_failed=True, undeliverable_here=True)

STORED = of_kinds(lambda kind: not kind.is_broadcast and kind.is_persistent)


def worker(driver: Driver, window: int = 100) -> Client:
    client = Client(driver)
    client.request(window)
    return client


async def deliveries(client: Client) -> dict[int, int]:
    """Take and write all there is; return by message how often it was delivered before."""
    found: dict[int, int] = {}
    await quiet()
    while client.channel.ready():
        taken = await client.channel.take()
        match taken:
            case TakenMessages(cuts):
                found |= {message: cut.deliveries for cut in cuts for message in cut.ids}
                client.channel.written(sum(len(cut.ids) for cut in cuts))
            case Piece():
                found[taken.message] = taken.deliveries
                client.channel.written(0, len(taken.octets))
                pieces = await client.read_pieces(begin=len(taken.octets))
                assert {piece.deliveries for piece in pieces} == {taken.deliveries}
            case other:
                raise AssertionError(other)
        await quiet()
    return found


@ROUND_ROBIN
@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (ACCEPTED, None),
        (REJECTED, None),
        (RELEASED, 0),
        (Modified(), 0),
        (FAILED, 1),
        (NOT_HERE, 0),
        (FAILED_HERE, 1),
    ],
    ids=str,
)
async def test_an_outcome_decides_whether_a_message_is_delivered_again(
    drivers: Drivers, kind: Kind, outcome: Outcome, again: int | None
) -> None:
    driver = await drivers.topic(kind)
    first = worker(driver)
    await post(driver, *[b"x"] * 3)
    await post(driver, *[b"x"] * 3)
    assert await deliveries(first) == dict.fromkeys(range(1, 7), 0)
    assert first.channel.settle(range(2, 6), outcome) == 4
    assert driver.info().messages == (2 if again is None else 6)
    second = worker(driver)
    found = await deliveries(first) | await deliveries(second)
    assert found == ({} if again is None else dict.fromkeys(range(2, 6), again))
    first.close()
    second.close()


@ROUND_ROBIN
async def test_outcomes_in_any_order_and_for_ranges(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    clients = [worker(driver) for _ in range(3)]
    for count in (5, 1, 7, 2, 9, 6):
        await post(driver, *[b"x"] * count)
    for client in clients:
        await client.read()
    assert [client.ids for client in clients] == [[*range(1 + turn, 31, 3)] for turn in range(3)]
    # A range that covers the messages of others settles its own ones.
    assert clients[0].channel.settle(range(5, 27), ACCEPTED) == 7
    assert clients[1].channel.settle(range(2, 30, 9), ACCEPTED) == 4
    assert clients[2].channel.settle(range(3, 31, 6), RELEASED) == 5
    assert driver.info().messages == 30 - 7 - 4
    for client in clients:
        client.close()
    last = worker(driver)
    found = await deliveries(last)
    done = {*range(7, 27, 3), 29, 20, 11, 2}
    assert found == {id: int(id not in range(3, 31, 6)) for id in range(1, 31) if id not in done}
    assert last.channel.settle(range(1, 31), ACCEPTED) == len(found)
    assert driver.info().messages == 0
    last.close()


@ROUND_ROBIN
async def test_released_messages_come_back_at_their_place(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = worker(driver, 3)
    await post(driver, *[b"x"] * 6)
    assert (await client.read()).ids == [1, 2, 3]
    client.settle(3, 1, outcome=RELEASED)
    assert (await client.read()).ids == [1, 2, 3, 1, 3]
    client.settle(1, 2, 3)
    assert (await client.read()).ids == [1, 2, 3, 1, 3, 4, 5, 6]
    client.close()


@ROUND_ROBIN
@pytest.mark.parametrize("end", ["closed", "cancelled and closed"])
async def test_messages_of_a_lost_worker_count_one_delivery_more(
    drivers: Drivers, kind: Kind, end: str
) -> None:
    driver = await drivers.topic(kind)
    lost = worker(driver, 4)
    await post(driver, *[b"x"] * 6)
    taken = await lost.take()
    assert len(taken) == 4
    lost.channel.written(3)
    if end == "cancelled and closed":
        lost.channel.cancel()
    lost.close()
    other = worker(driver)
    # The fourth one was given back before it was sent.
    assert await deliveries(other) == {1: 1, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0}
    other.settle(2)
    other.close()
    last = worker(driver)
    assert await deliveries(last) == {1: 2, 3: 2, 4: 1, 5: 1, 6: 1}
    last.close()


@ROUND_ROBIN
@pytest.mark.parametrize("window", [None, 100])
async def test_a_message_that_may_have_been_sent_counts_as_delivered(
    drivers: Drivers, kind: Kind, window: int | None
) -> None:
    driver = await drivers.topic(kind)
    lost = Client(driver) if window is None else worker(driver, window)
    await post(driver, *[b"x" * 100] * 3)
    await lost.take()
    await post(driver, b"y")
    lost.channel.written(0, 10)  # of the first one, ten octets
    lost.close()
    other = worker(driver)
    assert await deliveries(other) == {1: 1, 2: 0, 3: 0, 4: 0}
    other.close()


@ROUND_ROBIN
async def test_messages_of_a_held_channel_do_not_count_as_delivered(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    stalled = worker(driver)
    await post(driver, *[b"x"] * 3)
    await quiet()
    stalled.channel.hold()
    other = worker(driver)
    assert await deliveries(other) == {1: 0, 2: 0, 3: 0}
    stalled.close()
    other.close()


@ROUND_ROBIN
async def test_the_number_of_deliveries_stops_somewhere(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = worker(driver)
    await post(driver, b"poison", b"other")
    found = await deliveries(client)
    for _ in range(MOST_DELIVERIES + 3):
        client.settle(1, outcome=FAILED)
        found |= await deliveries(client)
    assert found == {1: MOST_DELIVERIES, 2: 0}
    client.close()


@ROUND_ROBIN
async def test_workers_with_messages_of_several_counts(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = worker(driver)
    await post(driver, *[b"x"] * 40)
    await deliveries(client)
    for step in (2, 3, 5):
        client.channel.settle(range(step, 41, step), FAILED)
        await deliveries(client)
    assert client.channel.settle(range(1, 11), ACCEPTED) == 10
    client.channel.settle(range(1, 41), RELEASED)
    wanted = {id: sum(not id % step for step in (2, 3, 5)) for id in range(11, 41)}
    assert await deliveries(client) == wanted
    client.close()


@ROUND_ROBIN
async def test_rejected_messages_are_counted_and_told_in_the_log(
    drivers: Drivers, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    driver = await drivers.topic(kind)
    assert isinstance(driver, RoundRobinDriver)
    client = worker(driver)
    await post(driver, *[b"x"] * 9)
    await client.read()
    with caplog.at_level(logging.WARNING, "omq.round_robin"):
        client.settle(4, outcome=REJECTED)
        client.channel.settle(range(6, 9), REJECTED)
    assert driver.statistics().rejections == 4
    assert [record.message for record in caplog.records] == [
        "'t': message 4 was rejected by a subscriber",
        "'t': 3 messages from 6 on were rejected by a subscriber",
    ]
    assert driver.info().messages == 5
    client.close()


# -- in the middle of a message ----------------------------------------------------------------------------


@ROUND_ROBIN
@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, RELEASED, FAILED], ids=str)
@pytest.mark.parametrize("end", ["written", "closed", "given back"])
async def test_a_message_is_settled_before_its_last_octet_is_written(
    drivers: Drivers, kind: Kind, outcome: Outcome, end: str
) -> None:
    driver = await drivers.topic(kind)
    client, other = worker(driver, 1), worker(driver, 0)
    await post(driver, b"x" * KIB, b"y")
    await client.take()
    client.channel.written(0, 10)
    client.settle(1, outcome=outcome)
    assert client.channel.settle(range(1, 2), RELEASED) == 0
    is_done = outcome in (ACCEPTED, REJECTED)
    # Its topic holds it, as its rest is still to be sent.
    if not kind.is_persistent:
        assert drivers.memory.statistics().waiting > KIB
    match end:
        case "written":
            if kind.is_persistent:
                await client.read_pieces(begin=10)
            else:
                client.channel.written(1)
        case "closed":
            client.close()
        case _:
            client.channel.written(0)  # the transport took none of it after all
    client.close()
    other.request(100)
    found = await deliveries(other)
    assert found.keys() == ({2} if is_done else {1, 2})
    assert found[2] == 0
    if not is_done:
        assert found[1] == (outcome is FAILED)
    other.close()


# -- undeliverable here ------------------------------------------------------------------------------------


@ROUND_ROBIN
async def test_an_undeliverable_message_goes_to_another_worker(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    first = worker(driver)
    await post(driver, *[b"x"] * 4)
    await first.read()
    first.channel.settle(range(2, 4), NOT_HERE)
    assert (await first.read()).ids == [1, 2, 3, 4]
    # It holds nobody else's messages up, nor others of its own.
    await post(driver, b"y")
    assert (await first.read()).ids == [1, 2, 3, 4, 5]
    assert driver.info().messages == 5
    second = worker(driver, 1)
    assert (await second.read()).ids == [2]
    second.settle(2, outcome=NOT_HERE)  # now to neither of them
    assert (await second.read()).ids == [2, 3]
    third = worker(driver)
    assert (await third.read()).ids == [2]
    third.settle(2, outcome=RELEASED)
    assert (await third.read()).ids == [2, 2]
    second.settle(3)
    third.settle(2)
    first.channel.settle(range(1, 6), ACCEPTED)
    assert driver.info().messages == 0
    for client in (first, second, third):
        client.close()


@ROUND_ROBIN
async def test_a_full_worker_gets_messages_undeliverable_to_others_later(
    drivers: Drivers, kind: Kind
) -> None:
    driver = await drivers.topic(kind)
    selective, full = worker(driver), worker(driver, 1)
    await post(driver, *[b"x"] * 4)
    await selective.read()
    await full.read()
    assert (selective.ids, full.ids) == ([1, 3, 4], [2])
    selective.channel.settle(range(3, 5), NOT_HERE)
    await post(driver, b"y")
    assert (await selective.read()).ids == [1, 3, 4, 5]
    for message, expected in ((2, 3), (3, 4), (4, None)):
        full.settle(message)
        await full.read()
        assert full.ids[-1] == (expected or 4)
    selective.close()
    full.close()


@ROUND_ROBIN
async def test_a_drain_does_not_wait_for_undeliverable_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.channel.grant(10, CreditKind.COUNT)
    await post(driver, b"x", b"y")
    await client.read()
    unused: list[int] = []
    client.channel.settle(range(1, 3), NOT_HERE)
    client.channel.drain(unused.append)
    await quiet()
    assert unused == [8]
    assert client.ids == [1, 2]
    client.close()
    last = worker(driver)
    assert (await last.read()).ids == [1, 2]
    last.close()


@ROUND_ROBIN
async def test_a_consumer_with_too_many_undeliverable_messages_waits_for_others(
    drivers: Drivers, kind: Kind
) -> None:
    driver = await drivers.topic(kind)
    selective = worker(driver, 10 * MOST_UNDELIVERABLE)
    await post(driver, *[b""] * (MOST_UNDELIVERABLE + 10))
    await selective.read()
    count = MOST_UNDELIVERABLE
    assert selective.channel.settle(range(1, count + 1), NOT_HERE) == count
    await post(driver, b"more")
    await selective.read()
    assert len(selective.ids) == count + 10
    other = worker(driver, 5)
    await other.read()
    assert other.ids == [1, 2, 3, 4, 5]
    other.settle(1)
    await selective.read()
    assert selective.ids[-1] == count + 11
    selective.close()
    other.close()


# -- in the store ------------------------------------------------------------------------------------------


@STORED
@pytest.mark.parametrize("killed", [False, True])
async def test_the_store_keeps_how_often_messages_were_delivered(
    tmp_path: Path, kind: Kind, killed: bool
) -> None:
    async with opened(tmp_path / "store", killed=killed) as drivers:
        driver = await drivers.topic(kind)
        client, waiting = worker(driver, 8), worker(driver, 2)
        await post(driver, *[b"x"] * 12)
        await deliveries(client)
        await quiet()
        assert waiting.channel.ready()  # it was dealt 2 and 4, and has taken neither
        client.channel.settle(range(1, 8, 2), FAILED)
        await deliveries(client)
        client.settle(1, outcome=FAILED)
        await deliveries(client)
        client.settle(3, outcome=RELEASED)
        client.settle(5)
        client.request(0)
        await quiet()
        if killed:
            await drivers.save_positions()
            client.settle(6)
        else:
            client.close()
            waiting.close()
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.topic(kind)
        last = worker(driver)
        # 1: failed twice, and was lost. 3: failed once. 7: failed, and was lost.
        assert await deliveries(last) == {
            1: 3,
            2: 0,
            3: 1,
            4: 0,
            6: 1,
            7: 2,
            **dict.fromkeys(range(8, 11), 1),
            11: 0,
            12: 0,
        }
        last.close()


@STORED
async def test_large_messages_know_how_often_they_were_delivered(shared_store: Store, kind: Kind) -> None:
    body = bytes(range(256)) * 6 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        await post(driver, b"small")
        await post(driver, body)
        lost = worker(driver)
        assert await deliveries(lost) == {1: 0, 2: 0}
        lost.close()
        other = worker(driver)
        assert await deliveries(other) == {1: 1, 2: 1}
        other.settle(2, outcome=FAILED)
        assert await deliveries(other) == {2: 2}
        other.channel.settle(range(1, 3), ACCEPTED)
        other.close()
        await drivers.catalogue.delete(b"t")
