"""Provides many topics at once with what they need, before each of them is used by itself: that takes few
commits, instead of some for each topic. And deletes many topics at once.
"""

import logging
from collections.abc import Mapping, Sequence

from omq.access.session import Session
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.slices import Slices
from omq.model import Delivery, Persistence, Topic
from omq_storage.batches import Batch

log = logging.getLogger("omq.access")


class Provisioning:
    """Makes topics and reserves ids, as far as the client of a session may. A failure is left to the use of
    each topic, which tries again and reports it.
    """

    __slots__ = ("_catalogue", "_session")

    def __init__(self, session: Session, catalogue: Catalogue) -> None:
        self._session = session
        self._catalogue = catalogue

    async def make_missing(self, runs: Mapping[bytes, Sequence[Batch]]) -> bool:
        """Make those topics that are about to be published to and do not exist. Return whether there may be
        new topics.
        """
        publish, largest = self._session.rights.publish, self._session.max_message_bytes
        missing: list[bytes] = []
        slices = Slices()
        for name, batches in runs.items():
            await slices.step()
            if (
                name not in self._catalogue.by_name
                and name in publish
                and all(batch.longest <= largest for batch in batches)
            ):
                missing.append(name)
        if len(missing) < 2:
            return False
        await self._catalogue.make_undeclared(missing, self._session.admit)
        return True

    async def make_all(self, names: Sequence[bytes], delivery: Delivery, persistence: Persistence) -> None:
        """Make those of these topics that do not exist. Then declare each by itself."""
        declare = self._session.rights.declare
        allowed: list[bytes] = []
        slices = Slices()
        for name in names:
            await slices.step()
            if name in declare:
                allowed.append(name)
        await self._catalogue.make(allowed, delivery, persistence, self._session.admit)

    async def delete_all(self, names: Sequence[bytes]) -> dict[bytes, Topic]:
        """Delete those of these topics that can be deleted together, and return them by name."""
        may_delete = self._session.rights.delete
        allowed = dict.fromkeys(name for name in names if name in may_delete)
        deleted = await self._catalogue.deletion.delete_many(allowed)
        return {topic.topic: topic for topic in deleted}

    async def reserve_ids(self, runs: Mapping[bytes, Sequence[Batch]]) -> bool:
        """Reserve ids for messages that are about to be offered to several transient topics, in one commit.
        For persistent topics the writer gathers the reservations.

        Return whether any topic has ids now that it lacked before.
        """
        wanted: dict[Driver, int] = {}
        slices = Slices()
        for name, batches in runs.items():
            await slices.step()
            driver = self._catalogue.lookup(name)
            if driver is not None and not driver.is_persistent and name in self._session.rights.publish:
                count = sum(batch.count for batch in batches)
                if not driver.has_ids(count):
                    wanted[driver] = count
        if not wanted:
            return False
        try:
            await self._catalogue.ids.reserve(wanted)
        except Exception as problem:  # noqa: BLE001 - each offer tries again, and reports it
            log.debug("no ids could be reserved for %d topics: %s", len(wanted), problem)
            return False
        return True
