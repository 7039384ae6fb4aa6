"""Messages of a queue that were purged stay deleted when the server is killed at once."""

from pathlib import Path

import pytest
from served_drivers import ASYNC, STRONG, WEAK, Client, opened, post

from omq.drivers.purging import purge
from omq.drivers.queue import QueueDriver
from omq.model import Delivery, Persistent


@pytest.mark.parametrize("persistence", [STRONG, WEAK, ASYNC], ids=str)
@pytest.mark.parametrize("others", [0, 2])
async def test_messages_that_a_consumer_has_returned(
    tmp_path: Path, persistence: Persistent, others: int
) -> None:
    """All messages were assigned before, or there are `others` that were not."""
    async with opened(tmp_path / "store", killed=True) as drivers:
        queue = await drivers.declare(persistence, Delivery.ROUND_ROBIN)
        client = Client(queue)
        client.request(3)
        await post(queue, *[b"%d" % number for number in range(3 + others)])
        await client.read()
        client.settle(2)
        client.channel.close()
        await drivers.save_positions()
        assert await purge(queue) == 2 + others
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.declare(persistence, Delivery.ROUND_ROBIN)
        assert isinstance(queue, QueueDriver)
        assert queue.ready == 0
