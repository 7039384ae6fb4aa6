"""What is read, and from where: servers or a store, which topics, between which bounds."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from omq.blocking.access import Access
from omq.blocking.credentials import NO_CREDENTIALS, Credentials
from omq.blocking.network import Address
from omq.blocking.remote import Patience, Server


class Edge(Enum):
    """An end of what a topic keeps; the values are as options have them."""

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


Bound = Edge | Timestamp | PerTopic


@dataclass(frozen=True, slots=True)
class Topics:
    """These topics, each of which must be there."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All topics whose whole name matches."""

    expression: str


Choice = Topics | Pattern


@dataclass(frozen=True, slots=True)
class ServerPlace:
    addresses: tuple[Address, ...]
    patience: Patience
    credentials: Credentials = NO_CREDENTIALS

    def open(self) -> Server:
        """Connects when it is first used."""
        return Server(self.addresses, self.patience, self.credentials)


@dataclass(frozen=True, slots=True)
class StorePlace:
    path: str

    def open(self) -> Access:
        """Raises omq_storage.errors.StoreError."""
        # With it comes all of the store, which takes its time to load, and a server's readers do without.
        from omq.blocking.local import LocalStore

        return LocalStore(self.path)


Place = ServerPlace | StorePlace
