"""The leases that a connection requests, with the rights of its client: of sinks, and of feeds, which are
open from then on (omq.access.leases has all leases of the server).
"""

from collections.abc import Callable
from functools import partial

from omq.access.leases import LeasedExchange, LeasedSink, Leases, Principal
from omq.access.rights import Right
from omq.access.session import Release, Session
from omq.drivers.catalogue import Catalogue
from omq.drivers.driver import Driver
from omq.drivers.feed import LeasedFeed
from omq.model import FromCurrent, Replay, Topic


class Leasing:
    """Grants leases to a principal, the connection of a session."""

    __slots__ = ("_catalogue", "_identity", "_leases", "_principal", "_session")

    def __init__(self, session: Session, catalogue: Catalogue, leases: Leases, principal: Principal) -> None:
        self._session = session
        self._identity = session.identity
        self._catalogue = catalogue
        self._leases = leases
        self._principal = principal

    async def lease_sink(self, name: bytes) -> bytes:
        """Return a lease for a sink of this topic; make the topic if there is none. Raises Refused."""
        self._session.check(Right.PUBLISH, name)
        driver = await self._find(name)
        return self._leases.grant(LeasedSink(driver.topic), self._principal, self._identity)

    async def lease_feed(self, name: bytes, replay: Replay) -> bytes:
        """Return a lease for a feed of this topic; make the topic if there is none. Raises Refused."""
        self._session.check(Right.SUBSCRIBE, name)
        driver = await self._find(name)
        self._session.check(Right.SUBSCRIBE, name)  # a reload may have taken the right away meanwhile
        lease, _ = self._open(driver, replay, LeasedFeed)
        return lease

    def lease_exchange(self, leased: LeasedExchange) -> bytes:
        """Return a lease for a sink of an exchange. The caller has checked the right. Raises Refused."""
        self._check_room()
        return self._leases.grant(leased, self._principal, self._identity)

    def lease_driver(
        self, driver: Driver, make: Callable[[Topic, Release], LeasedFeed]
    ) -> tuple[bytes, LeasedFeed]:
        """Return a lease for a feed of this topic, and the feed. The caller has checked the right. Raises
        Refused.
        """
        self._check_room()
        return self._open(driver, FromCurrent(), make)

    def _open(
        self, driver: Driver, replay: Replay, make: Callable[[Topic, Release], LeasedFeed]
    ) -> tuple[bytes, LeasedFeed]:
        feed, channel = self._session.open_driver(driver, replay, make)
        feed.replaced(channel)
        return self._leases.grant(feed, self._principal, self._identity), feed

    async def _find(self, name: bytes) -> Driver:
        self._check_room()  # before a topic is made for it
        driver = await self._catalogue.lookup_or_declare(name, partial(self._session.admit, name))
        self._check_room()  # other connections may have got the last leases meanwhile
        return driver

    def _check_room(self) -> None:
        self._leases.check_room(self._identity.client)
