"""Transient queues with more messages than the memory has room for."""

import threading
import weakref
from pathlib import Path
from typing import NoReturn

import pytest
import trio
import trio.testing
from garbage import uncollected
from served_drivers import ACCEPTED, KIB, MIB, NOTHING, Client, Drivers, opened, post, quiet, settled

from omq.drivers.confirmation import Confirmation
from omq.drivers.holdings import JOINED_OCTETS
from omq.drivers.offer import PendingOffer
from omq.drivers.posts import LATE
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.round_robin import RETRY_SECONDS
from omq.drivers.settling import SETTLED_AT_ONCE
from omq.drivers.spooled_uploads import SpooledUpload
from omq.model import Delivery, Transient
from omq_storage.batches import Bodies
from omq_storage.environment import Environment
from omq_storage.errors import StoreError
from omq_storage.levels import Level

BODY = b"x" * 10 * KIB


async def filled(queue: QueueDriver, posts: int, each: int = 10) -> list[bytes]:
    """Post messages without a consumer, each post confirmed. Return their bodies."""
    bodies: list[bytes] = []
    for _ in range(posts):
        batch = [b"%d-" % (len(bodies) + index) + BODY for index in range(each)]
        offered = queue.offer(Bodies(batch))
        assert isinstance(offered, Confirmation)
        assert await settled(offered) is None
        bodies += batch
    return bodies


def on_disk(drivers: Drivers, queue: QueueDriver) -> int:
    """Return the number of messages of a queue on the disk."""
    return drivers.store.level(Level.ASYNC).extent(queue.topic.id).messages


@pytest.mark.parametrize("window", [None, 30])
async def test_a_queue_without_a_consumer_takes_more_than_the_memory(
    tmp_path: Path, mock_clock: trio.testing.MockClock, window: int | None
) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        bodies = await filled(queue, 100)
        assert drivers.memory.statistics().waiting < MIB
        assert queue.ready == 1000
        spilled = on_disk(drivers, queue)
        assert 900 < spilled < 1000
        assert len(b"".join(bodies)) < queue.info().bytes < 1.1 * len(b"".join(bodies))
        client = Client(queue)
        if window is not None:
            client.request(window)
        while len(client.bodies) < len(bodies):
            had = len(client.got)
            await client.read()
            if window is not None:
                client.settle(*(got.id for got in client.got[had:]))
        assert client.bodies == bodies
        # In memory again when there is room; what was on the disk is deleted.
        await filled(queue, 1)
        assert on_disk(drivers, queue) == spilled
        mock_clock.jump(1.5)
        await quiet()
        assert on_disk(drivers, queue) == 0
        await client.read()
        if window is not None:
            client.settle(*(got.id for got in client.got[-10:]))
        client.close()
        assert (queue.ready, queue.info().messages, queue.info().bytes) == (0, 0, 0)
        await quiet()
        assert drivers.memory.statistics() == NOTHING


