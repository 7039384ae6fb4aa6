"""The statistics of drivers, channels and writers say what happened, and asking for them changes nothing."""

import time
from pathlib import Path

import pytest
import trio
import trio.testing
from served_drivers import (
    BROADCAST,
    MIB,
    ROUND_ROBIN,
    STRONG,
    Client,
    Drivers,
    Kind,
    of_kinds,
    opened,
    post,
    quiet,
    settled,
)

from omq.drivers.driver import Driver
from omq.drivers.histogram import BOUNDS, Histogram
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.statistics import ChannelStatistics
from omq.model import Delivery, Transient
from omq.watching import TrafficRates
from omq_storage.batches import Bodies
from omq_storage.blocks import encode
from omq_storage.levels import Level

NO_ROOM = Failure(Reason.NO_ROOM, "the disk is full")
ALL = of_kinds()


@ALL
async def test_a_topic_counts_incoming_messages(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    await post(driver, b"one", b"three")
    await post(driver, b"four", heads=[b"head"])
    before = driver.statistics()
    assert driver.statistics() == before
    assert (before.topic, before.delivery, before.persistence) == (
        driver.topic,
        kind.delivery,
        kind.persistence,
    )
    assert (before.next_id, before.subscribers) == (4, 1)
    assert before.messages_in == 3
    in_frames = encode(driver.topic.id, 1, [b"one", b"three", b"four"], 1).size
    assert before.octets_in == in_frames + len(b"head")
    assert before.messages_out == 0
    await client.read()
    after = driver.statistics()
    assert after.messages_out == 3
    rates = TrafficRates.between(before, after, 2.0)
    assert rates == TrafficRates(messages_out=1.5, octets_out=after.octets_out / 2)
    client.close()
    assert driver.statistics().subscribers == 0


@BROADCAST
async def test_a_subscriber_is_behind_by_messages_not_on_its_socket(
    shared_drivers: Drivers, kind: Kind
) -> None:
    driver = await shared_drivers.topic(kind)
    client = Client(driver)
    assert client.channel.statistics() == ChannelStatistics(1, 0, None, 0, 0, is_held=False)
    await post(driver, b"1", b"2", b"3")
    assert client.channel.statistics() == ChannelStatistics(1, 3, None, 0, 0, is_held=False)
    assert len(await client.take()) == 3
    assert client.channel.statistics().behind == 3
    client.channel.written(2)
    assert client.channel.statistics() == ChannelStatistics(3, 1, None, 0, 0, is_held=False)
    await post(driver, b"4")
    client.channel.hold()
    assert client.channel.statistics() == ChannelStatistics(3, 2, None, 0, 0, is_held=True)
    client.channel.release()
    client.channel.finish()
    await post(driver, b"5")
    assert client.channel.statistics().behind == 2
    client.close()


@ROUND_ROBIN
async def test_a_worker_has_unsettled_messages_until_it_is_done(shared_drivers: Drivers, kind: Kind) -> None:
    driver = await shared_drivers.topic(kind)
    worker = Client(driver)
    worker.request(3)
    await post(driver, b"1", b"2", b"3", b"4")
    found = worker.channel.statistics()
    assert (found.position, found.behind, found.credit, found.unsettled) == (None, 3, 3, 3)
    assert found.octets > 0
    assert (driver.statistics().unsettled, driver.statistics().messages) == (3, 4)
    await worker.read()
    found = worker.channel.statistics()
    assert (found.behind, found.unsettled, found.octets) == (0, 3, 0)
    worker.settle(2)
    await quiet()
    found = worker.channel.statistics()
    assert (found.behind, found.unsettled) == (1, 3)
    assert (driver.statistics().unsettled, driver.statistics().messages) == (3, 3)
    # A message that is sent again is counted again.
    assert driver.statistics().messages_out == 3
    worker.close()
    assert driver.statistics().unsettled == 0
    other = await Client(driver).read()
    assert sorted(other.ids) == [1, 3, 4]
    assert driver.statistics().messages_out == 6
    other.close()


async def test_publishers_that_wait_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path / "store", memory=MIB) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.declare(Transient(), Delivery.ROUND_ROBIN)

        async def publish() -> None:
            for _ in range(20):
                await driver.post(Bodies([b"x" * 50_000]))

        async def publish_until_it_is_deleted() -> None:
            with pytest.raises(Refused):
                await publish()

        for _ in range(3):
            nursery.start_soon(publish_until_it_is_deleted)
        await quiet()
        assert driver.statistics().waiting_publishers == 3
        await drivers.catalogue.delete(b"t")
        assert driver.statistics().waiting_publishers == 0


