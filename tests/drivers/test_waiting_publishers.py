"""Publishers that wait for memory: those that fit go on, in the order in which they came, and no others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from served_drivers import Listener
from trio.testing import MockClock, wait_all_tasks_blocked

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.reasons import Refused
from omq.drivers.seam import Channel, CreditKind, Taken, TakenMessages, Unavailable
from omq.drivers.slices import in_slices
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER
from omq_storage.store import Store

KIB, MIB = 1 << 10, 1 << 20
PUBLISHERS = 300
DELIVERY = pytest.mark.parametrize("delivery", list(Delivery))


class Steps(trio.abc.Instrument):
    """The number of times that any task was run."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@asynccontextmanager
async def drivers(
    path: Path, *names: bytes, delivery: Delivery
) -> AsyncIterator[tuple[Memory, list[Driver]]]:
    """Yield transient topics of a server that has 4 MiB of memory."""
    with Store.open(path, map_size=1 << 28, boot_id="first") as store:
        async with trio.open_nursery() as nursery:
            memory = Memory(4 * MIB)
            catalogue = Catalogue(Config(store=str(path)), store, memory, nursery)
            declared = [await catalogue.declare(name, delivery, Transient()) for name in names]
            for driver in declared:
                await catalogue.ids.reserve({driver: 1})  # from here on nothing waits for a thread
            yield memory, declared
            nursery.cancel_scope.cancel()


def written(channel: Channel, taken: Taken | None) -> list[bytes]:
    """Return the bodies of what a channel gave, all of it written to its subscriber."""
    assert isinstance(taken, TakenMessages)
    bodies = [
        bytes(selection.block.frame(id)[FRAME_HEADER:])
        for selection in taken.selections
        for id in selection.ids
    ]
    channel.written(len(bodies))
    return bodies


@DELIVERY
async def test_room_wakes_those_it_is_for_and_not_all(
    tmp_path: Path,
    delivery: Delivery,
    mock_clock: MockClock,  # no time passes, so that no subscriber is stalled
) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=delivery) as (memory, (driver,)):
        channel = driver.open(Listener(), FromCurrent())
        steps = Steps()
        published = 0

        async def publish() -> None:
            nonlocal published
            for _ in range(2):
                await driver.post(Bodies([b"x" * 50 * KIB]))
            published += 1

        async with trio.open_nursery() as nursery:
            for _ in range(PUBLISHERS):
                nursery.start_soon(publish)
            await wait_all_tasks_blocked()
            assert published < PUBLISHERS // 4
            trio.lowlevel.add_instrument(steps)
            received = 0
            while received < 2 * PUBLISHERS:
                if isinstance(found := await channel.take(), Unavailable):
                    received += found.last - found.first + 1
                elif found is not None:
                    received += len(written(channel, found))
                await wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(steps)
        # A few steps a message: of its publisher and the dealer, and not of every publisher that waits.
        assert steps.count < 5 * received
        assert memory.waiting.used == 0


async def test_publishers_go_on_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (memory, (driver,)):
        sizes = [200 * KIB, 150 * KIB, 250 * KIB, 130 * KIB, 700 * KIB, 140 * KIB]
        async with trio.open_nursery() as nursery:
            for size in sizes:
                nursery.start_soon(driver.post, Bodies([b"x" * size]))
                await wait_all_tasks_blocked()
            assert driver.next_id == 2  # no two of them have room together
            channel = driver.open(Listener(), FromCurrent())
            received: list[bytes] = []
            while len(received) < len(sizes):
                await wait_all_tasks_blocked()
                received += written(channel, await channel.take())
        assert [len(body) for body in received] == sizes
        assert memory.waiting.used == 0


async def test_topics_take_turns_when_shared_memory_is_free_again(tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(8)]

    async def publish(topic: Driver) -> None:
        with suppress(Refused):  # when it is deleted below
            await topic.post(Bodies([b"x" * 200 * KIB]))

    async with drivers(tmp_path / "store", *names, delivery=Delivery.ROUND_ROBIN) as (memory, topics):
        async with trio.open_nursery() as nursery:
            for topic in 3 * topics:
                nursery.start_soon(publish, topic)
                await wait_all_tasks_blocked()
            assert [topic.next_id for topic in topics] == [2, 2, 2, 1, 1, 1, 1, 1]
            channel = topics[0].open(Listener(), FromCurrent())
            await wait_all_tasks_blocked()
            written(channel, await channel.take())
            await wait_all_tasks_blocked()
            # The free memory went to the topic that waited first. The one with an idle worker may hold more.
            assert [topic.next_id for topic in topics] == [3, 2, 2, 2, 1, 1, 1, 1]
            channel.close()
            for topic in topics[:3]:
                await in_slices(topic.end())
            await wait_all_tasks_blocked()
            assert [topic.next_id for topic in topics[3:]] == [2, 2, 2, 1, 1]
            nursery.cancel_scope.cancel()
        assert memory.publisher_queues.is_empty()


