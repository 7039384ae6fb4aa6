"""Queues with priorities."""

from pathlib import Path
from typing import Any

import pytest
import trio.testing
from counted_steps import counted_calls
from hypothesis import given
from hypothesis import strategies as st
from made_stores import damage
from served_drivers import Client, Drivers, Listener, messages_of, opened, post, quiet

from omq.drivers import priority_queue
from omq.drivers.priority_queue import SORTED_IDS, SORTED_LEVELS, Levels
from omq.drivers.queue import QueueDriver
from omq.drivers.queue_options import QueueOptions
from omq.drivers.seam import Accepted, CreditKind, Modified, TakenMessages
from omq.drivers.settling import SETTLED_AT_ONCE
from omq.model import Sync
from omq.protocol.amqp import head as heads
from omq.protocol.amqp.head import Head
from omq.protocol.amqp.properties import Properties
from omq_storage import codec
from omq_storage.batches import BLOCK_MESSAGES
from omq_storage.environment import Environment
from omq_storage.runs import RUN_OCTETS, Ids

EITHER = pytest.mark.parametrize("durable", [False, True], ids=["ephemeral", "durable"])


async def queue_of(drivers: Drivers, *, durable: bool, **options: Any) -> QueueDriver:
    sync = Sync.WEAK if durable else None
    return await drivers.catalogue.declare_queue(
        b"q",
        QueueOptions(durable=durable, sync=sync, max_priority=10, **options),
    )


def head(priority: int | None) -> bytes:
    return b"" if priority is None else heads.encode(Head(b"", b"q", Properties(priority=priority)))


async def publish(queue: QueueDriver, *priorities: int | None) -> None:
    """Post messages whose bodies are their priorities, in one block."""
    await post(queue, *(b"%s" % str(each).encode() for each in priorities), heads=[*map(head, priorities)])


async def everything(queue: QueueDriver) -> list[str]:
    """Return the messages that a getter gets, one after another."""
    getter = queue.open_getter(Listener())
    bodies = []
    while await queue.deal_one(getter):
        taken = await getter.take()
        assert isinstance(taken, TakenMessages)
        bodies += [got.body.decode() for got in messages_of(taken, queue.topic.id)]
        getter.written(1)
    getter.close()
    return bodies


@EITHER
async def test_the_highest_priority_comes_first(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable)
    await publish(queue, 0, 5, 20, 3, 10, None)
    await publish(queue, 5, 11)
    await publish(queue, None)
    assert queue.ready == 9
    assert await everything(queue) == ["20", "10", "11", "5", "5", "3", "0", "None", "None"]
    await quiet()
    assert (queue.ready, queue.info().messages) == (0, 0)


@EITHER
@pytest.mark.skipif(not codec.COMPILED, reason="the plain codec looks at each message")
async def test_the_priorities_of_many_messages_are_read_at_once(drivers: Drivers, durable: bool) -> None:
    """As many as a block has, each with a head and a priority of its own."""
    queue = await queue_of(drivers, durable=durable)
    own = [
        heads.encode(Head(b"", b"q", Properties(priority=each % 12, message_id=b"%d" % each)))
        for each in range(BLOCK_MESSAGES)
    ]
    bodies = [b"%d" % each for each in range(BLOCK_MESSAGES)]
    with counted_calls() as calls:
        await post(queue, *bodies, heads=own)
    assert queue.ready == BLOCK_MESSAGES
    assert calls.total < BLOCK_MESSAGES
    by_priority = sorted(range(BLOCK_MESSAGES), key=lambda each: -min(10, each % 12))
    assert await everything(queue) == [str(each) for each in by_priority]


class Hasty(Client):
    """A consumer that notes how many messages it has when others have had a turn since its first one."""

    def __init__(self, queue: QueueDriver) -> None:
        self.first: list[int] = []
        super().__init__(queue, priority=0)

    def wake(self) -> None:
        super().wake()
        if self.wakes == 1:
            trio.lowlevel.current_trio_token().run_sync_soon(self._note)

    def _note(self) -> None:
        self.first.append(self.channel.statistics().behind)


