"""What a topic keeps of a crowd of subscribers that have gone: no more than a little."""

import tracemalloc
from pathlib import Path

import pytest
import trio

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.memory import Memory
from omq.drivers.seam import Channel, EndReason
from omq.model import Delivery, FromCurrent, Transient
from omq_storage.store import Store

CROWD = 2000


class Listener:
    """A subscriber that only wants to keep its channel."""

    def wake(self) -> None: ...

    def replaced(self, channel: Channel) -> None: ...

    def ended(self, end: EndReason) -> None: ...


@pytest.mark.parametrize("delivery", Delivery)
async def test_a_topic_keeps_little_memory_of_its_subscribers(tmp_path: Path, delivery: Delivery) -> None:
    with Store.open(tmp_path, map_size=1 << 24) as store:
        async with trio.open_nursery() as nursery:
            catalogue = Catalogue(Config(store=str(tmp_path)), store, Memory(1 << 26), nursery)
            await catalogue.open_stored()
            driver = await catalogue.declare(b"t", delivery, Transient())

            def come_and_go(count: int) -> int:
                """Return the octets in use after so many subscribers."""
                channels = [driver.open(Listener(), FromCurrent()) for _ in range(count)]
                for channel in channels:
                    channel.close()
                del channels, channel
                return tracemalloc.get_traced_memory()[0]

            tracemalloc.start()
            try:
                before = come_and_go(1)
                # A deque keeps up to sixteen blocks for later, whatever the crowd; a dict keeps its table.
                assert come_and_go(CROWD) - before < 10 * CROWD
            finally:
                tracemalloc.stop()
            nursery.cancel_scope.cancel()
