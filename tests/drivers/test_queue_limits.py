"""Queues with a limit: of time, of length, of disuse."""

import gc
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import pytest
import trio
import trio.testing
from counted_steps import steps
from served_drivers import Client, Drivers, Listener, opened, post, quiet, settled

from omq.drivers.confirmation import Confirmation
from omq.drivers.holdings import RELEASED_BLOCKS
from omq.drivers.limited import MEASURED_BLOCKS, MOST_DROPPED, Measured
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.drivers.seam import ACCEPTED, CreditKind, Modified
from omq.drivers.settling import SETTLED_RANGES
from omq.drivers.sizes import Sizes
from omq.model import FromCurrent, Sync
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq_storage.batches import Bodies
from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.errors import StoreError
from omq_storage.lookup import VerifiedBlock
from omq_storage.records import BlockRecord

EITHER = pytest.mark.parametrize("durable", [False, True], ids=["ephemeral", "durable"])
FAILED = Modified(delivery_failed=True)
START = 1_800_000_000


@pytest.fixture
async def drivers(shared_drivers: Drivers) -> AsyncIterator[Drivers]:
    """Yield drivers whose topics are deleted at the end, so that they must hold nothing."""
    yield shared_drivers
    for topic in list(shared_drivers.catalogue):
        await shared_drivers.catalogue.delete(topic.topic.topic)


