"""How much one client may have of what all clients of a server share."""

from dataclasses import dataclass

from omq.config import ClientConfig, Config


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one client may have at a time; None without a limit."""

    connections: int | None = None
    """Open connections, including sinks and feeds."""
    topics: int | None = None
    """Topics that it made since the server started, and that were not deleted."""
    leases: int | None = None
    """Leases that nobody has used yet."""
    subscriptions: int | None = None
    """Subscriptions and feeds."""

    @classmethod
    def of(cls, config: Config) -> "Bounds":
        """What one client may have without keys of its own: `client_share` of what the server has."""

        def share(most: int) -> int:
            return max(1, int(most * config.client_share))

        return cls(
            share(config.max_connections),
            share(config.max_topics),
            share(config.max_leases),
            share(config.max_subscriptions),
        )

    def replaced_by(self, client: ClientConfig) -> "Bounds":
        """The same, with the keys that a client's table has."""
        return Bounds(
            self.connections if client.max_connections is None else client.max_connections,
            self.topics if client.max_topics is None else client.max_topics,
            self.leases if client.max_leases is None else client.max_leases,
            self.subscriptions if client.max_subscriptions is None else client.max_subscriptions,
        )
