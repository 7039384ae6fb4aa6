"""The clients that a server knows, and how one of them proves that it is who it says (PROTOCOL, "Clients").

A secret is checked with scrypt, which is slow on purpose, so this is where somebody might keep the server
busy. What stands against that: checks are done in one other thread, one at a time and in turns
(`omq/access/attempts.py`), and a secret that was right is remembered, by a digest under a key that only this
process has, so that nobody who was here before has to wait for a turn.
"""

import hmac
import logging
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from omq.access.attempts import Attempts, Origin
from omq.access.bounds import Bounds
from omq.access.hashes import KEY_OCTETS, SecretHash, read_hash
from omq.access.limits import Owner, Quota, Rates
from omq.access.rights import EVERYTHING, Names, Rights
from omq.config import ClientConfig
from omq.logs import LogThrottle

UNBOUNDED = Bounds()

MOST_ID_OCTETS = 1024
"""A longer id is nobody's."""

log = logging.getLogger("omq.access")


class Client:
    """One client, over however many connections it has."""

    def __init__(
        self,
        rights: Rights,
        bounds: Bounds = UNBOUNDED,
        *,
        owner: Owner = Owner.CLIENT,
        max_bytes_per_second: int | None = None,
    ) -> None:
        self.rights = rights
        self.owner = owner
        """Whose quotas these are, in the words of a refusal."""
        self.connections = Quota(bounds.connections)
        self.topics = Quota(bounds.topics)
        self.leases = Quota(bounds.leases)
        self.subscriptions = Quota(bounds.subscriptions)
        self.rates = Rates.of(max_bytes_per_second)


class _Known:
    """A configured client and what is kept of its secret."""

    def __init__(self, config: ClientConfig, bounds: Bounds) -> None:
        rights = Rights(
            Names.of(config.declare),
            Names.of(config.publish),
            Names.of(config.subscribe),
            Names.of(config.delete),
        )
        self.name = config.name
        self.client = Client(
            rights,
            bounds.replaced_by(config),
            max_bytes_per_second=config.max_bytes_per_second,
        )
        self.hash = read_hash(config.secret)
        self.digest: bytes | None = None
        """That of its secret under our key, once it was shown."""


class Clients:
    """All clients of a server. Without any configured, everybody may do everything."""

    def __init__(self, configured: Iterable[ClientConfig], bounds: Bounds = UNBOUNDED) -> None:
        """`bounds` are those of each client, as far as its configuration has none of its own."""
        self._known = {config.name.encode(): _Known(config, bounds) for config in configured}
        self._bounds = bounds
        # By address, for as long as it has a connection, a sink, a feed or a topic, which refer to it.
        self._strangers: WeakValueDictionary[str, Client] = WeakValueDictionary()
        self._key = secrets.token_bytes(32)
        self._costs = [known.hash for known in self._known.values()]
        self._attempts = Attempts()
        self._failures = LogThrottle(log, logging.WARNING, "attempts to connect failed")

    @property
    def are_known(self) -> bool:
        """Whether clients are configured, and nobody else may connect."""
        return bool(self._known)

    async def identify(self, id: bytes, host: str, peer: str) -> Client | None:
        """The client that an id `NAME:SECRET` proves to be; None for anybody else.

        `host` is where it comes from, and `peer` is that for the log.
        """
        if not self._known:
            return self._stranger(host)
        name, colon, secret = id.partition(b":")
        known = self._known.get(name) if colon and len(id) <= MOST_ID_OCTETS else None
        if known is not None and self._was_shown(known, secret):
            return known.client
        hash = self._hash_of_nobody(name) if known is None else known.hash
        is_right = await self._attempts.check(
            host,
            id,
            name,
            was_shown=lambda: known is not None and self._was_shown(known, secret),
            fits=partial(hash.fits, secret[:MOST_ID_OCTETS]),
        )
        if known is not None and is_right:
            # No other task runs between the check and here: whoever has the next turn sees this digest.
            known.digest = self._digest(secret)
            return known.client
        # Of an id that names nobody nothing is written: it may be a secret in the wrong place.
        what = "no client of that name" if known is None else f"a wrong secret for {known.name!r}"
        self._failures.add(f"{peer}: {what}", peer=peer, client=None if known is None else known.name)
        return None

    def _stranger(self, host: str) -> Client:
        """Where no clients are configured: everybody at the address of this host is one client."""
        address = Origin.of(host).address
        client = self._strangers.get(address)
        if client is None:
            client = self._strangers[address] = Client(EVERYTHING, self._bounds, owner=Owner.ADDRESS)
        return client

    def look(self) -> None:
        """Called about every second."""
        self._attempts.look()

    def _was_shown(self, known: _Known, secret: bytes) -> bool:
        return known.digest is not None and hmac.compare_digest(known.digest, self._digest(secret))

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    def _hash_of_nobody(self, name: bytes) -> SecretHash:
        """A hash that no secret fits, with the costs of some client's: the same client's for the same name.

        So the time that an answer takes does not tell which names there are, with the first attempt neither.
        """
        number = int.from_bytes(self._digest(name)[:8], "big") % len(self._costs)
        return replace(self._costs[number], key=secrets.token_bytes(KEY_OCTETS))