async def test_a_queue_may_have_half_of_the_memory_if_others_leave_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        share, part = drivers.memory.waiting.limit, drivers.memory.waiting_octets
        post_octets = 11 * len(BODY)
        first, second = [await drivers.catalogue.declare_queue(name, QueueOptions()) for name in (b"q", b"r")]
        await filled(first, 20)
        alone = drivers.memory.statistics().waiting
        assert max(part, share // 2 - post_octets) < alone <= share // 2
        await filled(second, 20)
        both = drivers.memory.statistics().waiting
        assert part - post_octets < both - alone <= part
        for queue in (first, second):
            assert queue.ready == 200
            assert queue.purge() == 200


async def test_messages_that_are_settled_together_are_deleted_from_the_disk(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 100)
        client = Client(queue)
        client.request(50)
        while len(client.got) < 500:
            had = len(client.got)
            await client.read()
            ids = range(client.got[had].id, client.got[-1].id + 1)
            assert client.channel.settle(ids, ACCEPTED) == len(ids)
        mock_clock.jump(1.5)
        await quiet()
        assert queue.info().messages == 500
        assert 500 <= on_disk(drivers, queue) < 500 + 2 * JOINED_OCTETS // len(BODY)
        client.close()
        assert queue.purge() == 500
        mock_clock.jump(1.5)
        await quiet()
        assert on_disk(drivers, queue) == queue.info().messages == 0
        assert drivers.memory.statistics() == NOTHING


async def test_a_store_that_fails_is_asked_again_to_delete_what_is_done(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(environment: Environment, *_: object) -> NoReturn:
        raise StoreError("The disk does not answer.")

    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 100)
        assert queue.purge() == 1000
        with monkeypatch.context() as failing:
            failing.setattr(Environment, "trim", fail)
            mock_clock.jump(1.5)
            await quiet()
        assert on_disk(drivers, queue) > 900
        mock_clock.jump(1.5)
        await quiet()
        assert on_disk(drivers, queue) == 0


async def test_done_messages_leave_memory_while_the_disk_cannot_be_read(
    tmp_path: Path, mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, failures = 100 * SETTLED_AT_ONCE, 0

    def fail(*_: object, **__: object) -> NoReturn:
        nonlocal failures
        failures += 1
        raise StoreError("The disk is away.")

    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        for _ in range(count):
            assert await settled(await queue.post(Bodies([b"x"]))) is None
        client = Client(queue)
        client.request(count)
        await client.read()
        spilled = queue.spill(Bodies([b"y"]))
        assert isinstance(spilled, Confirmation)
        assert await settled(spilled) is None
        with monkeypatch.context() as patch:
            patch.setattr(Environment, "read_stored", fail)
            client.settle(*range(1, count + 1, 2))
            # No two of these are settled as one range.
            assert client.channel.settle(range(1, count + 1), ACCEPTED) == count // 2
            await client.read()
            assert failures == 1
            assert drivers.memory.waiting.used == 0
        mock_clock.jump(RETRY_SECONDS)
        await client.read()
        assert client.bodies[count:] == [b"y"]
        client.close()
        assert queue.purge() == 1


@pytest.mark.parametrize("spills", [False, True])
async def test_messages_that_are_not_kept_any_more_are_not_shown(tmp_path: Path, spills: bool) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        assert await queue.peek(1) is None
        bodies = await filled(queue, 100 if spills else 3)
        client = Client(queue)
        client.request(20)
        await client.read()
        assert client.channel.settle(range(1, 11), ACCEPTED) == 10
        for message in (1, 10, len(bodies) + 1):
            assert await queue.peek(message) is None
        for message in (11, 21, len(bodies)):
            block = await queue.peek(message)
            assert block is not None
            assert block.first <= message < block.next
        client.close()


async def test_messages_on_the_disk_count_when_a_limit_comes(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        bodies = await filled(queue, 40)
        client = Client(queue)
        client.request(200)
        while len(client.bodies) < 200:
            await client.read()
        client.channel.cancel()
        client.settle(*client.ids)  # what is left is on the disk
        await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=150 * len(bodies[-1])))
        await quiet()
        assert 148 <= queue.ready <= 150  # a message counts with the mean of its block
        await drivers.catalogue.changes.change_queue(b"q", QueueOptions())
        await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=10 * MIB))
        assert 148 <= queue.purge() <= 150
        client.close()
        assert queue.ready == 0


async def test_messages_come_back_from_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        bodies = await filled(queue, 40)
        client = Client(queue)
        client.request(400)
        while len(client.bodies) < len(bodies):
            await client.read()
        client.close()
        assert queue.ready == 400
        again = Client(queue)
        while len(again.bodies) < len(bodies):
            await again.read()
        assert again.bodies == bodies
        assert {got.deliveries for got in again.got} == {1}
        again.close()
        await filled(queue, 40)
        assert queue.purge() == 400
        assert drivers.memory.statistics() == NOTHING


