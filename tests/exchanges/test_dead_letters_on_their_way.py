"""Dead letters on their way: none is lost, and each is done when its new queues have it."""

from pathlib import Path

import pytest
import trio
from counted_steps import counted_calls
from queue_cases import EITHER, published, queue_of, worker
from served_drivers import Drivers, opened, post, quiet

from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import Overflow, QueueOptions
from omq.drivers.reasons import Failure, Reason
from omq.drivers.seam import REJECTED
from omq.exchanges.exchanges import ExchangeRegistry
from omq.exchanges.routes import Route
from omq.exchanges.types import Destination, DestinationKind
from omq.protocol import steps as protocol_steps
from omq.protocol.amqp_1_0 import encoding
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.stored import store
from omq.protocol.amqp_1_0.types import List


async def passed_on(drivers: Drivers) -> None:
    """Wait until all posts are settled and nothing more happens."""
    await quiet()
    await drivers.drain()
    await quiet()


async def retried(drivers: Drivers, clock: trio.testing.MockClock) -> None:
    """Let the server try three times to pass on dead letters."""
    for _ in range(3):
        await passed_on(drivers)
        clock.jump(1.5)


DISK_FULL = Failure(Reason.NO_ROOM, "the disk is full")


def refuse(queue: QueueDriver, failure: Failure | None = DISK_FULL) -> None:
    """Let the writer of a queue refuse posts for this reason; with None let it accept them again."""
    assert queue.writer is not None
    queue.writer.refusal = failure


