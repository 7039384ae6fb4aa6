"""The quotas of one client: its greatest part of the server's resources."""

from msgspec import Struct

from omq.config import ClientConfig, Config

MOST_WATCHERS = 100
"""The greatest number of connections that watch at a time."""


class ClientQuotas(Struct, frozen=True):
    """The most that one client may have at a time; None means no limit."""

    connections: int | None = None
    """Open connections, including sinks and feeds."""
    topics: int | None = None
    """Topics that the client made since the server started, without those that were deleted."""
    leases: int | None = None
    """Leases that are not used yet."""
    exchanges: int | None = None
    """Exchanges that the client declared since the server started, without those that were deleted."""
    bindings: int | None = None
    """Bindings that the client made since the server started, without those that ended."""
    subscriptions: int | None = None
    """Subscriptions and feeds."""
    watchers: int | None = None
    """Connections that watch."""

    @classmethod
    def of(cls, config: Config) -> "ClientQuotas":
        """Return the defaults for one client: `client_share` of each limit of the server."""

        def share(most: int) -> int:
            return max(1, int(most * config.client_share))

        return cls(
            share(config.max_connections),
            share(config.max_topics),
            share(config.max_leases),
            share(config.max_exchanges),
            share(config.max_bindings),
            share(config.max_subscriptions),
            share(MOST_WATCHERS),
        )

    def replaced_by(self, client: ClientConfig) -> "ClientQuotas":
        """Return these quotas, replaced by the keys that are set in the table of a client."""
        return ClientQuotas(
            self.connections if client.max_connections is None else client.max_connections,
            self.topics if client.max_topics is None else client.max_topics,
            self.leases if client.max_leases is None else client.max_leases,
            self.exchanges if client.max_exchanges is None else client.max_exchanges,
            self.bindings if client.max_bindings is None else client.max_bindings,
            self.subscriptions if client.max_subscriptions is None else client.max_subscriptions,
            self.watchers,
        )
