"""When housekeeping does its work, with real stores."""

import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from counted_steps import Steps, counted_calls, steps, watched
from served_drivers import KIB, STRONG, WEAK, Client, opened, post, quiet
from trio.testing import MockClock

from omq.drivers import slices
from omq.drivers.housekeeping import POSITION_SECONDS, keep_journal_free, keep_positions, keep_tidy, tidy
from omq.drivers.round_robin import RoundRobinDriver
from omq.model import Delivery
from omq_storage.journal import MOST_RECORDS
from omq_storage.levels import Level


async def test_retention_is_applied_every_two_seconds(tmp_path: Path, mock_clock: MockClock) -> None:
    async with opened(tmp_path / "store", retention_bytes=1) as drivers, trio.open_nursery() as nursery:
        driver = await drivers.declare(WEAK)
        nursery.start_soon(keep_tidy, drivers.catalogue, Level.WEAK)
        await quiet()
        for newest in (2, 3, 4):
            while driver.next_id <= newest:
                await post(driver, bytes(600 * KIB))
            before = driver.info().first
            mock_clock.jump(1.9)
            await quiet()
            assert driver.info().first == before < newest
            mock_clock.jump(0.1)
            await quiet()
            assert driver.info().first == newest
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("retention", "counts"), [(160.0, [10, 10, 10, 10, 5]), (None, [45])])
async def test_merged_blocks_span_a_sixteenth_of_the_retention(
    tmp_path: Path,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    retention: float | None,
    counts: list[int],
) -> None:
    """A block is deleted when all its messages are too old, so its oldest one is kept as much longer."""
    seconds = 1_700_000_000
    monkeypatch.setattr(time, "time_ns", lambda: seconds * 10**9)
    async with (
        opened(tmp_path / "store", retention_seconds=retention) as drivers,
        trio.open_nursery() as nursery,
    ):
        driver = await drivers.declare(WEAK)
        for _ in range(45):
            await post(driver, b"one each second")
            seconds += 1
        environment = drivers.store.level(Level.WEAK)
        assert [info.count for info in environment.blocks(driver.topic.id, 0)] == [1] * 45
        nursery.start_soon(keep_tidy, drivers.catalogue, Level.WEAK)
        await quiet()
        mock_clock.jump(2)
        await quiet()
        blocks = environment.blocks(driver.topic.id, 0)
        assert [info.count for info in blocks] == counts
        assert [info.span for info in blocks] == [(count - 1) * 1_000_000 for count in counts]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("work", ["tidy", "positions"])
async def test_the_topics_are_looked_at_in_slices(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Here each slice is over at once."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    async with opened(tmp_path / "store") as drivers:
        for number in range(20):
            driver = await drivers.declare(WEAK, Delivery.ROUND_ROBIN, b"t%d" % number)
            await post(driver, b"x")
            worker = Client(driver)
            worker.request(1)
            await worker.read()
            worker.settle(1)
        await quiet()
        if work == "positions":
            async with steps() as counted:
                await drivers.save_positions()
            assert counted.count >= 20
            return
        tasks: list[trio.lowlevel.Task] = []

        async def tidying() -> None:
            tasks.append(trio.lowlevel.current_task())
            await keep_tidy(drivers.catalogue, Level.ASYNC)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tidying)
            await quiet()
            counted = Steps(tasks[0])
            trio.lowlevel.add_instrument(counted)
            mock_clock.jump(2)
            await quiet()
            # None of these topics has this level.
            assert counted.count >= 20
            nursery.cancel_scope.cancel()


