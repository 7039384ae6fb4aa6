"""A long message on its way to a transient broadcast topic: its body goes to the spool as it arrives."""

import errno
import logging
from functools import partial

from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.driver import Driver
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.sequences import Origin
from omq.drivers.spool import DiskFull, SpoolFull
from omq.drivers.spool_room import Promise, pages_of
from omq.drivers.spooled_bodies import SpooledBody
from omq.drivers.spooling import SpoolingDriver
from omq.drivers.uploads import StoredUpload, Upload
from omq.threads import in_thread
from omq_storage.fragments import Uploaded

SPOOL_FULL = Failure(Reason.NO_ROOM, "the spool is full")
DISK_FULL = Failure(Reason.NO_ROOM, "the disk is full")
SPOOL_FAILED = Failure(Reason.STORE_FAILED, "the spool failed, the server's log has more")

log = logging.getLogger("omq.spool")


async def begin_upload(driver: Driver, size: int, most_held: int) -> Upload | None:
    """Begin a message of N octets (`size`) to a topic that takes it so (`Driver.uploads_from`).

    Return None if the spool has no room for it now, and it has at most N octets (`most_held`): then it must
    be held in memory. A longer one waits for room while something moves on the spool. Raises Refused.
    """
    if isinstance(driver, SpoolingDriver) and not driver.is_persistent:
        return await SpooledUpload.begin(driver, size, most_held)
    return await StoredUpload.begin(driver)


class SpooledUpload(Upload):
    """Writes the body to the spool; nothing of it if nobody subscribed at its beginning."""

    def __init__(self, driver: SpoolingDriver, body: SpooledBody | None) -> None:
        """Use `begin_upload`."""
        super().__init__(driver)
        self._topic = driver
        self._body = body

    @classmethod
    async def begin(cls, driver: SpoolingDriver, size: int, most_held: int) -> "SpooledUpload | None":
        """Begin a message as `begin_upload` does. Raises Refused."""
        if not driver.subscriber_count():
            return cls(driver, None)
        spool = driver.resources.spool
        found = await _room(driver, size, waits=size > most_held)
        if isinstance(found, Promise):
            return cls(driver, SpooledBody(spool, size, found))
        if size <= most_held:
            return None
        spool.refused.add(f"a message of {size} octets: {found}")
        raise Refused.of(found)

    async def _put(self, octets: bytes) -> None:
        if self._topic.deleted:
            raise Refused.of(self._topic.gone)
        if self._body is None:
            return
        try:
            await self._body.put(octets)
        except (SpoolFull, OSError) as problem:
            self._topic.resources.spool.refused.add(problem)
            raise Refused.of(_failure(problem)) from problem

    async def _post(self, head: bytes, origin: Origin | None) -> Confirmation:
        uploaded = Uploaded(0, self._size, self._checksum)
        await self._topic.post_spooled(uploaded, self._body, head, origin)
        return CONFIRMED

    def _abandon(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.drop()


async def _room(driver: SpoolingDriver, size: int, *, waits: bool) -> Promise | Failure:
    """Promise room on the spool to a message, or return the reason why there is none."""
    spool, pages = driver.resources.spool, pages_of(size)
    promise = spool.room.try_promise(pages)
    if promise is None and waits:
        promise = await spool.room.promise(pages, driver.resources.spool_seconds)
    if promise is None:
        return SPOOL_FULL
    try:
        has_disk = await in_thread(partial(spool.has_disk, size))
    except BaseException:
        spool.room.withdraw(promise)
        raise
    if not has_disk:
        spool.room.withdraw(promise)
        return DISK_FULL
    return promise


def _failure(problem: SpoolFull | OSError) -> Failure:
    if isinstance(problem, DiskFull):
        return DISK_FULL
    if isinstance(problem, SpoolFull):
        return SPOOL_FULL
    return DISK_FULL if problem.errno in (errno.ENOSPC, errno.EDQUOT) else SPOOL_FAILED
