"""What is done for the stores in the background: checkpoints, retention, merging, positions, room on disk."""

import logging
import os
from functools import partial

import trio

from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.complaints import Complaints
from omq.drivers.driver import Driver
from omq.drivers.round_robin import RoundRobinDriver
from omq.drivers.writer import Writer
from omq_storage.errors import StoreError
from omq_storage.levels import Level
from omq_storage.records import Position

log = logging.getLogger("omq.housekeeping")

TIDY_SECONDS = 2.0
POSITION_SECONDS = 0.25


async def keep_flushing(writer: Writer, seconds: float) -> None:
    """Make what was written durable, every `seconds`."""
    due = trio.current_time() + seconds
    complaints = Complaints(log, f"{writer.environment.level.value}: not made durable")
    while True:
        await trio.sleep_until(due)
        due = max(due + seconds, trio.current_time())
        try:
            await trio.to_thread.run_sync(writer.environment.checkpoint)
        except StoreError as problem:
            complaints.add(problem)


async def watch_disk(catalogue: Catalogue, config: Config) -> None:
    """Look at the disk every two seconds."""
    while True:
        await trio.sleep(TIDY_SECONDS)
        await look_at_disk(catalogue, config)


async def look_at_disk(catalogue: Catalogue, config: Config) -> None:
    """Stop the writers while the disk has less free than the reserve."""
    reserve = config.disk_reserve_bytes
    try:
        status = await trio.to_thread.run_sync(os.statvfs, config.store)
    except OSError as problem:
        log.error("the disk's free room cannot be told: %s", problem)
        return
    free = status.f_bavail * status.f_frsize
    refusal = None
    if free < reserve:
        refusal = f"the disk has less free than the {reserve >> 20} MiB kept in reserve"
    before = next(iter(catalogue.writers.values())).refusal
    if refusal is not None and before is None:
        log.error("the disk has %d MiB left: nothing more is stored until there is room", free >> 20)
    elif refusal is None and before is not None:
        log.warning("there is room on the disk again")
    for writer in catalogue.writers.values():
        writer.refusal = refusal


async def keep_tidy(catalogue: Catalogue, level: Level) -> None:
    """Everything else, for one level: positions several times a second, the rest every two seconds.

    What round-robin topics did since their positions were saved is dealt again when the server is killed.
    """
    writer = catalogue.writers[level]
    due = trio.current_time() + TIDY_SECONDS
    complaints = Complaints(log, level.value)
    while True:
        await trio.sleep(POSITION_SECONDS)
        drivers = [driver for driver in catalogue if driver.writer is writer]
        try:
            await save_positions(writer, drivers)
        except StoreError as problem:
            complaints.add(problem)
        if trio.current_time() < due:
            continue
        due = trio.current_time() + TIDY_SECONDS
        for driver in drivers:
            try:
                if not driver.deleted:
                    await tidy(driver, writer)
            except StoreError as problem:  # of one topic; the others are to be tidied all the same
                complaints.add(problem)
        try:
            if writer.was_full:
                # What was deleted gives its room back only when no checkpoint needs it any more.
                writer.was_full = False
                await trio.to_thread.run_sync(writer.environment.checkpoint)
            await trio.to_thread.run_sync(writer.environment.reader_check)
        except StoreError as problem:
            complaints.add(problem)


async def save_positions(writer: Writer, drivers: list[Driver]) -> None:
    """Store how far the round-robin topics are, where that changed, then delete what is done.

    Raises StoreError; what was not stored is the next time's to store.
    """
    changed: dict[RoundRobinDriver, Position] = {}
    for driver in drivers:
        if isinstance(driver, RoundRobinDriver) and driver.moved and not driver.deleted:
            driver.moved = False
            position = driver.position()
            if position != driver.saved_position:
                changed[driver] = position
    if not changed:
        return
    positions = {driver.topic.id: position for driver, position in changed.items()}
    try:
        await writer.call(partial(writer.environment.set_positions, positions))
        for driver, position in changed.items():
            lowest = position.undone[0] if position.undone else position.cursor
            driver.extent = await writer.call(partial(writer.environment.trim, driver.topic.id, lowest))
            driver.saved_position = position
    except StoreError:
        for driver in changed:
            driver.moved = True  # so that it is tried again, though nothing may move meanwhile
        raise


async def tidy(driver: Driver, writer: Writer) -> None:
    """Merge the small blocks of a topic that grew, and delete what its retention no longer keeps."""
    environment = writer.environment
    topic = driver.topic.id
    if driver.next_id != driver.tidied:
        driver.tidied = driver.next_id
        start: int | None = driver.merge_from
        while start is not None:
            driver.merge_from = start
            start = await writer.call(partial(environment.merge_small, topic, start))
        driver.extent = await writer.call(partial(environment.extent, topic))
    octets, _ = driver.retention
    too_many = octets is not None and driver.extent.bytes > octets
    if driver.ages is not None:
        driver.ages.mark(driver.next_id)
    if not driver.extent.messages or not (too_many or driver.ages is not None):
        return
    too_old = None if driver.ages is None else driver.ages.too_old()
    keep_from = None
    if isinstance(driver, RoundRobinDriver):
        position = driver.position()
        keep_from = position.undone[0] if position.undone else position.cursor
    while True:
        extent = await writer.call(partial(environment.retain, topic, octets, too_old, keep_from))
        changed = extent != driver.extent
        driver.extent = extent
        if not changed:
            return
