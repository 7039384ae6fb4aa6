"""Topics with one consumer only, and topics that end with what they are for."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from served_drivers import (
    NOTHING,
    WEAK,
    Client,
    Drivers,
    Kind,
    Listener,
    emptied,
    of_kinds,
    post,
    quiet,
)

from omq.config import Config
from omq.drivers.confirmation import CONFIRMED
from omq.drivers.driver import Driver
from omq.drivers.lifetime import Durable, Ownership
from omq.drivers.offer import PendingOffer
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import DELETED, Reason, Refused
from omq.drivers.seam import ACCEPTED, CreditKind, EndReason
from omq.model import Delivery, FromCurrent, FromMessage, Transient
from omq_storage.batches import Bodies
from omq_storage.catalogue import StoreCatalogue
from omq_storage.errors import Limit, StoreFull
from omq_storage.store import Store

STALL_SECONDS = Config().stall_seconds

UNTIL_UNUSED = Durable(with_last_consumer=True)


# -- exclusive ---------------------------------------------------------------------------------------------


def refusal(driver: Driver, *, exclusive: bool) -> Refused:
    """Return the reason why no channel can be opened."""
    with pytest.raises(Refused) as refused:
        driver.open(Listener(), FromCurrent(), exclusive=exclusive)
    return refused.value


@of_kinds()
@pytest.mark.parametrize("end", ["close", "cancel"])
async def test_an_exclusive_subscriber_is_the_only_one(shared_drivers: Drivers, kind: Kind, end: str) -> None:
    driver = await shared_drivers.topic(kind)
    other = Client(driver)
    refused = refusal(driver, exclusive=True)
    assert (refused.reason, str(refused)) == (Reason.IN_USE, "the topic has other subscribers")
    other.close()
    only = Client(driver, exclusive=True)
    for exclusive in (False, True):
        refused = refusal(driver, exclusive=exclusive)
        assert refused.reason is Reason.IN_USE
        assert str(refused) == "the topic has an exclusive subscriber"
    await post(driver, b"a")
    assert (await only.read()).bodies == [b"a"]
    if end == "cancel":
        only.channel.cancel()
    else:
        only.close()
    others = [Client(driver), Client(driver)]
    assert driver.subscriber_count() == 2
    for each in (only, *others):
        each.close()


@of_kinds(lambda kind: not kind.is_broadcast)
async def test_a_finishing_channel_counts_until_it_has_settled(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client, other = Client(driver), Client(driver)
    for each in (client, other):
        each.request(1)
    await post(driver, b"a", b"b")
    for each in (client, other):
        await each.read()
    client.channel.finish()
    other.channel.cancel()
    assert driver.subscriber_count() == 1
    assert refusal(driver, exclusive=True).reason is Reason.IN_USE
    client.settle(*client.ids)
    await client.read()
    client.close()
    assert driver.subscriber_count() == 0
    # The other one may still settle what it has, but it gets nothing any more.
    only = Client(driver, exclusive=True)
    other.settle(*other.ids)
    for each in (only, other):
        each.close()


@of_kinds()
async def test_a_refused_exclusive_open_leaves_the_topic_free(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    with pytest.raises(Refused) as refused:
        driver.open(Listener(), FromMessage(7), exclusive=True)
    assert refused.value.reason is Reason.NO_REPLAY
    Client(driver).close()


async def test_a_topic_that_is_given_other_types_stays_exclusive(shared_drivers: Drivers) -> None:
    driver = await shared_drivers.catalogue.lookup_or_declare(b"t")
    only = Client(driver, exclusive=True)
    replaced = await shared_drivers.catalogue.declare(b"t", Delivery.ROUND_ROBIN, WEAK)
    assert replaced is not driver
    assert refusal(replaced, exclusive=False).reason is Reason.IN_USE
    only.close()
    Client(replaced).close()


# -- ephemeral ---------------------------------------------------------------------------------------------


async def test_the_first_messages_of_an_ephemeral_topic_wait_for_no_disk(shared_drivers: Drivers) -> None:
    catalogue, records = shared_drivers.catalogue, shared_drivers.store.catalogue.topics
    await catalogue.declare_queue(b"first", QueueOptions())  # it reserves ids for the others
    topics = [await catalogue.declare_queue(b"q%d" % number, QueueOptions()) for number in range(3)]
    clients = [Client(topic) for topic in topics]
    for number, (topic, client) in enumerate(zip(topics, clients, strict=True)):
        client.request(10)
        # At once: not even the ids of the first messages wait for a disk.
        assert topic.offer(Bodies([b"%d" % number] * 2)) is CONFIRMED
        assert topic.offer(Bodies([b"again"]), origins=[(b"p", 1)]) is CONFIRMED
        assert topic.offer(Bodies([b"again"]), origins=[(b"p", 1)]) is CONFIRMED
    assert trio.testing.active_thread_count() == 0
    assert list(records()) == []
    for number, client in enumerate(clients):
        assert (await client.read()).bodies == [b"%d" % number] * 2 + [b"again"]
        assert client.ids == [1, 2, 3]
    for topic in topics:
        await catalogue.delete(topic.topic.topic)
    assert [client.ends for client in clients] == [[EndReason.DELETED]] * 3


@pytest.mark.parametrize("has_run", [False, True])
async def test_a_deleted_ephemeral_topic_leaves_nothing_whether_its_task_has_run_or_not(
    shared_drivers: Drivers, has_run: bool
) -> None:
    owner, exclusive = Ownership(), QueueOptions(exclusive=True)
    await shared_drivers.catalogue.declare_queue(b"first", exclusive, owner)  # its id waits for the disk
    topic = await shared_drivers.catalogue.declare_queue(b"second", exclusive, owner)
    if has_run:
        await quiet()
    assert topic.offer(Bodies([b"x"])) is CONFIRMED
    owner.end()
    gone = weakref.ref(topic)
    del topic
    await quiet()
    assert shared_drivers.memory.statistics() == NOTHING
    gc.collect()
    assert gone() is None


async def test_ephemeral_topics_count_among_those_of_the_server(shared_store: Store) -> None:
    async with emptied(shared_store, max_topics=3) as drivers:
        catalogue = drivers.catalogue
        await catalogue.declare(b"t", Delivery.BROADCAST, Transient())
        for name in (b"p", b"q"):
            await catalogue.declare_queue(name, QueueOptions())
        with pytest.raises(Refused) as refused:
            await catalogue.declare_queue(b"r", QueueOptions())
        assert refused.value.reason is Reason.QUOTA
        with pytest.raises(Refused):
            await catalogue.declare(b"u", Delivery.BROADCAST, Transient())
        await catalogue.delete(b"p")
        await catalogue.declare(b"u", Delivery.BROADCAST, Transient())


async def test_topics_that_the_disk_is_still_writing_count_among_those_of_the_server(
    shared_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_many, may_go_on = StoreCatalogue.create_many, threading.Event()

    def create_later(*of_topics: Any, **options: Any) -> Any:
        may_go_on.wait(60)
        return create_many(*of_topics, **options)

    monkeypatch.setattr(StoreCatalogue, "create_many", create_later)
    async with emptied(shared_store, max_topics=7) as drivers:
        catalogue = drivers.catalogue
        await catalogue.declare_queue(b"first", QueueOptions())  # it reserves ids for the others
        refusals: list[Refused] = []

        async def declare(name: bytes) -> None:
            try:
                await catalogue.declare_queue(name, QueueOptions())
            except Refused as refused:
                refusals.append(refused)

        async with trio.open_nursery() as nursery:
            names = [b"t%d" % number for number in range(4)]
            nursery.start_soon(catalogue.make, names, Delivery.BROADCAST, Transient(), None)
            for number in range(3):
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(declare, b"q%d" % number)
            await trio.testing.wait_all_tasks_blocked()
            may_go_on.set()
        assert [refused.reason for refused in refusals] == [Reason.QUOTA]
        assert catalogue.topic_count == 7


@of_kinds(lambda kind: not kind.is_persistent)
async def test_a_deleted_topic_leaves_nothing(
    shared_drivers: Drivers, kind: Kind, autojump_clock: trio.testing.MockClock
) -> None:
    catalogue = shared_drivers.catalogue
    topic = await shared_drivers.topic(kind)
    client = Client(topic)
    while not isinstance(offered := topic.offer(Bodies([b"x" * 1_000_000])), PendingOffer):
        pass
    woken: list[bool] = []
    offered.call_when_free(lambda: woken.append(True))
    await catalogue.delete(b"t")
    with pytest.raises(Refused, match="there is no such topic"):
        await catalogue.delete(b"t")
    assert client.ends == [EndReason.DELETED]
    assert catalogue.current(topic) is None
    assert woken == [True]
    with pytest.raises(Refused) as refused:
        offered.again()
    assert refused.value.failure == DELETED
    with pytest.raises(Refused, match="the topic was deleted"):
        topic.offer(Bodies([b"late"]))
    await quiet()
    assert shared_drivers.memory.statistics() == NOTHING
    gone = weakref.ref(topic)
    del topic, client, offered, refused
    await trio.sleep(2 * STALL_SECONDS)  # until then it is looked at whether its fastest subscriber moves
    gc.collect()
    assert gone() is None  # its task has ended too


async def test_a_topic_that_could_not_be_created_does_not_count(
    shared_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*of_a_topic: object, **options: object) -> None:
        raise StoreFull(Limit.DISK, "There is no room on disk.")

    counted: list[None] = []

    def admit() -> Callable[[], None]:
        counted.append(None)
        return lambda: counted.clear()

    async with emptied(shared_store, max_topics=1) as drivers:
        with monkeypatch.context() as full:
            full.setattr(StoreCatalogue, "create", refuse)
            for each in (None, admit):
                with pytest.raises(Refused) as refused:
                    await drivers.catalogue.declare(b"t", Delivery.BROADCAST, Transient(), each)
                assert refused.value.reason is not Reason.QUOTA
        assert counted == []
        await drivers.catalogue.declare(b"t", Delivery.BROADCAST, Transient(), admit)
        assert len(counted) == 1


# -- owners ------------------------------------------------------------------------------------------------


async def test_topics_of_a_connection_end_with_it(shared_drivers: Drivers) -> None:
    catalogue, owner, other = shared_drivers.catalogue, Ownership(), Ownership()
    exclusive = QueueOptions(exclusive=True)
    owned = [await catalogue.declare_queue(b"%d" % number, exclusive, owner) for number in range(3)]
    kept = await catalogue.declare_queue(b"kept", exclusive, other)
    clients = [Client(topic) for topic in owned]
    for topic in (*owned, kept):
        topic.offer(Bodies([b"a"]))
    await catalogue.delete(b"1")
    owner.end()
    owner.end()
    assert [client.ends for client in clients] == [[EndReason.DELETED]] * 3
    assert [topic.deleted for topic in (*owned, kept)] == [True, True, True, False]
    with pytest.raises(Refused, match="has ended"):
        await catalogue.declare_queue(b"late", exclusive, owner)
    other.end()
    await quiet()
    assert kept.deleted


# -- until the last consumer has gone ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "cancel"])
async def test_an_ephemeral_topic_may_end_with_its_last_consumer(shared_drivers: Drivers, end: str) -> None:
    owner = Ownership()
    options = QueueOptions(exclusive=True, auto_delete=True)
    topic = await shared_drivers.catalogue.declare_queue(b"queue", options, owner)
    assert topic.offer(Bodies([b"nobody has come yet"])) is CONFIRMED
    first, second = Client(topic), Client(topic)
    for client in (first, second):
        client.channel.grant(10, CreditKind.WINDOW)
    topic.offer(Bodies([b"%d" % number for number in range(10)]))
    await first.read()
    assert first.got
    first.channel.cancel()
    assert not topic.deleted
    await second.read()
    assert second.got
    if end == "cancel":
        second.channel.cancel()
    else:
        second.close()
    assert topic.deleted
    assert first.channel.settle(range(1, 12), ACCEPTED) == 0
    for client in (first, second):
        client.close()
    await quiet()
    owner.end()


@of_kinds(lambda kind: kind.persistence == Transient())
async def test_a_finishing_channel_is_a_consumer(shared_drivers: Drivers, kind: Kind) -> None:
    topic = await shared_drivers.catalogue.declare(
        b"t", kind.delivery, kind.persistence, lifetime=UNTIL_UNUSED
    )
    client = Client(topic)
    client.request(10)
    topic.offer(Bodies([b"a", b"b"]))
    await quiet()
    client.channel.finish()
    assert not topic.deleted
    assert (await client.read()).bodies == [b"a", b"b"]
    client.close()
    await quiet()
    assert topic.deleted


@of_kinds()
async def test_a_topic_of_the_catalogue_may_end_with_its_last_consumer(
    shared_drivers: Drivers, kind: Kind
) -> None:
    catalogue = shared_drivers.catalogue
    driver = await catalogue.declare(b"t", kind.delivery, kind.persistence, lifetime=UNTIL_UNUSED)
    await post(driver, b"nobody has come yet")
    first, second = Client(driver), Client(driver)
    await post(driver, b"a")
    first.close()
    await quiet()
    second.close()
    again = Client(driver)  # it comes in time
    await quiet()
    assert catalogue.lookup(b"t") is driver
    again.close()
    await quiet()
    assert catalogue.lookup(b"t") is None
    assert list(shared_drivers.store.catalogue.topics()) == []


async def test_other_types_do_not_end_a_topic_with_its_last_consumer(shared_drivers: Drivers) -> None:
    catalogue = shared_drivers.catalogue
    driver = await catalogue.lookup_or_declare(b"t")
    driver.lifetime = UNTIL_UNUSED
    client = Client(driver)
    replaced = await catalogue.declare(b"t", Delivery.ROUND_ROBIN, WEAK)
    await quiet()
    assert catalogue.lookup(b"t") is replaced
    assert replaced is not driver
    client.close()
    await quiet()
    assert catalogue.lookup(b"t") is None


def test_a_held_topic_outlives_its_owner_until_it_is_released() -> None:
    deleted: list[int] = []
    owner = Ownership()
    for topic in range(4):
        owner.add(topic, lambda topic=topic: deleted.append(topic))  # type: ignore[misc]  # a lambda with a default has no type
    early, late, gone = (owner.hold(topic) for topic in range(3))
    early()
    assert deleted == []  # its owner is still there
    owner.discard(2)
    assert not owner.end()
    assert sorted(deleted) == [0, 3]
    late()
    assert sorted(deleted) == [0, 1, 3]
    gone()
    late()
    assert sorted(deleted) == [0, 1, 3]


def test_an_owner_that_ends_in_steps_leaves_out_what_is_held() -> None:
    deleted: list[int] = []
    owner = Ownership()
    for topic in range(6):
        owner.add(topic, lambda topic=topic: deleted.append(topic))  # type: ignore[misc]  # a lambda with a default has no type
    releases = [owner.hold(topic) for topic in (4, 5)]
    counts = []
    while owner.end(2):
        counts.append(len(deleted))
    assert counts == [2]
    assert sorted(deleted) == [0, 1, 2, 3]
    for release in releases:
        release()
    assert sorted(deleted) == [*range(6)]