@pytest.fixture
def clock(mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> trio.testing.MockClock:
    """Return Trio's clock, which the system's clock follows."""
    monkeypatch.setattr(
        "time.time_ns", lambda: START * 1_000_000_000 + round(mock_clock.current_time() * 1e9)
    )
    return mock_clock


async def passed(clock: trio.testing.MockClock, seconds: float) -> None:
    """Let this time pass, and wait until what happens then has happened."""
    await quiet()
    clock.jump(seconds)
    await quiet()


async def queue_of(
    drivers: Drivers, name: bytes = b"q", *, durable: bool = False, **options: Any
) -> QueueDriver:
    sync = Sync.WEAK if durable else None
    return await drivers.catalogue.declare_queue(
        name,
        QueueOptions(durable=durable, sync=sync, **options),
    )


def expiring(milliseconds: int | bytes) -> bytes:
    """Return the head of a message with this expiration."""
    text = milliseconds if isinstance(milliseconds, bytes) else b"%d" % milliseconds
    return heads.encode(Head(b"", b"q", Properties(expiration=text)))


def worker(queue: QueueDriver, window: int = 100) -> Client:
    client = Client(queue)
    client.request(window)
    return client


async def rest(queue: QueueDriver) -> list[bytes]:
    """Return the bodies of the messages that are ready, in order."""
    client = await worker(queue, 10_000).read()
    client.close()
    return client.bodies


# -- time to live ------------------------------------------------------------------------------------------


@EITHER
async def test_messages_expire_in_the_queue(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000)
    await post(queue, b"a", b"b")
    await passed(clock, 0.6)
    await post(queue, b"c")
    assert queue.ready == 3
    await passed(clock, 0.5)
    assert queue.ready == 1
    assert queue.info().messages == 1
    await passed(clock, 0.4)
    assert queue.ready == 1
    await passed(clock, 0.2)
    assert (queue.ready, queue.info().messages) == (0, 0)
    await post(queue, b"d")
    assert await rest(queue) == [b"d"]
    await passed(clock, 1.1)
    assert queue.ready == 0


@EITHER
async def test_an_unacknowledged_message_expires_when_it_comes_back(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000)
    client = worker(queue, 2)
    await post(queue, b"a", b"b", b"c")
    assert (await client.read()).bodies == [b"a", b"b"]
    await passed(clock, 0.5)
    client.settle(1, outcome=FAILED)
    assert (await client.read()).bodies == [b"a", b"b", b"a"]
    await passed(clock, 0.6)
    assert queue.ready == 0
    client.settle(1, 2, outcome=FAILED)
    await client.read()
    assert client.bodies == [b"a", b"b", b"a"]
    assert queue.info().messages == 0
    client.close()


@EITHER
async def test_a_message_expires_by_its_own_property(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    await post(queue, b"plain", b"short", b"long", heads=[b"", expiring(100), expiring(5000)])
    await passed(clock, 1)
    # Only at the head: nobody would get it anyway, as long as the one before it waits.
    assert queue.ready == 3
    getter = queue.open_getter(Listener())
    assert await queue.deal_one(getter)
    await passed(clock, 0.1)
    assert queue.ready == 1
    assert await rest(queue) == [b"long"]
    await passed(clock, 5)
    assert queue.ready == 0
    getter.close()
    assert queue.ready == 1
    assert await rest(queue) == [b"plain"]


@EITHER
async def test_expired_messages_between_others_are_not_dealt(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=60_000)
    numbers = range(300)
    await post(
        queue,
        *(b"%d" % number for number in numbers),
        heads=[expiring(100) if number % 3 else b"" for number in numbers],
    )
    await passed(clock, 1)
    assert queue.ready == 300
    client = Client(queue)
    client.request(10)
    expected = [b"%d" % number for number in numbers[::3]]
    assert (await client.read()).bodies == expected[:10]
    client.request(1000)
    assert (await client.read()).bodies == expected
    assert queue.info().messages == 100
    client.close()
    assert queue.purge() == 100


@EITHER
async def test_messages_that_no_consumer_may_have_expire(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable, ttl_ms=1000, max_octets=100)
    selective = worker(queue)
    await post(queue, b"a", b"b")
    await passed(clock, 0.5)
    await post(queue, b"c", b"d")
    await selective.read()
    selective.settle(1, 2, 3, outcome=Modified(undeliverable_here=True))
    await quiet()
    assert queue.ready == 3
    await passed(clock, 0.6)
    assert (queue.ready, queue.info().messages) == (1, 2)
    other = worker(queue, 1)
    assert (await other.read()).bodies == [b"c"]
    other.settle(3, outcome=Modified(undeliverable_here=True))
    await passed(clock, 0.5)
    assert (queue.ready, queue.info().messages) == (0, 1)
    selective.settle(4)
    await post(queue, b"e" * 100)
    await selective.read()
    assert [*selective.bodies, *(await other.read()).bodies].count(b"e" * 100) == 1
    selective.close()
    other.close()


async def test_a_purge_forgets_messages_set_aside(drivers: Drivers) -> None:
    queue = await queue_of(drivers)
    not_here = Modified(undeliverable_here=True)
    first = worker(queue, 1)
    for message in (1, 2):
        await post(queue, b"purged")
        await first.read()
        first.settle(message, outcome=not_here)
        await quiet()
    assert queue.ready == 2
    assert queue.purge() == 2
    await post(queue, b"kept")
    assert (await first.read()).bodies[-1] == b"kept"
    second = worker(queue, 1)
    await post(queue, b"undeliverable to the second")
    await second.read()
    second.settle(4, outcome=not_here)
    await quiet()
    assert queue.ready == 1
    first.settle(3)
    await quiet()
    assert queue.ready == 0
    assert (await first.read()).bodies[-1] == b"undeliverable to the second"
    first.close()
    second.close()


async def test_an_expiration_of_zero(drivers: Drivers, clock: trio.testing.MockClock) -> None:
    """Delivered at once or never."""
    queue = await queue_of(drivers)
    await post(queue, b"never", heads=[expiring(0)])
    await quiet()
    assert queue.ready == 0
    client = worker(queue)
    await post(queue, b"once", b"no number", heads=[expiring(0), expiring(b"soon")])
    assert (await client.read()).bodies == [b"once", b"no number"]
    client.close()
    await quiet()
    assert queue.ready == 1


async def test_stored_messages_expire_after_a_restart(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        await post(queue, b"a", b"b", heads=[expiring(1000), expiring(9000)])
    clock.jump(2)
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        assert await rest(queue) == [b"b"]
        await passed(clock, 8)
        assert queue.ready == 0


async def test_a_message_behind_lost_ones_expires(tmp_path: Path, clock: trio.testing.MockClock) -> None:
    path = tmp_path / "store"
    async with opened(path, killed=True) as drivers:
        queue = await queue_of(drivers, durable=True, ttl_ms=60_000)
        await post(queue, b"a")
        await trio.to_thread.run_sync(queue.environment.checkpoint)
        await post(queue, b"lost")
    async with opened(path, boot_id="second") as drivers:
        queue = await queue_of(drivers, durable=True, ttl_ms=60_000)
        clock.jump(30)
        await post(queue, b"b")
        await passed(clock, 31)
        assert queue.ready == 1
        await passed(clock, 30)
        assert queue.ready == 0


# -- length ------------------------------------------------------------------------------------------------


@EITHER
async def test_the_oldest_messages_make_room(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_length=2)
    await post(queue, *(b"%d" % number for number in range(5)))
    assert (queue.ready, queue.info().messages) == (2, 2)
    await post(queue, b"5")
    assert await rest(queue) == [b"4", b"5"]
    # What consumers have does not count, until it comes back.
    client = worker(queue, 2)
    await client.read()
    await post(queue, b"6", b"7", b"8")
    assert queue.ready == 2
    client.close()
    await quiet()
    assert await rest(queue) == [b"7", b"8"]


@EITHER
async def test_the_length_in_octets(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=10)
    for body in (b"1234", b"5678", b"9"):
        await post(queue, body)
    assert queue.ready == 3
    await post(queue, b"ab")
    assert await rest(queue) == [b"5678", b"9", b"ab"]
    client = worker(queue, 1)
    assert (await client.read()).bodies == [b"5678"]
    await post(queue, b"cdefg")
    assert queue.ready == 3
    client.settle(4 - 2, outcome=FAILED)
    client.close()
    await quiet()
    assert await rest(queue) == [b"9", b"ab", b"cdefg"]
    assert queue.purge() == 3
    await post(queue, b"0123456789")
    assert await rest(queue) == [b"0123456789"]
    await post(queue, b"0123456789x")
    assert queue.ready == 0


async def small_posts(queue: QueueDriver, count: int) -> None:
    """Post N (`count`) messages, each of which is a block."""
    for _ in range(count):
        assert await settled(await queue.post(Bodies([b"x"]))) is None


@pytest.mark.parametrize("how", ["purge", "length", "octets", "settle", "release"])
async def test_many_messages_leave_memory_in_portions(drivers: Drivers, how: str) -> None:
    """To free a hundred thousand of them at once would take a tenth of a second."""
    queue = await queue_of(drivers)
    count = 3 * RELEASED_BLOCKS
    await small_posts(queue, count)
    used, ids = drivers.memory.waiting.used, range(1, count + 1)
    client = worker(queue, count)
    if how in ("settle", "release"):
        await client.read()
    else:
        client.close()
        await quiet()
    match how:
        case "purge":
            assert queue.purge() == count
        case "length":
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_length=1))
        case "octets":
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=5))
        case "settle":
            assert client.channel.settle(ids, ACCEPTED) == count
        case "release":
            client.close()
            assert queue.ready == count
            assert queue.purge() == count
        case _:
            raise AssertionError(how)
    left = {"length": 1, "octets": 5}.get(how, 0)
    assert (queue.ready, queue.info().messages) == (left, left)
    freed = used - drivers.memory.waiting.used
    assert 0 < freed <= used // 2
    await post(queue, b"later")
    assert drivers.memory.waiting.used < 120
    client.close()
    assert await rest(queue) == [b"later"]