async def test_the_order_is_kept_while_messages_are_on_their_way(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        expected = await filled(queue, 10)
        offers = []
        for number in range(30):
            batch = [b"%d" % number, b"%d+" % number + BODY]
            expected += batch
            offers.append(queue.offer(Bodies(batch)))
        client = Client(queue)  # and room in the memory for those after them
        while len(client.bodies) < len(expected):
            await client.read()
            await drivers.drain()
        assert client.bodies == expected
        for offered in offers:
            assert isinstance(offered, Confirmation)
            assert offered.settled
            assert offered.failure is None
        client.close()


async def test_a_publisher_waits_for_the_memory_of_posts_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 10)
        drivers.memory.posted.force(MIB)
        offered = queue.offer(Bodies([BODY] * 20))
        given_up = queue.offer(Bodies([BODY] * 20))
        assert isinstance(offered, PendingOffer)
        assert isinstance(given_up, PendingOffer)
        assert offered.room is None  # no consumer has to make it
        given_up.leave()
        drivers.memory.posted.give(MIB)
        confirmation = await offered.taken()
        assert await settled(confirmation) is None
        await quiet()
        assert queue.ready == 120
        queue.purge()
        # The one that was given up does not count as on its way.
        stored = queue.offer(Bodies([b"a"]))
        assert isinstance(stored, Confirmation)
        assert stored.settled
        assert queue.purge() == 1


async def test_a_full_disk_refuses_posts(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 10)
        writer = drivers.catalogue.writers[Level.ASYNC]
        writer.refusal = full = Failure(Reason.NO_ROOM, "the disk is full")
        offered = queue.offer(Bodies([BODY] * 20))
        assert isinstance(offered, Confirmation)
        assert await settled(offered) == full
        writer.refusal = None
        await filled(queue, 1)
        assert queue.ready == 110
        client = Client(queue)
        while len(client.bodies) < 110:
            await client.read()
        client.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_spilled_messages_are_gone_after_a_restart(tmp_path: Path, killed: bool) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB, killed=killed) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 20)
        # An omq topic waits, unless its publisher must not.
        topic = await drivers.declare(Transient(), Delivery.ROUND_ROBIN)
        assert isinstance(topic, QueueDriver)
        await post(topic, *[BODY] * 20)
        waiting = topic.offer(Bodies([BODY] * 20))
        assert isinstance(waiting, PendingOffer)
        waiting.leave()
        spilled = topic.spill(Bodies([BODY] * 20))
        assert isinstance(spilled, Confirmation)
        assert await settled(spilled) is None
        assert topic.ready == 40
        assert on_disk(drivers, topic) == 20
    async with opened(tmp_path / "store") as drivers:
        assert drivers.store.level(Level.ASYNC).extents() == {}
        kept = drivers.catalogue.lookup(b"t")
        assert isinstance(kept, QueueDriver)
        assert kept.ready == 0
        await post(kept, b"a", b"b")
        assert kept.ready == 2


async def test_a_deleted_queue_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 20)
        late = queue.offer(Bodies([BODY] * 20))
        await drivers.catalogue.delete(b"q")
        assert isinstance(late, Confirmation)
        await settled(late)
        await drivers.drain()
        await drivers.catalogue.orphaned_blocks.drop()
        assert drivers.store.level(Level.ASYNC).extents() == {}
        assert drivers.memory.statistics() == NOTHING


async def test_idempotent_posts_keep_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        await filled(queue, 10)
        waiting = queue.offer(Bodies([BODY] * 10), origins=[(b"p", number) for number in range(10)])
        assert isinstance(waiting, PendingOffer)
        client = Client(queue)
        spilling = queue.offer(Bodies([BODY] * 30))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.taken)
            while len(client.bodies) < 140:
                await client.read()
        assert isinstance(spilling, Confirmation)
        assert [got.id for got in client.got] == list(range(1, 141))
        repeated = queue.offer(Bodies([b"again"]), origins=[(b"p", 9)])
        assert isinstance(repeated, Confirmation)
        assert repeated.settled
        assert queue.ready == 0
        client.close()


async def test_a_publisher_that_has_waited_learns_that_the_disk_is_full(tmp_path: Path) -> None:
    """Its messages follow those of others to the disk. They are not repeated when they come again."""
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        writer = drivers.catalogue.writers[Level.ASYNC]
        await post(queue, b"0", origins=[(b"p", 0)])
        await filled(queue, 10)
        batch = Bodies([BODY] * 12)
        numbered = [(producer, number) for producer in (b"p", b"new") for number in (1, 2)]
        origins = [(b"p", 0), *numbered, *[None] * 7]
        waiting = queue.offer(batch, origins=origins)
        assert isinstance(waiting, PendingOffer)
        writer.refusal = full = Failure(Reason.NO_ROOM, "the disk is full")
        spilled = queue.spill(Bodies([b"before"]))
        assert queue.purge() == 101
        offered = waiting.again()
        for each in (spilled, offered):
            assert isinstance(each, Confirmation)
            assert await settled(each) == full
        writer.refusal = None
        assert queue.ready == 0
        await post(queue, *batch.bodies(), origins=origins)
        assert queue.purge() == 11


