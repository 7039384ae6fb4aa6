"""The client's side of a DMP dialogue: octets in, events out.

A client sends `start` before its envelopes, which may follow at once; a client that wants to know first
whether its lease is valid waits for `Ready` (6-DMP, "Integration with AMQP").
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from omq.protocol import handshake
from omq.protocol.amqp import shortstr
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.responses import Response, ResponseError


class Purpose(Enum):
    """The purpose of a lease: it determines whether the server or the client sends messages after the
    dialogue.
    """

    SINK = "sink"
    """The client sends envelopes; the server sends only responses."""

    FEED = "feed"
    """The server sends envelopes."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """The server supports this version."""

    response: Response


@dataclass(frozen=True, slots=True)
class Ready:
    """The lease is valid."""

    response: Response


@dataclass(frozen=True, slots=True)
class SinkResponse:
    """The server's later response about a sink: the number of messages that it stored, or the problem."""

    response: Response


@dataclass(frozen=True, slots=True)
class ConnectionDeclined:
    """The server rejects this connection, and closes it."""

    response: Response


@dataclass(frozen=True, slots=True)
class HeaderDeclined:
    """The server speaks another protocol, whose header it sends, and closes the connection."""

    header: bytes


@dataclass(frozen=True, slots=True)
class FeedOctets:
    """One or more octets of a feed's envelopes, for an `EnvelopeReader`."""

    octets: bytes


ClientEvent = Greeted | Ready | SinkResponse | ConnectionDeclined | HeaderDeclined | FeedOctets


class DialogueError(ValueError):
    """The server violates DMP; `before` holds the events before the violation."""

    def __init__(self, text: str, before: list[ClientEvent]) -> None:
        super().__init__(text)
        self.before = before


class _State(Enum):
    GREETING = "waits for the greeting"
    READY = "waits for the response to the lease"
    RESPONSES = "waits for what is said about a sink"
    MESSAGES = "passes the envelopes of a feed on"
    CLOSED = "is over"


class ClientDialogue:
    """The dialogue of one connection with one lease."""

    __slots__ = ("_at", "_kept", "_lease", "_purpose", "_state")

    def __init__(self, lease: bytes, purpose: Purpose) -> None:
        """Create a dialogue about this lease. Raise `ValueError` for a lease that is empty or longer than 255
        octets.
        """
        if not lease:
            raise ValueError("a lease has at least one octet")
        self._lease = shortstr.write(lease, "a lease")
        self._purpose = purpose
        self._state = _State.GREETING
        self._kept = bytearray()
        self._at = 0  # the position of the next unread octet in `_kept`

    def start(self) -> bytes:
        """Return the octets to send first: the protocol header and the lease."""
        return handshake.DMP_HEADER + self._lease

    def feed(self, data: bytes) -> list[ClientEvent]:
        """Parse received octets into events, in order.

        Ignores octets after `ConnectionDeclined` or `HeaderDeclined`. Raises `DialogueError` for a response
        that does not begin with three digits; do not feed the dialogue after that.
        """
        events: list[ClientEvent] = []
        self._kept += data
        while self._at < len(self._kept):
            try:
                event = self._next()
            except ResponseError as error:
                raise DialogueError(str(error), events) from error
            if event is None:
                break
            events.append(event)
        del self._kept[: self._at]
        self._at = 0
        return events

    def _next(self) -> ClientEvent | None:
        match self._state:
            case _State.MESSAGES:
                return FeedOctets(self._take(len(self._kept)))
            case _State.CLOSED:
                self._take(len(self._kept))
                return None
            case _State.GREETING if handshake.AMQP.startswith(self._kept[: len(handshake.AMQP)]):
                return self._header()
            case _State.GREETING | _State.READY | _State.RESPONSES:
                return self._response(self._state)
            case _:
                assert_never(self._state)

    def _header(self) -> ClientEvent | None:
        """Read a protocol header instead of a greeting: the octets begin like one, or may still do so."""
        if len(self._kept) < handshake.LENGTH:
            return None
        header = self._take(handshake.LENGTH)
        self._state = _State.CLOSED
        return HeaderDeclined(header)

    def _response(self, state: _State) -> ClientEvent | None:
        end = self._at + 1 + self._kept[self._at]
        if len(self._kept) < end:
            return None
        response = dmp_responses.decode(self._take(end)[1:])
        if state is _State.RESPONSES:
            return SinkResponse(response)
        if not response.ok:
            self._state = _State.CLOSED
            return ConnectionDeclined(response)
        if state is _State.GREETING:
            self._state = _State.READY
            return Greeted(response)
        self._state = _State.RESPONSES if self._purpose is Purpose.SINK else _State.MESSAGES
        return Ready(response)

    def _take(self, end: int) -> bytes:
        """Take the next octets of `_kept`, up to `end`."""
        octets = bytes(memoryview(self._kept)[self._at : end])
        self._at = end
        return octets