@pytest.mark.parametrize("how", ["purge", "settle"])
async def test_done_messages_do_not_count_before_they_are_freed(drivers: Drivers, how: str) -> None:
    queue = await queue_of(drivers)
    count = 200 * SETTLED_RANGES
    client = worker(queue, count)
    await post(queue, *[b"x"] * count)
    await client.read()
    for message in range(1, count + 1, 2):
        client.settle(message)
    match how:
        case "purge":
            client.close()
            assert queue.purge() == count // 2
        case "settle":
            assert client.channel.settle(range(1, count + 1), ACCEPTED) == count // 2
        case _:
            raise AssertionError(how)
    assert queue.info().messages == 0
    await post(queue, b"later")
    await quiet()
    assert queue.info().messages == 1
    client.close()
    assert await rest(queue) == [b"later"]


@EITHER
async def test_a_long_queue_is_measured_in_steps(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable)
    count = 3 * MEASURED_BLOCKS
    await small_posts(queue, 10)
    client = worker(queue, 5)
    await client.read()
    await small_posts(queue, count - 10)
    options = queue.options
    async with steps() as few:
        await drivers.catalogue.changes.change_queue(b"q", replace(options, max_length=1_000_000))

    async def publish() -> None:
        for _ in range(3):
            await post(queue, b"12", b"3456")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish)
        async with steps() as many:
            await drivers.catalogue.changes.change_queue(b"q", replace(options, max_octets=1_000_000))
        assert many.count >= few.count + 3
    octets = count - 5 + 3 * 6
    assert queue.ready == count - 5 + 6
    await drivers.catalogue.changes.change_queue(b"q", replace(options, max_octets=octets))
    await quiet()
    assert queue.ready == count - 5 + 6
    await drivers.catalogue.changes.change_queue(b"q", replace(options, max_octets=octets - 1))
    await quiet()
    assert queue.ready == count - 5 + 5
    client.close()
    await quiet()
    assert queue.ready == count - 5 + 5


