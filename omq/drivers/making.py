"""Makes many topics in few commits, because each commit waits for the disk."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import trio

from omq.drivers.loading import Loaded
from omq.drivers.reasons import Reason, Refused
from omq.drivers.reservations import IDS_RESERVED
from omq.drivers.slices import Slices
from omq.drivers.store_calls import StoreCalls
from omq.drivers.topic_quota import AdmitName, Release, TopicQuota
from omq.drivers.topics_by_name import TopicsByName
from omq.model import Delivery, Persistence, Persistent, check_topic, stored_persistence
from omq_storage.store import Store

MADE_AT_ONCE = 256
"""The greatest number of topics that are made in one commit."""

log = logging.getLogger("omq.catalogue")


class TopicMaker:
    """Makes topics of a catalogue."""

    def __init__(
        self,
        topics: TopicsByName,
        quota: TopicQuota,
        calls: StoreCalls,
        store: Store,
        changing: trio.Lock,
    ) -> None:
        """Create a maker of topics. `changing` is the lock of the catalogue."""
        self._topics = topics
        self._quota = quota
        self._calls = calls
        self._store = store
        self._changing = changing

    async def make(
        self,
        names: Iterable[bytes],
        delivery: Delivery,
        persistence: Persistence,
        admit: AdmitName | None,
        *,
        declared: bool,
    ) -> None:
        """Make topics that are about to be declared or published to.

        What cannot be made is left to the single declaration or publish, which tries again and is told why.
        """
        missing: dict[bytes, None] = {}
        slices = Slices()
        for name in names:
            await slices.step()
            if name not in self._topics.drivers:
                missing[name] = None
        if len(missing) < 2:
            return
        left = iter(missing)
        while some := list(islice(left, MADE_AT_ONCE)):
            async with self._changing:
                if not await self._make(some, delivery, persistence, admit, declared=declared):
                    return

    async def _make(
        self,
        names: Sequence[bytes],
        delivery: Delivery,
        persistence: Persistence,
        admit: AdmitName | None,
        *,
        declared: bool,
    ) -> bool:
        """Make topics in one commit. Return whether all of these exist now."""
        released: dict[bytes, Release] = {}
        made = False
        try:
            if not self._quota.has_room(len(names)):
                return False
            slices = Slices()
            # Every topic in the store gets its driver: a caller that wants one of these topics waits for
            # `_changing`.
            with trio.CancelScope(shield=True):
                for name in names:
                    await slices.step()
                    if name not in self._topics.drivers:  # otherwise another client was faster
                        check_name(name)
                        released[name] = self._quota.admit(None if admit is None else partial(admit, name))
                create = partial(
                    self._store.catalogue.create_many,
                    list(released),
                    delivery.value,
                    stored_persistence(persistence),
                    declared,
                    reserved=first_bound(persistence),
                )
                records = await self._calls.or_refused(create)
                made = True
                for record in records:
                    self._quota.created(record.id, released[record.name])
                    self._topics.add(Loaded(record))
                    await slices.step()
        except Refused as refused:
            log.debug("%d topics could not be made together: %s", len(names), refused)
        finally:
            if not made:
                for release in released.values():
                    release()
        return made


def check_name(name: bytes) -> None:
    """Raise Refused if no topic can have this name."""
    problem = check_topic(name)
    if problem is not None:
        raise Refused(Reason.INVALID, problem)


def first_bound(persistence: Persistence) -> int:
    """Return the bound of the ids that are reserved for a topic together with its record.

    So the first message of a transient topic waits for no commit. The writer reserves the ids of a persistent
    topic: after a power failure, ids that are reserved count as lost.
    """
    return 1 if isinstance(persistence, Persistent) else 1 + IDS_RESERVED