async def test_letters_that_die_one_by_one_need_few_runs(drivers: Drivers) -> None:
    dead = await queue_of(drivers, b"dl")
    source = await queue_of(drivers, b"dq", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dl")
    client, count = worker(source, 1000), 1000
    await post(source, *(b"%d" % number for number in range(count)))
    await client.read()
    for id in range(1, count + 1):
        client.channel.settle(range(id, id + 1), REJECTED)
    waiting = (await source.position()).undone
    assert [id for run in waiting for id in run.ids()] == [*range(1, count + 1)]
    assert len(waiting) == 1
    await eventually_ready(dead, count)
    heir = worker(dead, count)
    assert (await heir.read()).bodies == [b"%d" % number for number in range(count)]
    client.close()
    heir.close()


@EITHER
async def test_many_letters_are_sent_in_short_steps(drivers: Drivers, durable: bool) -> None:
    count = 1000
    dead = await queue_of(drivers, b"dl")
    source = await queue_of(drivers, b"dq", durable=durable, dead_letter_exchange=b"", dead_letter_key=b"dl")
    client = worker(source, count)
    await post(source, *(b"%d" % number for number in range(count)))
    await client.read()
    with counted_calls() as calls:
        client.channel.settle(range(1, count + 1), REJECTED)
        await eventually_ready(dead, count)
    assert calls.total > 20 * count
    assert calls.longest < 2 * count
    heir = worker(dead, count)
    assert (await heir.read()).bodies == [b"%d" % number for number in range(count)]
    client.close()
    heir.close()


async def eventually_ready(queue: QueueDriver, count: int) -> None:
    with trio.fail_after(60):
        while queue.ready < count:
            await quiet()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_dead_letter_is_done_only_when_it_is_stored_elsewhere(
    tmp_path: Path, mock_clock: trio.testing.MockClock, killed: bool
) -> None:
    async with opened(tmp_path / "store", killed=killed) as drivers:
        ExchangeRegistry(drivers.catalogue)
        dead = await queue_of(drivers, b"dl", durable=True)
        source = await queue_of(drivers, b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dl")
        client = worker(source)
        await post(source, b"a", b"b", b"c")
        await client.read()
        refuse(dead)
        client.settle(1, outcome=REJECTED)
        client.settle(2, outcome=REJECTED)
        client.settle(3)
        await passed_on(drivers)
        assert (dead.ready, source.ready) == (0, 0)
        assert source.info().messages == 2
        await drivers.save_positions()
        if not killed:
            refuse(dead, None)
            mock_clock.jump(1.5)
            await passed_on(drivers)
            assert dead.ready == 2
            assert source.info().messages == 0
        client.close()
    async with opened(tmp_path / "store") as drivers:
        stored = [drivers.catalogue.lookup(name) for name in (b"q", b"dl")]
        # After a kill they are delivered once more, as messages that were delivered before.
        assert [queue.ready for queue in stored if isinstance(queue, QueueDriver)] == [
            2 * killed,
            2 - 2 * killed,
        ]


@EITHER
async def test_many_letters_are_sent_together(drivers: Drivers, durable: bool) -> None:
    dead = await queue_of(drivers, b"dl", durable=True)
    source = await queue_of(drivers, b"q", durable=durable, dead_letter_exchange=b"", dead_letter_key=b"dl")
    client = worker(source, 5000)
    await post(source, *(b"%d" % number for number in range(3000)))
    await client.read()
    assert client.channel.settle(range(1, 3001), REJECTED) == 3000
    await quiet()
    await drivers.drain()
    while source.info().messages:
        await quiet()
        await drivers.drain()
    assert dead.ready == 3000
    heir = worker(dead, 5000)
    assert (await heir.read()).bodies == [b"%d" % number for number in range(3000)]
    client.close()
    heir.close()


class Steps(trio.abc.Instrument):
    """Counts something in each step of a task."""

    def __init__(self) -> None:
        self.counts = [0]

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.append(0)


@pytest.mark.parametrize("by_amqp_1_0", [False, True])
async def test_a_step_sends_only_some_letters(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, by_amqp_1_0: bool
) -> None:
    count = 300
    dead = await queue_of(drivers, b"dl")
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"", dead_letter_key=b"dl")
    client, heir = worker(source, count), worker(dead, count)
    if by_amqp_1_0:
        ids = [encoding.write(List((f"{number}",))) for number in range(count)]
        sent = [store(b"\x00\x53%c%s" % (Section.PROPERTIES, each)).head for each in ids]
    else:
        sent = [published(b"", b"q", message_id=b"%d" % number) for number in range(count)]
    bodies = [b"%d" % number for number in range(count)]
    await post(source, *bodies, heads=sent)
    await client.read()
    steps = Steps()
    route_in_steps = ExchangeRegistry.route_in_steps

    def counted(
        self: ExchangeRegistry, exchange: bytes, key: bytes, head: bytes = b""
    ) -> protocol_steps.Steps[Route]:
        steps.counts[-1] += 1
        return route_in_steps(self, exchange, key, head)

    monkeypatch.setattr(ExchangeRegistry, "route_in_steps", counted)
    trio.lowlevel.add_instrument(steps)
    assert client.channel.settle(range(1, count + 1), REJECTED) == count
    while source.info().messages:
        await quiet()
    trio.lowlevel.remove_instrument(steps)
    assert sum(steps.counts) == count
    assert max(steps.counts) <= 24
    assert (await heir.read()).bodies == bodies
    client.close()
    heir.close()


async def test_a_letter_that_dies_at_the_start_finds_its_exchange(tmp_path: Path) -> None:
    """Letters wait until all queues and exchanges of the store are there."""
    async with opened(tmp_path / "store") as drivers:
        exchanges = ExchangeRegistry(drivers.catalogue)
        await exchanges.declare(b"dlx", b"fanout", durable=True)
        source = await queue_of(drivers, b"a", durable=True, dead_letter_exchange=b"dlx", max_length=4)
        await post(source, b"1", b"2", b"3", b"4")
        client = worker(source, 2)
        assert (await client.read()).bodies == [b"1", b"2"]
        await post(source, b"5", b"6")
        await queue_of(drivers, b"dl", durable=True)
        await exchanges.bind(b"dlx", Destination(DestinationKind.QUEUE, b"dl"), b"")
        # The unacknowledged messages of the consumer come back at the start, and make the queue too long.
        await drivers.save_positions()
    async with opened(tmp_path / "store") as drivers:
        source = await queue_of(drivers, b"a", durable=True, dead_letter_exchange=b"dlx", max_length=4)
        assert (source.ready, source.info().messages) == (4, 6)
        ExchangeRegistry(drivers.catalogue)
        await passed_on(drivers)
        dead = drivers.catalogue.lookup(b"dl")
        assert isinstance(dead, QueueDriver)
        assert (dead.ready, source.info().messages) == (2, 4)


async def test_a_queue_can_lose_its_exchange_while_letters_wait(
    drivers: Drivers, mock_clock: trio.testing.MockClock
) -> None:
    dead = await queue_of(drivers, b"dl", durable=True)
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"", dead_letter_key=b"dl")
    client = worker(source)
    await post(source, b"a")
    await client.read()
    refuse(dead)
    client.settle(1, outcome=REJECTED)
    await passed_on(drivers)
    assert source.info().messages == 1
    await drivers.catalogue.changes.change_queue(b"q", QueueOptions())
    refuse(dead, None)
    mock_clock.jump(1.5)
    await quiet()
    assert (source.info().messages, dead.ready) == (0, 0)
    client.close()