@pytest.mark.parametrize("position", [0, 1])
async def test_a_publisher_that_leaves_lets_the_others_pass(tmp_path: Path, position: int) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (memory, (driver,)):
        await driver.post(Bodies([b"x" * 200 * KIB]))
        scopes = [trio.CancelScope(), trio.CancelScope()]

        async def publish(scope: trio.CancelScope, size: int) -> None:
            with scope:
                await driver.post(Bodies([b"x" * size]))

        async with trio.open_nursery() as nursery:
            for scope, size in zip(scopes, (100 * KIB, 90 * KIB), strict=True):
                nursery.start_soon(publish, scope, size)
                await wait_all_tasks_blocked()
            nursery.start_soon(driver.post, Bodies([b"y" * 10 * KIB]))
            await wait_all_tasks_blocked()
            assert driver.next_id == 2
            scopes[position].cancel()
            await wait_all_tasks_blocked()
            assert driver.next_id == 2
            scopes[1 - position].cancel()
            await wait_all_tasks_blocked()
            assert driver.next_id == 3
        held = memory.waiting.used
        assert 210 * KIB < held < 230 * KIB


async def test_a_publisher_admitted_when_it_was_cancelled_holds_nothing(tmp_path: Path) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (memory, (driver,)):
        await driver.post(Bodies([b"x" * 200 * KIB]))
        channel = driver.open(Listener(), FromCurrent())
        await wait_all_tasks_blocked()
        assert isinstance(await channel.take(), TakenMessages)
        channel.hold()  # from here on it takes nothing
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(driver.post, Bodies([b"x" * 200 * KIB]))
                await wait_all_tasks_blocked()
                assert driver.next_id == 2
                scope.cancel()
                channel.written(1)  # this admits it before it hears that it was cancelled
        assert driver.next_id == 2
        assert memory.waiting.used == 0


async def test_publishers_that_wait_hear_that_the_topic_was_deleted(tmp_path: Path) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (memory, (driver,)):
        await driver.post(Bodies([b"x" * 200 * KIB]))
        refused = 0

        async def publish() -> None:
            nonlocal refused
            with pytest.raises(Refused, match="the topic was deleted"):
                await driver.post(Bodies([b"x" * 100 * KIB]))
            refused += 1

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(publish)
            await wait_all_tasks_blocked()
            await in_slices(driver.end())
        assert refused == 3
        assert memory.waiting.used == 0


async def test_a_publisher_goes_on_when_a_worker_has_got_all_other_messages(tmp_path: Path) -> None:
    """Also while none of them is done."""
    async with (
        drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (_, (driver,)),
        trio.open_nursery() as nursery,
    ):
        for _ in range(40):
            nursery.start_soon(driver.post, Bodies([b"x" * 100 * KIB]))
        await wait_all_tasks_blocked()
        before = driver.next_id
        assert before < 40
        driver.open(Listener(), FromCurrent()).grant(100, CreditKind.WINDOW)
        await wait_all_tasks_blocked()
        assert driver.next_id > before
        nursery.cancel_scope.cancel()


async def test_one_worker_that_can_make_room_is_enough_to_wait_for(tmp_path: Path) -> None:
    async with drivers(tmp_path / "store", b"t", delivery=Delivery.ROUND_ROBIN) as (memory, (driver,)):
        workers = [Listener() for _ in range(3)]
        for worker in workers:
            driver.open(worker, FromCurrent()).grant(1, CreditKind.WINDOW)
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(driver.post, Bodies([b"x" * 200 * KIB]))
            await wait_all_tasks_blocked()
            for able in workers:
                others = [worker for worker in workers if worker is not able]
                for unheard, silent in ((others, ()), ((), others), (others[:1], others[1:])):
                    assert not memory.waits.are_circular([driver], unheard, silent)
                    assert memory.waits.are_circular([driver], [*unheard, able], silent)
                    assert memory.waits.are_circular([driver], unheard, [*silent, able])
            nursery.cancel_scope.cancel()


async def test_workers_of_other_topics_make_room_in_the_shared_memory_only(tmp_path: Path) -> None:
    names = [b"%d" % number for number in range(4)]
    async with drivers(tmp_path / "store", *names, delivery=Delivery.ROUND_ROBIN) as (memory, topics):
        workers = [Listener() for _ in topics]
        for topic, worker in zip(topics, workers, strict=True):
            topic.open(worker, FromCurrent()).grant(1, CreditKind.WINDOW)
        topic, *others = topics
        await topic.post(Bodies([b"x" * 100 * KIB]))
        await others[0].post(Bodies([b"x" * 200 * KIB]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topic.post, Bodies([b"x" * 200 * KIB]))
            await wait_all_tasks_blocked()
            # The topic holds too much of its own, so only its worker can make room in it.
            assert topic.next_id == 2
            assert memory.waits.are_circular([topic], workers[:1], ())
            nursery.cancel_scope.cancel()
        for other in others[1:]:
            await other.post(Bodies([b"x" * 200 * KIB]))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(topic.post, Bodies([b"x" * 100 * KIB]))
            await wait_all_tasks_blocked()
            # All topics together hold too much, so each of their workers can.
            assert topic.next_id == 2
            assert not memory.waits.are_circular([topic], workers[:-1], ())
            assert memory.waits.are_circular([topic], workers, ())
            nursery.cancel_scope.cancel()
