"""Moves messages from one queue to others (docs/PROTOCOL.md, "Manage")."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import trio

from omq.drivers.confirmation import Confirmation, all_of
from omq.drivers.driver import Driver
from omq.drivers.problems import for_clients
from omq.drivers.queue import QueueDriver
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.seam import ACCEPTED, RELEASED, Channel, CreditKind, EndReason, Piece, TakenMessages
from omq.drivers.slices import Slices
from omq.drivers.spilling import offer_or_spill, taken_or_spilled
from omq.exchanges.types import argument
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.fields import Array, LongString, Table
from omq.protocol.amqp.head import Head
from omq_storage.batches import Bodies
from omq_storage.blocks import FRAME_HEADER
from omq_storage.errors import StoreError

MOST_MOVED = 10_000
"""The number of messages after which one Move ends, unless it has passed more that stay. The next Move must
look at those again, so this one may move as many as it has passed: otherwise all Moves of a long queue would
together take time proportional to the square of its length.
"""

MOVED_AT_ONCE = 64
"""The number of messages on their way to their new queue for which Move waits before it sends more."""

DEATHS = (b"x-death", b"x-first-death-exchange", b"x-first-death-queue", b"x-first-death-reason")
"""The headers of dead letters, which a message that is moved back loses: it may become one again."""


async def move(driver: QueueDriver, target_of: Callable[[bytes | None], Driver | None], count: int) -> int:
    """Move at most N (`count`) messages, each of which is stored in its new queue before it is done in this
    one. Those that are too large to be moved stay. Raises Refused, also if it has moved none because of
    these.

    `target_of` returns the new queue, None for a message that stays. It gets the name of the queue in which
    the message became a dead letter last.
    """
    getter = driver.open_getter(_Mover())
    getter.grant(MOST_MOVED, CreditKind.WINDOW)
    moved = 0
    waiting: list[tuple[Confirmation, range]] = []
    kept: list[range] = []
    large: list[int] = []
    slices = Slices()
    try:
        # Each message is looked at once; those that stay return to their places at the end.
        for number in range(driver.ready):
            done = moved + len(waiting)
            if done >= min(count, max(MOST_MOVED, number - done)):
                break
            await slices.step()
            found = await _next(driver, getter)
            if found is None:
                break
            _add(kept, found.id)
            target = target_of(found.died_in)
            if target is None:
                continue
            if found.body is None:
                large.append(found.id)
                continue
            batch, its_heads = Bodies([found.body]), [found.head]
            offered = offer_or_spill(target, batch, its_heads)
            confirmation = await taken_or_spilled(target, batch, its_heads, offered)
            _drop_last(kept)
            waiting.append((confirmation, range(found.id, found.id + 1)))
            if len(waiting) >= MOVED_AT_ONCE:
                moved += await _settle(waiting, getter)
        moved += await _settle(waiting, getter)
        if large and not moved:
            raise Refused(Reason.TOO_LARGE, _too_large(large))
        return moved
    except Refused:
        await _settle(waiting, getter)  # those before it are in their new queues
        raise
    finally:
        # If this is cut off, messages are on their way. Each is done here when its new queue has stored it.
        on_their_way = all_of([confirmation for confirmation, _ in waiting])
        on_their_way.listen(partial(_end, waiting, kept, getter))


def _end(
    stored: Iterable[tuple[Confirmation, range]], kept: Iterable[range], getter: RoundRobinChannel
) -> None:
    """Settle the messages whose fate is known now, return those that stay, and close the channel."""
    _settle_stored(stored, getter)
    for ids in kept:  # which does not count as a delivery
        getter.settle(ids, RELEASED)
    getter.close()


@dataclass(frozen=True, slots=True)
class _Message:
    """A message to move."""

    id: int
    body: bytes | None
    """None if it is too large to be moved."""
    head: bytes
    died_in: bytes | None
    """The queue in which it became a dead letter last."""


class _Mover:
    """The subscriber of a channel that moves messages: it asks for them."""

    direct = None

    def wake(self) -> None:
        """Do nothing: no task waits."""

    def replaced(self, channel: Channel) -> None:
        """Do nothing: a queue with messages is not given other types."""

    def ended(self, end: EndReason) -> None:
        """Do nothing: the next Get of a message finds none."""


async def _next(driver: QueueDriver, getter: RoundRobinChannel) -> _Message | None:
    """Take the next message that is ready; None if there is none. Raises Refused."""
    try:
        while await driver.deal_one(getter):
            taken = await getter.take()
            if isinstance(taken, TakenMessages):
                (selection,) = taken.selections
                (id,) = selection.ids
                getter.written(1)
                body = bytes(selection.block.frame(id)[FRAME_HEADER:])
                return _message(id, body, selection.block.head(id))
            if isinstance(taken, Piece):
                getter.written(1)
                return _message(taken.message, None, taken.head)
            # Otherwise it is lost: the next one.
    except StoreError as problem:
        raise Refused.of(for_clients(problem)) from problem
    return None


def _message(id: int, body: bytes | None, octets: bytes) -> _Message:
    head = heads.decode(octets) if octets else Head()
    table = head.properties.headers
    if table is None:
        return _Message(id, body, octets, None)
    died_in: bytes | None = None
    match argument(table, b"x-death"):
        case Array((Table() as latest, *_)):
            queue = argument(latest, b"queue")
            died_in = queue.octets if isinstance(queue, LongString) else None
        case _:
            pass
    kept = Table(tuple(entry for entry in table.entries if entry[0] not in DEATHS))
    if died_in is not None:
        octets = heads.encode(replace(head, properties=replace(head.properties, headers=kept)))
    return _Message(id, body, octets, died_in)


def _too_large(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"message {ids[0]} is too large to be moved"
    return f"{len(ids)} messages are too large to be moved, the first is message {ids[0]}"


async def _settle(waiting: list[tuple[Confirmation, range]], getter: RoundRobinChannel) -> int:
    """Wait until messages are stored in their new queues, and settle them in the old one. Raises Refused."""
    settled = trio.Event()
    all_of([confirmation for confirmation, _ in waiting]).listen(settled.set)
    await settled.wait()
    count, failure = _settle_stored(waiting, getter)
    waiting.clear()
    if failure is not None:
        raise Refused.of(failure)
    return count


def _settle_stored(
    stored: Iterable[tuple[Confirmation, range]], getter: RoundRobinChannel
) -> tuple[int, Failure | None]:
    """Settle the messages that their new queues have, and release those that these have refused. Return the
    number of those that are done, and the last failure.
    """
    count = 0
    failure: Failure | None = None
    for confirmation, ids in stored:
        if confirmation.failure is None:
            count += getter.settle(ids, ACCEPTED)
        else:
            getter.settle(ids, RELEASED)
            failure = confirmation.failure
    return count, failure


def _add(ids: list[range], id: int) -> None:
    """Add an id to ranges of ids."""
    if ids and ids[-1].stop == id:
        ids[-1] = range(ids[-1].start, id + 1)
    else:
        ids.append(range(id, id + 1))


def _drop_last(ids: list[range]) -> None:
    """Remove the id that was added last."""
    last = ids.pop()
    if len(last) > 1:
        ids.append(last[:-1])
