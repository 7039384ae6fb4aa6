"""What every channel promises about credit: a window, a count, a drain, and the end of deliveries."""

import pytest
import trio
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

from omq.drivers.driver import Driver
from omq.drivers.seam import (
    ACCEPTED,
    REJECTED,
    RELEASED,
    CreditKind,
    EndReason,
    Granted,
    Messages,
    Modified,
    Piece,
)
from omq.model import Delivery, Persistent, Sync, Transient
from omq_storage.store import Store

OUTCOMES = pytest.mark.parametrize(
    "outcome",
    [ACCEPTED, REJECTED, RELEASED, Modified(delivery_failed=True), Modified(undeliverable_here=True)],
    ids=str,
)


def draining(client: Client) -> list[int]:
    """Begin to drain a channel. Returns the list that gets what was left of the count, when it is done."""
    unused: list[int] = []
    client.channel.drain(unused.append)
    return unused


async def counting(driver: Driver, n: int) -> Client:
    client = Client(driver)
    client.channel.grant(n, CreditKind.COUNT)
    return client


async def numbered(driver: Driver, count: int) -> None:
    """Post the messages 1 to `count` of an empty topic, in several blocks."""
    await post(driver, *[b"x"] * (count // 2))
    for _ in range(count - count // 2):
        await post(driver, b"y")


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
    # What was dealt to a worker stays with it.
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
    drivers: Drivers, kind: Kind, outcome: object
) -> None:
    driver = await drivers.topic(kind)
    client, other = Client(driver), Client(driver)
    client.request(3)
    await numbered(driver, 7)
    await client.read()
    assert client.channel.settle(range(1, 3), outcome) == 2  # type: ignore[arg-type]
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
            assert isinstance(taken, Messages)
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


# -- drain -------------------------------------------------------------------------------------------------


@of_kinds()
async def test_a_drain_of_an_empty_topic_takes_the_count_back_at_once(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 5)
    unused = draining(client)
    assert unused == [5]
    assert client.channel.granted() == Granted(count=0)
    await numbered(driver, 3)
    assert (await client.read()).ids == []
    client.channel.drain(unused.append)
    assert unused == [5, 0]
    client.channel.grant(2, CreditKind.COUNT)
    assert (await client.read()).ids == [1, 2]
    assert unused == [5, 0]
    client.close()


@of_kinds()
async def test_a_drain_gives_the_present_messages_first(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.channel.grant(0, CreditKind.COUNT)
    await numbered(driver, 4)
    client.channel.grant(10, CreditKind.COUNT)
    unused = draining(client)
    await quiet()
    assert unused == []
    first = await client.take()
    client.channel.written(1)
    await quiet()
    assert unused == []
    await client.read()
    assert [first[0].id, *client.ids] == [1, 2, 3, 4]
    assert unused == [6]
    await post(driver, b"later")
    assert (await client.read()).ids == [2, 3, 4]
    client.close()


@of_kinds()
async def test_a_drain_ends_when_the_count_is_used_up(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 3)
    await numbered(driver, 9)
    unused = draining(client)
    assert (await client.read()).ids == [1, 2, 3]
    assert unused == [0]
    client.close()


@of_kinds(lambda kind: kind.delivery is Delivery.BROADCAST)
async def test_a_drain_ends_when_a_window_allows_no_more(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 3)
    await numbered(driver, 1)
    unused = draining(client)
    assert unused == []
    client.channel.grant(0, CreditKind.WINDOW)
    assert unused == [3]
    client.close()


@of_kinds()
async def test_a_drain_waits_for_a_client_that_takes_nothing(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 3)
    client.channel.hold()
    unused = draining(client)
    await quiet()
    assert unused == []
    client.channel.release()
    await quiet()
    assert unused == [3]
    client.close()


@of_kinds()
@pytest.mark.parametrize("end", ["grant", "close"])
async def test_a_drain_is_given_up_for_new_credit_or_the_end(drivers: Drivers, kind: Kind, end: str) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 5)
    await numbered(driver, 2)
    await client.take()
    unused = draining(client)
    if end == "grant":
        client.channel.grant(5, CreditKind.COUNT)
        client.channel.written(2)
        assert (await client.read()).ids == []
        assert client.channel.granted() == Granted(count=3)
    client.close()
    await quiet()
    assert unused == []


@of_kinds(lambda kind: not kind.is_broadcast)
async def test_a_drain_ends_when_others_have_got_the_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client, other = await counting(driver, 0), Client(driver)
    await numbered(driver, 2)
    client.channel.grant(7, CreditKind.COUNT)
    unused = draining(client)
    await quiet()
    assert unused == [7]
    assert (await other.read()).ids == [1, 2]
    client.close()
    other.close()


# -- cancel ------------------------------------------------------------------------------------------------


@of_kinds()
async def test_a_cancelled_channel_gives_no_more_and_keeps_unsettled_messages(
    drivers: Drivers, kind: Kind
) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(4)
    await numbered(driver, 6)
    assert [got.id for got in await client.take()] == [1, 2, 3, 4]
    client.channel.written(3)
    client.channel.cancel()
    assert not client.channel.ready()
    assert await client.channel.take() is None
    assert not driver.has_taker()
    assert not list(driver.subscribers())
    client.channel.grant(10, CreditKind.WINDOW)
    client.channel.grant(10, CreditKind.COUNT)
    client.channel.hold()
    client.channel.release()
    assert (await client.read()).ids == []
    last = Client(driver)
    assert (await last.read()).ids == ([] if kind.is_broadcast else [4, 5, 6])
    client.settle(2)
    client.close()
    assert (await last.read()).ids == ([] if kind.is_broadcast else [4, 5, 6, 1, 3])
    assert driver.info().messages == (6 if kind.is_broadcast and kind.is_persistent else 0)
    last.close()


@of_kinds()
async def test_messages_taken_before_a_cancel_may_be_written(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(3)
    await numbered(driver, 4)
    await client.take()
    client.channel.cancel()
    client.channel.written(2)
    assert (await client.read()).ids == []
    client.settle(1, 2)
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == ([] if kind.is_broadcast else [3, 4])
    last.close()


@of_kinds()
@pytest.mark.parametrize("first", ["drain", "finish"])
async def test_a_drain_of_a_finished_channel_gives_its_messages(
    drivers: Drivers, kind: Kind, first: str
) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 2)
    await numbered(driver, 6)
    unused: list[int] = []
    if first == "drain":
        client.channel.drain(unused.append)
        client.channel.finish()
        assert (await client.read()).ids == [1, 2]
        assert unused == [0]
    else:
        client.channel.finish()
        assert (await client.read()).ids == [1, 2]
        client.channel.grant(9, CreditKind.COUNT)
        assert (await client.read()).ids == ([*range(1, 7)] if kind.is_broadcast else [1, 2])
        client.channel.drain(unused.append)
        assert unused == [5 if kind.is_broadcast else 9]
    client.close()


@of_kinds()
async def test_a_cancel_ends_a_drain(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = await counting(driver, 5)
    await numbered(driver, 3)
    await client.take()
    unused = draining(client)
    client.channel.cancel()
    assert unused == []
    client.channel.written(1)
    assert unused == [4]
    client.close()


@of_kinds()
async def test_a_deleted_topic_ends_a_cancelled_channel_too(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.request(3)
    await numbered(driver, 4)
    await client.read()
    client.channel.cancel()
    await drivers.catalogue.delete(b"t")
    await quiet()
    assert client.ends == [EndReason.DELETED]
    assert client.channel.settle(range(1, 4), ACCEPTED) == 0
    assert drivers.memory.statistics() == NOTHING


@of_kinds(lambda kind: kind == Kind(Delivery.BROADCAST, Transient()))
async def test_a_cancelled_channel_keeps_no_messages(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    cancelled, reading = Client(driver), Client(driver)
    cancelled.request(10)
    await numbered(driver, 4)
    cancelled.channel.cancel()
    await reading.read()
    for _ in range(40):
        await post(driver, b"x" * 100 * KIB)
        await reading.read()
    assert driver.info().bytes < MIB
    reading.close()
    await post(driver, b"x")
    assert driver.info().bytes == 0
    cancelled.close()


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
