"""The clients of a server, and how a connection proves whose it is (docs/PROTOCOL.md, "Clients").

Secrets are checked with scrypt, which is slow on purpose, so attackers could use the checks to keep the
server busy. Two measures prevent this. Checks run in one other thread, one at a time and in turns
(`omq/access/attempts.py`). And a secret that was right is remembered as a digest under a key of this process,
so a client that has connected before never waits for a turn.
"""

import hmac
import logging
import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import trio
from msgspec.structs import replace

from omq.access.attempts import AttemptOrigin, Attempts
from omq.access.hashes import KEY_OCTETS, SecretHash, read_hash
from omq.access.limits import Owner, Quota, Rates, check_quota
from omq.access.link_names import LinkNames
from omq.access.quotas import ClientQuotas
from omq.access.rights import EVERYTHING, Names, Rights
from omq.config import ClientConfig
from omq.drivers.slices import Slices
from omq.drivers.topic_quota import Release
from omq.logs import LogThrottle, quoted

UNLIMITED = ClientQuotas()

MOST_ID_OCTETS = 1024
"""No client has a longer id."""

LARGE_ANSWERS = 4
"""The number of large answers that are not sent which a client may have at a time: others wait."""

CLIENT_GONE = "the server's configuration does not have this client any more"
SECRET_GONE = "the secret of this connection is not valid any more"
CERTIFICATE_GONE = "the certificate of this connection is not that of its client any more"

log = logging.getLogger("omq.access")


class ClientAccount:
    """One client: its rights, and the quotas and rate limits that all its connections share."""

    def __init__(
        self,
        rights: Rights,
        quotas: ClientQuotas = UNLIMITED,
        *,
        owner: Owner = Owner.CLIENT,
        max_bytes_per_second: int | None = None,
    ) -> None:
        self.rights = rights
        self.owner = owner
        """The owner of these quotas, in the words of a refusal."""
        self.connections = Quota(quotas.connections)
        self.topics = Quota(quotas.topics)
        self.leases = Quota(quotas.leases)
        self.exchanges = Quota(quotas.exchanges)
        self.bindings = Quota(quotas.bindings)
        self.subscriptions = Quota(quotas.subscriptions)
        self.watchers = Quota(quotas.watchers)
        self.rates = Rates.of(max_bytes_per_second)
        self.large_answers = trio.CapacityLimiter(LARGE_ANSWERS)
        self.link_names = LinkNames()

    def hold(self, quota: Quota, noun: str) -> Release:
        """Count one more thing in one of its quotas, a `noun`. Raises Refused."""
        check_quota(quota, self.owner, noun)
        quota.take()
        # This refers to the client and not to its quota alone: a client that is known by its address is kept
        # as long as anything refers to it, and its topics count for as long as they exist.
        return partial(self._give, quota)

    def _give(self, quota: Quota) -> None:
        quota.give()

    def change(self, rights: Rights, quotas: ClientQuotas) -> None:
        """Give it other rights and quotas. Connections and topics beyond a lower quota stay."""
        self.rights = rights
        self.connections.most = quotas.connections
        self.topics.most = quotas.topics
        self.leases.most = quotas.leases
        self.exchanges.most = quotas.exchanges
        self.bindings.most = quotas.bindings
        self.subscriptions.most = quotas.subscriptions
        self.watchers.most = quotas.watchers


class Identity:
    """A client, as a connection has proven it: with a secret of it, its certificate, or its address."""

    __slots__ = ("client", "withdrawn")

    def __init__(self, client: ClientAccount) -> None:
        self.client = client
        self.withdrawn: str | None = None
        """The reason why a connection may not be this client any more, as a sentence; None while it may."""


class _Secret:
    """One secret of a client, of which the server has the hash."""

    def __init__(self, hash: SecretHash, identity: Identity) -> None:
        self.hash = hash
        self.identity = identity
        """The client, for connections that showed this secret."""
        self.digest: bytes | None = None
        """The digest of the secret under the key of this process; None until the secret was shown."""


