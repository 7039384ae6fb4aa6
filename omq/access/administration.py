"""The operations that watch and control a server: for clients with the rights to do so.

The statistics of a topic take the right `watch` to it; to purge it and to change its retention, the right
`administer`. What concerns the server takes these rights to all topics: see `Session.check_server`.
"""

from collections.abc import Callable
from heapq import nlargest

from omq import watching
from omq.access.administered_server import AdministeredServer
from omq.access.rights import Right
from omq.access.session import Session
from omq.access.watches import Watcher, Watches
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.lifetime import check_user
from omq.drivers.purging import purge
from omq.drivers.reasons import NO_TOPIC, Reason, Refused
from omq.drivers.slices import Slices
from omq.model import LONGEST_RETENTION

SHORTEST_PERIOD, LONGEST_PERIOD = 100, 3_600_000
"""Milliseconds between the rounds of a watcher."""

MOST_CONNECTIONS = 20
"""The most connections in one answer: a list takes several."""

MOST_SUBSCRIBERS = 50
"""The most subscribers in one answer: those that are the furthest behind."""


class Administration:
    """The operations of one connection."""

    __slots__ = ("_administered", "_catalogue", "_session", "_watches")

    def __init__(
        self, session: Session, catalogue: Catalogue, watches: Watches, administered: AdministeredServer
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._watches = watches
        self._administered = administered

    def watch(self, period: int, wake: Callable[[], None], instead: Watcher | None = None) -> Watcher | None:
        """Return a watcher, whose rounds begin with `wake`; None for the period 0. The caller closes the
        watcher that it replaces. Raises Refused.
        """
        session = self._session
        if not session.rights.watch.exact and not session.rights.watch.beginnings:
            raise session.denied("may not watch anything")
        if period == 0:
            return None
        if not SHORTEST_PERIOD <= period <= LONGEST_PERIOD:
            what = f"a period is 0, or {SHORTEST_PERIOD} to {LONGEST_PERIOD} milliseconds"
            raise Refused(Reason.INVALID, what)
        return self._watches.add(session, period, wake, instead)

    async def connections(self, first: int) -> tuple[watching.ConnectionInfo, ...]:
        """Return connections with ids from `first` on. Raises Refused."""
        self._session.check_server(Right.WATCH)
        if first < 0:
            raise Refused(Reason.INVALID, "a number cannot be negative")
        found: list[watching.ConnectionInfo] = []
        slices = Slices()
        for each in self._administered.connections(first):
            await slices.step()
            if each is not None:
                found.append(each)
            if len(found) == MOST_CONNECTIONS:
                break
        return tuple(found)

    async def subscribers(self, name: bytes) -> tuple[watching.SubscriberInfo, ...]:
        """Return the subscribers of a topic that are the furthest behind. Raises Refused."""
        self._session.check_server(Right.WATCH)
        topic = self._find(name).topic
        found: list[watching.SubscriberInfo] = []
        slices = Slices()
        for each in self._administered.subscribers(topic):
            await slices.step()
            if each is not None:
                found.append(each)
            if len(found) >= 2 * MOST_SUBSCRIBERS:
                found = _furthest(found)
        return tuple(_furthest(found))

    def disconnect(self, connection: int) -> int:
        """End a connection. Return the number of ended ones: 0 if none has this id. Raises Refused."""
        self._session.check_server(Right.ADMINISTER)
        return int(self._administered.disconnect(connection, self._session.name))

    async def purge(self, name: bytes) -> int:
        """Delete the messages of a topic: of a round-robin topic those that no subscriber has. Return their
        number. Raises Refused.
        """
        self._session.check(Right.ADMINISTER, name)
        return await purge(self._find(name))

    async def retain(self, name: bytes, retention: watching.Retention) -> None:
        """Change the retention of a topic. Raises Refused."""
        self._session.check(Right.ADMINISTER, name)
        if isinstance(retention, watching.Limits):
            for limit in (retention.octets, retention.ms):
                if limit is not None and not 1 <= limit <= LONGEST_RETENTION:
                    raise Refused(Reason.INVALID, f"a limit is 1 to {LONGEST_RETENTION}")
        await self._catalogue.changes.retain(self._find(name).topic.topic, retention)

    def _find(self, name: bytes) -> Driver:
        """Return the topic with this name. Raise Refused if there is none, or it is exclusive to another
        connection.
        """
        driver = self._catalogue.lookup(name)
        if driver is None:
            raise Refused.of(NO_TOPIC)
        check_user(driver.topic.topic, driver.lifetime, self._session.owner)
        return driver


def _furthest(found: list[watching.SubscriberInfo]) -> list[watching.SubscriberInfo]:
    return nlargest(MOST_SUBSCRIBERS, found, key=lambda each: each.behind)
