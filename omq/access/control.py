"""Give connections their sessions: for the id of a client, or for a lease."""

from collections.abc import Iterator
from enum import Enum
from typing import assert_never

from msgspec import Struct

from omq.access.administered_server import AdministeredServer
from omq.access.administration import Administration
from omq.access.archive import visible_topics
from omq.access.clients import Clients, Identity
from omq.access.direct import Direct, Nodes
from omq.access.leased_topic import LeasedTopic
from omq.access.leases import Lease, LeasedTarget, LeaseProblem, Leases, Principal
from omq.access.leasing import Leasing
from omq.access.limits import Quota, spent
from omq.access.line_routing import LineRouting
from omq.access.management import Management
from omq.access.provisioning import Provisioning
from omq.access.quotas import ClientQuotas
from omq.access.rights import Rights
from omq.access.routed_publishing import RoutedPublishing
from omq.access.session import Session, SessionContext
from omq.access.topology import Topology
from omq.access.watches import Watches
from omq.config import Config
from omq.drivers.catalogue import Catalogue
from omq.drivers.direct_memory import DirectMemory
from omq.drivers.feed import LeasedFeed
from omq.drivers.memory import Memory
from omq.drivers.reasons import NO_CLIENT, Reason, Refused
from omq.drivers.slices import Slices
from omq.exchanges.exchanges import ExchangeRegistry
from omq.model import LONGEST_HELD_BODY, Topic, TopicInfo


class QuotaUsedUp(Enum):
    """The quota that prevents the use of a lease. The lease is used up, unless the quota is the server's."""

    SERVER = "the server has as many connections of sinks and feeds as it may have"
    CLIENT = "the client has as many connections as it may have"


class LeasedSession(Struct, frozen=True):
    """The result of a lease. Close the session when the connection ends, and the channel of a feed, too."""

    session: Session
    what: LeasedTarget
    principal: Principal


