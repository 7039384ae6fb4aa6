"""Leases: what a connection gets from Put and Get, and a DMP connection shows (6-DMP, "Operations").

A lease is a secret, good for one use and for a limited time. It belongs to the connection that asked, its
*principal*: unused ones end with it, while what was opened with one goes on without it.
"""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

import trio

from omq.access.clients import Client
from omq.access.limits import Owner, Quota, check_quota
from omq.drivers.feed import LeasedFeed
from omq.drivers.seam import Gone
from omq.model import Topic

LEASE_OCTETS = 24
"""Random octets of a lease: 192 bits, and 32 printable ones when written."""

USED_SECONDS = 600.0
"""How long a used lease is remembered, so that a second use can be told from a guess."""


@dataclass(frozen=True, slots=True)
class LeasedSink:
    """What Put leases: the right to post to a topic."""

    topic: Topic


class DmpEnd(Enum):
    """What a DMP connection is. Its principal is told about it by this name."""

    SINK = "Sink"
    FEED = "Feed"


Report = Callable[[DmpEnd, bytes, str | Gone], Awaitable[None]]
"""Takes which end it is, the topic, and what happened."""


class Principal:
    """The connection that asks for leases. Those who use them keep this link to it, also when it is gone."""

    __slots__ = ("_report", "host", "leases", "name")

    def __init__(self, host: str, name: bytes, report: Report) -> None:
        """`report` sends an Error; it may wait until there is room for one more."""
        self.host = host
        """Where the connection comes from."""
        self.name = name
        """The name that the client gave when it connected."""
        self.leases: set[bytes] = set()
        """Those not used yet: they are looked after by `Leases`."""
        self._report: Report | None = report

    async def report(self, end: DmpEnd, topic: bytes, what: str | Gone) -> bool:
        """Report what happened to a sink or a feed of this topic; False when the principal is gone."""
        if self._report is None:
            return False
        await self._report(end, topic, what)
        return True

    def is_gone(self) -> None:
        """The connection is over."""
        self._report = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was not used yet."""

    leased: LeasedSink | LeasedFeed
    principal: Principal
    client: Client
    """The client that asked for it: what the lease opens has the rights and limits of that client."""
    expires: float


class Unusable(Enum):
    """Why a lease cannot be used."""

    NOT_VALID = "nobody was given it, or it is not good any more"
    USED = "it was used before"
    OTHER_HOST = "it was given to a client on another host"


class Leases:
    """All leases of a server. Times are Trio's."""

    def __init__(self, seconds: float, most: int, *, same_host: bool) -> None:
        """`most` bounds the unused ones; with `same_host` only the principal's host may use them."""
        self._seconds = seconds
        self._quota = Quota(most)
        self._most_used = most
        self._same_host = same_host
        # Both in the order in which they end.
        self._unused: dict[bytes, Lease] = {}
        self._used: dict[bytes, float] = {}

    def __len__(self) -> int:
        """How many are not used yet."""
        return len(self._unused)

    def check_room(self, client: Client) -> None:
        """Raises Refused when the server or this client has as many unused leases as it may have."""
        self.expire()
        check_quota(self._quota, Owner.SERVER, "unused leases")
        check_quota(client.leases, client.owner, "unused leases")

    def grant(self, leased: LeasedSink | LeasedFeed, principal: Principal, client: Client) -> bytes:
        """A new lease. Call `check_room` directly before; a feed that is not used in time is closed here."""
        lease = secrets.token_urlsafe(LEASE_OCTETS).encode()
        self._unused[lease] = Lease(leased, principal, client, trio.current_time() + self._seconds)
        principal.leases.add(lease)
        self._quota.take()
        client.leases.take()
        return lease

    def use(self, lease: bytes, host: str) -> Lease | Unusable:
        """What a lease is for; it cannot be used again.

        Somebody on another host who shows it takes it from nobody.
        """
        self.expire()
        found = self._unused.get(lease)
        if found is None:
            return Unusable.USED if lease in self._used else Unusable.NOT_VALID
        if self._same_host and host != found.principal.host:
            return Unusable.OTHER_HOST
        self._forget(lease)
        self._used[lease] = trio.current_time() + USED_SECONDS
        while len(self._used) > self._most_used:
            del self._used[next(iter(self._used))]
        return found

    def end_with(self, principal: Principal) -> None:
        """Its connection is over: nobody will use the leases that nobody has used."""
        for lease in list(principal.leases):
            _close(self._forget(lease))
        principal.is_gone()

    def expire(self) -> None:
        """End those that nobody used in time."""
        now = trio.current_time()
        while self._unused:
            lease, oldest = next(iter(self._unused.items()))
            if oldest.expires > now:
                break
            _close(self._forget(lease))
        while self._used:
            lease, until = next(iter(self._used.items()))
            if until > now:
                break
            del self._used[lease]

    def _forget(self, lease: bytes) -> Lease:
        found = self._unused.pop(lease)
        found.principal.leases.discard(lease)
        self._quota.give()
        found.client.leases.give()
        return found


def _close(lease: Lease) -> None:
    if isinstance(lease.leased, LeasedFeed):
        lease.leased.close()