async def test_other_topics_are_made_while_a_long_queue_is_measured(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await queue_of(drivers, durable=True)
    await post(queue, b"x")
    lists, may_go_on = trio.Event(), threading.Event()

    def slow(self: Environment, *args: Any) -> list[BlockRecord]:
        trio.from_thread.run_sync(lists.set)
        assert may_go_on.wait(60)
        return blocks(self, *args)

    blocks = Environment.blocks
    monkeypatch.setattr(Environment, "blocks", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drivers.catalogue.changes.change_queue, b"q", QueueOptions(max_octets=1))
        await lists.wait()
        monkeypatch.setattr(Environment, "blocks", blocks)
        try:
            with trio.fail_after(60):
                await queue_of(drivers, b"other")
        finally:
            may_go_on.set()
    await post(queue, b"y")
    assert queue.ready == 1


async def test_a_queue_that_is_made_again_while_it_is_measured_is_measured_again(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await queue_of(drivers, durable=True)
    await post(queue, b"x", b"x", b"x")
    prepare, asked = QueueDriver.prepare, 0

    async def replaced(self: QueueDriver, *args: Any) -> Measured | None:
        nonlocal queue, asked
        asked += 1
        measured = await prepare(self, *args)
        if self is queue and asked == 1:
            await drivers.catalogue.delete(b"q")
            queue = await queue_of(drivers, durable=True)
            await post(queue, b"abc", b"de", b"f")
        return measured

    monkeypatch.setattr(QueueDriver, "prepare", replaced)
    await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=5))
    await quiet()
    assert asked == 2
    assert await rest(queue) == [b"de", b"f"]


def number_of_sizes() -> int:
    """Return for how many queues there are sizes."""
    gc.collect()
    return sum(isinstance(each, Sizes) for each in gc.get_objects())


async def test_a_refused_change_keeps_no_sizes(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await queue_of(drivers, durable=True)
    await post(queue, b"x")
    known = number_of_sizes()

    def fail(*_: object) -> NoReturn:
        raise StoreError("The disk is away.")

    with monkeypatch.context() as patch:
        patch.setattr(StoreCatalogue, "set_queue", fail)
        with pytest.raises(Refused):
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=1))
    assert number_of_sizes() == known
    await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=1))
    await post(queue, b"y")
    assert await rest(queue) == [b"y"]