class _Known:
    """A configured client, and its secrets."""

    def __init__(
        self, config: ClientConfig, quotas: ClientQuotas, client: ClientAccount | None = None
    ) -> None:
        """Create a configured client. `client` is the account that it had before, if it was removed from the
        configuration, and something still counts in its quotas.
        """
        self.name = config.name
        self._applied = config, quotas
        if client is None:
            client = ClientAccount(
                _rights(config), quotas.replaced_by(config), max_bytes_per_second=config.max_bytes_per_second
            )
        else:
            _change(client, config, quotas)
        self.client = client
        self.secrets: tuple[_Secret, ...] = ()
        self.certificate: tuple[str, Identity] | None = None
        """The name in its certificates, and the client for connections that showed one."""
        self._replace_secrets(config)
        self._replace_certificate(config)

    def change(self, config: ClientConfig, quotas: ClientQuotas) -> None:
        """Apply another table of the configuration, with the same name."""
        if self._applied == (config, quotas):
            return  # as for most of many clients: to read their rights and hashes again would take long
        self._applied = config, quotas
        _change(self.client, config, quotas)
        self._replace_secrets(config)
        self._replace_certificate(config)

    def withdraw(self, why: str) -> None:
        """Withdraw all secrets and the certificate: they are no longer valid."""
        for secret in self.secrets:
            secret.identity.withdrawn = why
        self.secrets = ()
        if self.certificate is not None:
            self.certificate[1].withdrawn = why
            self.certificate = None

    def _replace_certificate(self, config: ClientConfig) -> None:
        name, identity = self.certificate or (None, None)
        if name == config.certificate:
            return
        if identity is not None:
            identity.withdrawn = CERTIFICATE_GONE
        self.certificate = None if config.certificate is None else (config.certificate, Identity(self.client))

    def _replace_secrets(self, config: ClientConfig) -> None:
        before = {secret.hash: secret for secret in self.secrets}
        hashes = dict.fromkeys(map(read_hash, config.secrets()))
        self.secrets = tuple(
            before[hash] if hash in before else _Secret(hash, Identity(self.client)) for hash in hashes
        )
        for hash, secret in before.items():
            if hash not in hashes:
                secret.identity.withdrawn = SECRET_GONE


def _change(client: ClientAccount, config: ClientConfig, quotas: ClientQuotas) -> None:
    """Give an account the rights, the quotas and the rate limit of another table."""
    client.change(_rights(config), quotas.replaced_by(config))
    client.rates = client.rates.changed(config.max_bytes_per_second)


def _rights(config: ClientConfig) -> Rights:
    """Return the rights that the table of a client gives."""
    return Rights(
        Names.of(config.declare),
        Names.of(config.publish),
        Names.of(config.subscribe),
        Names.of(config.delete),
        Names.of(config.watch),
        Names.of(config.administer),
    )


