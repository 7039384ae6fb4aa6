"""Many queues and many bindings: what they cost the disk, and that routes stay right."""

from pathlib import Path

import trio
from served_drivers import opened

from omq.drivers.lifetime import Ownership
from omq.drivers.queue_options import QueueOptions
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.types import Destination, DestinationKind
from omq.protocol.steps import finished
from omq_storage.pages import Pages

QUEUES = 10_000
BINDINGS = 1_000


def commits(path: Path) -> int:
    """Return the number of commits of the catalogue."""
    with Pages(path / "store" / "catalogue" / "data.mdb") as pages:
        return pages.newest.transaction


async def test_many_exclusive_queues_take_few_commits(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        exchanges = ExchangeRegistry(drivers.catalogue)
        before = commits(tmp_path)
        owner = Ownership()
        options = QueueOptions(exclusive=True, auto_delete=True)
        for number in range(QUEUES):
            name = b"reply-%d" % number
            await drivers.catalogue.declare_queue(name, options, owner)
            await exchanges.bind(b"amq.direct", Destination(DestinationKind.QUEUE, name), name)
        (found,) = finished(exchanges.route_in_steps(b"amq.direct", b"reply-7777"))
        assert found.topic.topic == b"reply-7777"
        # Each reserves the ids of 1,024 of them.
        assert commits(tmp_path) - before <= QUEUES // 1024 + 1
        owner.end()
        with trio.fail_after(60):
            while drivers.catalogue.topic_count:
                await trio.lowlevel.checkpoint()
        assert exchanges.bindings() == []
        assert finished(exchanges.route_in_steps(b"amq.direct", b"reply-7777")) == ()
        assert commits(tmp_path) - before <= QUEUES // 1024 + 1


async def test_many_bindings_of_one_exchange(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        exchanges = ExchangeRegistry(drivers.catalogue)
        for number in range(BINDINGS):
            name = b"q%d" % (number % 10)
            await drivers.catalogue.declare_queue(name, QueueOptions())
            await exchanges.bind(b"amq.topic", Destination(DestinationKind.QUEUE, name), b"a.%d.*.#" % number)
        for number in (0, 7, 999):
            for _ in range(2):  # computed, and kept
                (found,) = finished(exchanges.route_in_steps(b"amq.topic", b"a.%d.b.c" % number))
                assert found.topic.topic == b"q%d" % (number % 10)
        assert finished(exchanges.route_in_steps(b"amq.topic", b"a.1000.b")) == ()
        assert len(exchanges.bindings(b"amq.topic")) == BINDINGS