@pytest.mark.parametrize("limit", [{"max_length": 10}, {"max_octets": 10}])
async def test_many_returned_messages_are_dropped_in_portions(
    drivers: Drivers, limit: dict[str, int]
) -> None:
    queue = await queue_of(drivers, **limit)
    count = 5 * MOST_DROPPED
    client = worker(queue, count)
    for _ in range(count // 10):
        await small_posts(queue, 10)
        await client.read()
    client.close()
    assert queue.ready == count - MOST_DROPPED
    await quiet()
    assert queue.ready == 10
    assert len(await rest(queue)) == 10


@EITHER
async def test_a_full_queue_refuses_posts(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_length=3, overflow=Overflow.REJECT_PUBLISH)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert isinstance(offered, Confirmation)
    # The two count before they are stored.
    part = queue.offer(Bodies([b"c", b"d"]))
    assert isinstance(part, Confirmation)
    with pytest.raises(Refused) as refused:
        queue.offer(Bodies([b"e"]))
    assert refused.value.reason is Reason.OVERFLOW
    assert await settled(offered) is None
    assert await settled(part) is not None
    assert [(count, failure and failure.reason) for count, failure in part.outcomes(2)] == [
        (1, None),
        (1, Reason.OVERFLOW),
    ]
    await quiet()
    assert queue.ready == 3
    client = worker(queue, 5)
    assert (await client.read()).bodies == [b"a", b"b", b"c"]
    # A consumer with room takes more than the queue may have.
    assert isinstance(queue.offer(Bodies([b"%d" % number for number in range(5)])), Confirmation)
    await quiet()
    await drivers.drain()
    assert (await client.read()).bodies == [b"a", b"b", b"c", b"0", b"1"]
    assert queue.ready == 3
    client.close()


@EITHER
async def test_a_queue_full_of_octets_refuses_posts(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_octets=10, overflow=Overflow.REJECT_PUBLISH)
    await post(queue, b"123456")
    await post(queue, b"7890ab")
    with pytest.raises(Refused):
        queue.offer(Bodies([b"c"]))
    assert queue.purge() == 2
    await post(queue, b"d")


async def test_a_post_that_waits_is_refused_in_part(drivers: Drivers) -> None:
    """The queue takes what it has room for when the memory has, too."""
    queue = await queue_of(drivers, durable=True, max_length=1, overflow=Overflow.REJECT_PUBLISH)
    drivers.memory.posted.force(drivers.memory.posted.limit)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert not isinstance(offered, Confirmation)
    woken: list[None] = []
    offered.call_when_free(lambda: woken.append(None))
    drivers.memory.posted.give(drivers.memory.posted.limit)
    assert woken
    again = offered.again()
    assert isinstance(again, Confirmation)
    assert await settled(again) is not None
    assert [count for count, _ in again.outcomes(2)] == [1, 1]
    await quiet()
    assert queue.purge() == 1
    drivers.memory.posted.force(drivers.memory.posted.limit)
    offered = queue.offer(Bodies([b"a", b"b"]))
    assert not isinstance(offered, Confirmation)
    offered.leave()
    drivers.memory.posted.give(drivers.memory.posted.limit)


# -- disuse ------------------------------------------------------------------------------------------------


@EITHER
async def test_an_unused_queue_expires(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    deleted = trio.Event()
    drivers.catalogue.deleted = lambda driver: deleted.set()
    queue = await queue_of(drivers, durable=durable, expires_ms=1000)
    await passed(clock, 0.9)
    assert await queue_of(drivers, durable=durable, expires_ms=1000) is queue  # a declaration is a use
    await passed(clock, 0.9)
    getter = queue.open_getter(Listener())
    assert not await queue.deal_one(getter)
    await passed(clock, 0.9)
    client = Client(queue)
    await passed(clock, 5)
    assert not deleted.is_set()
    client.close()
    await passed(clock, 0.9)
    assert not deleted.is_set()
    await post(queue, b"a")  # a message is no use of it
    await passed(clock, 0.2)
    await deleted.wait()
    assert drivers.catalogue.lookup(b"q") is None
    getter.close()


async def test_a_plain_consumer_keeps_a_queue(drivers: Drivers, clock: trio.testing.MockClock) -> None:
    queue = await queue_of(drivers, expires_ms=100)
    channel = queue.open(Listener(), FromCurrent())
    channel.grant(1, CreditKind.WINDOW)
    await passed(clock, 1)
    assert drivers.catalogue.lookup(b"q") is queue
    channel.cancel()
    await passed(clock, 1)
    assert drivers.catalogue.lookup(b"q") is None


async def test_a_queue_expires_when_its_time_is_over_and_not_before(
    drivers: Drivers, clock: trio.testing.MockClock
) -> None:
    await queue_of(drivers, expires_ms=3_600_000)
    await passed(clock, 3599)
    assert drivers.catalogue.lookup(b"q") is not None
    await passed(clock, 2)
    assert drivers.catalogue.lookup(b"q") is None


@EITHER
async def test_a_queue_expires_by_its_new_options(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    deleted = trio.Event()
    drivers.catalogue.deleted = lambda driver: deleted.set()
    change = drivers.catalogue.changes.change_queue
    await queue_of(drivers, durable=durable, expires_ms=3_600_000)
    await passed(clock, 1)
    await change(b"q", QueueOptions(expires_ms=2000))
    await passed(clock, 0.9)
    await change(b"q", QueueOptions(expires_ms=5000))
    await passed(clock, 3)
    assert not deleted.is_set()
    await change(b"q", QueueOptions())
    await passed(clock, 9)
    await change(b"q", QueueOptions(expires_ms=20_000))
    await quiet()
    assert not deleted.is_set()
    await change(b"q", QueueOptions(expires_ms=10_000))  # has passed
    await quiet()
    assert deleted.is_set()


@pytest.mark.parametrize("use", ["declare", "get", "change"])
async def test_a_queue_that_is_used_while_its_deletion_waits_is_kept(
    drivers: Drivers, clock: trio.testing.MockClock, use: str
) -> None:
    send, deleted = trio.open_memory_channel[bytes](2)
    drivers.catalogue.deleted = lambda driver: send.send_nowait(driver.topic.topic)
    queue = await queue_of(drivers, durable=True, expires_ms=1000)
    await queue_of(drivers, b"other", durable=True)
    async with trio.open_nursery() as nursery:
        async with drivers.catalogue.ids.held_back():
            nursery.start_soon(drivers.catalogue.delete, b"other")  # has its turn until the block ends
            await quiet()
            if use == "declare":
                nursery.start_soon(partial(queue_of, drivers, durable=True, expires_ms=1000))
            elif use == "change":
                nursery.start_soon(
                    drivers.catalogue.changes.change_queue, b"q", QueueOptions(expires_ms=2000)
                )
            await passed(clock, 1.1)
            if use == "get":
                getter = queue.open_getter(Listener())
                assert not await queue.deal_one(getter)
                getter.close()
        assert await deleted.receive() == b"other"
    await drivers.catalogue.settled()
    assert drivers.catalogue.lookup(b"q") is queue
    await passed(clock, 1.1)
    assert await deleted.receive() == b"q"


async def test_alarms_hold_no_queue_that_was_deleted(drivers: Drivers) -> None:
    queues: WeakSet[QueueDriver] = WeakSet()
    for _ in range(10):
        queue = await queue_of(drivers, expires_ms=3_600_000, ttl_ms=3_600_000)
        await post(queue, b"a")
        queues.add(queue)
        await drivers.catalogue.delete(b"q")
    del queue
    await quiet()
    gc.collect()
    assert len(queues) <= 1


# -- options -----------------------------------------------------------------------------------------------


async def test_options_survive_a_restart(tmp_path: Path) -> None:
    options = QueueOptions(durable=True, sync=Sync.WEAK, max_length=3, auto_delete=True, max_octets=100)
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        await post(queue, b"a", b"b", b"c")
        plain = await drivers.declare(queue.persistence, queue.delivery, b"plain")
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        assert queue.options == options
        await post(queue, b"d")
        assert queue.ready == 3
        await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_length=2))
        assert queue.ready == 2
        kept = drivers.catalogue.lookup(plain.topic.topic)
        assert isinstance(kept, QueueDriver)
        assert kept.options == QueueOptions(durable=True)
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(
            b"q", QueueOptions(durable=True, auto_delete=True, max_length=2)
        )
        await post(queue, b"e", b"f", b"g")
        assert queue.ready == 2
        client = Client(queue)
        assert (await client.read()).bodies == [b"f", b"g"]
        client.close()
    async with opened(tmp_path / "store") as drivers:
        assert drivers.catalogue.lookup(b"q") is None


@EITHER
async def test_options_of_a_queue_change(
    drivers: Drivers, clock: trio.testing.MockClock, durable: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    change = drivers.catalogue.changes.change_queue
    await post(queue, b"123", b"456", b"789")
    await change(b"q", QueueOptions(max_octets=6))
    assert (queue.ready, queue.options.durable) == (2, durable)
    await change(b"q", QueueOptions(ttl_ms=1000))
    await post(queue, b"0")
    assert queue.ready == 3
    await passed(clock, 1.1)
    assert queue.ready == 0
    await change(b"q", QueueOptions())
    await post(queue, b"a")
    await passed(clock, 9)
    assert queue.ready == 1
    await drivers.declare(queue.persistence, name=b"broadcast")
    for name, reason in ((b"none", Reason.NOT_FOUND), (b"broadcast", Reason.DIFFERS)):
        with pytest.raises(Refused) as refused:
            await change(name, QueueOptions())
        assert refused.value.reason is reason
    deleted = trio.Event()
    drivers.catalogue.deleted = lambda driver: deleted.set()
    await change(b"q", QueueOptions(expires_ms=1000))
    await passed(clock, 1.1)
    await deleted.wait()


async def test_the_sizes_of_stored_messages_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=10)
        for body in (b"1234", b"5678"):
            await post(queue, body)
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=10)
        await post(queue, b"a" * 8)
        assert queue.ready == 1


