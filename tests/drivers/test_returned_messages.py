"""Messages of a queue that its consumers give back, many at once: in order, with little work."""

import random

import pytest
import trio
from queue_cases import EITHER_OPTIONS, FAILED, worker
from served_drivers import Client, Drivers, post

from omq.drivers import slices
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq_storage.runs import RUN_OCTETS

MESSAGES = 20_000


class TaskSteps(trio.abc.Instrument):
    """Counts the steps of all tasks but the one that makes this."""

    def __init__(self) -> None:
        self.count = 0
        self._own = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is not self._own


async def filled(drivers: Drivers, options: QueueOptions) -> QueueDriver:
    """Return a queue with MESSAGES messages, in blocks of a thousand."""
    queue = await drivers.catalogue.declare_queue(b"q", options)
    for first in range(0, MESSAGES, 1000):
        await post(queue, *(b"%d" % number for number in range(first, first + 1000)))
    return queue


async def read_all(client: Client, messages: int = MESSAGES) -> int:
    """Read as many messages, and return the number of steps that other tasks took meanwhile."""
    steps = TaskSteps()
    trio.lowlevel.add_instrument(steps)
    while len(client.got) < messages:
        if not client.channel.ready():
            await trio.lowlevel.checkpoint()
        else:
            await client.read_once()
    trio.lowlevel.remove_instrument(steps)
    return steps.count


async def read_by_one(queue: QueueDriver) -> Client:
    """Return a consumer that has read all messages, and settled none."""
    client = worker(queue, 2 * MESSAGES)
    await read_all(client)
    return client


async def read_again(queue: QueueDriver) -> Client:
    """Return another consumer, which has read all messages, delivered once before, in the order of ids."""
    client = await read_by_one(queue)
    assert client.ids == list(range(1, MESSAGES + 1))
    assert {got.deliveries for got in client.got} == {1}
    return client


@EITHER_OPTIONS
async def test_messages_of_a_consumer_that_ends_go_to_another_in_runs(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await filled(drivers, options)
    first = await read_by_one(queue)
    first.close()
    second = await read_again(queue)
    # One by one, each message would wake its consumer.
    assert second.wakes <= MESSAGES // 10
    second.close()


@EITHER_OPTIONS
async def test_messages_that_are_given_back_in_mixed_order_need_little_memory(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await filled(drivers, options)
    first = await read_by_one(queue)
    first.channel.cancel()
    ids = list(range(1, MESSAGES + 1))
    random.Random(3).shuffle(ids)
    first.settle(*ids, outcome=FAILED)
    # A run for each of them would take a hundred times as much.
    assert drivers.memory.statistics().unconfirmed <= MESSAGES * RUN_OCTETS // 100
    second = await read_again(queue)
    for client in (first, second):
        client.close()


@EITHER_OPTIONS
async def test_messages_between_which_others_are_kept_share_steps(
    drivers: Drivers, options: QueueOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 60)  # so that only the numbers of messages end a step
    queue = await filled(drivers, options)
    first = await read_by_one(queue)
    first.channel.settle(range(1, MESSAGES + 1, 2), FAILED)
    first.channel.cancel()
    second = worker(queue, 2 * MESSAGES)
    steps = await read_all(second, MESSAGES // 2)
    assert second.ids == list(range(1, MESSAGES + 1, 2))
    assert steps <= MESSAGES // 10
    for client in (first, second):
        client.close()


@EITHER_OPTIONS
async def test_consumers_with_room_share_what_another_gives_back(
    drivers: Drivers, options: QueueOptions
) -> None:
    queue = await filled(drivers, options)
    first = await read_by_one(queue)
    others = [worker(queue, most) for most in (2 * MESSAGES, 2 * MESSAGES, 5)]
    first.close()
    while sum(len(other.got) for other in others) < MESSAGES:
        for other in others:
            await other.read()
    assert len(others[2].got) == 5
    assert abs(len(others[0].got) - len(others[1].got)) < MESSAGES / 10
    assert sorted(id for other in others for id in other.ids) == list(range(1, MESSAGES + 1))
    for other in others:
        assert other.ids == sorted(other.ids)
        other.close()