async def test_the_positions_of_many_topics_are_noted_one_after_another(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    async with opened(tmp_path / "store") as drivers, trio.open_nursery() as nursery:
        topics = []
        for number in range(20):
            topic = await drivers.declare(WEAK, Delivery.ROUND_ROBIN, b"t%d" % number)
            assert isinstance(topic, RoundRobinDriver)
            await post(topic, b"x")
            topics.append(topic)
        await quiet()
        with watched(lambda: sum(topic.saved_position is not None for topic in topics)) as saved:
            nursery.start_soon(drivers.save_positions)
            await quiet()
        assert (saved.all[-1], saved.largest_rise()) == (len(topics), 1)


async def test_the_position_of_many_consumers_is_looked_at_in_short_steps(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Each consumer has messages that are not done."""
    consumers = 1000
    async with opened(tmp_path / "store", retention_bytes=1) as drivers, trio.open_nursery() as nursery:
        topic = await drivers.declare(WEAK, Delivery.ROUND_ROBIN)
        assert isinstance(topic, RoundRobinDriver)
        assert topic.writer is not None
        workers = [Client(topic) for _ in range(consumers)]
        for worker in workers:
            worker.request(1)
        await post(topic, *[b"x"] * consumers)
        for worker in workers:
            await worker.read()
        with counted_calls() as calls:
            for _ in range(2):
                nursery.start_soon(drivers.save_positions)
                await quiet()
                nursery.start_soon(tidy, topic, topic.writer)
                await quiet()
        assert calls.total > 4 * consumers
        assert calls.longest < consumers
        assert topic.saved_position is not None
        assert (len(topic.saved_position.undone), topic.saved_lowest) == (consumers, 1)
        for worker in workers:
            worker.close()


async def test_the_position_of_many_consumers_is_freed_in_short_steps(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each consumer has messages that are not done, before and after."""
    consumers = 2000
    async with opened(tmp_path / "store") as drivers, trio.open_nursery() as nursery:
        topic = await drivers.declare(WEAK, Delivery.ROUND_ROBIN)
        assert isinstance(topic, RoundRobinDriver)
        workers = [Client(topic) for _ in range(consumers)]
        for worker in workers:
            worker.request(1)
        await post(topic, *[b"x"] * consumers)
        for worker in workers:
            await worker.read()
        await drivers.save_positions()
        for worker in workers[1:]:
            worker.settle(*worker.ids)
        monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
        with watched(sys.getallocatedblocks) as blocks:
            nursery.start_soon(drivers.save_positions)
            await quiet()
        assert topic.saved_position is not None
        assert len(topic.saved_position.undone) == 1
        assert blocks.largest_fall() < consumers // 4
        for worker in workers:
            worker.close()


async def test_others_run_only_when_a_slice_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    seconds = slices.SLICE_SECONDS / 8
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=lambda: next(clock) * seconds))
    work = slices.Slices()
    async with steps() as counted:
        for _ in range(90):
            await work.step()
    assert counted.count == 90 // 8


async def test_a_stop_stores_the_positions_that_housekeeping_is_saving(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop saves the positions, and then cancels housekeeping."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)
    names = [b"t%d" % number for number in range(20)]
    tasks: list[trio.lowlevel.Task] = []
    async with opened(tmp_path / "store", killed=True) as drivers:

        async def keeping() -> None:
            tasks.append(trio.lowlevel.current_task())
            await keep_positions(drivers.catalogue, Level.WEAK)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeping)
            workers = []
            for name in names:
                driver = await drivers.declare(WEAK, Delivery.ROUND_ROBIN, name)
                await post(driver, b"x")
                workers.append(Client(driver))
                workers[-1].request(1)
                await workers[-1].read()
            await drivers.save_positions()
            await quiet()
            for worker in workers:
                worker.settle(1)
            mock_clock.jump(POSITION_SECONDS)
            counted = Steps(tasks[0])
            trio.lowlevel.add_instrument(counted)
            while counted.count < len(names) // 2:  # one step for each topic
                await trio.lowlevel.checkpoint()
            await drivers.save_positions()
            nursery.cancel_scope.cancel()
    async with opened(tmp_path / "store") as drivers:
        for name in names:
            driver = await drivers.declare(WEAK, Delivery.ROUND_ROBIN, name)
            assert driver.info().messages == 0