@asynccontextmanager
async def after_a_power_failure(path: Path, **options: object) -> AsyncIterator[tuple[Drivers, QueueDriver]]:
    """Yield a queue with ten messages of 1000 octets, behind which some ids were lost."""
    async with opened(path / "store", killed=True) as drivers:
        queue = await queue_of(drivers, durable=True, **options)
        for number in range(10):
            await post(queue, b"%d" % number * 1000)
        await trio.to_thread.run_sync(queue.environment.checkpoint)
        await post(queue, b"lost")
    async with opened(path / "store", boot_id="second") as drivers:
        queue = await queue_of(drivers, durable=True, **options)
        assert queue.next_id > 12
        yield drivers, queue


@pytest.mark.parametrize("overflow", [Overflow.DROP_HEAD, Overflow.REJECT_PUBLISH])
async def test_lost_ids_have_no_octets(tmp_path: Path, overflow: Overflow) -> None:
    async with after_a_power_failure(tmp_path, max_octets=20_000, overflow=overflow) as (_, queue):
        assert queue.ready == 10
        await post(queue, b"a")
        assert queue.ready == 11
        expected = [b"%d" % number * 1000 for number in range(10)] + [b"a"]
        assert await rest(queue) == expected
        await post(queue, b"b" * 9999)
        assert await rest(queue) == [*expected, b"b" * 9999]
        assert queue.purge() == 12
        await post(queue, b"c")
        assert await rest(queue) == [b"c"]


