"""A long message on its way to topics: to transient ones its body goes to the spool as it arrives."""

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from omq.drivers.confirmation import CONFIRMED, Confirmation
from omq.drivers.driver import Driver
from omq.drivers.producers import PostProducers
from omq.drivers.reasons import Failure, Reason, Refused
from omq.drivers.sequences import Origin, producers_of
from omq.drivers.spool import DiskFull, SpoolFull
from omq.drivers.spool_room import Promise, pages_of
from omq.drivers.spooled_bodies import SpooledBody
from omq.drivers.spooled_topics import SpooledTopic
from omq.drivers.uploads import StoredUpload, Upload
from omq.threads import in_thread
from omq_storage.fragments import Uploaded

SPOOL_FULL = Failure(Reason.NO_ROOM, "the spool is full")
DISK_FULL = Failure(Reason.NO_ROOM, "the disk is full")
SPOOL_FAILED = Failure(Reason.STORE_FAILED, "the spool failed, the server's log has more")

log = logging.getLogger("omq.spool")


async def begin_upload(driver: Driver, size: int, most_held: int, *, may_wait: bool = False) -> Upload | None:
    """Begin a message to one topic: see `begin_uploads`."""
    uploads = await begin_uploads([driver], size, most_held, may_wait=may_wait)
    return None if uploads is None else uploads[0]


async def begin_uploads(
    drivers: Sequence[Driver], size: int, most_held: int, *, may_wait: bool = False
) -> list[Upload] | None:
    """Begin a message of N octets (`size`) to topics that take it so (`Driver.uploads_from`): one upload for
    each persistent topic, and one for all transient ones.

    It waits for room on the spool while something moves there. Return None if it need not wait any longer,
    because it has at most N octets (`most_held`): then it must be held in memory. It need not wait at all
    unless the caller has no other work (`may_wait`). Then one for round-robin topics waits as long as their
    workers take. Raises Refused.
    """
    spooled = [driver for driver in drivers if isinstance(driver, SpooledTopic) and not driver.is_persistent]
    uploads: list[Upload] = []
    try:
        if spooled:
            found = await SpooledUpload.begin(spooled, size, most_held, may_wait=may_wait)
            if found is None:
                return None
            uploads.append(found)
        for driver in drivers:
            if driver.is_persistent:
                begun = await StoredUpload.begin(driver)
                uploads.append(begun)
    except BaseException:
        for upload in uploads:
            upload.close()
        raise
    return uploads


class SpooledUpload(Upload):
    """Writes the body to the spool once, for all of its topics that keep it."""

    def __init__(self, topics: Mapping[SpooledTopic, bool], body: SpooledBody | None) -> None:
        """Use `begin_uploads`. The values tell which topics keep the body."""
        self._topics = topics
        self._first = next(iter(topics))
        super().__init__(self._first)
        self._body = body
        self._producers: dict[SpooledTopic, PostProducers] = {}

    @classmethod
    async def begin(
        cls, topics: Sequence[SpooledTopic], size: int, most_held: int, *, may_wait: bool
    ) -> "SpooledUpload | None":
        """Begin a message as `begin_uploads` does. Raises Refused."""
        kept = {topic: topic.keeps_long for topic in topics}
        if not any(kept.values()):
            return cls(kept, None)
        spool = topics[0].resources.spool
        keeping = [topic for topic, keeps in kept.items() if keeps]
        may_be_held = size <= most_held

        def goes_on() -> bool:
            if not spool.room.has_complete:
                return False  # no worker can make room
            return not (may_be_held and any(topic.has_taker() for topic in keeping))

        def is_unwanted() -> bool:
            return all(topic.deleted for topic in keeping)

        is_patient = may_wait and all(topic.waits_for_workers for topic in keeping)
        waits = may_wait or not may_be_held
        found = await _room(topics[0], size, is_unwanted, goes_on if is_patient else None, waits=waits)
        if isinstance(found, Promise):
            return cls(kept, SpooledBody(spool, size, found))
        if is_unwanted():
            return cls(kept, None)
        if size <= most_held:
            return None
        spool.refused.add(f"a message of {size} octets: {found}")
        raise Refused.of(found)

    async def post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """See `Upload.post`. While the last octets are written, an earlier post of the producer may fail."""
        names = producers_of([origin])
        self._producers = {topic: topic.producers.of_post(names) for topic in self._topics}
        return await super().post(head, origin)

    async def _put(self, octets: bytes) -> None:
        if all(topic.deleted for topic in self._topics):
            raise Refused.of(self._first.gone)
        if self._body is None:
            return
        try:
            await self._body.put(octets)
        except (SpoolFull, OSError) as problem:
            self._first.resources.spool.refused.add(problem)
            raise Refused.of(_failure(problem)) from problem

    async def _read_back(self) -> bytes | None:
        return None if self._body is None else await self._body.whole(self._first.topic.id)

    async def _post(self, head: bytes, origin: Origin | None) -> Confirmation:
        """See `Upload._post`. A topic that was deleted meanwhile does not count, unless all were."""
        uploaded = Uploaded(0, self._size, self._checksum)
        if self._body is not None:
            self._body.finish()
        deleted: Refused | None = None
        is_taken = False
        for topic, is_kept in self._topics.items():
            body = self._body.shared() if is_kept and self._body is not None else None
            try:
                await topic.post_spooled(uploaded, body, head, origin, self._producers[topic])
                is_taken = True
            except BaseException as problem:
                if body is not None:
                    body.drop()
                if not isinstance(problem, Refused) or problem.reason is not Reason.DELETED:
                    raise
                deleted = problem
        if deleted is not None and not is_taken:
            raise deleted
        self._abandon()
        return CONFIRMED

    def _abandon(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.drop()


async def _room(
    driver: Driver,
    size: int,
    is_unwanted: Callable[[], bool],
    goes_on: Callable[[], bool] | None,
    *,
    waits: bool,
) -> Promise | Failure:
    """Promise room on the spool to a message, or return the reason why there is none."""
    spool, pages = driver.resources.spool, pages_of(size)
    promise = spool.room.try_promise(pages)
    if promise is None and waits:
        seconds = driver.resources.spool_seconds
        promise = await spool.room.promise(pages, seconds, is_unwanted, goes_on)
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
