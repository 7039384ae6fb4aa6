"""The clients of a server, and how a connection proves whose it is (docs/PROTOCOL.md, "Clients").

Secrets are checked with scrypt, which is slow on purpose, so attackers could use the checks to keep the
server busy. Two measures prevent this. Checks run in one other thread, one at a time and in turns
(`omq/access/attempts.py`). And a secret that was right is remembered as a digest under a key of this process,
so a client that has connected before never waits for a turn.
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
from omq.logs import LogThrottle, quoted

UNBOUNDED = Bounds()

MOST_ID_OCTETS = 1024
"""No client has a longer id."""

log = logging.getLogger("omq.access")


class Client:
    """One client: its rights, and the quotas and rate limits that all its connections share."""

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
    """A configured client, and what the server knows of its secret."""

    def __init__(self, config: ClientConfig, bounds: Bounds) -> None:
        rights = Rights(
            Names.of(config.declare),
            Names.of(config.publish),
            Names.of(config.subscribe),
            Names.of(config.delete),
            Names.of(config.watch),
            Names.of(config.administer),
        )
        self.name = config.name
        self.client = Client(
            rights,
            bounds.replaced_by(config),
            max_bytes_per_second=config.max_bytes_per_second,
        )
        self.hash = read_hash(config.secret)
        self.digest: bytes | None = None
        """The digest of its secret under the key of this process; None until the secret was shown."""


class Clients:
    """All clients of a server. Without configured clients, every address is a client with all rights."""

    def __init__(self, configured: Iterable[ClientConfig], bounds: Bounds = UNBOUNDED) -> None:
        """`bounds` are the quotas of a client whose configuration does not set its own."""
        self._known = {config.name.encode(): _Known(config, bounds) for config in configured}
        self._bounds = bounds
        # By address. A client exists as long as a connection, a sink, a feed or a topic refers to it.
        self._strangers: WeakValueDictionary[str, Client] = WeakValueDictionary()
        self._key = secrets.token_bytes(32)
        self._costs = [known.hash for known in self._known.values()]
        self._attempts = Attempts()
        self._failures = LogThrottle(log, logging.WARNING, "attempts to connect failed")

    @property
    def are_known(self) -> bool:
        """Whether clients are configured. Then nobody else may connect."""
        return bool(self._known)

    async def identify(self, id: bytes, host: str, peer: str) -> Client | None:
        """Return the client to whom the id `NAME:SECRET` belongs; None if there is no such client.

        `host` is the address of the connection, and `peer` the same for the log.
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
            # No other task runs between the check and here, so the attempt with the next turn sees this
            # digest.
            known.digest = self._digest(secret)
            return known.client
        # Do not log an id that names no client: it may be a secret in the wrong place.
        what = "no client of that name" if known is None else f"a wrong secret for {quoted(name)}"
        self._failures.add(f"{peer}: {what}", peer=peer, client=None if known is None else known.name)
        return None

    def _stranger(self, host: str) -> Client:
        """Return the client of this host's address, where no clients are configured."""
        address = Origin.of(host).address
        client = self._strangers.get(address)
        if client is None:
            client = self._strangers[address] = Client(EVERYTHING, self._bounds, owner=Owner.ADDRESS)
        return client

    def look(self) -> None:
        """Forget old attempts. Called about every second."""
        self._attempts.look()

    def _was_shown(self, known: _Known, secret: bytes) -> bool:
        return known.digest is not None and hmac.compare_digest(known.digest, self._digest(secret))

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    def _hash_of_nobody(self, name: bytes) -> SecretHash:
        """Return a hash that no secret matches, with the costs of a configured client's hash: always of the
        same client for the same name. So the response time does not reveal which names exist, not even at the
        first attempt.
        """
        number = int.from_bytes(self._digest(name)[:8], "big") % len(self._costs)
        return replace(self._costs[number], key=secrets.token_bytes(KEY_OCTETS))
