"""Background work for the stores: checkpoints, retention, merging, positions, free disk space."""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.posts import StoredDriver
from omq.drivers.reasons import Failure, Reason
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.rounds import repeat
from omq.drivers.slices import Slices, let_go
from omq.drivers.statistics import DiskStatistics
from omq.drivers.writer import Writer
from omq.logs import LogThrottle
from omq.threads import in_thread
from omq_storage.blocks import SPAN_LIMIT
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.merging import SmallBlocks
from omq_storage.records import Position, TooOld

log = logging.getLogger("omq.housekeeping")

NOT_IN_PLACE = Failure(
    Reason.STORE_FAILED, "the directory of the store was deleted, or has another store in it"
)
"""The reason why nothing is stored in files that the next start would not find."""

RETENTION_SPANS = 16
"""The least number of merged blocks that share the time of a topic's retention: messages are kept at most
this part of it longer.
"""

TIDY_SECONDS = 2.0
POSITION_SECONDS = 0.1
"""Together with the time of a commit, confirmed work is saved within a quarter of a second."""

RUNS_A_STEP = 64
"""The number of runs of messages of a position that are looked at between two looks at the clock."""


async def keep_flushing(writer: Writer, seconds: float) -> None:
    """Take a checkpoint every `seconds`."""
    what = f"{writer.environment.level.value}: not made durable"
    await repeat(log, what, seconds, writer.checkpoint)


async def keep_journal_free(writer: Writer) -> None:
    """Take a checkpoint whenever one is due, so that no commit must wait for one."""

    async def take() -> None:
        await writer.checkpoint_due.wait()
        await writer.checkpoint()

    await repeat(log, f"{writer.environment.level.value}: the journal is not freed", 0, take)


async def watch_disk(
    catalogue: Catalogue, config: Config, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
) -> None:
    """Check the free disk space before this has started, and then every two seconds."""
    what = "the free disk space cannot be determined"
    problems = LogThrottle.of_problem(log, what)

    async def look() -> None:
        try:
            await look_at_disk(catalogue, config)
        except OSError as problem:  # it may happen at the start, too, and does not prevent it
            problems.add(problem)

    await look()
    task_status.started()
    await repeat(log, what, TIDY_SECONDS, look)


async def keep_deleting(catalogue: Catalogue) -> None:
    """Complete deletions of topics and of large messages, delete unused topics that could not be deleted
    before, and the fragments of large messages that were never completed, and reserve disk space for
    deletions, as far as the disk has any.
    """

    async def delete() -> None:
        await catalogue.deletion.delete_left()
        await catalogue.orphaned_blocks.drop()
        await catalogue.sweep()
        await catalogue.make_room()

    await repeat(log, "room for deletions", TIDY_SECONDS, delete)


async def look_at_disk(catalogue: Catalogue, config: Config) -> None:
    """Make the writers refuse posts while the disk has less free space than the reserve, or the directory has
    another store, or none. In the last two cases the catalogue is not changed either.

    Raises OSError, and changes nothing, if the free space cannot be determined.
    """
    reserve, store = config.disk_reserve_bytes, Path(config.store)
    refusal = None
    disk = await in_thread(partial(_disk, catalogue, store))
    if disk is None:
        refusal = NOT_IN_PLACE
    else:
        catalogue.disk = disk
        if disk.free < reserve:
            text = f"the disk has less free than the {reserve >> 20} MiB kept in reserve"
            refusal = Failure(Reason.NO_ROOM, text)
    before = next(iter(catalogue.writers.values())).refusal
    if refusal == before:
        pass
    elif refusal is NOT_IN_PLACE:
        log.error("%s: %s; nothing more is stored", store, refusal)
    elif refusal is not None:
        left = catalogue.disk.free >> 20
        log.error("the disk has %d MiB left: nothing more is stored until there is room", left)
    elif before is NOT_IN_PLACE:
        log.warning("%s: the store is in its directory again", store)
    else:
        log.warning("there is room on the disk again")
    catalogue.refuse_changes(NOT_IN_PLACE if refusal is NOT_IN_PLACE else None)
    for writer in catalogue.writers.values():
        writer.refusal = refusal
        writer.fragments.disk_reserve = reserve


def _disk(catalogue: Catalogue, store: Path) -> DiskStatistics | None:
    """Return the octets that are free on the disk and those that the store takes; None if the store is not in
    its directory any more. Raise OSError.
    """
    if not catalogue.is_in_place():
        return None
    status = os.statvfs(store)
    stored = 0
    # `rglob` of Python 3.13 passes over folders that it cannot open.
    for folder, _, names in os.walk(store, onerror=_raise_unless_deleted):
        for name in names:
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                stored += Path(folder, name).stat().st_blocks * 512
    return DiskStatistics(status.f_bavail * status.f_frsize, stored)


def _raise_unless_deleted(problem: OSError) -> None:
    if not isinstance(problem, FileNotFoundError):
        raise problem


async def keep_tidy(catalogue: Catalogue, level: Level) -> None:
    """Merge blocks, apply retention, and try to recover from a full disk for one level, every two seconds."""
    writer = catalogue.writers[level]
    problems = LogThrottle.of_problem(log, level.value)

    async def tidy_all() -> None:
        slices = Slices()  # there may be thousands of topics, most of which need nothing
        for driver in catalogue.in_turn():
            await slices.step()
            try:
                if driver.writer is writer and not driver.deleted:
                    await tidy(driver, writer)
            except StoreError as problem:  # of one topic; continue with the others
                problems.add(problem)
        await writer.recover()
        if writer.was_full:
            # The room of deleted blocks becomes free only when no checkpoint needs it any more.
            writer.was_full = False
            await writer.checkpoint()
        await in_thread(writer.environment.reader_check)

    await repeat(log, level.value, TIDY_SECONDS, tidy_all)


