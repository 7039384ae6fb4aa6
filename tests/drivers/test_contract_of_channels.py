"""The promises of every channel to a terminal (omq.drivers.seam), whatever its topic promises besides."""

import struct

import pytest
from served_drivers import (
    KIB,
    MIB,
    NOTHING,
    Client,
    Drivers,
    Kind,
    ReceivedMessage,
    emptied,
    of_kinds,
    post,
    quiet,
)

from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import EndReason, MessageTruncated, RemainderHolder, TakenMessages
from omq.model import Delivery, Transient
from omq_storage.store import Store

HEAD = struct.pack(">BBH", 0, 0, 0)


@of_kinds()
async def test_messages_come_in_order_with_ids_heads_and_bodies(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    assert not client.channel.ready()
    assert await client.channel.take() is None
    assert not client.wakes
    await post(driver, b"a", b"", heads=[HEAD, b""])
    assert client.wakes
    await post(driver, b"c")
    await client.read()
    assert client.got == [ReceivedMessage(1, b"a", HEAD), ReceivedMessage(2, b""), ReceivedMessage(3, b"c")]
    assert not client.channel.ready()
    assert await client.channel.take() is None
    client.close()


@of_kinds()
async def test_a_subscriber_is_woken_when_there_is_something_and_not_before(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    for count in range(1, 4):
        before = client.wakes
        await post(driver, b"x" * count)
        assert client.wakes > before
        assert client.channel.ready()
        await client.read()
    client.close()
    wakes = client.wakes
    await post(driver, b"more")
    assert client.wakes == wakes
    assert not list(driver.subscribers())
    await shared_drivers.catalogue.delete(b"t")
    assert client.ends == []


@of_kinds()
@pytest.mark.parametrize("written", range(4))
async def test_unwritten_messages_are_given_again(shared_drivers: Drivers, kind: Kind, written: int) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b", b"c")
    taken = await client.take()
    assert [got.id for got in taken] == [1, 2, 3]
    client.channel.written(written)
    await quiet()
    assert client.channel.ready() == (written < 3)
    await post(driver, b"d")
    await client.read()
    assert client.ids == [*range(written + 1, 5)]
    assert client.bodies == [b"a", b"b", b"c", b"d"][written:]
    client.close()


@of_kinds()
@pytest.mark.parametrize("begun", [0, 1, 99])
async def test_the_rest_of_a_message_in_whose_middle_a_client_stalled(
    shared_drivers: Drivers, kind: Kind, begun: int
) -> None:
    driver = await shared_drivers.topic(kind)
    body = bytes(range(100))
    client = Client(driver)
    rests = {
        True: RemainderHolder.GIVEN_AGAIN,
        False: RemainderHolder.HELD if kind.is_broadcast else RemainderHolder.COUNTED,
    }
    assert client.channel.rest is rests[kind.is_persistent]
    await post(driver, b"a", body, b"c", heads=[b"", HEAD, b""])
    assert len(await client.take()) == 3
    client.channel.written(1, begun)
    if client.channel.rest is RemainderHolder.GIVEN_AGAIN:
        await client.read_pieces(begin=begun)
        assert client.got == [ReceivedMessage(2, body[begun:], HEAD)]
    else:
        client.channel.written(1)
    client.got.clear()
    await client.read()
    assert client.got == [ReceivedMessage(3, b"c")]
    await post(driver, b"d")
    await client.read()
    assert client.ids == [3, 4]
    client.close()


@of_kinds()
async def test_a_message_of_which_nothing_left_is_given_again_whole(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b")
    await client.take()
    if client.channel.rest is RemainderHolder.GIVEN_AGAIN:
        client.channel.written(0, 0)
        assert await client.channel.take() is not None
        client.channel.written(0)  # the client took nothing: the message is not begun any more
    else:
        client.channel.written(0)
    await client.read()
    assert client.got == [ReceivedMessage(1, b"a"), ReceivedMessage(2, b"b")]
    client.close()


@of_kinds()
async def test_a_channel_that_is_held_keeps_its_place(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b", b"c")
    await client.take()
    client.channel.written(1)
    client.channel.hold()
    assert not driver.has_taker()
    await post(driver, b"d")
    client.channel.release()
    assert driver.has_taker()
    await client.read()
    assert client.ids == [2, 3, 4]
    client.close()


@of_kinds()
async def test_a_finished_channel_gives_no_later_messages(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b")
    await client.take()
    client.channel.written(1)
    client.channel.finish()
    await post(driver, b"c")
    await client.read()
    assert client.ids == [2]
    assert not client.channel.ready()
    client.close()
    last = Client(driver)
    assert (await last.read()).ids == ([] if kind.is_broadcast else [3])
    last.close()


@of_kinds()
async def test_a_write_after_the_end_changes_nothing(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    for _ in range(2):
        client = Client(driver)
        await post(driver, b"a", b"b")
        taken = await client.take()
        assert client.channel.rest is not RemainderHolder.HELD or not kind.is_persistent
        client.close()
        assert client.channel.rest is RemainderHolder.HELD
        client.channel.written(1, 0)
        client.channel.written(len(taken))
        client.channel.hold()
        client.channel.release()
    last = Client(driver)
    await last.read()
    assert last.ids == ([] if kind.is_broadcast else [1, 2, 3, 4])
    last.close()


@of_kinds()
async def test_a_deleted_topic_ends_its_channels(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    clients = [Client(driver) for _ in range(3)]
    await post(driver, *[b"x" * KIB] * 6)
    for client in clients[:2]:
        await client.take()
    clients[0].channel.written(1, 10)
    topic = await shared_drivers.catalogue.delete(b"t")
    await quiet()
    assert topic == driver.topic
    assert driver.deleted
    assert [client.ends for client in clients] == [[EndReason.DELETED]] * 3
    assert not list(driver.subscribers())
    assert not driver.has_taker()
    for client in clients:
        assert client.channel.rest is RemainderHolder.HELD
        client.channel.written(0)
    assert shared_drivers.memory.statistics() == NOTHING
    assert shared_drivers.catalogue.lookup(b"t") is None
    with pytest.raises(Refused, match="there is no such topic") as refused:
        await shared_drivers.catalogue.delete(b"t")
    assert refused.value.reason is Reason.NOT_FOUND
    new = await shared_drivers.topic(kind)
    assert new.topic.id > driver.topic.id
    assert (new.info().messages, new.info().last, new.next_id) == (0, 0, 1)


@of_kinds()
async def test_a_deleted_topic_ends_a_finished_channel_too(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b")
    client.channel.finish()
    await shared_drivers.catalogue.delete(b"t")
    await quiet()
    assert client.ends == [EndReason.DELETED]
    assert client.channel.rest is RemainderHolder.HELD


@of_kinds(lambda kind: kind.is_persistent)
async def test_the_rest_of_a_message_is_gone_with_its_topic(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"x" * KIB)
    await client.take()
    client.channel.written(0, 100)
    assert await client.channel.take() is not None
    client.channel.written(0, 200)
    await shared_drivers.catalogue.delete(b"t")
    try:
        assert await client.channel.take() is None
    except MessageTruncated as torn:
        assert str(torn) == "the topic was deleted"  # noqa: PT017 - either is right


@of_kinds()
async def test_an_empty_topic_takes_the_types_of_its_first_declare(
    shared_drivers: Drivers, kind: Kind
) -> None:
    undeclared = await shared_drivers.catalogue.lookup_or_declare(b"t")
    client = Client(undeclared)
    before = client.channel
    driver = await shared_drivers.topic(kind)
    assert driver.topic == undeclared.topic
    assert (driver.delivery, driver.persistence) == (kind.delivery, kind.persistence)
    is_same = (driver.delivery, driver.persistence) == (undeclared.delivery, undeclared.persistence)
    assert (client.channel is before) == is_same
    assert [subscriber for _, subscriber in driver.subscribers()] == [client]
    await post(driver, b"a")
    await client.read()
    assert client.got == [ReceivedMessage(1, b"a")]
    assert client.ends == []
    assert await shared_drivers.topic(kind) is driver
    for other in (Kind(Delivery.BROADCAST, Transient()), Kind(Delivery.ROUND_ROBIN, Transient())):
        if other != kind:
            with pytest.raises(Refused, match="the topic exists as ") as refused:
                await shared_drivers.topic(other)
            assert refused.value.reason is Reason.DIFFERS
    client.close()


@of_kinds()
async def test_a_finishing_channel_counts_as_a_subscriber_until_it_is_closed(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    finishing, cancelled, other = Client(driver), Client(driver), Client(driver)
    finishing.channel.finish()
    assert driver.info().subscribers == driver.statistics().subscribers == 3
    cancelled.channel.cancel()
    assert driver.info().subscribers == driver.statistics().subscribers == 2
    finishing.close()
    cancelled.close()
    assert driver.info().subscribers == driver.statistics().subscribers == 1
    other.close()
    assert driver.info().subscribers == driver.statistics().subscribers == 0
    await shared_drivers.catalogue.delete(b"t")


@of_kinds()
async def test_info_counts_kept_messages_and_subscribers(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    info = driver.info()
    assert (info.id, info.topic, info.delivery, info.persistence) == (
        driver.topic.id,
        b"t",
        kind.delivery,
        kind.persistence,
    )
    assert (info.messages, info.first, info.last, info.subscribers) == (0, 0, 0, 0)
    clients = [Client(driver), Client(driver)]
    await post(driver, b"a", b"b", b"c")
    info = driver.info()
    assert (info.messages, info.first, info.last, info.subscribers) == (3, 1, 3, 2)
    assert info.bytes >= 3 * 18
    for client in clients:
        await client.read()
        client.close()
    await post(driver, b"d")
    info = driver.info()
    kept = 4 if kind.is_broadcast else 1
    if kind == Kind(Delivery.BROADCAST, Transient()):
        kept = 0  # nobody is there who could want it
    assert (info.messages, info.last, info.subscribers) == (kept, 4, 0)
    await shared_drivers.catalogue.delete(b"t")


@of_kinds()
async def test_a_message_larger_than_any_share_of_the_memory(shared_store: Store, kind: Kind) -> None:
    body = bytes(range(256)) * 5 * KIB
    async with emptied(shared_store, memory=MIB) as drivers:
        driver = await drivers.topic(kind)
        client = Client(driver)
        for _ in range(3):
            for each in (b"small", body):
                await post(driver, each)
                await client.read()
        assert client.bodies == [b"small", body] * 3
        assert client.ids == [1, 2, 3, 4, 5, 6]
        client.close()


@of_kinds()
async def test_a_take_gives_a_part_of_much(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    for _ in range(10):
        await post(driver, *[b"x" * 100 * KIB])
    taken = await client.channel.take()
    assert isinstance(taken, TakenMessages)
    assert not taken.is_little
    assert 1 <= sum(len(selection.ids) for selection in taken.selections) < 10
    client.channel.written(0)
    assert (await client.read()).ids == [*range(1, 11)]
    client.close()
