"""Numbers about topics, their subscribers and the writers, for operators, tools and tests.

Each `statistics()` returns a snapshot: it waits for nothing and changes nothing. Sizes are octets, times are
seconds. What is described as "so far" is a counter: it starts at 0 with its object, at the latest when the
server starts, and only grows. `omq.watching.TrafficRates` makes rates of two snapshots.
"""

from typing import Protocol

from msgspec import Struct

from omq.drivers.histogram import Distribution
from omq.drivers.reasons import Failure
from omq.model import Delivery, Persistence, Topic
from omq_storage.levels import Level


class Traffic(Protocol):
    """The counters of one topic. Drivers, channels and connections add to them once per block or per send."""

    messages_in: int
    octets_in: int
    messages_out: int
    octets_out: int


class ChannelStatistics(Struct, frozen=True):
    """One subscriber of a topic."""

    position: int | None
    """The id of the next message that it is sent; None for round-robin, where each message has a subscriber
    of its own."""
    behind: int
    """Messages that are meant for it and not on its socket yet. Broadcast: all from its position to the end
    of the topic, including ids that are no longer kept. Round-robin: those dealt to it."""
    credit: int | None
    """Its window of unsettled messages, from its last Request; None without one."""
    unsettled: int
    """Messages that were dealt to it and are not done. Broadcast: those that it was given within a window and
    has not settled."""
    octets: int
    """Octets of messages that are held in memory for it alone and not on its socket yet."""
    is_held: bool
    """Whether its client stopped reading, or no connection receives it yet; it gets no messages then."""
    count: int | None = None
    """Its remaining credit; None if its terminal does not count messages."""


class DriverStatistics(Struct, frozen=True):
    """One topic. `Driver.subscribers` gives its channels, each with statistics of its own."""

    topic: Topic
    delivery: Delivery
    persistence: Persistence
    messages: int
    """The number of stored messages."""
    octets: int
    """Octets of these messages, in the store or in memory."""
    next_id: int
    """The id of the next message; all ids below it were assigned."""
    subscribers: int
    """Subscriptions and feeds that are open."""
    unsettled: int
    """Round-robin: messages that were dealt and are not done. Broadcast: 0."""
    waiting_publishers: int
    """Publishers that wait, because the topic is full or because its fastest subscriber is far behind. Those
    who wait for a commit are not among them: see `MemoryStatistics.waiting_tasks`."""
    failures: int
    """Commits so far that did not store messages of this topic."""
    rejections: int
    """Round-robin: messages that subscribers have rejected so far. Broadcast: 0."""
    messages_in: int
    """Messages accepted so far."""
    octets_in: int
    """Octets of those, as Message frames and heads."""
    messages_out: int
    """Messages passed to sockets so far; each counts once for each subscriber, and again if sent again."""
    octets_out: int
    """Octets passed to sockets so far for this topic, in the form of each protocol."""


class DiskStatistics(Struct, frozen=True):
    """The file system of the store, as it was at the last look."""

    free: int
    """Octets that the server may still use."""
    stored: int
    """Octets that the files of the store take."""


class NodeStatistics(Struct, frozen=True):
    """One node of AMQP 1.0 without a queue."""

    name: bytes
    producers: int
    """Links that send to it."""
    consumers: int
    """Links that receive from it."""
    credit: int
    """The number of messages that its consumers still take now."""
    waiting: int
    """Messages that wait for a consumer with credit."""
    messages_in: int
    """Messages so far, also those that no consumer received."""
    octets_in: int
    """Octets of their bodies."""
    messages_out: int
    """Messages passed to sockets so far."""
    octets_out: int
    undelivered: int
    """Messages so far that no consumer took, or for which there was no memory."""
    stalls: int
    """The number of times so far that a producer of it had used up its credit and got none."""


class WriterStatistics(Struct, frozen=True):
    """The writer of one sync level."""

    level: Level
    waiting_posts: int
    """Posts that wait for a commit, without those of the current commit."""
    waiting_octets: int
    """Octets of these posts."""
    commits: int
    """Commits that stored something, so far."""
    commit_seconds: float
    """The time that all of those took together, so far. The total divided by `commits` is the mean."""
    last_commit_seconds: float
    """The time that the last of those took; 0.0 before the first."""
    commit_times: Distribution
    """The times of those."""
    checkpoint_times: Distribution
    """The times of the checkpoints so far that succeeded."""
    committing_seconds: float
    """The number of seconds since the current commit began; 0.0 without one."""
    messages: int
    """Messages stored so far."""
    octets: int
    """Octets of the frames and heads of those."""
    failures: int
    """Failed commits of one topic so far: a failed commit of N topics counts N times."""
    refusal: Failure | None
    """The reason why posts are refused now, as publishers learn; None if posts are stored."""
    trouble: Failure | None
    """The reason why the last commit stored nothing, or the last checkpoint failed; None if both succeeded.
    """