async def keep_positions(catalogue: Catalogue, level: Level) -> None:
    """Save the positions of the round-robin topics of one level, several times a second.

    Work confirmed after that is delivered again if the server is killed. So this waits only for the
    current commit, and not for merging and retention, which can take seconds.
    """
    writer = catalogue.writers[level]

    async def save() -> None:
        await writer.changed_positions.wait()
        await save_positions(writer)

    await repeat(log, f"{level.value}: positions are not saved", POSITION_SECONDS, save)


async def save_positions(writer: Writer) -> None:
    """Store the changed positions of the round-robin topics of a writer. If they are being stored already,
    wait for that, and store those that have changed meanwhile.

    Raises StoreError; then the next call stores them.
    """
    async with writer.changed_positions.saving() as drivers:
        await _save_positions(writer, drivers)


async def _save_positions(writer: Writer, drivers: Iterable[StoredDriver]) -> None:
    changed: dict[RoundRobinDriver, Position] = {}
    slices = Slices()
    for driver in drivers:
        await slices.step()
        if isinstance(driver, RoundRobinDriver) and not driver.deleted:
            position = driver.position_without_undone() or await driver.position()
            if not await _are_same(position, driver.saved_position, slices):
                changed[driver] = position
    positions: dict[int, Position] = {}
    for driver, position in changed.items():
        await slices.step()
        if not driver.deleted:
            positions[driver.topic.id] = position
    if not positions:
        return
    await writer.call(partial(writer.environment.set_positions, positions))
    slices = Slices()
    for driver, position in changed.items():
        before = [] if driver.saved_position is None else list(driver.saved_position.undone)
        lowest = await _lowest(position, slices) if position.undone else position.cursor
        driver.saved_position, driver.saved_lowest = position, lowest
        for _ in let_go(before):  # each is freed in its turn
            await slices.step()
        await slices.step()


async def _are_same(one: Position, other: Position | None, slices: Slices) -> bool:
    """Return whether these positions are equal. They may have thousands of runs of messages."""
    if other is None or one.cursor != other.cursor or len(one.undone) != len(other.undone):
        return False
    for start in range(0, len(one.undone), RUNS_A_STEP):
        part = slice(start, start + RUNS_A_STEP)
        if one.undone[part] != other.undone[part]:
            return False
        await slices.step()
    return True


async def _lowest(position: Position, slices: Slices) -> int:
    """Return the id below which all messages are done, as `Position.lowest` does, in slices."""
    lowest = position.cursor
    for start in range(0, len(position.undone), RUNS_A_STEP):
        lowest = min(lowest, *(run.lowest for run in position.undone[start : start + RUNS_A_STEP]))
        await slices.step()
    return lowest


async def tidy(driver: Driver, writer: Writer) -> None:
    """Merge the small blocks of a topic that grew, and apply its retention."""
    environment = writer.environment
    topic = driver.topic.id
    if driver.next_id != driver.tidied:
        driver.tidied = driver.next_id
        span = _span(driver)
        blocks = SmallBlocks(lambda start: environment.merge_small(topic, start, span), driver.merge_from)
        # Not between commits: it reads and writes much, and posts and positions should not wait for it.
        while await in_thread(blocks.step):
            pass
        driver.merge_from = blocks.start
        driver.extent = await writer.call(partial(environment.extent, topic))
    if isinstance(driver, RoundRobinDriver):
        await delete_done(driver, writer)
    octets, _ = driver.retention
    too_many = octets is not None and driver.extent.bytes > octets
    ages = driver.ages
    if ages is not None:
        ages.mark(driver.next_id)
    if not driver.extent.messages or not (too_many or (ages and ages.is_due(driver.extent.first))):
        return
    too_old = None if ages is None else ages.too_old()
    keep_from = None
    if isinstance(driver, RoundRobinDriver):
        keep_from = await _lowest(await driver.position(), Slices())
    await delete_oldest(driver, writer, octets, too_old, keep_from)
    if ages is not None and too_old is not None:
        ages.looked(too_old)


def _span(driver: Driver) -> int:
    """Return the number of microseconds that a merged block may span, so that it is deleted soon after its
    oldest message is too old.
    """
    _, seconds = driver.retention
    return SPAN_LIMIT if seconds is None else min(SPAN_LIMIT, int(seconds * 1_000_000 / RETENTION_SPANS))


async def delete_done(driver: RoundRobinDriver, writer: Writer) -> None:
    """Delete the blocks in which all messages are done according to the topic's stored position."""
    lowest = driver.saved_lowest
    if driver.deleted_below < lowest:
        await delete_oldest(driver, writer, None, TooOld(0, 0, lowest), None)
        driver.deleted_below = lowest


async def delete_oldest(
    driver: Driver, writer: Writer, octets: int | None, too_old: TooOld | None, keep_from: int | None
) -> None:
    """Delete blocks as `Environment.retain` does, in steps; other writes may come between them."""
    changed = True
    while changed and not driver.deleted:
        step = partial(writer.environment.retain, driver.topic.id, octets, too_old, keep_from)
        extent = await writer.call(step)
        changed = extent != driver.extent
        driver.extent = extent
