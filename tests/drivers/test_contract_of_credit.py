"""The promises of every channel about credit: a window, a count, a drain, and the end of deliveries."""

import pytest
import trio
from credit_helpers import counting, numbered
from served_drivers import (
    KIB,
    MIB,
    NOTHING,
    Client,
    Drivers,
    Kind,
    emptied,
    of_kinds,
    post,
    quiet,
)

from omq.drivers.seam import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    CreditKind,
    Granted,
    Modified,
    Outcome,
    Piece,
    TakenMessages,
)
from omq.model import Delivery, Persistent, Sync
from omq_storage.store import Store

OUTCOMES = pytest.mark.parametrize(
    "outcome",
    [ACCEPTED, REJECTED, RELEASED, Modified(delivery_failed=True), Modified(undeliverable_here=True)],
    ids=str,
)


# -- window ------------------------------------------------------------------------------------------------


@of_kinds()
async def test_a_window_bounds_unsettled_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(2)
    assert client.channel.settles
    assert client.channel.granted() == Granted(window=2)
    await numbered(driver, 9)
    assert (await client.read()).ids == [1, 2]
    assert not client.channel.ready()
    assert await client.channel.take() is None
    client.settle(2)
    assert (await client.read()).ids == [1, 2, 3]
    assert client.channel.settle(range(1, 4), ACCEPTED) == 2
    assert (await client.read()).ids == [1, 2, 3, 4, 5]
    client.request(4)
    assert (await client.read()).ids == [*range(1, 8)]
    client.request(1)  # takes nothing back
    client.settle(7, 4, 6)
    assert (await client.read()).ids == [*range(1, 8)]
    client.settle(5)
    assert (await client.read()).ids == [*range(1, 9)]
    client.close()


