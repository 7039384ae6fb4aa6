"""Acknowledgements of very many messages: other connections have their turns between the parts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
from server.conversation import eventually, serving

from omq.drivers import slices
from omq.drivers.queue import QueueDriver
from omq.terminals.amqp_0_9.unacknowledged import PORTION

from .test_slices import connected
from .wire import ack, commit, consume, declare_queue, nack, publish, recover, select_tx

COUNT = 8 * PORTION


class Freed(trio.abc.Instrument):
    """The greatest number of messages of a queue that cease to be unacknowledged in one step of a task."""

    def __init__(self, queue: QueueDriver) -> None:
        self._queue = queue
        self._before = queue.unacknowledged
        self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        unacknowledged = self._queue.unacknowledged
        self.most = max(self.most, self._before - unacknowledged)
        self._before = unacknowledged


@pytest.mark.parametrize(
    ("settling", "left"),
    [
        (lambda tags: ack(1, 0, multiple=1), 0),
        (lambda tags: ack(1, tags[-1], multiple=1), 0),
        (lambda tags: b"".join(ack(1, tag) for tag in reversed(tags)), 0),
        (lambda tags: b"".join(ack(1, tag) for tag in tags), 0),
        (lambda tags: nack(1, 0, multiple=1, requeue=0), 0),
        (lambda tags: nack(1, 0, multiple=1, requeue=1), COUNT),
        (lambda tags: recover(1, 1), COUNT),
        (lambda tags: select_tx(1) + ack(1, 0, multiple=1) + commit(1), 0),
    ],
    ids=["all", "multiple", "downwards", "upwards", "rejected", "returned", "recovered", "transaction"],
)
async def test_messages_are_settled_in_turn_with_others(
    settling: Callable[[Sequence[int]], bytes], left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    async with serving(tmp_path) as host, trio.open_nursery() as nursery:
        stream = await connected(host)
        tags: list[int] = []
        nursery.start_soon(_read, stream, tags)
        await stream.send_all(declare_queue(1, "q") + consume(1, "q", "t"))
        await eventually(lambda: host.server.catalogue.lookup(b"q") is not None)
        queue = host.server.catalogue.lookup(b"q")
        assert isinstance(queue, QueueDriver)
        await stream.send_all(b"".join(publish(1, "", "q", b"x") for _ in range(COUNT)))
        await eventually(_has_delivered(queue, COUNT))
        # They return one by one, so each is delivered by itself.
        await stream.send_all(nack(1, 0, multiple=1, requeue=1))
        await eventually(_has_delivered(queue, 2 * COUNT))
        await eventually(lambda: len(tags) == 2 * COUNT)
        freed = Freed(queue)
        trio.lowlevel.add_instrument(freed)
        await stream.send_all(settling(tags[COUNT:]))
        await eventually(_is_left(queue, left))
        trio.lowlevel.remove_instrument(freed)
        assert 0 < freed.most <= PORTION
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "returning",
    [
        lambda tags: recover(1, 1),
        lambda tags: nack(1, 0, multiple=1, requeue=1),
        lambda tags: nack(1, tags[-1], multiple=1, requeue=1),
        lambda tags: select_tx(1) + nack(1, 0, multiple=1, requeue=1) + commit(1),
    ],
    ids=["recovered", "all", "multiple", "transaction"],
)
async def test_messages_return_in_their_order(
    returning: Callable[[Sequence[int]], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command returns messages whose tags have the other order, and the first ones are assigned again
    meanwhile.
    """
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    async with serving(tmp_path) as host, trio.open_nursery() as nursery:
        stream = await connected(host)
        tags: list[int] = []
        bodies: list[int] = []
        nursery.start_soon(_read, stream, tags, bodies)
        await stream.send_all(declare_queue(1, "q") + consume(1, "q", "t"))
        await stream.send_all(b"".join(publish(1, "", "q", b"%d" % number) for number in range(COUNT)))
        await eventually(_are(COUNT, bodies))
        for number in reversed(range(COUNT)):  # each comes again before the next one returns
            await stream.send_all(nack(1, tags[number], requeue=1))
            await eventually(_are(2 * COUNT - number, bodies))
        assert bodies[COUNT:] == [*reversed(range(COUNT))]
        await stream.send_all(returning(tags))
        await eventually(_are(3 * COUNT, bodies))
        assert bodies[2 * COUNT :] == [*range(COUNT)]
        nursery.cancel_scope.cancel()


async def _read(stream: trio.SocketStream, tags: list[int], bodies: list[int] | None = None) -> None:
    """Collect the delivery tags, of which some are never used, and the bodies, which are numbers."""
    received = b""
    while more := await stream.receive_some(1 << 20):
        received += more
        at = 0
        while len(received) >= at + 7 and len(received) >= (
            end := at + 8 + int.from_bytes(received[at + 3 : at + 7], "big")
        ):
            if received[at] == 1 and received[at + 7 : at + 13] == b"\0\x3c\0\x3c\1t":  # Basic.Deliver to t
                tags.append(int.from_bytes(received[at + 13 : at + 21], "big"))
            elif received[at] == 3 and bodies is not None:
                bodies.append(int(received[at + 7 : end - 1]))
            at = end
        received = received[at:]


def _are(count: int, bodies: list[int]) -> Callable[[], bool]:
    return lambda: len(bodies) == count


def _has_delivered(queue: QueueDriver, count: int) -> Callable[[], bool]:
    return lambda: queue.statistics().messages_out == count and queue.unacknowledged == COUNT


def _is_left(queue: QueueDriver, left: int) -> Callable[[], bool]:
    """Return whether all messages are settled, and those that returned were delivered again."""
    return lambda: queue.statistics().messages_out == 2 * COUNT + left and queue.unacknowledged == left
