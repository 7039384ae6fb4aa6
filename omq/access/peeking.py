"""Shows messages of a queue, which stay where they are (docs/PROTOCOL.md, "Manage")."""

from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain, islice

from omq import management
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import Refused
from omq.drivers.slices import Slices
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.errors import StoreError

MOST_PEEKED = 100
"""The most messages in one answer."""

MOST_SHOWN = 4096
"""The most octets of a body that Peek shows."""


async def peeked(driver: QueueDriver, first: int, count: int) -> tuple[management.MessageInfo, ...]:
    """Return messages from an id on that are not done. Raises Refused."""
    shown: list[management.MessageInfo] = []
    block: Block | None = None
    for id in islice(await _not_done(driver, first), min(count, MOST_PEEKED)):
        if block is None or not block.first <= id < block.next:
            try:
                block = await driver.peek(id)
            except StoreError as problem:
                raise Refused.of(for_clients(problem)) from problem
        if block is None:
            continue  # it was done meanwhile, is lost, or is too large
        frame, octets = block.frame(id), block.head(id)
        head = heads.decode(octets) if octets else Head(routing_key=driver.topic.topic)
        body = bytes(frame[FRAME_HEADER : FRAME_HEADER + MOST_SHOWN])
        shown.append(
            management.MessageInfo(id, len(frame) - FRAME_HEADER, body, head.exchange, head.routing_key)
        )
    return tuple(shown)


async def _not_done(driver: QueueDriver, first: int) -> Iterator[int]:
    """Return the ids from `first` on that are not done, in order: MOST_PEEKED of them at least, if there are
    as many.
    """
    position = await driver.position()
    slices = Slices()
    lowest: set[int] = set()
    for run in position.undone:
        # Take no more of each run than one answer can show: all runs together may have very many ids.
        lowest.update(islice((id for id in run.ids() if id >= first), MOST_PEEKED))
        if len(lowest) > 2 * MOST_PEEKED:
            lowest = set(nsmallest(MOST_PEEKED, lowest))
        await slices.step()
    return chain(nsmallest(MOST_PEEKED, lowest), range(max(first, position.cursor), driver.next_id))
