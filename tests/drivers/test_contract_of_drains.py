"""The promises of every channel about drains and cancellations: the deliveries that still come, and their
end.
"""

import pytest
from credit_helpers import counting, draining, numbered
from served_drivers import (
    KIB,
    MIB,
    NOTHING,
    Client,
    Drivers,
    Kind,
    of_kinds,
    post,
    quiet,
)

from omq.drivers.seam import (
    ACCEPTED,
    CreditKind,
    EndReason,
    Granted,
)
from omq.model import Delivery, Transient

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


@of_kinds()
async def test_a_drain_gives_a_number_of_messages_without_credit(drivers: Drivers, kind: Kind) -> None:
    driver = await drivers.topic(kind)
    client = Client(driver)
    client.channel.hold()
    await numbered(driver, 5)
    unused: list[int] = []
    client.channel.drain(unused.append, 2)
    assert unused == []
    client.channel.release()
    assert (await client.read()).ids == [1, 2]
    assert unused == [0]
    assert (await client.read()).ids == [1, 2]
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