@pytest.mark.parametrize("saved", [False, True])
async def test_a_topic_without_changes_waits_for_no_commit(tmp_path: Path, saved: bool) -> None:
    """Done messages are deleted when the position is saved, and nothing is written then until it changes."""
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK, Delivery.ROUND_ROBIN)
        assert driver.writer is not None
        worker = Client(driver)
        worker.request(10)
        for _ in range(5):
            await post(driver, bytes(600 * KIB))  # too large to be merged
        await worker.read()
        for done in (range(1, 4), range(4, 6)):
            worker.settle(*done)
            if saved:
                await drivers.save_positions()
            await tidy(driver, driver.writer)
            blocks = drivers.store.level(Level.WEAK).blocks(driver.topic.id, 0)
            assert [block.first for block in blocks] == [*range(done.stop if saved else 1, 6)]
            async with driver.writer.paused():
                with trio.fail_after(60):
                    await tidy(driver, driver.writer)


@pytest.mark.parametrize("kind", [Delivery.BROADCAST, Delivery.ROUND_ROBIN])
@pytest.mark.parametrize("is_older", [False, True])
async def test_a_topic_with_young_messages_waits_for_no_commit(
    tmp_path: Path, clock: MockClock, is_older: bool, kind: Delivery
) -> None:
    """Whether its messages came before or after the server was started. Thousands of topics have a limit."""
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK, kind)
        assert driver.writer is not None
        if is_older:
            await post(driver, b"one")
        driver.retain(None, 6400.0)
        if not is_older:
            await post(driver, b"one")
        await tidy(driver, driver.writer)
        for _ in range(10):
            clock.jump(2)
            async with driver.writer.paused():
                with trio.fail_after(60):
                    await tidy(driver, driver.writer)
        for _ in range(2):  # the first one notes that the message is there
            clock.jump(6400)
            await tidy(driver, driver.writer)
        assert driver.info().messages == (1 if kind is Delivery.ROUND_ROBIN else 0)
        async with driver.writer.paused():  # what nobody has taken stays
            with trio.fail_after(60):
                await tidy(driver, driver.writer)


async def test_a_changed_age_limit_applies_to_older_messages(tmp_path: Path, clock: MockClock) -> None:
    async with opened(tmp_path / "store") as drivers:
        driver = await drivers.declare(WEAK)
        assert driver.writer is not None
        driver.retain(None, 1000.0)
        for _ in range(10):
            await post(driver, bytes(600 * KIB))  # too large to be merged
            clock.jump(20)
            await tidy(driver, driver.writer)
        assert driver.info().first == 1
        driver.retain(None, 101.0)
        await tidy(driver, driver.writer)
        assert driver.info().first == 5  # the first four are older than 120 s, and ages known to 16 s
        driver.retain(None, None)
        clock.jump(10_000)
        await tidy(driver, driver.writer)
        assert driver.info().first == 5
        driver.retain(None, 1000.0)
        await tidy(driver, driver.writer)
        assert driver.info().messages == 0


async def test_the_journal_is_freed_by_checkpoints_beside_the_commits(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with opened(tmp_path / "store") as drivers, trio.open_nursery() as nursery:
        driver = await drivers.declare(STRONG)
        writer = drivers.catalogue.writers[Level.STRONG]
        nursery.start_soon(keep_journal_free, writer)
        await quiet()
        while sum(writer.statistics().checkpoint_times.counts) < 3:
            assert driver.next_id <= 4 * (MOST_RECORDS + 1)
            await post(driver, b"x")
            await quiet()
        assert not writer.environment.is_checkpoint_due
        nursery.cancel_scope.cancel()


async def test_work_may_have_shorter_slices() -> None:
    for seconds, turns in ((0.0, 5), (60.0, 0)):
        work = slices.Slices(seconds)
        for _ in range(5):
            await work.step()
        assert work.turns == turns
