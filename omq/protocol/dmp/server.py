"""The server's side of a DMP dialogue: octets in, events out.

The client sends the protocol header and gets a greeting, sends its lease and gets the answer whether the
lease is valid; after that there are only envelopes (6-DMP, "Integration with AMQP"). A client may send
everything at once, without waiting for the answers. The terminal decides about the lease, and passes the
decision to `decide`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from omq.protocol import handshake
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.responses import GREETING, Response, feed_ready, sink_ready


@dataclass(frozen=True, slots=True)
class Send:
    """Send these octets."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class LeaseReceived:
    """The client has sent this lease, 1 to 255 octets, and the dialogue waits for `decide`.

    Do not read further before that: the dialogue would buffer everything.
    """

    lease: bytes


@dataclass(frozen=True, slots=True)
class EnvelopeOctets:
    """One or more octets of envelopes, for an `EnvelopeReader`."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close the connection after sending everything. No event follows."""


ServerEvent = Send | LeaseReceived | EnvelopeOctets | CloseConnection


@dataclass(frozen=True, slots=True)
class SinkReady:
    """The lease is valid: the client may send to the sink of this name."""

    name: bytes


@dataclass(frozen=True, slots=True)
class FeedReady:
    """The lease is valid: the client gets the feed of this name."""

    name: bytes


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The lease is invalid: send the reason in the response, then close the connection."""

    response: Response


LeaseAnswer = SinkReady | FeedReady | LeaseRefused


class _State(Enum):
    HEADER = "waits for the protocol header"
    LEASE = "waits for the lease"
    DECISION = "waits for the decision about the lease"
    MESSAGES = "passes the envelopes on"
    CLOSED = "is over"


class ServerDialogue:
    """The dialogue of one connection, from its first octet on, including the protocol header."""

    __slots__ = ("_kept", "_state")

    def __init__(self) -> None:
        self._state = _State.HEADER
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Parse received octets into events, in order; ignore octets after `CloseConnection`.

        The answer to a header of another version or protocol is the DMP header, followed by
        `CloseConnection`; an empty lease gets only `CloseConnection`.
        """
        match self._state:
            case _State.MESSAGES:
                return [EnvelopeOctets(data)] if data else []
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

    def decide(self, outcome: LeaseAnswer) -> list[ServerEvent]:
        """Answer the lease, and pass on the envelopes that arrived with it.

        Raises `ValueError` if no lease waits for a decision.
        """
        if self._state is not _State.DECISION:
            raise ValueError(f"there is no lease to decide on: the dialogue {self._state.value}")
        match outcome:
            case SinkReady(name):
                return self._ready(sink_ready(name))
            case FeedReady(name):
                return self._ready(feed_ready(name))
            case LeaseRefused(response):
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
        return [LeaseReceived(lease)]

    def _ready(self, response: Response) -> list[ServerEvent]:
        self._state = _State.MESSAGES
        rest = bytes(self._kept)
        self._kept.clear()
        return [Send(dmp_responses.encode(response)), *([EnvelopeOctets(rest)] if rest else [])]

    def _close(self) -> CloseConnection:
        self._state = _State.CLOSED
        self._kept.clear()
        return CloseConnection()