async def test_publishers_that_wait_for_the_fastest_subscriber_are_counted(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The clock stands still, so the subscriber never counts as stalled."""
    async with opened(tmp_path / "store", memory=MIB) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.declare(Transient())
        client = Client(driver)

        async def publish() -> None:
            await driver.post(Bodies([b"x" * 50_000]))

        for _ in range(4):
            nursery.start_soon(publish)
        await quiet()
        assert driver.statistics().waiting_publishers == 2
        await client.read()
        assert driver.statistics().waiting_publishers == 0
        client.close()


async def test_a_writer_counts_its_commits(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        writer = drivers.catalogue.writers[Level.STRONG]
        before = writer.statistics()
        assert (before.level, before.commits, before.commit_seconds) == (Level.STRONG, 0, 0.0)
        driver = await drivers.declare(STRONG)
        await post(driver, b"1", b"2")
        first = writer.statistics()
        assert (first.commits, first.messages, first.failures) == (1, 2, 0)
        assert 0 < first.last_commit_seconds == first.commit_seconds < 60
        assert first.octets == driver.statistics().octets_in
        await post(driver, b"3")
        second = writer.statistics()
        assert (second.commits, second.messages) == (2, 3)
        assert second.commit_seconds == first.commit_seconds + second.last_commit_seconds
        assert (second.waiting_posts, second.waiting_octets) == (0, 0)
        assert drivers.catalogue.writers[Level.WEAK].statistics().commits == 0


async def test_a_writer_counts_no_more_time_than_passed(tmp_path: Path) -> None:
    began = time.perf_counter()
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(STRONG)
        for _ in range(3):
            await post(driver, b"1")
        found = drivers.catalogue.writers[Level.STRONG].statistics()
        weak = drivers.catalogue.writers[Level.WEAK]
        await weak.checkpoint()
        checkpoints = weak.statistics().checkpoint_times
    passed = time.perf_counter() - began
    assert found.commits == sum(found.commit_times.counts) == 3
    # The thread of a commit counts its time, too: without that of its start and its end.
    assert 0 < found.commit_times.seconds <= found.commit_seconds <= passed
    assert sum(checkpoints.counts) == 1
    assert 0 < checkpoints.seconds <= passed


async def test_posts_that_wait_for_a_commit_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        writer = drivers.catalogue.writers[Level.STRONG]
        driver = await drivers.declare(STRONG)
        async with writer.paused():
            first = await driver.post(Bodies([b"1"]))
            await trio.testing.wait_all_tasks_blocked()
            later = [await driver.post(Bodies([b"x" * 100])) for _ in range(3)]
            await trio.testing.wait_all_tasks_blocked()
            # The first is in the commit that waits for the pause to end.
            found = writer.statistics()
            assert found.waiting_posts == 3
            assert 300 < found.waiting_octets < 400
        for confirmation in (first, *later):
            assert await settled(confirmation) is None
        assert (writer.statistics().waiting_posts, writer.statistics().waiting_octets) == (0, 0)


async def test_a_writer_counts_messages_it_could_not_store(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as drivers:
        writer = drivers.catalogue.writers[Level.STRONG]
        topics: list[Driver] = [await drivers.declare(STRONG, name=name) for name in (b"t", b"u")]
        writer.refusal = NO_ROOM
        assert writer.statistics().refusal == NO_ROOM
        for topic in topics:
            assert await settled(await topic.post(Bodies([b"lost"]))) == NO_ROOM
        writer.refusal = None
        await post(topics[0], b"kept")
        found = writer.statistics()
        assert (found.refusal, found.failures, found.commits, found.messages) == (None, 2, 1, 1)
        assert [topic.statistics().failures for topic in topics] == [1, 1]
        assert [topic.statistics().messages_in for topic in topics] == [1, 0]


def test_times_are_counted_by_their_bounds() -> None:
    # A dashboard that shows these buckets goes on working.
    assert [1000 * bound for bound in BOUNDS if bound < 1] == [0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500]
    assert [bound for bound in BOUNDS if bound >= 1] == [1, 2.5, 5, 10]
    histogram = Histogram()
    for bound in BOUNDS:
        histogram.observe(bound)  # a bound is within its own bucket
    assert histogram.snapshot().counts == (*(1 for _ in BOUNDS), 0)
    histogram.observe(BOUNDS[-1] + 1)
    assert histogram.snapshot().counts == (*(1 for _ in BOUNDS), 1)
    assert histogram.snapshot().seconds == pytest.approx(sum(BOUNDS) + BOUNDS[-1] + 1)
