"""Numbers about a connection. Sizes are octets, times are seconds; see also `omq.drivers.statistics`."""

from enum import Enum
from typing import Self

import trio
from msgspec import Struct

from omq.drivers.statistics import ChannelStatistics
from omq.model import Topic
from omq.terminals.connection.transport import Transport


class Kind(Enum):
    """The kind of a connection, by its protocol."""

    OMQ = "omq"
    DMP = "DMP"
    """A DMP connection that has not shown a lease yet, or whose lease was refused."""
    SINK = "sink"
    FEED = "feed"
    AMQP_0_9 = "AMQP 0-9-1"
    AMQP_1_0 = "AMQP 1.0"
    HTTP = "HTTP"
    """A connection of HTTP that has not opened a WebSocket. Behind a WebSocket, a connection is OMQ."""


class HeldOctets(Struct, frozen=True):
    """The memory that one connection holds, by purpose."""

    reading: int = 0
    """Octets read from its socket and not processed yet, beyond the octets that every connection may read at
    any time.
    """
    unfinished: int = 0
    """Octets of incomplete lines or envelopes, beyond the octets that every connection may hold."""
    answers: int = 0
    """Answers that wait to be sent."""
    fetched: int = 0
    """Read from a store for its Fetch commands and not sent yet."""
    publishes: int = 0
    """Publishes that wait for room in round-robin topics while the connection is read."""


_NOTHING_HELD = HeldOctets()


class SubscriptionStatistics(Struct, frozen=True):
    """One subscription or feed."""

    topic: Topic
    channel: ChannelStatistics


class LinkStatistics(Struct, frozen=True):
    """One link of AMQP 1.0 on which the client sends. The others are subscriptions."""

    name: str
    address: bytes | None
    """Its topic or node; None for the anonymous relay."""
    credit: int
    """The number of messages that the client may still send now."""
    unconfirmed: int
    """Messages that have no outcome yet."""
    stalls: int
    """The number of times so far that the client had used up its credit and got none."""
    undelivered: int
    """Messages so far that were not accepted, also those that came settled."""


class ConnectionStatistics(Struct, frozen=True):
    """One connection after its handshake."""

    kind: Kind
    client: bytes | None
    """The name that its client gave in Connect; of a sink or feed, that of the client that got its lease.
    None before."""
    peer: str
    """The address and port of its client."""
    is_encrypted: bool
    """Whether it uses TLS."""
    seconds: float
    """The number of seconds since it was accepted; with TLS, since the TLS handshake began."""
    octets_in: int
    """Octets received so far, without the overhead of TLS."""
    octets_out: int
    """Octets passed to its socket so far, without the overhead of TLS."""
    messages_in: int
    """Messages that it published so far, those included that were refused."""
    messages_out: int
    """Messages handed to its socket so far, those of Fetch not included."""
    unconfirmed: int
    """Messages that it published and that are neither stored nor refused yet."""
    waiting_answers: int
    """Answers that wait to be sent, or for the answers before them. Fetch commands are among them."""
    subscriptions: int
    """Subscriptions, or 1 for a feed. The terminal's `subscriptions` has the statistics of each."""
    is_sending: bool
    """Whether something is being sent that the socket has not taken yet."""
    stalled_seconds: float | None
    """The number of seconds since its client counted as stalled, because it takes none of the octets that are
    sent to it; None if it is not stalled.
    """
    held: HeldOctets
    ending: str | None = None
    """The reason why it ends; None while it is open, and if its client simply ended it."""

    @classmethod
    def of(
        cls,
        transport: Transport,
        kind: Kind,
        client: bytes | None,
        *,
        messages_in: int = 0,
        messages_out: int = 0,
        unconfirmed: int = 0,
        waiting_answers: int = 0,
        subscriptions: int = 0,
        is_sending: bool = False,
        stalled_seconds: float | None = None,
        held: HeldOctets = _NOTHING_HELD,
    ) -> Self:
        """Return the statistics of the connection that has this transport."""
        return cls(
            kind=kind,
            client=client,
            peer=transport.peer(),
            is_encrypted=transport.is_encrypted,
            seconds=trio.current_time() - transport.since,
            octets_in=transport.received,
            octets_out=transport.sent,
            messages_in=messages_in,
            messages_out=messages_out,
            unconfirmed=unconfirmed,
            waiting_answers=waiting_answers,
            subscriptions=subscriptions,
            is_sending=is_sending,
            stalled_seconds=stalled_seconds,
            held=held,
            ending=transport.why_it_ended(),
        )


class EndedConnections(Struct, frozen=True):
    """The totals of the ended connections of one kind or protocol."""

    connections: int = 0
    octets_in: int = 0
    octets_out: int = 0
    messages_in: int = 0
    messages_out: int = 0

    @classmethod
    def one(cls, seen: ConnectionStatistics) -> Self:
        """Return the sums of one connection."""
        return cls(1, seen.octets_in, seen.octets_out, seen.messages_in, seen.messages_out)

    def plus(self, other: "EndedConnections") -> "EndedConnections":
        """Return the sums of both."""
        return EndedConnections(
            self.connections + other.connections,
            self.octets_in + other.octets_in,
            self.octets_out + other.octets_out,
            self.messages_in + other.messages_in,
            self.messages_out + other.messages_out,
        )
