"""The server's side of a DMP dialogue: octets in, events out.

The client sends the protocol header, is greeted, sends its lease, and is told whether the lease is good; from
then on there are only envelopes (6-DMP, "Integration with AMQP"). A client need not wait for the answers:
all it has to say may come at once. What a lease means is decided elsewhere, and told to `decide`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from omq.protocol import handshake
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.responses import GREETING, Response, feed_ready, sink_ready


@dataclass(frozen=True, slots=True)
class Send:
    """These octets are to be sent."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class LeaseShown:
    """The client shows this lease, 1 to 255 octets, and waits for `decide`.

    There is no use in reading on before: everything that comes is kept.
    """

    lease: bytes


@dataclass(frozen=True, slots=True)
class Messages:
    """These octets, one or more, belong to the envelopes: they are for an `EnvelopeReader`."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """The connection is to be closed once everything is sent. No event follows."""


ServerEvent = Send | LeaseShown | Messages | Close


@dataclass(frozen=True, slots=True)
class SinkReady:
    """The lease is good: the client may send to the sink of this name."""

    name: bytes


@dataclass(frozen=True, slots=True)
class FeedReady:
    """The lease is good: the client gets the feed of this name."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The lease is not good; the response says why, then the connection is closed."""

    response: Response


Outcome = SinkReady | FeedReady | Refused


class _State(Enum):
    HEADER = "waits for the protocol header"
    LEASE = "waits for the lease"
    DECISION = "waits to be told what the lease is worth"
    MESSAGES = "passes the envelopes on"
    CLOSED = "is over"


class ServerDialogue:
    """One connection, from its first octet on, the protocol header among them."""

    __slots__ = ("_kept", "_state")

    def __init__(self) -> None:
        self._state = _State.HEADER
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[ServerEvent]:
        """What follows from these octets, in order; after `Close` they are ignored.

        A header of another version, and anything else that is no DMP header, is answered with the header of
        what is spoken here, and an empty lease not at all; then the connection is to be closed.
        """
        match self._state:
            case _State.MESSAGES:
                return [Messages(data)] if data else []
            case _State.CLOSED:
                return []
            case _State.HEADER:
                self._kept += data
                return self._header()
            case _State.LEASE:
                self._kept += data
                return self._lease()
            case _State.DECISION:
                self._kept += data
                return []
            case _:
                assert_never(self._state)

    def decide(self, outcome: Outcome) -> list[ServerEvent]:
        """The answer to the lease that was shown, and the envelopes that came with it.

        Raises `ValueError` when there is no lease to decide on.
        """
        if self._state is not _State.DECISION:
            raise ValueError(f"there is no lease to decide on: the dialogue {self._state.value}")
        match outcome:
            case SinkReady(name):
                return self._ready(sink_ready(name))
            case FeedReady(name):
                return self._ready(feed_ready(name))
            case Refused(response):
                return [Send(dmp_responses.encode(response)), self._close()]
            case _:
                assert_never(outcome)

    def _header(self) -> list[ServerEvent]:
        if len(self._kept) < handshake.LENGTH:
            return []
        header = self._kept[: handshake.LENGTH]
        del self._kept[: handshake.LENGTH]
        if header != handshake.DMP_HEADER:
            return [Send(handshake.DMP_HEADER), self._close()]
        self._state = _State.LEASE
        return [Send(dmp_responses.encode(GREETING)), *self._lease()]

    def _lease(self) -> list[ServerEvent]:
        if not self._kept:
            return []
        end = 1 + self._kept[0]
        if end == 1:
            return [self._close()]
        if len(self._kept) < end:
            return []
        lease = bytes(self._kept[1:end])
        del self._kept[:end]
        self._state = _State.DECISION
        return [LeaseShown(lease)]

    def _ready(self, response: Response) -> list[ServerEvent]:
        self._state = _State.MESSAGES
        rest = bytes(self._kept)
        self._kept.clear()
        return [Send(dmp_responses.encode(response)), *([Messages(rest)] if rest else [])]

    def _close(self) -> Close:
        self._state = _State.CLOSED
        self._kept.clear()
        return Close()
