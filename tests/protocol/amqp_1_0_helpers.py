"""A client of AMQP 1.0 for tests: what it says, as octets, and what the server answers, as performatives."""

from collections.abc import Iterator

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.connection import HEADER, AmqpConnection, Offer
from omq.protocol.amqp_1_0.encoding import write
from omq.protocol.amqp_1_0.events import Attaching, Authenticating, Event, Opening
from omq.protocol.amqp_1_0.frames import FrameReader, FrameType
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Open,
    Performative,
    Source,
    Target,
)
from omq.protocol.amqp_1_0.types import NULL

ADDRESS = write("a")
OFFER = Offer("omq-test")


def frame(
    performative: Performative, payload: bytes = b"", *, channel: int = 0, kind: FrameType = FrameType.AMQP
) -> bytes:
    """Return a frame as a client sends it."""
    return frames.write(channel, performatives.write(performative), payload, kind=kind)


class Peer:
    """A connection, and the client at its other end."""

    def __init__(self, offer: Offer = OFFER) -> None:
        self.connection = AmqpConnection(offer)
        self._reader = FrameReader()
        self._reader.max_frame = 1 << 20
        self.payloads: list[bytes] = []
        """The payloads of the transfers that the server sent."""

    def say(self, *octets: bytes) -> list[Event]:
        """Feed these octets; return the events. Opens and SASL are answered."""
        return list(self._events(b"".join(octets)))

    def _events(self, octets: bytes) -> Iterator[Event]:
        more: bytes | None = octets
        while more is not None:
            fed, more = more, None
            for event in self.connection.feed(fed):
                yield event
                match event:
                    case Opening():
                        self.connection.open()
                        more = b""
                    case Authenticating(mechanism):
                        self.connection.authenticated(accepted=mechanism == "ANONYMOUS")
                        more = b""

    def heard(self) -> list[Performative]:
        """Return the performatives of the server since the last call, without headers and heartbeats."""
        octets = self.connection.take()
        while octets[:4] == b"AMQP":
            octets = octets[8:]
        self._reader.add(octets)
        said = []
        for raw in self._reader.frames():
            if not raw.is_heartbeat:
                performative, at = performatives.read(raw.octets, raw.begin, raw.end)
                if isinstance(performative, performatives.Transfer):
                    self.payloads.append(raw.octets[at : raw.end])
                said.append(performative)
        return said

    def open(self) -> None:
        """Open the connection and a session on channel 0."""
        self.say(HEADER, frame(Open("client")), frame(Begin(None, 0, 100, 100)))
        self.heard()

    def attach_receiver(self, handle: int = 0, name: str = "r", snd: int = 2) -> SendingLink:
        """Attach a link on which the server sends."""
        said = Attach(name, handle, True, snd, source=source(), target=target())
        link = self._attach(said)
        assert isinstance(link, SendingLink)
        link.accept(link.attach.source, settles=link.settles)
        self.heard()
        return link

    def attach_sender(self, handle: int = 1, name: str = "s", credit: int = 100) -> ReceivingLink:
        """Attach a link on which the client sends."""
        said = Attach(name, handle, False, source=source(), target=target(), initial_delivery_count=0)
        link = self._attach(said)
        assert isinstance(link, ReceivingLink)
        link.accept(link.attach.target, 1000)
        link.grant(credit)
        self.heard()
        return link

    def _attach(self, said: Attach) -> SendingLink | ReceivingLink:
        found = [event.link for event in self.say(frame(said)) if isinstance(event, Attaching)]
        assert len(found) == 1
        return found[0]


def source(address: bytes = ADDRESS) -> bytes:
    """Return a source with this address."""
    return performatives.write(Source(address))


def target(address: bytes = ADDRESS) -> bytes:
    """Return a target with this address."""
    return performatives.write(Target(address)) if address else NULL


def condition(said: list[Performative]) -> str:
    """Return the condition with which the only detach, end or close among these came."""
    errors = [one.error for one in said if isinstance(one, Detach | End | Close)]
    assert len(errors) == 1
    error = performatives.read_all(errors[0])
    assert isinstance(error, Error)
    return error.condition
