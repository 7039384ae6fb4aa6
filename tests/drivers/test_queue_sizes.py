"""The octets of a queue are counted, also of messages that were stored or lost before."""

import gc
import logging
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing
from counted_steps import steps
from queue_cases import EITHER, published, queue_of, rest, small_posts, worker
from served_drivers import Drivers, Listener, opened, post, quiet, settled

from omq.drivers.limited import MEASURED_BLOCKS, Measured
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Refused
from omq.drivers.sizes import Sizes
from omq_storage.batches import Bodies
from omq_storage.catalogue import StoreCatalogue
from omq_storage.environment import Environment
from omq_storage.errors import StoreError
from omq_storage.lookup import VerifiedBlock
from omq_storage.records import BlockRecord


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
    """Return the number of queues with sizes."""
    gc.collect()
    return sum(isinstance(each, Sizes) for each in gc.get_objects())


async def test_a_refused_change_keeps_no_sizes(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await queue_of(drivers, durable=True)
    await post(queue, b"x")
    known = number_of_sizes()

    def fail(*_: object) -> NoReturn:
        raise StoreError("The disk is away.")

    # A captured line of the log would keep the failure, and thereby the frames that it passed. Trio keeps it,
    # too, until the task goes on.
    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL, "omq.catalogue"):
        patch.setattr(StoreCatalogue, "set_queue", fail)
        with pytest.raises(Refused):
            await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=1))
    await trio.lowlevel.checkpoint()
    assert number_of_sizes() == known
    await drivers.catalogue.changes.change_queue(b"q", QueueOptions(max_octets=1))
    await post(queue, b"y")
    assert await rest(queue) == [b"y"]


async def test_the_sizes_of_stored_messages_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=10)
        for body in (b"1234", b"5678"):
            await post(queue, body)
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=10)
        await post(queue, b"a" * 8)
        assert queue.ready == 1


async def test_heads_have_no_octets_after_a_restart(tmp_path: Path) -> None:
    """The limit counts bodies only: otherwise a restart would drop messages."""
    heads = [
        published(b"amq.topic", b"a.long.routing.key", message_id=b"%d" % number) for number in range(10)
    ]
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=20)
        for number, head in enumerate(heads):
            await post(queue, b"%d." % number, heads=[head])
        assert queue.ready == 10
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True, max_octets=20)
        assert queue.ready == 10
        await post(queue, b"a.")
        assert await rest(queue) == [*(b"%d." % number for number in range(1, 10)), b"a."]


async def test_a_limit_of_a_queue_in_use_counts_no_heads(drivers: Drivers) -> None:
    queue = await queue_of(drivers, durable=True)
    await post(queue, b"1234", b"5678", heads=[published(b"amq.topic", b"a.long.routing.key")] * 2)
    await drivers.catalogue.changes.change_queue(b"q", replace(queue.options, max_octets=8))
    await quiet()
    assert queue.ready == 2
    await drivers.catalogue.changes.change_queue(b"q", replace(queue.options, max_octets=7))
    await quiet()
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


def test_sizes_that_came_together_are_forgotten_as_those_that_came_one_by_one() -> None:
    sizes, count = Sizes(), 1500
    for first in range(1, count + 1):
        sizes.arrived(first, 1, 3)
    assert sizes.have_grown
    sizes.forget_below(count)
    assert not sizes.have_grown
    assert sizes.octets == 3 * count
    sizes.take(range(count - 1, count + 1))
    assert sizes.octets == 3 * (count - 1)  # only the last size is still known


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
