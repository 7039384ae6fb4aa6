"""Shows messages of a queue, which stay where they are (docs/PROTOCOL.md, "Manage")."""

from itertools import islice

from omq import management
from omq.drivers.browsing import undone_from
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import Refused
from omq.drivers.slices import Slices
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq_storage.blocks import FRAME_HEADER, Block
from omq_storage.errors import StoreError

MOST_SHOWN = 4096
"""The most octets of a body that Peek shows."""

SHOWN_OCTETS = 64 << 10
"""The octets of bodies with which an answer ends, before it has as many messages as were asked for."""


async def peeked(driver: QueueDriver, first: int, count: int) -> tuple[management.MessageInfo, ...]:
    """Return messages from an id on that are not done: at most `count`, and of long ones fewer. Raises
    Refused.
    """
    shown: list[management.MessageInfo] = []
    block: Block | None = None
    left = SHOWN_OCTETS
    slices = Slices()
    for id, _ in islice(await undone_from(driver, first), count):
        await slices.step()
        if left <= 0:
            break
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
        left -= len(body)
        shown.append(
            management.MessageInfo(id, len(frame) - FRAME_HEADER, body, head.exchange, head.routing_key)
        )
    return tuple(shown)