class AccessControl:
    """The clients of a server, and all that their sessions share."""

    def __init__(
        self, config: Config, catalogue: Catalogue, memory: Memory, administered: AdministeredServer
    ) -> None:
        self.clients = Clients(config.clients, ClientQuotas.of(config))
        self.leases = Leases(config.lease_seconds, config.max_leases, same_host=config.lease_same_host)
        self.leased_connections = Quota(config.max_dmp_connections)
        self.subscriptions = Quota(config.max_subscriptions)
        self._catalogue = catalogue
        self._administered = administered
        self.watches = Watches(catalogue, administered)
        self._exchanges = ExchangeRegistry(catalogue)
        self.nodes = Nodes(
            DirectMemory(memory.waiting, memory.publisher_queues), catalogue.start, catalogue.begin
        )
        self._shared = SessionContext(
            catalogue=catalogue,
            subscriptions=self.subscriptions,
            max_message_bytes=min(config.max_message_bytes, config.memory_bytes, LONGEST_HELD_BODY),
            max_uploaded_bytes=config.max_message_bytes,
            fragment_octets=config.fragment_octets,
            max_credit=config.max_credit,
            durable_sync=config.durable_sync(),
            posted=memory.posted,
            tails=memory.tails,
        )

    async def connect(self, id: bytes, host: str, peer: str) -> Session:
        """Return a session for the client that this id proves to be. Raises Refused.

        `host` is where the connection comes from, and `peer` is that for the log.
        """
        name = id.partition(b":")[0]  # after a colon there is the secret, also where nobody asks for it
        identity = await self.clients.identify(id, host, peer)
        if identity is None:
            raise Refused.of(NO_CLIENT)
        return await self._admit(identity, name)

    async def connect_certified(self, certificate: str | None, wanted: bytes, peer: str) -> Session:
        """Return a session for the client to which certificates with this name belong; one was verified.
        It must be the client that is `wanted`, unless that is empty. Raises Refused.

        `peer` is where the connection comes from, for the log.
        """
        found = self.clients.identify_certified(certificate, wanted, peer)
        if found is None:
            raise Refused(Reason.FORBIDDEN, "the certificate is not that of this client")
        name, identity = found
        return await self._admit(identity, name)

    async def _admit(self, identity: Identity, name: bytes) -> Session:
        client = identity.client
        if not await client.connections.take_soon():
            raise spent(client.connections, client.owner, "connection")
        if identity.withdrawn is not None:  # meanwhile
            client.connections.give()
            raise Refused(Reason.FORBIDDEN, identity.withdrawn)
        return Session(self._shared, identity, name)

    async def reload(self, config: Config) -> None:
        """Apply the clients and the quotas of another configuration. `Session.withdrawn` says of sessions
        whether they may go on.
        """
        await self.clients.reload(config.clients, ClientQuotas.of(config))
        self.leases.change(config.max_leases)
        self.leased_connections.most = config.max_dmp_connections
        self.subscriptions.most = config.max_subscriptions

    async def use_lease(self, lease: bytes, host: str) -> LeasedSession | LeaseProblem | QuotaUsedUp:
        """Return the purpose of a lease, and a session of the client to which it was given."""
        if not self.leased_connections.take():
            return QuotaUsedUp.SERVER
        used: LeasedSession | LeaseProblem | QuotaUsedUp | None = None
        try:
            used = await self._use(lease, host)
        finally:
            if not isinstance(used, LeasedSession):
                self.leased_connections.give()
        return used

    async def _use(self, lease: bytes, host: str) -> LeasedSession | LeaseProblem | QuotaUsedUp:
        found = self.leases.use(lease, host)
        match found:
            case LeaseProblem():
                return found
            case Lease(what, principal, identity):
                connections, is_usable = identity.client.connections, False
                try:
                    taken = await connections.take_soon()
                    is_usable = taken and identity.withdrawn is None
                finally:
                    if not is_usable and isinstance(what, LeasedFeed):
                        what.close()
                if not taken:
                    return QuotaUsedUp.CLIENT
                if not is_usable:  # its principal is about to end
                    connections.give()
                    return LeaseProblem.NOT_VALID
                return LeasedSession(self._session(identity, principal.name), what, principal)
            case _:
                assert_never(found)

    def topology(self, session: Session) -> Topology:
        """Return the operations of a session on exchanges and queues. Close it before the session."""
        return Topology(session, self._catalogue, self._exchanges, self.leases)

    def line_routing(self, session: Session) -> LineRouting:
        """Return the routing of Publish lines for a session. Close it before the session."""
        return LineRouting(session, self._shared)

    def provisioning(self, session: Session) -> Provisioning:
        """Return the operations of a session on many topics at once."""
        return Provisioning(session, self._catalogue)

    def leasing(self, session: Session, principal: Principal) -> Leasing:
        """Return the operations with which a session requests leases."""
        return Leasing(session, self._catalogue, self.leases, principal)

    def routed_publishing(self, session: Session) -> RoutedPublishing:
        """Return the operations with which a session publishes to exchanges."""
        return RoutedPublishing(session, self._exchanges)

    def leased_topic(self, session: Session, topic: Topic) -> LeasedTopic:
        """Return the operations of a session on the topic for which a sink was leased."""
        return LeasedTopic(session, self._shared, topic)

    def direct(self, session: Session) -> Direct:
        """Return the operations of a session on nodes without queues."""
        return Direct(session, self.nodes)

    def management(self, session: Session) -> Management:
        """Return the requests of a session that list and change queues, exchanges and bindings."""
        return Management(session, self._catalogue, self._exchanges)

    def administration(self, session: Session) -> Administration:
        """Return the requests of a session that watch and control the server."""
        return Administration(session, self._catalogue, self.watches, self._administered)

    def _session(self, identity: Identity, name: bytes) -> Session:
        """Return a session for a connection with a lease."""
        return Session(self._shared, identity, name, self.leased_connections.give)

    # -- lists of topics -----------------------------------------------------------------------------------

    def topics(self, rights: Rights) -> Iterator[TopicInfo | None]:
        """See `visible_topics`."""
        return visible_topics(self._catalogue, rights)

    def size_of_names(self) -> tuple[int, int]:
        """Return the number of topics, and the octets of their names."""
        return self._catalogue.size()

    # -- housekeeping --------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Forget old attempts of clients, and leases that are over. Called about every second."""
        self.clients.look()
        slices = Slices()
        while self.leases.expire():
            await slices.step()