@of_kinds()
async def test_a_window_counts_messages_taken_before_its_grant(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    await numbered(driver, 5)
    taken = await client.take()
    client.request(3)
    client.channel.written(2)
    await post(driver, b"z")
    assert len(taken) == 5
    # Messages that were dealt to a worker stay with it.
    assert (await client.read()).ids == ([3] if kind.is_broadcast else [3, 4, 5])
    assert client.channel.settle(range(1, 4), ACCEPTED) == 3
    assert (await client.read()).ids == [3, 4, 5, 6]
    client.close()


@of_kinds()
async def test_an_early_settlement_frees_the_window(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(2)
    await numbered(driver, 6)
    assert [got.id for got in await client.take()] == [1, 2]
    client.settle(2, 1)
    client.channel.written(2)
    assert (await client.read()).ids == [3, 4]
    client.close()


@of_kinds()
async def test_a_message_that_is_settled_in_its_middle_stays_settled(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(3)
    await post(driver, *[b"message"] * 6)
    assert [got.id for got in await client.take()] == [1, 2, 3]
    client.settle(2)
    client.channel.written(1, 1)  # one octet of the second one left
    assert client.channel.settle(range(2, 3), ACCEPTED) == 0
    client.channel.written(1)  # and then the rest of it
    assert (await client.read()).ids == [3, 4]  # the window has 1, 3 and 4
    client.close()


@of_kinds()
async def test_settle_counts_only_unsettled_messages_of_the_channel_once(
    drivers: Drivers, kind: Kind
) -> None:
    driver = await drivers.topic(kind)
    client, other = Client(driver), Client(driver)
    for each in (client, other):
        each.request(4)
    await numbered(driver, 8)
    await client.read()
    for strange in (range(0), range(-5, 1), range(8, 100)):
        assert client.channel.settle(strange, ACCEPTED) == 0
    mine = client.ids
    assert client.channel.settle(range(mine[1], mine[2] + 1), ACCEPTED) == 2
    assert client.channel.settle(range(-(1 << 60), 1 << 60), ACCEPTED) == 2
    assert client.channel.settle(range(mine[0], mine[-1] + 1), ACCEPTED) == 0
    client.close()
    other.close()


@of_kinds(lambda kind: kind.is_broadcast)
@OUTCOMES
async def test_outcomes_change_nothing_in_a_broadcast_topic_but_credit(
    drivers: Drivers, kind: Kind, outcome: Outcome
) -> None:
    driver = await drivers.topic(kind)
    client, other = Client(driver), Client(driver)
    client.request(3)
    await numbered(driver, 7)
    await client.read()
    assert client.channel.settle(range(1, 3), outcome) == 2
    assert (await client.read()).ids == [1, 2, 3, 4, 5]
    assert (await other.read()).ids == [*range(1, 8)]
    client.close()
    other.close()


@of_kinds(lambda kind: kind.is_broadcast)
async def test_a_broadcast_channel_without_a_window_has_nothing_to_settle(
    drivers: Drivers, kind: Kind
) -> None:
    driver = await drivers.topic(kind)
    client, plain = await counting(driver, 2), Client(driver)
    await numbered(driver, 3)
    assert (await client.read()).ids == [1, 2]
    assert (await plain.read()).ids == [1, 2, 3]
    for each in (client, plain):
        assert not each.channel.settles
        assert each.channel.settle(range(1, 3), ACCEPTED) == 0
        each.close()


# -- count -------------------------------------------------------------------------------------------------


@of_kinds()
async def test_a_count_bounds_the_delivered_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 3)
    assert client.channel.granted() == Granted(count=3)
    await numbered(driver, 9)
    assert (await client.read()).ids == [1, 2, 3]
    assert client.channel.granted() == Granted(count=0)
    client.channel.settle(range(1, 4), ACCEPTED)
    assert (await client.read()).ids == [1, 2, 3]  # settling gives no count back
    wakes = client.wakes
    client.channel.grant(2, CreditKind.COUNT)
    await quiet()
    assert client.wakes > wakes
    assert (await client.read()).ids == [1, 2, 3, 4, 5]
    client.channel.grant(-1, CreditKind.COUNT)
    assert (await client.read()).ids == [1, 2, 3, 4, 5]
    client.channel.grant(100, CreditKind.COUNT)
    assert (await client.read()).ids == [*range(1, 10)]
    assert client.channel.granted() == Granted(count=96)
    client.close()


@of_kinds()
@pytest.mark.parametrize("written", range(5))
async def test_a_written_message_uses_up_one_credit(drivers: Drivers, kind: Kind, written: int) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 4)
    await numbered(driver, 12)
    assert [got.id for got in await client.take()] == [1, 2, 3, 4]
    client.channel.written(written)
    assert client.channel.granted() == Granted(count=4 - written)
    await client.read()
    assert client.ids == [*range(written + 1, 5)]
    assert client.channel.granted() == Granted(count=0)
    client.close()


@of_kinds()
async def test_a_lower_count_takes_back_untaken_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client, other = await counting(driver, 6), await counting(driver, 0)
    await numbered(driver, 9)
    client.channel.grant(2, CreditKind.COUNT)
    assert (await client.read()).ids == [1, 2]
    other.channel.grant(100, CreditKind.COUNT)
    assert (await other.read()).ids == [*range(1, 10)] if kind.is_broadcast else [*range(3, 10)]
    client.close()
    other.close()


@of_kinds()
async def test_a_lower_count_leaves_taken_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 4)
    await numbered(driver, 9)
    assert [got.id for got in await client.take()] == [1, 2, 3, 4]
    client.channel.grant(1, CreditKind.COUNT)
    client.channel.written(2)
    assert client.channel.granted() == Granted(count=0)
    assert (await client.read()).ids == []
    client.channel.grant(3, CreditKind.COUNT)
    assert (await client.read()).ids == [3, 4, 5]
    client.close()


@of_kinds()
async def test_both_kinds_of_credit_bound_a_channel(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 5)
    client.request(2)
    assert client.channel.granted() == Granted(window=2, count=5)
    await numbered(driver, 9)
    assert (await client.read()).ids == [1, 2]
    client.settle(1, 2)
    assert (await client.read()).ids == [1, 2, 3, 4]
    client.settle(3, 4)
    assert (await client.read()).ids == [1, 2, 3, 4, 5]
    client.close()


@of_kinds()
@pytest.mark.parametrize("credit", CreditKind)
async def test_a_consumer_without_credit_takes_no_messages(
    drivers: Drivers, kind: Kind, credit: CreditKind
) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    assert driver.has_taker()
    client.channel.grant(0, credit)
    assert not driver.has_taker()
    client.channel.grant(1, credit)
    assert driver.has_taker()
    await numbered(driver, 2)
    await client.read()
    assert not driver.has_taker()
    client.close()


