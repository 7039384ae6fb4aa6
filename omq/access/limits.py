"""Limits: quotas, which count things in use, and rate limits, which count octets a second."""

import math
from enum import Enum

import trio
from msgspec import Struct

from omq import refusal_words
from omq.counted import counted
from omq.drivers.reasons import Reason, Refused

BURST_SECONDS = 1.0
"""A burst of as many octets as the limit allows in this time may pass at once."""

MOMENT_SECONDS = 0.5
"""The greatest number of seconds to wait for a spent quota: a client may have gone without the server having
noticed yet.
"""

PIECE_OCTETS = 16 << 10
"""The most octets that are read at once where a rate limit applies."""

NO_LIMIT = 1 << 60
"""More octets a second than any machine has."""


class Quota:
    """A limit on the number of things in use at a time. Without a limit it only counts."""

    def __init__(self, most: int | None) -> None:
        """Create an unused quota. `most` is the limit, None for no limit."""
        self.most = most
        self.used = 0
        self._given = trio.lowlevel.ParkingLot()

    @property
    def is_spent(self) -> bool:
        """Whether the limit is reached."""
        return self.most is not None and self.used >= self.most

    def take(self) -> bool:
        """Count one more, unless the quota is spent."""
        if self.is_spent:
            return False
        self.used += 1
        return True

    async def take_soon(self) -> bool:
        """Take one, as `take` does. If the quota is used up, wait up to MOMENT_SECONDS for a return."""
        with trio.move_on_after(MOMENT_SECONDS):
            while not self.take():
                await self._given.park()
            return True
        return False

    def give(self) -> None:
        """Count one less."""
        self.used -= 1
        self._given.unpark()


class Owner(Enum):
    """The owner of a quota. The values are parts of the sentence of a refusal."""

    SERVER = "the server"
    CLIENT = "this client"
    """A configured client."""
    ADDRESS = "this address"
    """An address, where no clients are configured: all connections from it share its quotas."""


def spent(quota: Quota, owner: Owner, noun: str) -> Refused:
    """Return the refusal for a quota that is spent. The `noun` for what it counts is a singular."""
    # The configuration has the numbers of the server. Those of a client may be a share of them.
    why = "the most it is configured for" if owner is Owner.SERVER else refusal_words.MOST_IT_MAY_HAVE
    assert quota.most is not None, "a quota without a limit is never spent"
    return Refused(Reason.QUOTA, f"{owner.value} has its {counted(quota.most, noun)}, {why}")


def check_quota(quota: Quota, owner: Owner, noun: str) -> None:
    """Raise Refused when the quota is spent. The `noun` for what it counts is a singular."""
    if quota.is_spent:
        raise spent(quota, owner, noun)


class RateLimit:
    """A limit of N octets a second.

    It lets octets pass first and counts them afterwards: after a burst above the limit nothing more may pass
    until the average is within it.
    """

    def __init__(self, octets_per_second: int) -> None:
        self._changed = trio.Event()
        self._spent = -math.inf  # when the octets that have passed would all have passed at exactly the limit
        self.octets_per_second = octets_per_second

    @property
    def piece(self) -> int:
        """The number of octets to read at once under this limit."""
        return min(PIECE_OCTETS, self.octets_per_second)

    def change(self, octets_per_second: int) -> None:
        """Set another limit for later octets or messages, and for those that exceeded the former limit."""
        now = trio.current_time()
        if self._spent > now:
            self._spent = now + (self._spent - now) * self.octets_per_second / octets_per_second
        self.octets_per_second = octets_per_second
        self._changed.set()
        self._changed = trio.Event()

    def spend(self, octets: int) -> None:
        """Count octets that have passed."""
        self._spent = max(self._spent, trio.current_time()) + octets / self.octets_per_second

    @property
    def until(self) -> float:
        """When more may pass, in Trio's time."""
        return self._spent - BURST_SECONDS

    async def wait(self) -> None:
        """Wait until more may pass. A change of the limit may end the wait earlier. Octets that others spend
        meanwhile do not prolong it.
        """
        while True:
            changed = self._changed
            with trio.move_on_at(self.until):
                await changed.wait()
                continue
            return

    def is_open(self) -> bool:
        """Return whether more may pass now."""
        return trio.current_time() >= self.until


class Rates(Struct, frozen=True):
    """The rate limits of one client, over all its connections; None without a limit."""

    received: RateLimit | None = None
    """The limit of everything that the client sends to the server."""
    sent: RateLimit | None = None
    """The limit of everything that the server sends to the client; messages wait for it."""
    answered: RateLimit | None = None
    """The limit of the answers among that, which wait for nothing but one another."""

    @classmethod
    def of(cls, octets_per_second: int | None) -> "Rates":
        """Return the same limit in each direction, or none."""
        if octets_per_second is None:
            return UNLIMITED
        return cls(*(RateLimit(octets_per_second) for _ in range(3)))

    def changed(self, octets_per_second: int | None) -> "Rates":
        """Return the rate limits for new connections, with another limit.

        Connections that have these limits get the other limit, too, or none that matters. Connections without
        limits stay without.
        """
        for limit in (self.received, self.sent, self.answered):
            if limit is not None:
                limit.change(NO_LIMIT if octets_per_second is None else octets_per_second)
        return Rates.of(octets_per_second) if self == UNLIMITED or octets_per_second is None else self


UNLIMITED = Rates()