async def fanout(drivers: Drivers, *queues: bytes) -> QueueDriver:
    """Return a queue whose dead letters go to all of these queues."""
    exchanges = ExchangeRegistry(drivers.catalogue)
    await exchanges.declare(b"dlx", b"fanout")
    for name in queues:
        await exchanges.bind(b"dlx", Destination(DestinationKind.QUEUE, name), b"")
    return await queue_of(drivers, b"q", dead_letter_exchange=b"dlx")


async def test_letters_for_many_queues_are_sent_and_done_in_short_steps(drivers: Drivers) -> None:
    count, queues = 100, [b"dl%d" % number for number in range(200)]
    dead = [await queue_of(drivers, name) for name in queues]
    source = await fanout(drivers, *queues)
    client = worker(source, count)
    await post(source, *(b"%d" % number for number in range(count)))
    await client.read()
    with counted_calls() as calls:
        client.channel.settle(range(1, count + 1), REJECTED)
        for each in dead:
            await eventually_ready(each, count)
        while source.info().messages:
            await quiet()
    assert calls.longest < 2500
    client.close()


async def test_a_queue_with_its_greatest_length_drops_letters(
    drivers: Drivers, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    one = await queue_of(drivers, b"one")
    full = await queue_of(drivers, b"full", max_length=1, overflow=Overflow.REJECT_PUBLISH)
    source = await fanout(drivers, b"one", b"full")
    client = worker(source)
    await post(source, b"a", b"b", b"c")
    await client.read()
    for number in (1, 2, 3):
        client.settle(number, outcome=REJECTED)
    for _ in range(3):
        await quiet()
        mock_clock.jump(1.5)
    assert (one.ready, full.ready, source.info().messages) == (3, 1, 0)
    how_many = [record.getMessage().partition(" from ")[0] for record in caplog.records]
    assert how_many == ["dead letters dropped: 2"]
    assert caplog.messages[0].endswith("to 'full': the queue has its greatest length")
    client.close()


async def test_a_letter_is_sent_again_to_failed_queues_alone(
    drivers: Drivers, mock_clock: trio.testing.MockClock
) -> None:
    one = await queue_of(drivers, b"one")
    failing = await queue_of(drivers, b"failing", durable=True)
    source = await fanout(drivers, b"one", b"failing")
    client, heir, late = worker(source), worker(one), worker(failing)
    await post(source, b"a", b"b", b"c")
    await client.read()
    refuse(failing)
    client.settle(1, outcome=REJECTED)
    client.settle(2, outcome=REJECTED)
    await retried(drivers, mock_clock)
    assert (await heir.read()).bodies == [b"a", b"b"]
    assert source.info().messages == 3
    client.settle(3, outcome=REJECTED)
    refuse(failing, None)
    await retried(drivers, mock_clock)
    assert (await heir.read()).bodies == [b"a", b"b", b"c"]
    assert (await late.read()).bodies == [b"a", b"b", b"c"]
    assert source.info().messages == 0
    for each in (client, heir, late):
        each.close()


async def test_a_letter_that_was_delivered_is_not_sent_again_with_the_one_before_it(
    drivers: Drivers, mock_clock: trio.testing.MockClock
) -> None:
    one = await queue_of(drivers, b"one")
    failing = await queue_of(drivers, b"failing", durable=True)
    exchanges = ExchangeRegistry(drivers.catalogue)
    await exchanges.declare(b"dlx", b"direct")
    for name in (b"one", b"failing"):
        await exchanges.bind(b"dlx", Destination(DestinationKind.QUEUE, name), name)
    source = await queue_of(drivers, b"q", dead_letter_exchange=b"dlx")
    client = worker(source)
    heads = [published(b"", key) for key in (b"failing", b"one", b"one")]
    await post(source, b"a", b"b", b"c", heads=heads)
    await client.read()
    refuse(failing)
    assert client.channel.settle(range(1, 4), REJECTED) == 3
    await retried(drivers, mock_clock)
    refuse(failing, None)
    await retried(drivers, mock_clock)
    assert (one.ready, failing.ready, source.info().messages) == (2, 1, 0)
    client.close()
