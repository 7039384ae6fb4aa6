"""Queues: their declarations, their options, and their owners."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from counted_steps import Steps, steps
from queue_cases import DURABLE, EITHER_OPTIONS, getter_of, worker
from served_drivers import ASYNC, WEAK, Client, Drivers, opened, post, quiet

from omq.drivers.confirmation import Confirmation
from omq.drivers.lifetime import Ownership, check_user
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueKind, QueueOptions, difference
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import EndReason
from omq.drivers.spooled_uploads import begin_upload
from omq.model import Delivery, Persistent, Sync, Transient
from omq_storage.batches import Bodies
from omq_storage.fragments import FRAGMENT_OCTETS


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
    assert list(catalogue.in_turn()) == [first, *queues, last, stored]
    # omq knows it as what it is.
    assert await catalogue.declare(b"first", Delivery.ROUND_ROBIN, Transient()) is first
    with pytest.raises(Refused, match="exists as Round_robin Transient"):
        await catalogue.declare(b"first", Delivery.ROUND_ROBIN, WEAK)
    for topic in list(catalogue):
        assert await catalogue.delete(topic.topic.topic) == topic.topic
    assert list(catalogue.in_turn()) == []


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
    drivers.catalogue.deletion.deleted = lambda driver: deleted.append(driver.topic.topic)
    queue = await declare(b"mine", exclusive, owner)
    assert await declare(b"mine", exclusive, owner) is queue
    check_user(queue.topic.topic, queue.lifetime, owner)
    for user in (other, None):
        with pytest.raises(Refused) as refused:
            check_user(queue.topic.topic, queue.lifetime, user)
        assert refused.value.reason is Reason.LOCKED
        with pytest.raises(Refused) as refused:
            await declare(b"mine", exclusive, user)
        assert refused.value.reason is Reason.LOCKED
    everybodys = await declare(b"ours", QueueOptions(), owner)
    check_user(everybodys.topic.topic, everybodys.lifetime, other)
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
    drivers.catalogue.deletion.delete_of(owner)
    assert drivers.catalogue.topic_count > 900
    with pytest.raises(Refused, match="ended"):
        await drivers.catalogue.declare_queue(b"late", QueueOptions(exclusive=True), owner)
    await quiet()
    assert drivers.catalogue.topic_count == 0


@EITHER_OPTIONS
async def test_an_auto_delete_queue_ends_with_its_last_consumer(
    drivers: Drivers, options: QueueOptions
) -> None:
    declare, lookup = drivers.catalogue.declare_queue, drivers.catalogue.lookup
    deleted = trio.Event()
    drivers.catalogue.deletion.deleted = lambda driver: deleted.set()
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


@pytest.mark.parametrize(
    ("options", "is_uploaded"),
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
async def test_messages_of_plain_queues_are_uploaded(
    drivers: Drivers, options: dict[str, Any], is_uploaded: bool
) -> None:
    durable = await drivers.catalogue.declare_queue(b"durable", replace(DURABLE, **options))
    assert durable.uploads_from(300_000) == (300_000 if is_uploaded else None)
    ephemeral = await drivers.catalogue.declare_queue(b"ephemeral", QueueOptions(**options))
    assert ephemeral.uploads_from(1 << 30) == (1 << 30 if is_uploaded else None)


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


async def test_a_long_message_follows_those_on_their_way_to_the_disk(drivers: Drivers) -> None:
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    size = 5 << 20
    upload = await begin_upload(queue, size, 0)
    assert upload is not None
    await upload.add(bytes(size))
    spilled = [queue.spill(Bodies([b"%d" % number])) for number in range(3)]
    assert queue.spills_next
    await upload.post(b"", None)
    assert all(isinstance(each, Confirmation) and each.settled for each in spilled)
    for message in (1, 2, 3):
        block = await queue.peek(message)
        assert block is not None
        assert bytes(block.frame(message)).endswith(b"%d" % (message - 1))
    assert await queue.peek(4) is None, "it is too long"
    assert queue.next_id == 5
    upload.close()


async def test_a_long_message_is_kept_if_its_post_is_cancelled_as_it_takes_its_turn(drivers: Drivers) -> None:
    """It is either in the queue or not, and its body is given back once."""
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    size = (5 << 20) // FRAGMENT_OCTETS * FRAGMENT_OCTETS  # so all of it is written before the post
    upload = await begin_upload(queue, size, 0)
    assert upload is not None
    await upload.add(bytes(size))
    spilled = queue.spill(Bodies([b"before"]))
    assert isinstance(spilled, Confirmation)
    assert queue.spills_next
    with trio.CancelScope() as scope:
        spilled.listen(scope.cancel)  # before its turn comes in the same step
        await upload.post(b"", None)
    assert scope.cancelled_caught
    upload.close()
    client = await worker(queue).read()
    assert client.bodies == [b"before", bytes(size)]
    client.settle(1, 2)
    client.close()
    assert drivers.catalogue.spool.statistics().used == 0


async def test_what_moves_on_the_spool_does_not_wake_those_that_wait_for_room(drivers: Drivers) -> None:
    """There may be thousands: only the one that gets the room is woken."""
    queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
    spool = drivers.catalogue.spool
    upload = await begin_upload(queue, spool.limit, 0)
    assert upload is not None
    counted: list[Steps] = []

    async def wait() -> None:
        async with steps() as own:
            counted.append(own)
            waiting = await begin_upload(queue, spool.limit, 0, may_wait=True)
        assert waiting is not None
        waiting.close()

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait)
        await quiet()
        assert spool.room.waiting == 2
        begun = [each.count for each in counted]
        for _ in range(4):
            await upload.add(bytes(1 << 20))
        assert spool.statistics().used > 0
        assert [each.count for each in counted] == begun
        upload.close()
    assert spool.statistics().used == 0
