"""Options of queues survive a restart, and change."""

from pathlib import Path

import pytest
import trio
import trio.testing
from queue_cases import EITHER, passed, queue_of
from served_drivers import Client, Drivers, opened, post

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.reasons import Reason, Refused
from omq.model import Sync
from omq_storage.errors import StoreError


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
    drivers.catalogue.deletion.deleted = lambda driver: deleted.set()
    await change(b"q", QueueOptions(expires_ms=1000))
    await passed(clock, 1.1)
    await deleted.wait()


async def test_unreadable_options_stop_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        queue = await queue_of(drivers, durable=True)
        await trio.to_thread.run_sync(drivers.store.catalogue.set_queue, queue.topic.id, b"\x01")
    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="options of queue 0"), flatten_subgroups=True):
        async with opened(tmp_path / "store"):
            pass
