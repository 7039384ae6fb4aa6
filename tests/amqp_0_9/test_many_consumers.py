"""Queues and channels with many consumers: these are changed and ended in slices."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from counted_steps import watched
from server.conversation import InProcess, eventually, serving

from omq.drivers.round_robin_channel import RoundRobinChannel
from omq.drivers.statistics import ChannelStatistics
from omq.terminals.amqp_0_9.consuming import CANCELLED_LOOKED_AT

from .test_long_ends import CONSUMERS, OPENAMQ, answer, connected, consuming, hosting, the_queue
from .wire import ack, cancel, consume, declare_queue, method, publish, short


def qos(count: int, is_global: int) -> bytes:
    return method(1, 60, 10, struct.pack(">IHB", 0, count, is_global))


def flow(active: int) -> bytes:
    return method(1, 20, 20, bytes([active]))


def delete(queue: str) -> bytes:
    return method(1, 50, 40, b"\0\0" + short(queue) + b"\0")


def with_credit(host: InProcess, credit: int) -> Callable[[], int]:
    """Return a function that counts the consumers of the queue with this credit."""
    driver = the_queue(host)
    return lambda: sum(channel.statistics().credit == credit for channel in driver.channels())


def held(host: InProcess) -> Callable[[], int]:
    """Return a function that counts the consumers of the queue that are paused."""
    driver = the_queue(host)
    return lambda: sum(channel.statistics().is_held for channel in driver.channels())


async def test_a_prefetch_of_many_consumers_is_set_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q"))
        with watched(with_credit(host, 7)) as changed:
            assert await answer(client, qos(7, 0)) == "qos-ok"
        assert (changed.all[0], changed.all[-1], changed.largest_rise()) == (0, CONSUMERS, 1)
        client.close()


async def test_a_flow_of_many_consumers_is_changed_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q"), product=OPENAMQ)
        with watched(held(host)) as paused:
            assert await answer(client, flow(0)) == "flow-ok"
            assert paused.all[-1] == CONSUMERS
            assert await answer(client, flow(1)) == "flow-ok"
        assert (paused.all[-1], paused.largest_rise(), paused.largest_fall()) == (0, 1, 1)
        client.close()


async def test_a_consumer_is_cancelled_with_a_look_at_few_others(tmp_path: Path) -> None:
    """Those before it were cancelled with unacknowledged messages, and stay until these are settled."""
    consumers = 200
    async with serving(tmp_path) as host:
        client = await consuming(host, declare_queue(1, "q"), consumers, prefetch=1)
        await trio.to_thread.run_sync(client.send, *[publish(1, "", "q", b"x") for _ in range(consumers)])
        for _ in range(consumers):
            assert (await trio.to_thread.run_sync(client.wait)).name == "deliver"
        looks = 0
        look = RoundRobinChannel.statistics

        def statistics(channel: RoundRobinChannel) -> ChannelStatistics:
            nonlocal looks
            looks += 1
            return look(channel)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RoundRobinChannel, "statistics", statistics)
            for number in range(consumers):
                before = looks
                assert await answer(client, cancel(1, f"tag {number}")) == "cancel-ok"
                assert 0 < looks - before <= CANCELLED_LOOKED_AT
        driver = the_queue(host)
        assert (driver.subscriber_count(), driver.unacknowledged) == (0, consumers)
        assert len(driver.channels()) == consumers
        assert (await answer(client, ack(1, 0, 1), declare_queue(1, "q", passive=1))).endswith("consumers=0")
        assert await answer(client, consume(1, "q", "last")) == "consume-ok"
        assert await answer(client, cancel(1, "last")) == "cancel-ok"
        assert len(driver.channels()) == consumers - CANCELLED_LOOKED_AT + 1  # with the last one
        client.close()


@pytest.mark.parametrize("options", [{}, {"durable": 1}], ids=["ephemeral", "durable"])
@pytest.mark.parametrize("who", ["the consumer", "another"])
async def test_the_many_consumers_of_a_deleted_queue_end_in_slices(
    options: dict[str, int], who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q", **options))
        other = await connected(host)
        client.send(*[publish(1, "", "q", b"") for _ in range(3)])
        for _ in range(3):
            assert (await trio.to_thread.run_sync(client.wait)).name == "deliver"
        driver = the_queue(host)
        deleting = client if who == "the consumer" else other
        with watched(driver.subscriber_count) as consumers:
            assert (await answer(deleting, delete("q"))).startswith("delete-ok")
            assert driver.subscriber_count() == 0
        assert consumers.largest_fall() == 1
        told = [(await trio.to_thread.run_sync(client.wait)).args for _ in range(CONSUMERS)]
        assert {each[1 : 1 + each[0]] for each in told} == {b"tag %d" % n for n in range(CONSUMERS)}
        assert (await answer(other, declare_queue(1, "q", **options))).startswith("queue.declare-ok")
        await eventually(lambda: not host.server.statistics().subscriptions)
        client.close()
        other.close()


async def test_a_consumer_that_leaves_while_its_queue_is_deleted_is_ended_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosting(tmp_path, monkeypatch) as host:
        client = await consuming(host, declare_queue(1, "q"))
        other = await connected(host)
        driver = the_queue(host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, other, delete("q"))
            while driver.subscriber_count() == CONSUMERS:
                await trio.lowlevel.checkpoint()
            client.close()
        await eventually(lambda: host.server.statistics().connections == 1)
        assert host.server.statistics().subscriptions == 0
        assert driver.subscriber_count() == 0
        other.close()