async def numbered_on_its_way(queue: QueueDriver, *numbers: int) -> list[Confirmation]:
    """Let a numbered message follow others of the same queue to the disk, one post for each number."""
    spilled = queue.spill(Bodies([b"before"]))
    assert isinstance(spilled, Confirmation)
    offered: list[Confirmation] = []
    for number in numbers:
        found = queue.offer(Bodies([b"%d" % number]), origins=[(b"p", number)])
        assert isinstance(found, Confirmation)
        offered.append(found)
    assert not any(each.settled for each in offered)
    return offered


async def test_a_repeat_of_a_message_on_its_way_to_the_disk_fails_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        writer = drivers.catalogue.writers[Level.ASYNC]
        writer.refusal = full = Failure(Reason.NO_ROOM, "the disk is full")
        for each in await numbered_on_its_way(queue, 1, 1):
            assert await settled(each) == full
        writer.refusal = None
        assert queue.ready == 0
        for each in await numbered_on_its_way(queue, 1, 1):
            assert await settled(each) is None
        await post(queue, b"again", origins=[(b"p", 1)])
        assert queue.purge() == 2


async def test_numbered_messages_behind_a_failed_one_fail_and_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they are stored by a later commit, which does not fail."""
    append = Environment.append
    has_second = threading.Event()

    def fail_once(*_: object) -> NoReturn:
        monkeypatch.setattr(Environment, "append", append)
        assert has_second.wait(60)
        raise StoreError("The disk does not answer.")

    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        monkeypatch.setattr(Environment, "append", fail_once)
        (first,) = await numbered_on_its_way(queue, 1)
        while drivers.catalogue.writers[Level.ASYNC].statistics().waiting_posts:
            await trio.lowlevel.checkpoint()  # until the first commit has its posts
        second = queue.offer(Bodies([b"2"]), origins=[(b"p", 2)])
        assert isinstance(second, Confirmation)
        has_second.set()
        assert await settled(first) is not None
        assert await settled(second) is not None
        await post(queue, b"1", origins=[(b"p", 1)])
        await post(queue, b"2", origins=[(b"p", 2)])
        client = Client(queue)
        await client.read()
        assert client.bodies == [b"1", b"2"]
        client.close()


async def test_a_long_message_behind_a_failed_one_of_its_producer_fails_too(tmp_path: Path) -> None:
    """If it were taken, the failed one would look repeated when the producer sends it again."""
    async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
        writer = drivers.catalogue.writers[Level.ASYNC]

        async def begun() -> SpooledUpload:
            upload = await SpooledUpload.begin([queue], len(BODY), 0, may_wait=True)
            assert upload is not None
            await upload.add(BODY)
            return upload

        async def fails(upload: SpooledUpload) -> None:
            with pytest.raises(Refused) as refused:
                await upload.post(b"", (b"p", 2))
            assert refused.value.failure == LATE
            upload.close()

        first_try, second_try = await begun(), await begun()
        writer.refusal = full = Failure(Reason.NO_ROOM, "the disk is full")
        async with trio.open_nursery() as nursery, writer.paused():
            (first,) = await numbered_on_its_way(queue, 1)
            nursery.start_soon(fails, first_try)
            await trio.testing.wait_all_tasks_blocked()
            assert not first.settled
        assert await settled(first) == full
        writer.refusal = None
        await post(queue, b"1", origins=[(b"p", 1)])
        await second_try.post(b"", (b"p", 2))
        second_try.close()
        assert queue.ready == 2


async def test_a_deleted_queue_that_spilled_leaves_nothing_behind(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    with uncollected():
        async with opened(tmp_path / "store", memory=4 * MIB) as drivers:
            queue = await drivers.catalogue.declare_queue(b"q", QueueOptions())
            await filled(queue, 100)
            assert on_disk(drivers, queue) > 0
            gone = weakref.ref(queue)
            await drivers.catalogue.delete(b"q")
            del queue
            with trio.fail_after(30):
                while gone() is not None:
                    mock_clock.jump(1)
                    await quiet()