class Clients:
    """All clients of a server. Without configured clients, every address is a client with all rights."""

    def __init__(self, configured: Iterable[ClientConfig], quotas: ClientQuotas = UNLIMITED) -> None:
        """Create the accounts of the configured clients. `quotas` are those of a client whose configuration
        does not set its own.
        """
        self._known = {config.name.encode(): _Known(config, quotas) for config in configured}
        self._certified = self._by_certificate()
        self._quotas = quotas
        # By address. A client exists as long as a connection, a sink, a feed or a topic refers to it.
        self._unnamed: WeakValueDictionary[str, ClientAccount] = WeakValueDictionary()
        # By name: clients that were removed, as long as something refers to them, such as a connection.
        self._gone: WeakValueDictionary[bytes, ClientAccount] = WeakValueDictionary()
        self._key = secrets.token_bytes(32)
        self._attempts = Attempts()
        self._failures = LogThrottle(log, logging.WARNING, "attempts to connect failed")

    @property
    def are_known(self) -> bool:
        """Whether clients are configured. Then nobody else may connect."""
        return bool(self._known)

    async def reload(self, configured: Iterable[ClientConfig], quotas: ClientQuotas) -> None:
        """Apply another configuration; either both have clients, or neither. `Identity.withdrawn` says of
        connections whether they may stay. There may be thousands of clients: other tasks run meanwhile. New
        clients are known at the end.
        """
        slices = Slices()
        self._quotas = quotas
        for client in list(self._unnamed.values()):
            client.change(EVERYTHING, quotas)
            await slices.step()
        before = dict(self._known)
        after: dict[bytes, _Known] = {}
        for config in configured:
            name = config.name.encode()
            known = before.pop(name, None)
            if known is None:
                known = _Known(config, quotas, self._gone.pop(name, None))
            else:
                known.change(config, quotas)
            after[name] = known
            await slices.step()
        self._known = after
        for name, gone in before.items():
            gone.withdraw(CLIENT_GONE)
            self._gone[name] = gone.client
            await slices.step()
        self._certified = self._by_certificate()
        self._attempts.forget_wrong_ids()

    def _by_certificate(self) -> dict[str, _Known]:
        """Return the clients with a certificate, by the name in it."""
        return {
            known.certificate[0]: known for known in self._known.values() if known.certificate is not None
        }

    async def identify(self, id: bytes, host: str, peer: str) -> Identity | None:
        """Return the client to whom the id `NAME:SECRET` belongs; None if there is no such client.

        `host` is the address of the connection, and `peer` the same for the log.
        """
        if not self._known:
            return Identity(self._client_at(host))
        name, colon, secret = id.partition(b":")
        known = self._known.get(name) if colon and len(id) <= MOST_ID_OCTETS else None
        if known is not None and (shown := self._was_shown(known, secret)) is not None:
            return shown.identity
        hashes = self._decoy_hashes(name) if known is None else [each.hash for each in known.secrets]
        fitting: list[SecretHash] = []
        is_right = await self._attempts.check(
            host,
            id,
            name,
            was_shown=lambda: known is not None and self._was_shown(known, secret) is not None,
            fits=partial(_fits, hashes, secret[:MOST_ID_OCTETS], fitting),
        )
        if known is not None and is_right:
            # No other task runs between the check and here, so the attempt with the next turn sees this
            # digest. A reload during the check may have replaced the secrets.
            for each in known.secrets:
                if each.hash in fitting:
                    each.digest = self._digest(secret)
            if len(fitting) > 1:
                what = "%s has two hashes of the same secret: to replace it, configure that of another one"
                log.warning(what, quoted(name))
            shown = self._was_shown(known, secret)
            if shown is not None:
                return shown.identity
        # Do not log an id that names no client: it may be a secret in the wrong place.
        named = self._known.get(name)
        if len(id) > MOST_ID_OCTETS:
            what = f"an id of more than {MOST_ID_OCTETS} octets"
        elif not colon:
            whose = "" if named is None else f", that of {quoted(name)},"
            what = f"the id{whose} has no colon, and so no secret"
        elif named is None:
            what = "no client of that name"
        else:
            what = f"a wrong secret for {quoted(name)}"
        self._failures.add(f"{peer}: {what}", peer=peer, client=None if named is None else named.name)
        return None

    def certified(self, certificate: str | None) -> tuple[bytes, Identity] | None:
        """Return the name and the identity of the client to which certificates with this name belong."""
        known = None if certificate is None else self._certified.get(certificate)
        if known is None or known.certificate is None or known.certificate[0] != certificate:
            return None  # the latter in the middle of a reload
        return known.name.encode(), known.certificate[1]

    def identify_certified(
        self, certificate: str | None, wanted: bytes, peer: str
    ) -> tuple[bytes, Identity] | None:
        """Identify a client as `certified` does, if it is the one that is `wanted`, or this is empty. `peer`
        is for the log.
        """
        found = self.certified(certificate)
        if found is not None and wanted in (b"", found[0]):
            return found
        name = None if found is None else found[0].decode()
        self._failures.add(f"{peer}: it has not the certificate of this client", peer=peer, client=name)
        return None

    def _client_at(self, host: str) -> ClientAccount:
        """Return the client of this host's address, where no clients are configured."""
        address = AttemptOrigin.of(host).address
        client = self._unnamed.get(address)
        if client is None:
            client = self._unnamed[address] = ClientAccount(EVERYTHING, self._quotas, owner=Owner.ADDRESS)
        return client

    def look(self) -> None:
        """Forget old attempts. Called about every second."""
        self._attempts.look()

    def _was_shown(self, known: _Known, secret: bytes) -> _Secret | None:
        """Return the secret of the client that this one is, if it was shown before."""
        digest = self._digest(secret)
        for each in known.secrets:
            if each.digest is not None and hmac.compare_digest(each.digest, digest):
                return each
        return None

    def _digest(self, secret: bytes) -> bytes:
        return hmac.digest(self._key, secret, "sha256")

    def _decoy_hashes(self, name: bytes) -> Sequence[SecretHash]:
        """Return hashes that no secret matches, as many and with the costs of a configured client's: always
        of the same client for the same name. So the response time does not reveal which names exist, not even
        at the first attempt.
        """
        every = list(self._known.values())
        model = every[int.from_bytes(self._digest(name)[:8], "big") % len(every)]
        return [replace(each.hash, key=secrets.token_bytes(KEY_OCTETS)) for each in model.secrets]


def _fits(hashes: Sequence[SecretHash], secret: bytes, fitting: list[SecretHash]) -> bool:
    """Add the hashes of this secret to `fitting`; return whether there are any. Slow: compares with all, so
    that the time does not reveal which of two it is.
    """
    fitting += [hash for hash in hashes if hash.fits(secret)]
    return bool(fitting)
