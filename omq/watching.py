"""The requests and answers of the commands that watch and control a server. No protocol owns these types.

Sizes are octets, times are milliseconds unless a name says otherwise (`_us`: microseconds). A number that is
described as "so far" only grows, from 0 at the start of the server, so the difference of two of them, divided
by the time between them, is a rate: `TrafficRates` computes those of messages and octets.
"""

from typing import Protocol

from msgspec import Struct

from omq.model import Delivery, Persistence

# -- the frames of Watch ------------------------------------------------------------------------------------


class Began(Struct, frozen=True):
    """Everything begins again: forget the topics that were sent before."""

    period: int
    """The period; 0 when nothing more follows."""


class Share(Struct, frozen=True):
    """A share of the memory."""

    name: bytes
    used: int
    limit: int


class WriterInfo(Struct, frozen=True):
    """The writer of one sync level."""

    level: bytes
    waiting_posts: int
    """Posts that wait for a commit."""
    waiting_octets: int
    commits: int
    """Commits so far."""
    commit_us: int
    """The time that these took together."""
    last_commit_us: int
    """The time of the last commit."""
    messages: int
    """Messages stored so far."""
    octets: int
    """Octets of those."""
    failures: int
    """Failed commits so far."""
    refusal: bytes | None
    """The reason why nothing is stored now; None if posts are stored."""


class ProtocolCount(Struct, frozen=True):
    """The number of connections of one protocol."""

    protocol: bytes
    connections: int


class Server(Struct, frozen=True):
    """The server as a whole."""

    time_us: int
    """Microseconds since the epoch."""
    version: bytes
    uptime: int
    connections: int
    """Open connections, also those that have not said their protocol yet."""
    max_connections: int
    protocols: tuple[ProtocolCount, ...]
    """Connections by protocol; protocols without connections are left out."""
    subscriptions: int
    max_subscriptions: int
    topics: int
    max_topics: int
    leases: int
    """Leases that are not used yet."""
    watchers: int
    """Connections that watch."""
    turned_away: int
    """Connections so far that were refused, or closed for newer ones, because of `max_connections`."""
    memory: tuple[Share, ...]
    writers: tuple[WriterInfo, ...]
    disk_free: int
    """Octets that the file system of the store has free."""
    disk_reserve: int
    """The free octets below which nothing is stored."""
    store_octets: int
    """Octets that the store takes on the disk."""
    spool: int
    """Octets in the spool: messages of transient topics for slow subscribers."""
    spool_limit: int
    """The greatest size of the spool; 0 if there is none."""


class Line(Struct, frozen=True):
    """A line of the server's log."""

    number: int
    """Counts the warnings and errors since the start."""
    time_us: int
    level: bytes
    logger: bytes
    text: bytes


class Warnings(Struct, frozen=True):
    """Warnings and errors of the log that were not sent before, the oldest first."""

    list: tuple[Line, ...]


class TopicWatch(Struct, frozen=True):
    """One topic."""

    id: int
    topic: bytes
    delivery: Delivery
    persistence: Persistence
    messages: int
    octets: int
    first: int
    last: int
    subscribers: int
    ready: int
    """Round-robin: messages that no subscriber has yet."""
    unconfirmed: int
    """Round-robin: messages that subscribers have and have not confirmed."""
    behind: int
    """The number of messages that the slowest subscriber is behind."""
    messages_in: int
    """Messages accepted so far."""
    octets_in: int
    messages_out: int
    """Messages sent so far; once for each subscriber."""
    octets_out: int
    waiting: int
    """Publishers that wait for room in the topic."""
    failures: int
    """Commits so far that did not store messages of the topic."""
    retention_octets: int | None
    retention_ms: int | None


class Topics(Struct, frozen=True):
    """Topics that are new, or have changed since they were sent last."""

    time_us: int
    """When these numbers were read: microseconds since the epoch."""
    list: tuple[TopicWatch, ...]


class Gone(Struct, frozen=True):
    """Topics that were deleted, or that the client may not watch any more."""

    ids: tuple[int, ...]


class Complete(Struct, frozen=True):
    """Everything that has changed is sent; the next round follows after the period."""

    time_us: int


Statistics = Began | Server | Warnings | Topics | Gone | Complete


class TrafficCounters(Protocol):
    """A snapshot with counts so far: a `TopicWatch`, or the statistics of a driver or a connection."""

    @property
    def messages_in(self) -> int: ...
    @property
    def octets_in(self) -> int: ...
    @property
    def messages_out(self) -> int: ...
    @property
    def octets_out(self) -> int: ...


class TrafficRates(Struct, frozen=True):
    """The messages and octets per second in the time between two snapshots."""

    messages_in: float = 0.0
    octets_in: float = 0.0
    messages_out: float = 0.0
    octets_out: float = 0.0

    @classmethod
    def between(cls, before: TrafficCounters, now: TrafficCounters, seconds: float) -> "TrafficRates":
        """Return the rates between two snapshots of the same thing, N `seconds` apart; 0 if no time has
        passed, and for a count that has begun again.
        """
        if seconds <= 0:
            return cls()
        return cls(
            max(0, now.messages_in - before.messages_in) / seconds,
            max(0, now.octets_in - before.octets_in) / seconds,
            max(0, now.messages_out - before.messages_out) / seconds,
            max(0, now.octets_out - before.octets_out) / seconds,
        )


# -- connections --------------------------------------------------------------------------------------------


class SubscriptionInfo(Struct, frozen=True):
    """One subscription of a connection."""

    topic: bytes
    position: int | None
    """Broadcast: the id of the next message that it is sent."""
    behind: int
    """Messages that are meant for it and not sent yet."""
    credit: int | None
    """Its window of unconfirmed messages, if it has one."""
    unconfirmed: int
    octets: int
    """Octets of messages that are held in memory for it alone."""


class ConnectionInfo(Struct, frozen=True):
    """One connection."""

    id: int
    client: bytes
    """The name of its client; empty before it is known."""
    peer: bytes
    """The address and port of its client."""
    protocol: bytes
    encrypted: bool
    age: int
    """The number of milliseconds since it was accepted."""
    octets_in: int
    """Octets received so far."""
    octets_out: int
    """Octets sent so far."""
    unconfirmed: int
    """Messages that it published and that are neither stored nor refused yet."""
    answers: int
    """Answers that wait."""
    subscriptions: int
    behind: int
    """Messages that its subscriptions are behind, together."""
    held: int
    """Octets of memory that are held for it."""
    stalled: int | None
    """The number of milliseconds since its client stopped reading; None if it reads."""
    slow: bytes | None
    """The reason why it is slow; None if it is not."""
    furthest: tuple[SubscriptionInfo, ...]
    """The subscriptions that are the furthest behind, at most four."""


class SubscriberInfo(Struct, frozen=True):
    """One subscriber of a topic."""

    connection: int
    """The id of its connection."""
    client: bytes
    peer: bytes
    protocol: bytes
    position: int | None
    behind: int
    credit: int | None
    unconfirmed: int
    octets: int
    stalled: int | None


# -- changes ------------------------------------------------------------------------------------------------


class Configured(Struct, frozen=True):
    """A topic has the limits of the configuration."""


class Limits(Struct, frozen=True):
    """The retention of a topic: at most N octets, and messages for N milliseconds; None: without a limit.
    Each limit is 1 to `omq.model.LONGEST_RETENTION`.
    """

    octets: int | None
    ms: int | None


Retention = Configured | Limits