@of_kinds(lambda kind: kind.is_persistent)
@pytest.mark.parametrize("credit", CreditKind)
async def test_credit_bounds_messages_that_come_in_pieces(
    shared_store: Store, kind: Kind, credit: CreditKind
) -> None:
    body = bytes(range(256)) * 6 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        client = Client(driver)
        client.channel.grant(2, credit)
        for _ in range(3):
            await post(driver, body)
        taken = await client.channel.take()
        if isinstance(taken, Piece):
            client.channel.written(0, len(taken.octets))
            await client.read_pieces(begin=len(taken.octets))
        else:
            assert isinstance(taken, TakenMessages)
            client.channel.written(1)
        await client.read()
        assert not client.channel.ready()
        assert client.ids[-1] == 2
        if credit is CreditKind.WINDOW:
            client.settle(1)
        else:
            client.channel.grant(1, credit)
        await client.read()
        assert client.ids[-1] == 3
        assert not client.channel.ready()
        client.close()
        await drivers.catalogue.delete(b"t")


@of_kinds(lambda kind: kind.is_broadcast and not kind.is_persistent)
@pytest.mark.parametrize("credit", CreditKind)
async def test_a_gap_uses_up_no_credit(shared_store: Store, kind: Kind, credit: CreditKind) -> None:
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        client = Client(driver)
        client.channel.grant(2, credit)
        with trio.fail_after(60):
            for number in range(30):
                await post(driver, b"%d" % number * 20 * KIB)
        await client.read()
        assert len(client.gaps) == 1
        assert client.gaps[0].first == 1
        assert client.ids == [client.gaps[0].last + 1, client.gaps[0].last + 2]
        assert not client.channel.ready()
        client.close()


@of_kinds(lambda kind: kind.is_broadcast)
@pytest.mark.parametrize("credit", CreditKind)
async def test_credit_granted_while_messages_are_pushed(
    drivers: Drivers, kind: Kind, credit: CreditKind
) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    await numbered(driver, 6)
    flow = client.channel.flow
    assert flow is not None
    assert flow.at_hand(1 << 20)
    client.channel.grant(4, credit)
    assert not flow.at_hand(1 << 20)
    flow.passed(3, 40)  # the first two had been sent by then
    assert (await client.read()).ids == [3, 4]
    if credit is CreditKind.WINDOW:
        assert client.channel.settle(range(1, 3), ACCEPTED) == 2
    else:
        assert client.channel.granted() == Granted(count=0)
        client.channel.grant(2, credit)
    assert (await client.read()).ids == [3, 4, 5, 6]
    client.close()


# -- other types -------------------------------------------------------------------------------------------


@of_kinds()
async def test_a_channel_on_a_topic_with_other_types_gets_the_same_credit(
    drivers: Drivers, kind: Kind
) -> None:
    client = Client(await drivers.catalogue.lookup_or_declare(b"t"))
    client.channel.grant(4, CreditKind.COUNT)
    client.channel.grant(3, CreditKind.WINDOW)
    driver = await drivers.topic(kind)
    assert client.channel.granted() == Granted(window=3, count=4)
    await numbered(driver, 9)
    assert (await client.read()).ids == [1, 2, 3]
    client.settle(1, 2)
    assert (await client.read()).ids == [1, 2, 3, 4]
    client.close()


@of_kinds(lambda kind: kind == Kind(Delivery.ROUND_ROBIN, Persistent(Sync.WEAK)))
async def test_a_window_is_counted_in_memory_and_given_back(drivers: Drivers, kind: Kind) -> None:
    for delivery in Delivery:
        name = delivery.name.encode()
        driver = await drivers.declare(kind.persistence, delivery, name)
        client = Client(driver)
        client.request(1000)
        await numbered(driver, 10)
        await client.read()
        assert drivers.memory.statistics().unconfirmed > 0
        client.channel.settle(range(1, 9), ACCEPTED)
        assert drivers.memory.statistics().unconfirmed > 0
        client.close()
        await drivers.catalogue.delete(name)
        assert drivers.memory.statistics() == NOTHING