@EITHER
async def test_returned_messages_leave_together(
    drivers: Drivers, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that cancels after its next message gets the others that were ready, too."""
    monkeypatch.setattr("omq.drivers.slices.SLICE_SECONDS", 60.0)  # also on a slow machine
    queue = await queue_of(drivers, durable=durable)
    for each in (3, 6, 3):
        await publish(queue, each)
    before = Client(queue, priority=0)
    before.request(10)
    await quiet()
    assert [got.id for got in await before.take()] == [2, 1, 3]
    before.channel.cancel()
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "read_stored", None)  # they are in memory
        before.settle(1, 2, 3, outcome=Modified(delivery_failed=True))
        await publish(queue, 9)
        hasty = Hasty(queue)
        hasty.request(10)
        await quiet()
    assert hasty.first == [4]
    assert [got.id for got in await hasty.take()] == [4, 2, 1, 3]


@EITHER
async def test_a_returned_message_keeps_its_priority_and_place(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable)
    client = Client(queue)
    client.request(3)
    await publish(queue, 1, 2, 3, 4, 5, 6)
    # A consumer with room gets what is there when it comes.
    assert [body.decode() for body in (await client.read()).bodies] == ["1", "2", "3"]
    assert queue.ready == 3
    await publish(queue, 4)
    client.settle(2)
    assert [body.decode() for body in (await client.read()).bodies] == ["1", "2", "3", "6"]
    client.settle(3, outcome=Modified(delivery_failed=True))
    assert [body.decode() for body in (await client.read()).bodies] == ["1", "2", "3", "6", "5"]
    client.close()
    assert await everything(queue) == ["6", "5", "4", "4", "3", "1"]


@EITHER
async def test_priorities_go_with_the_other_options(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable, max_length=3)
    await publish(queue, 1, 9, 2)
    # The head of the queue is the message with the highest priority, as RabbitMQ documents it.
    await publish(queue, 3)
    assert queue.ready == 3
    assert await everything(queue) == ["3", "2", "1"]
    await publish(queue, 1, 2)
    assert queue.purge() == 2
    assert await everything(queue) == []


@EITHER
@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_octets": 3}])
async def test_messages_of_one_post_are_dropped_by_their_priorities(
    drivers: Drivers, durable: bool, limit: dict[str, int]
) -> None:
    """As if each had come alone."""
    queue = await queue_of(drivers, durable=durable, **limit)
    await publish(queue, 1, 9, 2, 3)
    assert await everything(queue) == ["3", "2", "1"]
    client = Client(queue)
    client.request(1)
    await publish(queue, 1, 1, 9, 8, 2)
    assert (await client.read()).bodies == [b"1"]
    client.close()
    assert queue.ready == 3
    assert await everything(queue) == ["2", "1", "1"]


async def test_a_queue_may_have_the_priority_0_alone(drivers: Drivers) -> None:
    options = QueueOptions(durable=False, max_priority=0)
    queue = await drivers.catalogue.declare_queue(b"q", options)
    await publish(queue, 3, 1, None, 2)
    assert await everything(queue) == ["3", "1", "None", "2"]


async def test_priorities_survive_a_kill(tmp_path: Path) -> None:
    options = QueueOptions(durable=True, sync=Sync.WEAK, max_priority=10)
    async with opened(tmp_path / "store", killed=True) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        for _ in range(10):
            await publish(queue, *[0, 3, 1] * 30)
        client = Client(queue)
        client.channel.grant(2, CreditKind.WINDOW)
        await client.read()
        client.settle(client.ids[0])
        await drivers.save_positions()
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        assert queue.ready == 899
        bodies = await everything(queue)
        assert bodies == ["3"] * 299 + ["1"] * 300 + ["0"] * 300
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        assert queue.ready == 0
        await publish(queue, 1, 2)
        assert await everything(queue) == ["2", "1"]


@pytest.mark.parametrize("killed", [False, True])
async def test_damaged_blocks_at_the_start_are_told_as_gone(tmp_path: Path, killed: bool) -> None:
    """Once, and the messages before and after them keep their priorities. Only a stop saves which wait."""
    options = QueueOptions(durable=True, sync=Sync.WEAK, max_priority=10)
    async with opened(tmp_path / "store", killed=killed) as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        for levels in ([1, 2], [9, 3, 9], [5], [8, 8]):
            await publish(queue, *levels)
        topic = queue.topic.id
    for first in (3, 7):
        damage(tmp_path / "store", topic, first)
    async with opened(tmp_path / "store") as drivers:
        found = drivers.catalogue.lookup(b"q")  # at once, before the messages are read
        assert isinstance(found, QueueDriver)
        client = Client(queue := found)
        client.request(10)
        assert (await client.read()).bodies == [b"5", b"2", b"1"]
        gaps = [(gap.first, gap.last) for gap in client.gaps]
        if killed:
            # The queue finds them when it reads its messages, which may have ended before the client came.
            assert gaps in ([(3, 5), (7, 8)], [(7, 8)], [])
        else:
            assert gaps == [(id, id) for id in (3, 4, 5, 7, 8)]
        assert {gap.reason for gap in client.gaps} <= {"the store is damaged there (its checksum is wrong)"}
        client.close()
        await publish(queue, 4, 6)
        assert await everything(queue) == ["6", "5", "4", "2", "1"]


async def test_a_queue_that_is_too_long_at_the_start(tmp_path: Path) -> None:
    options = QueueOptions(durable=True, sync=Sync.WEAK, max_priority=10, max_length=2)
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        client = Client(queue)
        client.request(2)
        await publish(queue, 1, 2)
        await client.read()
        await publish(queue, 9, 3)
        await drivers.save_positions()
    async with opened(tmp_path / "store") as drivers:
        queue = await drivers.catalogue.declare_queue(b"q", options)
        assert await everything(queue) == ["2", "1"]


@EITHER
async def test_ready_messages_take_few_bits(drivers: Drivers, durable: bool) -> None:
    queue = await queue_of(drivers, durable=durable)
    used = drivers.memory.unconfirmed.used
    for number in range(300):
        await publish(queue, number % 3)
    assert drivers.memory.unconfirmed.used - used < 3 * 2 * RUN_OCTETS
    client = Client(queue)
    client.request(300)
    await client.read()
    client.close()
    assert drivers.memory.unconfirmed.used - used < 3 * 2 * RUN_OCTETS
    assert await everything(queue) == ["2"] * 100 + ["1"] * 100 + ["0"] * 100


async def test_a_purge_settles_in_portions(drivers: Drivers) -> None:
    """Every second message is purged, so that no two of them are settled as one range."""
    queue = await queue_of(drivers, durable=False)
    for level in [0, 5] * 300:
        await publish(queue, level)
    client = Client(queue)
    client.request(300)
    await client.read()
    assert set(client.bodies) == {b"5"}
    used = drivers.memory.waiting.used
    assert queue.purge() == 300
    assert (queue.ready, queue.info().messages) == (0, 300)
    assert 600 - SETTLED_AT_ONCE <= drivers.memory.waiting.used * 600 // used < 600
    await quiet()
    assert drivers.memory.waiting.used == used // 2
    assert client.channel.settle(range(1, 601), Accepted()) == 300
    assert queue.info().messages == 0
    await quiet()
    assert drivers.memory.waiting.used == 0
    client.close()
    await publish(queue, 1, 2)
    assert await everything(queue) == ["2", "1"]


async def test_a_queue_that_is_deleted_while_it_settles(drivers: Drivers) -> None:
    queue = await queue_of(drivers, durable=False)
    await publish(queue, *[0, 5] * 300)
    client = Client(queue)
    client.request(300)
    await client.read()
    queue.purge()
    await drivers.catalogue.delete(b"q")
    await quiet()


@pytest.fixture
def little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort one message at a time."""
    monkeypatch.setattr(priority_queue, "SORTED_IDS", 1)
    monkeypatch.setattr(priority_queue, "SORTED_LEVELS", 1)


class Portions(trio.abc.Instrument):
    """Counts the sorts of messages in each step of a task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts = [0]
        sort = Levels.sort

        def counted(levels: Levels) -> None:
            self.counts[-1] += levels.is_sorting
            sort(levels)

        monkeypatch.setattr(Levels, "sort", counted)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts.append(0)


@pytest.mark.usefixtures("little_at_once")
@EITHER
@pytest.mark.parametrize("consumes", [False, True])
async def test_messages_that_come_back_together_are_sorted_in_steps(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, durable: bool, consumes: bool
) -> None:
    queue = await queue_of(drivers, durable=durable)
    await publish(queue, *[1, 2, 3] * 30)
    client = Client(queue)
    client.request(90)
    await client.read()
    portions = Portions(monkeypatch)
    trio.lowlevel.add_instrument(portions)
    client.close()
    assert (queue.ready, queue.info().messages) == (90, 90)
    await publish(queue, 2)
    expected = ["3"] * 30 + ["2"] * 31 + ["1"] * 30
    if consumes:
        other = Client(queue)
        other.request(91)
        assert [body.decode() for body in (await other.read()).bodies] == expected
        other.close()
        assert queue.purge() == 91
    else:
        assert await everything(queue) == expected
    trio.lowlevel.remove_instrument(portions)
    assert sum(portions.counts) >= 90
    assert max(portions.counts) <= 2  # the consumer ends and a message comes in the same step


@pytest.mark.usefixtures("little_at_once")
@pytest.mark.parametrize("limit", [{"max_length": 5}, {"max_octets": 5}, {"ttl_ms": 60_000}])
async def test_limits_hold_for_messages_that_come_back_together(
    drivers: Drivers, mock_clock: trio.testing.MockClock, limit: dict[str, int]
) -> None:
    queue = await queue_of(drivers, durable=False, **limit)
    client = Client(queue)
    client.request(90)
    for level in [1, 2, 3] * 30:
        await publish(queue, level)
        await client.read()
    client.close()
    await quiet()
    assert queue.ready == (90 if "ttl_ms" in limit else 5)
    assert set(await everything(queue)) == ({"1", "2", "3"} if "ttl_ms" in limit else {"1"})


def test_many_messages_are_sorted_in_portions() -> None:
    levels, count = Levels(), 4 * SORTED_IDS * SORTED_LEVELS
    levels.learn(0, bytes([5, 9]) * (count // 2))
    runs = Ids()
    runs.add(range(count))
    levels.add(runs.runs())
    portions = 1
    while levels.is_sorting:
        levels.sort()
        portions += 1
        assert len(levels) == count
    assert portions == 2 * 4  # every second message has another priority
    assert [levels.pop() for _ in range(count // 2)] == list(range(1, count, 2))
    assert levels.lowest == 0


@pytest.mark.parametrize("first", [0, 1000, 1024, 5000])
def test_only_the_priorities_of_messages_that_are_done_are_forgotten(first: int) -> None:
    """Also of those that lie in several chunks, some of which have none."""
    levels = Levels()
    ids = range(first, first + 4000)
    levels.learn(first, bytes([3]) * 1500 + bytes(2000) + bytes([3]) * 500)
    done = {*ids[100:200:2], *ids[600:3700]}
    levels.forget(ids[100:200:2])
    for _ in range(2):  # the second time there is nothing to forget
        levels.forget(ids[600:3700])
    levels.add(Ids(ids).runs())
    high = [id for id in (*ids[:1500], *ids[3500:]) if id not in done]
    assert [levels.pop() for _ in ids] == [*high, *sorted(set(ids) - set(high))]


@given(st.integers(1, 20), st.lists(st.integers(0, 255), min_size=1, max_size=300))
def test_many_priorities(few: int, priorities: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priority_queue, "FEW_LEVELS", few)
        levels = Levels()
        levels.learn(0, bytes(priorities))
        levels.add(Ids(range(len(priorities))).runs())
    popped = [levels.pop() for _ in priorities]
    assert popped == sorted(range(len(priorities)), key=lambda id: -priorities[id])


@pytest.mark.parametrize(("ids", "at_once"), [(SORTED_IDS, SORTED_LEVELS), (3, 2)])
@given(priorities=st.lists(st.integers(0, 3), min_size=1, max_size=60), data=st.data())
def test_levels_are_a_priority_queue(
    priorities: list[int], data: st.DataObject, ids: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priority_queue, "SORTED_IDS", ids)
        patch.setattr(priority_queue, "SORTED_LEVELS", at_once)
        use(Levels(), priorities, data)


def use(levels: Levels, priorities: list[int], data: st.DataObject) -> None:
    """Use levels as a queue does."""
    levels.learn(0, bytes(priorities))
    undone = set(range(len(priorities)))
    levels.add(Ids(undone).runs())
    ready = set(undone)
    while ready:
        assert len(levels) == len(ready)
        assert {id for run in levels.runs() for id in run.ids()} == ready
        expected = min(ready, key=lambda id: (-priorities[id], id))
        assert levels.lowest == expected
        assert levels.pop() == expected
        ready.discard(expected)
        if data.draw(st.booleans()):
            levels.forget(range(expected, expected + 1))
            undone.discard(expected)
        elif data.draw(st.booleans()):
            back = undone - ready
            levels.add(run._replace(deliveries=2) for run in Ids(sorted(back)).runs())
            ready |= back
            for id in back:
                if data.draw(st.booleans()):
                    undone.discard(id)  # it does not come back once more
    assert levels.octets == 0
