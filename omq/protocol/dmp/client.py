"""The client's side of a DMP dialogue: octets in, events out.

`start` is all a client has to say before its envelopes, and these may follow at once; a client that would
rather know first whether its lease is good waits for `Ready` (6-DMP, "Integration with AMQP").
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from omq.protocol import handshake
from omq.protocol.amqp import shortstr
from omq.protocol.dmp import responses as dmp_responses
from omq.protocol.dmp.responses import Response, ResponseError


class Purpose(Enum):
    """What a lease is for, and with that what a server sends after the dialogue."""

    SINK = "sink"
    """Messages go to the server, which sends responses at most."""

    FEED = "feed"
    """The server sends envelopes."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """The server speaks this version."""

    response: Response


@dataclass(frozen=True, slots=True)
class Ready:
    """The lease is good."""

    response: Response


@dataclass(frozen=True, slots=True)
class Answered:
    """What the server says about a sink after that: how much is stored, or what was wrong."""

    response: Response


@dataclass(frozen=True, slots=True)
class Declined:
    """The server does not want this connection, and closes it."""

    response: Response


@dataclass(frozen=True, slots=True)
class HeaderDeclined:
    """The server speaks something else, whose header these eight octets are, and closes the connection."""

    header: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """These octets, one or more, belong to the envelopes of a feed: they are for an `EnvelopeReader`."""

    octets: bytes


ClientEvent = Greeted | Ready | Answered | Declined | HeaderDeclined | Received


class DialogueError(ValueError):
    """What the server says is not DMP; `before` holds what it said before that."""

    def __init__(self, text: str, before: list[ClientEvent]) -> None:
        super().__init__(text)
        self.before = before


class _State(Enum):
    GREETING = "waits for the greeting"
    READY = "waits to be told that the lease is good"
    RESPONSES = "waits for what is said about a sink"
    MESSAGES = "passes the envelopes of a feed on"
    CLOSED = "is over"


class ClientDialogue:
    """One connection with one lease."""

    __slots__ = ("_at", "_kept", "_lease", "_purpose", "_state")

    def __init__(self, lease: bytes, purpose: Purpose) -> None:
        """Raises `ValueError` for a lease that has no octets or more than 255."""
        if not lease:
            raise ValueError("a lease has at least one octet")
        self._lease = shortstr.write(lease, "a lease")
        self._purpose = purpose
        self._state = _State.GREETING
        self._kept = bytearray()
        self._at = 0  # where in `_kept` the next thing to read begins

    def start(self) -> bytes:
        """The octets to send first: the protocol header and the lease."""
        return handshake.DMP_HEADER + self._lease

    def feed(self, data: bytes) -> list[ClientEvent]:
        """What the server says with these octets, in order.

        Octets after `Declined` or `HeaderDeclined` are ignored. Raises `DialogueError` for a response that
        does not begin with three digits; the dialogue must not be fed after that.
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
                return Received(self._take(len(self._kept)))
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
        """No greeting: the octets begin as a protocol header does, or may yet do so."""
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
            return Answered(response)
        if not response.ok:
            self._state = _State.CLOSED
            return Declined(response)
        if state is _State.GREETING:
            self._state = _State.READY
            return Greeted(response)
        self._state = _State.RESPONSES if self._purpose is Purpose.SINK else _State.MESSAGES
        return Ready(response)

    def _take(self, end: int) -> bytes:
        """The octets of `_kept` that come next, up to `end`."""
        octets = bytes(memoryview(self._kept)[self._at : end])
        self._at = end
        return octets
