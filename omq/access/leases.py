"""Leases: what a client gets for Put and Get, and shows on a DMP connection (6-DMP, "Operations").

A lease is a secret that can be used once, within a limited time. It belongs to the connection that requested
it, its *principal*. An unused lease ends with its principal; a sink or feed that was opened with it goes on.
"""

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum

import trio
from msgspec import Struct

from omq.access.clients import ClientAccount, Identity
from omq.access.limits import Owner, Quota, check_quota
from omq.drivers.feed import LeasedFeed
from omq.drivers.seam import Unavailable
from omq.drivers.slices import Slices
from omq.model import Topic

LEASE_OCTETS = 24
"""Random octets of a lease: 192 bits, which take 32 characters in base64."""

USED_SECONDS = 600.0
"""The number of seconds that a used lease is remembered, to distinguish its second use from a guess."""

EXPIRED_AT_ONCE = 16
"""The most leases that expire in one step."""


class LeasedSink(Struct, frozen=True):
    """The lease of a Put: it allows posts to this topic."""

    topic: Topic


Returned = Callable[[bytes, bytes], Awaitable[None]]
"""Returns the head and the body of a message that no queue gets to who asked for the lease."""


class LeasedExchange(Struct, frozen=True):
    """The lease of a Put of AMQP: it allows publishes to this exchange, each with its routing key."""

    exchange: bytes
    returned: Returned
    """Called for messages that are mandatory."""


LeasedTarget = LeasedSink | LeasedExchange | LeasedFeed


class DmpEnd(Enum):
    """The two kinds of DMP connections, by the names that reports to the principal begin with."""

    SINK = "Sink"
    FEED = "Feed"


Report = Callable[[DmpEnd, bytes, str | Unavailable], Awaitable[None]]
"""Reports an event of a DMP connection of this kind, for this topic."""


class Principal:
    """The connection that requests leases. The DMP connections that use them refer to it, even after it
    ended.
    """

    __slots__ = ("_report", "host", "is_openamq", "leases", "name")

    def __init__(self, host: str, name: bytes, report: Report | None, *, is_openamq: bool = False) -> None:
        """Create a principal without leases. `report` sends an Error; it may wait until there is room for one
        more answer. It is None for a protocol that has no such message.
        """
        self.host = host
        """The host of the client."""
        self.name = name
        """The name that the client gave when it connected."""
        self.is_openamq = is_openamq
        """Whether the client is OpenAMQ's, which writes and reads tables in its own form."""
        self.leases: dict[bytes, None] = {}  # an empty set would take three times as much
        """The unused leases of this connection, maintained by `Leases`."""
        self._report = report

    async def report(self, end: DmpEnd, topic: bytes, what: str | Unavailable) -> bool:
        """Report an event of a sink or feed; return False if no connection can receive the report."""
        if self._report is None:
            return False
        await self._report(end, topic, what)
        return self._report is not None  # the connection may have ended before it had room

    def end(self) -> None:
        """Stop reporting: the connection is over."""
        self._report = None


class Lease(Struct, frozen=True):
    """A lease that is not used yet."""

    leased: LeasedTarget
    principal: Principal
    identity: Identity
    """The client that requested the lease. Its rights and limits apply to the DMP connection."""
    expires: float


class LeaseProblem(Enum):
    """The reason why a lease cannot be used."""

    NOT_VALID = "it was never granted, or it has ended"
    USED = "it was used before"
    OTHER_HOST = "it was granted to a client on another host"


class Leases:
    """All leases of a server."""

    def __init__(self, seconds: float, most: int, *, same_host: bool) -> None:
        """Allow N (`most`) unused leases. With `same_host`, only the host of the principal may use them."""
        self._seconds = seconds
        self._quota = Quota(most)
        self._most_used = most
        self._same_host = same_host
        # Both in the order in which they expire. The search for the first one of a dict passes the places of
        # all before it that are gone.
        self._unused: OrderedDict[bytes, Lease] = OrderedDict()
        self._used: OrderedDict[bytes, float] = OrderedDict()

    def change(self, most: int) -> None:
        """Change the greatest number of unused leases. Those beyond it stay."""
        self._quota.most = self._most_used = most

    def __len__(self) -> int:
        """Return the number of unused leases."""
        return len(self._unused)

    def check_room(self, client: ClientAccount) -> None:
        """Raise Refused when the server or this client has as many unused leases as it may have. If very many
        expire together, the last ones count up to about a second longer.
        """
        self.expire()
        check_quota(self._quota, Owner.SERVER, "unused lease")
        check_quota(client.leases, client.owner, "unused lease")

    def grant(self, leased: LeasedTarget, principal: Principal, identity: Identity) -> bytes:
        """Return a new lease. Call `check_room` directly before. A feed is closed if its lease expires."""
        lease = secrets.token_urlsafe(LEASE_OCTETS).encode()
        self._unused[lease] = Lease(leased, principal, identity, trio.current_time() + self._seconds)
        principal.leases[lease] = None
        self._quota.take()
        identity.client.leases.take()
        return lease

    def use(self, lease: bytes, host: str) -> Lease | LeaseProblem:
        """Return the purpose of a lease, and use it up.

        A client on another host that shows the lease does not use it up.
        """
        self.expire()
        found = self._unused.get(lease)
        now = trio.current_time()
        if found is None:
            return LeaseProblem.USED if self._used.get(lease, now) > now else LeaseProblem.NOT_VALID
        if found.expires <= now:
            return LeaseProblem.NOT_VALID
        if self._same_host and host != found.principal.host:
            return LeaseProblem.OTHER_HOST
        self._forget(lease)
        self._used[lease] = now + USED_SECONDS
        while len(self._used) > self._most_used:
            self._used.popitem(last=False)
        return found

    async def end_with(self, principal: Principal) -> None:
        """End the unused leases of a principal, whose connection is over, in slices. Nothing cancels that."""
        principal.end()
        slices = Slices()
        with trio.CancelScope(shield=True):
            while principal.leases:
                _close(self._forget(principal.leases.popitem()[0]))
                await slices.step()

    def expire(self) -> bool:
        """End leases that were not used in time, the first ones if they are many. Return whether there may be
        more.
        """
        now = trio.current_time()
        left = EXPIRED_AT_ONCE
        while left and self._unused:
            lease, oldest = next(iter(self._unused.items()))
            if oldest.expires > now:
                break
            _close(self._forget(lease))
            left -= 1
        while left and self._used:
            lease, until = next(iter(self._used.items()))
            if until > now:
                break
            del self._used[lease]
            left -= 1
        return not left

    def _forget(self, lease: bytes) -> Lease:
        found = self._unused.pop(lease)
        found.principal.leases.pop(lease, None)
        self._quota.give()
        found.identity.client.leases.give()
        return found


def _close(lease: Lease) -> None:
    if isinstance(lease.leased, LeasedFeed):
        lease.leased.close()
