"""The source of a read: servers or a store, the topics, and the bounds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from omq.bulk.access import Access
from omq.bulk.credentials import NO_CREDENTIALS, Credentials
from omq.bulk.remote import RemoteServer, RetryPolicy
from omq.server_address import Address


class Edge(Enum):
    """An end of a topic's stored messages; the values are the spellings in options."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first message at or after a time: milliseconds since the epoch."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class PerTopic:
    """An offset or an edge for each topic."""

    bounds: Mapping[str, int | Edge]


@dataclass(frozen=True, slots=True)
class TimestampPerTopic:
    """The first message of each topic at or after a time: milliseconds since the epoch."""

    milliseconds: Mapping[str, int]


Bound = Edge | Timestamp | PerTopic | TimestampPerTopic


@dataclass(frozen=True, slots=True)
class NamedTopics:
    """The topics with these names; each must exist."""

    names: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return whether this selects the name."""
        return name in self.names


@dataclass(frozen=True, slots=True)
class Pattern:
    """All topics whose whole name matches."""

    expression: str

    def has(self, name: str) -> bool:
        """Return whether this selects the name."""
        return re.fullmatch(self.expression, name) is not None


Choice = NamedTopics | Pattern


@dataclass(frozen=True, slots=True)
class ServerPlace:
    addresses: tuple[Address, ...]
    retry_policy: RetryPolicy
    credentials: Credentials = NO_CREDENTIALS

    def open(self) -> RemoteServer:
        """Make a client that connects at its first use."""
        return RemoteServer(self.addresses, self.retry_policy, self.credentials)

    def check_files(self) -> None:
        """Raise BadOptions if TLS needs files that cannot be used here."""
        if any(address.tls for address in self.addresses):
            self.credentials.context()


@dataclass(frozen=True, slots=True)
class StorePlace:
    path: str

    def open(self) -> Access:
        """Open the store. Raise omq_storage.errors.StoreError."""
        # Import late: this loads all of the store's code, which readers of a server do not need.
        from omq.bulk.local import LocalStore

        return LocalStore(self.path)


Place = ServerPlace | StorePlace
