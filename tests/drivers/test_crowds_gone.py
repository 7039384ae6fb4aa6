"""A topic keeps little of a crowd of subscribers that have gone."""

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest
import trio
from served_drivers import Client, Drivers, Kind, of_kinds, post, quiet

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.memory import Memory
from omq.drivers.queue_options import QueueOptions
from omq.drivers.seam import Channel, EndReason
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.store import Store

CROWD = 2000


class Listener:
    """A subscriber that only wants to keep its channel."""

    direct = None

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


@pytest.mark.parametrize("delivery", Delivery)
async def test_a_topic_keeps_little_memory_of_its_subscribers(tmp_path: Path, delivery: Delivery) -> None:
    with Store.open(tmp_path, map_size=1 << 24) as store:
        async with trio.open_nursery() as nursery:
            catalogue = Catalogue(Config(store=str(tmp_path)), store, Memory(1 << 26), nursery)
            await catalogue.open_stored()
            first = await catalogue.declare(b"first", delivery, Transient())
            driver = await catalogue.declare(b"t", delivery, Transient())

            def come_and_go(driver: Driver, count: int) -> int:
                """Return the octets in use after N subscribers."""
                channels = [driver.open(Listener(), FromCurrent()) for _ in range(count)]
                for channel in channels:
                    channel.close()
                del channels, channel
                return tracemalloc.get_traced_memory()[0]

            # The branches that only a crowd takes are taken before: `coverage` keeps what it has seen in
            # tables, and a new branch can enlarge one of them by 32 KiB.
            come_and_go(first, CROWD)
            tracemalloc.start()
            try:
                before = come_and_go(driver, 1)
                # A deque keeps up to sixteen blocks for later, whatever the crowd; a dict keeps its table.
                assert come_and_go(driver, CROWD) - before < 10 * CROWD
            finally:
                tracemalloc.stop()
            nursery.cancel_scope.cancel()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let no garbage collection find anything."""
    gc.disable()
    yield
    gc.enable()


async def deleted(drivers: Drivers, name: bytes) -> None:
    await drivers.catalogue.delete(name)
    await drivers.save_positions()
    await quiet()


@pytest.mark.usefixtures("uncollected")
@of_kinds()
async def test_a_deleted_topic_is_free_at_once(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"a", b"b")
    assert (await client.read()).bodies == [b"a", b"b"]
    topic = ref(driver)
    client.close()
    del driver, client.channel
    await deleted(shared_drivers, b"t")
    assert topic() is None


@pytest.mark.usefixtures("uncollected")
async def test_a_deleted_queue_that_would_expire_is_free_at_once(shared_drivers: Drivers) -> None:
    queue = await shared_drivers.catalogue.declare_queue(b"q", QueueOptions(expires_ms=1000))
    topic = ref(queue)
    del queue
    await deleted(shared_drivers, b"q")
    assert topic() is None
