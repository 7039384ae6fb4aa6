"""Queues: how they are declared, whose they are, and messages on demand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from served_drivers import ASYNC, WEAK, Client, Drivers, Listener, messages_of, opened, post, quiet

from omq.drivers.confirmation import Confirmation
from omq.drivers.lifetime import Ownership, check_user
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueKind, QueueOptions, difference
from omq.drivers.reasons import Reason, Refused
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED, RELEASED, CreditKind, EndReason, Messages, Modified
from omq.drivers.shared_window import SharedWindow
from omq.model import Delivery, FromCurrent, Persistent, Sync, Transient
from omq_storage.batches import Bodies

DURABLE = QueueOptions(durable=True, sync=Sync.WEAK)
EITHER = pytest.mark.parametrize("options", [QueueOptions(), DURABLE], ids=["ephemeral", "durable"])


async def got(driver: QueueDriver, getter: RoundRobinChannel) -> tuple[bytes, int, int] | None:
    """Return what basic.get answers: the body, how often it was delivered before, and how many are left."""
    if not await driver.deal_one(getter):
        return None
    left = driver.ready
    taken = await getter.take()
    assert isinstance(taken, Messages)
    [message] = messages_of(taken, driver.topic.id)
    getter.written(1)
    return message.body, message.deliveries, left


def getter_of(driver: QueueDriver) -> RoundRobinChannel:
    getter = driver.open_getter(Listener())
    getter.grant(1000, CreditKind.WINDOW)
    return getter


# -- declaring ---------------------------------------------------------------------------------------------


async def test_an_ephemeral_queue_is_found_by_its_name_and_costs_no_write(drivers: Drivers) -> None:
    catalogue = drivers.catalogue
    first = await catalogue.declare_queue(b"first", QueueOptions())
    before = (drivers.store.catalogue.topics(), drivers.store.catalogue.next_id)
    queues = [await catalogue.declare_queue(b"q%d" % number, QueueOptions()) for number in range(20)]
    assert (drivers.store.catalogue.topics(), drivers.store.catalogue.next_id) == before
    assert [catalogue.lookup(queue.topic.topic) for queue in queues] == queues
    assert [queue.topic.id for queue in queues] == list(range(first.topic.id + 1, first.topic.id + 21))
    # A later topic with a record has a higher id, and every list is in the order of the ids.
    stored = await catalogue.declare(b"stored", Delivery.BROADCAST, Transient())
    last = await catalogue.declare_queue(b"last", QueueOptions())
    assert last.topic.id < stored.topic.id < 1 << 31
    assert catalogue.drivers() == [first, *queues, last, stored]
    # omq knows it as what it is.
    assert await catalogue.declare(b"first", Delivery.ROUND_ROBIN, Transient()) is first
    with pytest.raises(Refused, match="exists as Round_robin Transient"):
        await catalogue.declare(b"first", Delivery.ROUND_ROBIN, WEAK)
    for topic in list(catalogue):
        assert await catalogue.delete(topic.topic.topic) == topic.topic
    assert catalogue.drivers() == []


async def test_queues_without_a_record_are_gone_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        gone = await drivers.catalogue.declare_queue(b"gone", QueueOptions())
        kept = await drivers.catalogue.declare_queue(b"kept", DURABLE)
        await post(gone, b"a")
        await post(kept, b"b")
    async with opened(tmp_path / "store") as drivers:
        assert drivers.catalogue.lookup(b"gone") is None
        again = await drivers.catalogue.declare_queue(b"kept", DURABLE)
        assert again.ready == 1
        assert (await drivers.catalogue.declare_queue(b"new", QueueOptions())).topic.id > gone.topic.id


async def test_the_types_of_queues(drivers: Drivers) -> None:
    declare = drivers.catalogue.declare_queue
    for sync in Sync:
        queue = await declare(sync.value.encode(), QueueOptions(durable=True, sync=sync))
        assert (
            queue.persistence == (await declare(sync.value.encode(), QueueOptions(durable=True))).persistence
        )
        assert str(sync.value) in str(queue.persistence)
    default = await declare(b"default", QueueOptions(durable=True))
    assert default.info().persistence == Persistent(Sync.STRONG)
    assert (await declare(b"transient", QueueOptions())).info().persistence == Transient()
    with pytest.raises(ValueError, match="cannot be durable"):
        QueueOptions(durable=True, exclusive=True)


async def test_a_queue_exists_with_other_options(drivers: Drivers) -> None:
    declare = drivers.catalogue.declare_queue
    options = QueueOptions(ttl_ms=5000, dead_letter_exchange=b"dead")
    queue = await declare(b"q", options)
    assert await declare(b"q", options) is queue
    for wanted, text in [
        (QueueOptions(durable=True), "'durable' for queue 'q': received 'true' but current is 'false'"),
        (QueueOptions(ttl_ms=7), "'x-message-ttl' for queue 'q': received 7 but current is 5000"),
        (
            QueueOptions(ttl_ms=5000),
            "'x-dead-letter-exchange' for queue 'q': received none but current is 'dead'",
        ),
        (
            QueueOptions(kind=QueueKind.QUORUM),
            "'x-queue-type' for queue 'q': received 'quorum' but current is 'classic'",
        ),
    ]:
        with pytest.raises(Refused) as refused:
            await declare(b"q", wanted)
        assert (refused.value.reason, str(refused.value)) == (Reason.DIFFERS, f"inequivalent arg {text}")
    await drivers.declare(ASYNC, name=b"broadcast")
    with pytest.raises(Refused, match="no queue"):
        await declare(b"broadcast", DURABLE)
    # A topic that omq declared is a queue, too.
    made = await drivers.declare(WEAK, Delivery.ROUND_ROBIN, b"made")
    assert await declare(b"made", QueueOptions(durable=True)) is made
    with pytest.raises(Refused, match="'durable'"):
        await declare(b"made", QueueOptions())
    with pytest.raises(Refused, match="'x-max-length'"):
        await declare(b"made", QueueOptions(durable=True, max_length=1))


def test_options_are_stored_as_octets() -> None:
    options = QueueOptions(durable=True, sync=Sync.ASYNC, dead_letter_key=b"\xff", max_priority=9)
    assert QueueOptions.decode(options.encode()) == options
    assert difference(b"q", options, options) is None
    with pytest.raises(msgspec.DecodeError):
        QueueOptions.decode(b"\x01")


async def test_an_exclusive_queue_belongs_to_its_owner(drivers: Drivers) -> None:
    declare, owner, other = drivers.catalogue.declare_queue, Ownership(), Ownership()
    exclusive = QueueOptions(exclusive=True)
    deleted: list[bytes] = []
    drivers.catalogue.deleted = lambda driver: deleted.append(driver.topic.topic)
    queue = await declare(b"mine", exclusive, owner)
    assert await declare(b"mine", exclusive, owner) is queue
    check_user(queue.lifetime, owner)
    for user in (other, None):
        with pytest.raises(Refused) as refused:
            check_user(queue.lifetime, user)
        assert refused.value.reason is Reason.LOCKED
        with pytest.raises(Refused) as refused:
            await declare(b"mine", exclusive, user)
        assert refused.value.reason is Reason.LOCKED
    everybodys = await declare(b"ours", QueueOptions(), owner)
    check_user(everybodys.lifetime, other)
    with pytest.raises(Refused) as refused:
        await declare(b"ours", exclusive, owner)
    assert refused.value.reason is Reason.LOCKED
    client = Client(queue)
    await post(queue, b"a")
    owner.end()
    assert client.ends == [EndReason.DELETED]
    assert drivers.catalogue.lookup(b"mine") is None
    assert drivers.catalogue.lookup(b"ours") is everybodys
    with pytest.raises(Refused, match="ended"):
        await declare(b"late", exclusive, owner)
    await drivers.catalogue.delete(b"ours")
    assert deleted == [b"mine", b"ours"]


async def test_thousands_of_queues_end_in_steps(drivers: Drivers) -> None:
    owner = Ownership()
    for number in range(1000):
        await drivers.catalogue.declare_queue(b"%d" % number, QueueOptions(exclusive=True), owner)
    drivers.catalogue.end(owner)
    assert drivers.catalogue.topic_count > 900
    with pytest.raises(Refused, match="ended"):
        await drivers.catalogue.declare_queue(b"late", QueueOptions(exclusive=True), owner)
    await quiet()
    assert drivers.catalogue.topic_count == 0


@EITHER
async def test_an_auto_delete_queue_ends_with_its_last_consumer(
    drivers: Drivers, options: QueueOptions
) -> None:
    declare, lookup = drivers.catalogue.declare_queue, drivers.catalogue.lookup
    deleted = trio.Event()
    drivers.catalogue.deleted = lambda driver: deleted.set()
    queue = await declare(b"q", QueueOptions(options.durable, sync=options.sync, auto_delete=True))
    getter = getter_of(queue)
    getter.close()  # no consumer: its end is none
    await quiet()
    assert lookup(b"q") is queue
    one, two = Client(queue), Client(queue)
    one.close()
    await quiet()
    assert lookup(b"q") is queue
    two.channel.cancel()
    with trio.fail_after(60):
        await deleted.wait()
    assert lookup(b"q") is None
    two.close()


# -- messages on demand ------------------------------------------------------------------------------------


@EITHER
async def test_a_getter_gets_the_oldest_message_also_a_returned_one(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    getter = getter_of(queue)
    assert queue.subscriber_count() == 0
    assert await got(queue, getter) is None
    await post(queue, *(b"%d" % number for number in range(5)))
    assert [await got(queue, getter) for _ in range(3)] == [(b"0", 0, 4), (b"1", 0, 3), (b"2", 0, 2)]
    assert queue.info().messages == 5
    # Back to its place, and marked as delivered before.
    assert getter.settle(range(2, 3), Modified(delivery_failed=True)) == 1
    assert queue.ready == 3
    assert await got(queue, getter) == (b"1", 1, 2)
    assert await got(queue, getter) == (b"3", 0, 1)
    assert getter.settle(range(1, 5), ACCEPTED) == 4
    assert await got(queue, getter) == (b"4", 0, 0)
    getter.close()
    assert queue.ready == 1
    client = await Client(queue).read()
    assert [(message.body, message.deliveries) for message in client.got] == [(b"4", 1)]
    client.close()


@EITHER
async def test_a_getter_and_consumers_share_the_messages(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    client, getter = Client(queue), getter_of(queue)
    client.request(2)
    await post(queue, b"0", b"1", b"2", b"3")
    assert (await client.read()).bodies == [b"0", b"1"]
    assert queue.ready == 2
    assert await got(queue, getter) == (b"2", 0, 1)
    client.settle(1)
    assert (await client.read()).bodies == [b"0", b"1", b"3"]
    assert await got(queue, getter) is None
    client.close()
    getter.close()
    assert queue.ready == 3


async def test_a_getter_takes_messages_no_consumer_may_have(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    client, getter = Client(queue), getter_of(queue)
    client.request(1)
    await post(queue, b"a")
    await client.read()
    client.settle(1, outcome=Modified(undeliverable_here=True))
    await quiet()
    assert queue.ready == 1
    assert await got(queue, getter) == (b"a", 0, 0)
    getter.settle(range(1, 2), RELEASED)
    getter.close()
    client.close()
    await quiet()
    assert queue.ready == 1


@EITHER
async def test_a_purge_takes_ready_messages_only(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    getter = getter_of(queue)
    await post(queue, *(b"%d" % number for number in range(5)))
    assert await got(queue, getter) == (b"0", 0, 4)
    assert await got(queue, getter) == (b"1", 0, 3)
    getter.settle(range(1, 2), RELEASED)
    assert queue.purge() == 4
    assert (queue.ready, queue.purge()) == (0, 0)
    assert queue.info().messages == 1
    assert await got(queue, getter) is None
    getter.settle(range(2, 3), Modified(delivery_failed=True))
    assert await got(queue, getter) == (b"1", 1, 0)
    await post(queue, b"new")
    assert await got(queue, getter) == (b"new", 0, 0)
    getter.close()


async def test_the_count_of_ready_messages_survives_a_kill(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
        await post(queue, *(b"%d" % number for number in range(10)))
        getter = getter_of(queue)
        for _ in range(4):
            await got(queue, getter)
        getter.settle(range(1, 3), ACCEPTED)
        await drivers.save_positions()
        assert queue.ready == 6
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
        assert queue.ready == 8
        getter = getter_of(queue)
        assert [await got(queue, getter) for _ in range(3)] == [(b"2", 1, 7), (b"3", 1, 6), (b"4", 0, 5)]
        getter.close()


async def test_large_messages_are_got_piece_by_piece(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", DURABLE)
    large = b"x" * (3 << 20)
    await post(queue, b"first")
    await post(queue, large)
    client = Client(queue)
    client.channel.hold()
    getter = queue.open_getter(client)
    getter.grant(10, CreditKind.WINDOW)
    assert await queue.deal_one(getter)
    assert await queue.deal_one(getter)
    client.channel, kept = getter, client.channel
    await client.read()
    assert client.bodies == [b"first", large]
    getter.close()
    kept.close()
    assert queue.ready == 2


async def test_an_ephemeral_queue_never_waits_for_ids(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    offered = queue.offer(Bodies([b"a"] * 3))
    assert isinstance(offered, Confirmation)
    assert offered.settled
    assert queue.purge() == 3


async def test_a_post_is_dealt_at_once(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    channel = queue.open(Listener(), FromCurrent())
    queue.offer(Bodies([b"a"] * 3))
    assert channel.ready()  # without a step of any other task
    channel.close()


# -- consumers ---------------------------------------------------------------------------------------------


def consumer(queue: QueueDriver, window: int, priority: int = 0) -> Client:
    client = Client(queue, priority=priority)
    client.request(window)
    return client


async def read(*clients: Client) -> list[list[bytes]]:
    """Return what each client has got."""
    for client in clients:
        await client.read()
    return [client.bodies for client in clients]


@EITHER
async def test_consumers_with_a_higher_priority_come_first(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    low, high, also = consumer(queue, 9), consumer(queue, 2, 5), consumer(queue, 2, 5)
    await post(queue, *(b"%d" % number for number in range(7)))
    assert await read(low, high, also) == [[b"4", b"5", b"6"], [b"0", b"2"], [b"1", b"3"]]
    high.settle(1)
    await post(queue, b"7", b"8")
    assert await read(low, high, also) == [[b"4", b"5", b"6", b"8"], [b"0", b"2", b"7"], [b"1", b"3"]]
    # Messages that come back go by priority, too.
    also.settle(2)
    low.settle(5, outcome=Modified(delivery_failed=True))
    assert await read(low, also) == [[b"4", b"5", b"6", b"8"], [b"1", b"3", b"4"]]
    high.close()
    also.close()
    assert (await read(low))[0][4:] == [b"2", b"3", b"4", b"7"]
    low.close()


@EITHER
async def test_a_single_active_consumer_has_the_queue_until_it_has_gone(
    drivers: Drivers, options: QueueOptions
) -> None:
    options = replace(options, single_active=True)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    first, second, third = consumer(queue, 2), consumer(queue, 9), consumer(queue, 9, 1)
    await post(queue, *(b"%d" % number for number in range(4)))
    assert await read(first, second, third) == [[b"0", b"1"], [], []]
    first.settle(1)
    assert await read(first, second, third) == [[b"0", b"1", b"2"], [], []]
    # Cancelled, it keeps what it has, and the next one continues: the highest priority, then the oldest.
    first.channel.cancel()
    assert await read(first, second, third) == [[b"0", b"1", b"2"], [], [b"3"]]
    first.close()
    assert await read(second, third) == [[], [b"3", b"1", b"2"]]
    third.close()
    assert [len(bodies) for bodies in await read(second)] == [3]
    second.close()


@EITHER
async def test_a_drain_ends_for_those_that_are_not_active(drivers: Drivers, options: QueueOptions) -> None:
    options = replace(options, single_active=True)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    active, idle = consumer(queue, 1), consumer(queue, 9)
    await post(queue, b"a", b"b")
    assert await read(active, idle) == [[b"a"], []]
    drained: list[str] = []
    idle.channel.drain(lambda _: drained.append("idle"))
    assert drained == ["idle"]
    active.channel.grant(9, CreditKind.COUNT)
    active.settle(1)
    active.channel.drain(lambda _: drained.append("active"))
    assert drained == ["idle"]
    assert await read(active, idle) == [[b"a", b"b"], []]
    assert drained == ["idle", "active"]
    active.close()
    idle.close()


@EITHER
async def test_consumers_share_a_window(drivers: Drivers, options: QueueOptions) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    other = await drivers.catalogue.declare_queue(b"other", options)
    window = SharedWindow(3)
    clients = [consumer(queue, 100), consumer(queue, 100), consumer(other, 100)]
    for client in clients:
        assert isinstance(client.channel, RoundRobinChannel)
        client.channel.share(window)
    await post(queue, *(b"%d" % number for number in range(10)))
    await post(other, b"a", b"b")
    one, two, three = await read(*clients)
    assert (one, two, three) == ([b"0", b"2"], [b"1"], [])
    window.set(4)
    assert sum(map(len, await read(*clients))) == 4
    clients[1].settle(2)
    assert sum(map(len, await read(*clients))) == 5
    clients[0].close()
    assert sum(map(len, (await read(*clients))[1:])) == 1 + 4
    assert isinstance(clients[1].channel, RoundRobinChannel)
    clients[1].channel.share(None)
    await clients[1].read()
    assert queue.ready == 0
    for client in clients[1:]:
        client.close()


@EITHER
async def test_consumers_that_share_no_window_any_more_take_turns(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", options)
    window = SharedWindow(3)
    clients = [consumer(queue, 100), consumer(queue, 100)]
    for shared in (window, None):
        for client in clients:
            assert isinstance(client.channel, RoundRobinChannel)
            client.channel.share(shared)
    await post(queue, *(b"%d" % number for number in range(6)))
    assert await read(*clients) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("options", "takes_fragments"),
    [
        ({}, True),
        ({"max_length": 9}, False),
        ({"max_octets": 9}, False),
        ({"max_length": 9, "max_octets": 9}, False),
        ({"max_priority": 2}, False),
        ({"dead_letter_exchange": b"dead"}, False),
        ({"expires_ms": 3_600_000}, True),
    ],
    ids=str,
)
async def test_plain_queues_take_fragments(
    drivers: Drivers, options: dict[str, Any], takes_fragments: bool
) -> None:
    durable = await drivers.catalogue.declare_queue(b"durable", replace(DURABLE, **options))
    assert durable.takes_fragments is takes_fragments
    ephemeral = await drivers.catalogue.declare_queue(b"ephemeral", QueueOptions(**options))
    assert not ephemeral.takes_fragments


async def test_a_queue_replaces_only_an_empty_undeclared_topic(drivers: Drivers) -> None:
    catalogue = drivers.catalogue
    for name in (b"empty", b"used"):
        await catalogue.lookup_or_declare(name)
    await post(await catalogue.lookup_or_declare(b"used"), b"x")
    await catalogue.declare(b"declared", Delivery.BROADCAST, WEAK)
    await catalogue.declare_changeable(b"empty", WEAK, DURABLE, ())
    assert isinstance(catalogue.lookup(b"empty"), QueueDriver)
    for name in (b"used", b"declared"):
        with pytest.raises(Refused) as refused:
            await catalogue.declare_changeable(name, WEAK, DURABLE, ())
        assert refused.value.reason is Reason.DIFFERS


@EITHER
async def test_the_age_of_the_oldest_message_that_is_not_acknowledged(
    drivers: Drivers, options: QueueOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts from when the message was assigned, and not from when it came."""
    now = 100.0
    monkeypatch.setattr("omq.drivers.queue.monotonic", lambda: now)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    await post(queue, b"first", b"second")
    client = Client(queue)
    ages = []
    for window in (1, 2):
        now += 10
        client.request(window)
        await client.read()
        ages.append((client.ids, queue.oldest_ms()))
    assert ages == [([1], 0), ([1, 2], 10_000)]
    now = 125.0
    client.settle(1)
    assert queue.oldest_ms() == 5_000
    client.channel.cancel()
    assert queue.oldest_ms() == 5_000
    client.settle(2)
    assert queue.oldest_ms() is None
    client.close()