async def test_a_queue_with_lost_ids_is_shortened(tmp_path: Path) -> None:
    async with after_a_power_failure(tmp_path, max_octets=20_000) as (drivers, queue):
        await post(queue, *[b"a" * 1000] * 11)
        await quiet()
        assert await rest(queue) == [b"%d" % number * 1000 for number in range(1, 10)] + [b"a" * 1000] * 11
        await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=3000))
        await quiet()
        assert await rest(queue) == [b"a" * 1000] * 3
        await post(queue, b"b" * 4000)
        await quiet()
        assert queue.ready == 0
        await post(queue, b"c")
        assert await rest(queue) == [b"c"]


@pytest.mark.parametrize("max_priority", [None, 5])
async def test_a_message_that_is_stored_while_lost_ids_are_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_priority: int | None
) -> None:
    read_stored = Environment.read_stored
    has_read, is_posted = trio.Event(), threading.Event()

    def slow(self: Environment, topic: int, first: int, *args: Any, **kwargs: Any) -> list[VerifiedBlock]:
        blocks = read_stored(self, topic, first, *args, **kwargs)
        if first == 11:
            trio.from_thread.run_sync(has_read.set)
            assert is_posted.wait(60)
        return blocks

    monkeypatch.setattr(Environment, "read_stored", slow)
    async with after_a_power_failure(tmp_path, max_priority=max_priority) as (_, queue):
        getter = queue.open_getter(Listener())
        if max_priority is None:  # else all messages are read at the start
            for _ in range(10):
                assert await queue.deal_one(getter)
        with trio.fail_after(60):
            await has_read.wait()
        assert await settled(await queue.post(Bodies([b"a"]))) is None
        is_posted.set()
        await quiet()
        assert queue.ready == (1 if max_priority is None else 11)
        assert (await rest(queue))[-1] == b"a"
        getter.close()


async def test_the_sizes_of_messages_that_are_done_are_forgotten(drivers: Drivers) -> None:
    queue = await queue_of(drivers, max_octets=1000)
    client = worker(queue, 1 << 20)

    async def work(posts: int) -> None:
        for _ in range(posts):
            assert await settled(await queue.post(Bodies([b"a"]))) is None
            for got in await client.take():
                client.channel.written(1)
                client.settle(got.id)

    await work(1)
    await quiet()
    tracemalloc.start()
    try:
        await work(8000)
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/drivers/sizes.py")])
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in snapshot.traces) < 60_000
    client.close()


async def test_unreadable_options_stop_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        await trio.to_thread.run_sync(drivers.store.catalogue.set_queue, queue.topic.id, b"\x01")
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="options of queue 0"), flatten_subgroups=True):
        async with opened(tmp_path / "store"):
            pass
