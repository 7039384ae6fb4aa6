"""A raw client of AMQP 1.0: it says performatives, and reads those of the server."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import uuid4

import trio

from omq.protocol.amqp_1_0 import frames, performatives, serials
from omq.protocol.amqp_1_0.decoding import read_all
from omq.protocol.amqp_1_0.encoding import write
from omq.protocol.amqp_1_0.frames import HEARTBEAT, FrameReader, FrameType
from omq.protocol.amqp_1_0.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from omq.protocol.amqp_1_0.sections import Section
from omq.protocol.amqp_1_0.types import NULL, Binary, Described, Map, Symbol, Value

from .conversation import PATIENCE

P = TypeVar("P", bound=Performative)

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
ACCEPTED = performatives.write(performatives.Accepted())
REJECTED = performatives.write(performatives.Rejected())
RELEASED = performatives.write(performatives.Released())


def data(body: bytes) -> bytes:
    """Return a message of one data section."""
    return b"\x00\x53%c%s" % (Section.DATA, write(Binary(body)))


def text(body: str) -> bytes:
    """Return a message of one string."""
    return b"\x00\x53%c%s" % (Section.AMQP_VALUE, write(body))


def source(address: str | None, **fields: Any) -> bytes:
    """Return a source with this address."""
    return performatives.write(Source(write(address), **fields))


def target(address: str | None, **fields: Any) -> bytes:
    """Return a target with this address."""
    return performatives.write(Target(write(address), **fields))


def from_filter(name: str, value: Value) -> bytes:
    """Return a filter set with the beginning of a replay."""
    return write(Map(((Symbol("from"), Described(Symbol(name), value)),)))


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message that the server sent."""

    delivery: int
    tag: bytes
    settled: bool
    octets: bytes
    frames: int


def condition(said: Performative) -> str:
    """Return the condition of the error in a detach, end or close."""
    assert isinstance(said, Detach | End | Close)
    assert said.error != NULL, "no error"
    error = performatives.read_all(said.error)
    assert isinstance(error, Error)
    return error.condition


class Peer:
    """One connection to a server."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._reader = FrameReader()
        self._reader.max_frame = 1 << 20
        self._said: deque[tuple[int, Performative, bytes]] = deque()
        self._has_header = False
        self._deliveries = 0
        self._transfers: dict[int, int] = {}
        """The next-outgoing-id of the session on each channel of the client."""
        self._channels: dict[int, int] = {}
        """The channel of the client for each channel of the server."""

    async def send(self, octets: bytes) -> None:
        """Send octets as they are."""
        with trio.fail_after(PATIENCE):
            await self.stream.send_all(octets)

    async def say(self, *said: Performative, channel: int = 0, payload: bytes = b"") -> None:
        """Send frames; the payload goes with each."""
        octets = [frames.write(channel, performatives.write(one), payload) for one in said]
        for one in said:
            match one:
                case Begin():
                    self._transfers[channel] = one.next_outgoing_id
                case Transfer() if channel in self._transfers:
                    self._transfers[channel] = serials.add(self._transfers[channel], 1)
        await self.send(b"".join(octets))

    async def sasl(self, said: Performative) -> None:
        """Send a frame of SASL."""
        await self.send(frames.write(0, performatives.write(said), kind=FrameType.SASL))

    async def header(self) -> bytes:
        """Return the protocol header that the server sends next."""
        while True:
            with trio.fail_after(PATIENCE):
                if (header := self._reader.header()) is not None:
                    return header
                await self._receive()

    async def _receive(self) -> None:
        octets = await self.stream.receive_some(65536)
        if not octets:
            raise EOFError("the server closed the connection")
        self._reader.add(bytes(octets))

    async def next(self) -> tuple[Performative, bytes]:
        """Return the next performative of the server, and its payload, without heartbeats. Raises
        EOFError.
        """
        _, said, payload = await self._next()
        return said, payload

    async def _next(self) -> tuple[int, Performative, bytes]:
        """Return the same with the channel of the server before it."""
        with trio.fail_after(PATIENCE):
            while not self._said:
                for raw in self._reader.frames():
                    if not raw.is_heartbeat:
                        said, at = performatives.read(raw.octets, raw.begin, raw.end)
                        self._said.append((raw.channel, said, raw.octets[at : raw.end]))
                if not self._said:
                    await self._receive()
        channel, said, payload = self._said.popleft()
        if isinstance(said, Begin) and said.remote_channel is not None:
            self._channels[channel] = said.remote_channel
        return channel, said, payload

    async def heard(self, kind: type[P]) -> P:
        """Return the next thing that the server says, which is of this kind."""
        said, _ = await self.next()
        assert isinstance(said, kind), said
        return said

    async def until(self, kind: type[P]) -> P:
        """Return the next thing of this kind; what comes before it is dropped."""
        while True:
            said, _ = await self.next()
            if isinstance(said, kind):
                return said

    async def heartbeat(self) -> None:
        """Send an empty frame."""
        await self.send(HEARTBEAT)

    async def settle(self) -> None:
        """Wait until the server has executed everything so far: it answers on channel 0, and has counted all
        transfers. Windows of the session that it stated before it read them are dropped.
        """
        await self.say(Flow(0, 1 << 20, 0, 1 << 20, echo=True))
        before: list[tuple[int, Performative, bytes]] = []
        while True:
            channel, said, payload = await self._next()
            if not isinstance(said, Flow) or said.handle is not None or self._channels.get(channel) != 0:
                before.append((channel, said, payload))
                continue
            assert said.next_incoming_id is not None
            if serials.difference(said.next_incoming_id, self._transfers[0]) >= 0:
                self._said.extendleft(reversed(before))
                return

    # -- the beginning -------------------------------------------------------------------------------------

    async def authenticate(self, mechanism: str, response: bytes | None = None) -> SaslOutcome:
        """Authenticate, and return what the server decides."""
        await self.send(SASL_HEADER)
        assert await self.header() == SASL_HEADER
        await self.heard(SaslMechanisms)
        await self.sasl(SaslInit(mechanism, response))
        return await self.heard(SaslOutcome)

    async def open(
        self,
        max_frame: int = 65536,
        idle_ms: int | None = None,
        window: int = 1 << 20,
        container: str | None = None,
    ) -> Open:
        """Open the connection and a session on channel 0. Without a `container` it has one of its own."""
        await self.send(HEADER)
        assert await self.header() == HEADER
        container = container or f"test-{uuid4()}"
        await self.say(Open(container, max_frame_size=max_frame, idle_time_out=idle_ms))
        await self.say(Begin(None, 0, window, 1 << 20))
        opened = await self.heard(Open)
        await self.heard(Begin)
        return opened

    # -- links ---------------------------------------------------------------------------------------------

    async def receiver(
        self, address: str | None, handle: int = 0, credit: int = 0, snd: int = 2, **fields: object
    ) -> Attach:
        """Attach a link on which the server sends."""
        name = f"receiver-{handle}"
        await self.say(
            Attach(name, handle, True, snd, source=source(address, **fields), target=target("here"))
        )
        attach = await self.until(Attach)
        if credit:
            await self.credit(credit, handle)
        return attach

    async def made(self) -> str:
        """Attach a link on which the server sends from a node that it makes; return the node's address."""
        await self.say(Attach("made", 0, True, source=source(None, dynamic=True), target=target("here")))
        origin = performatives.read_all((await self.heard(Attach)).source)
        assert isinstance(origin, Source)
        assert origin.dynamic
        address = read_all(origin.address)
        assert isinstance(address, str)
        return address

    async def credit(self, credit: int, handle: int = 0, count: int = 0, *, drain: bool = False) -> None:
        """State the credit of a link. The client has seen `count` messages of it."""
        await self.say(Flow(0, 1 << 20, 0, 1 << 20, handle, count, credit, drain=drain))

    async def sender(self, address: str | None, handle: int = 1, **fields: object) -> Attach:
        """Attach a link on which the client sends, and wait for the credit."""
        name = f"sender-{handle}"
        said = Attach(
            name,
            handle,
            False,
            source=source("here"),
            target=target(address, **fields),
            initial_delivery_count=0,
        )
        await self.say(said)
        attach = await self.until(Attach)
        if attach.target != NULL:
            await self.until(Flow)
        return attach

    async def publish(self, message: bytes, handle: int = 1, *, settled: bool = False) -> int:
        """Send a message in one frame; return its delivery-id."""
        delivery = self.delivery()
        await self.say(Transfer(handle, delivery, b"%d" % delivery, 0, settled), payload=message)
        return delivery

    async def publish_long(self, message: bytes, handle: int = 1, *, settled: bool = False) -> int:
        """Send a message in frames of 60,000 octets; return its delivery-id."""
        delivery = self.delivery()
        first = Transfer(handle, delivery, b"%d" % delivery, 0, settled)
        await self.send_part(message, 0, len(message), first)
        return delivery

    def delivery(self) -> int:
        """Return the delivery-id of the next message."""
        delivery, self._deliveries = self._deliveries, self._deliveries + 1
        return delivery

    async def send_part(self, message: bytes, begin: int, end: int, first: Transfer) -> None:
        """Send the octets of a message between these indexes in frames of 60,000 octets; the `first` one of
        the message begins with this performative.
        """
        for at in range(begin, end, 60_000):
            part = message[at : min(end, at + 60_000)]
            more = at + len(part) < len(message)
            said = replace(first, more=more) if not at else Transfer(first.handle, more=more)
            await self.say(said, payload=part)

    async def accepted(self, last: int) -> None:
        """Wait until the server has accepted the message with this delivery-id."""
        while True:
            outcome = await self.outcome()
            if last in (outcome.first, outcome.last):
                assert outcome.state == ACCEPTED
                return

    async def outcome(self) -> Disposition:
        """Return the next outcome of messages that were published."""
        return await self.until(Disposition)

    async def message(self) -> Arrived:
        """Return the next message; it may take several frames."""
        first, octets = await self._transfer()
        assert first.delivery_id is not None
        assert first.delivery_tag is not None
        parts, more = [octets], first.more
        while more:
            transfer, rest = await self._transfer()
            parts.append(rest)
            more = transfer.more
        whole = b"".join(parts)
        return Arrived(first.delivery_id, first.delivery_tag, bool(first.settled), whole, len(parts))

    async def _transfer(self) -> tuple[Transfer, bytes]:
        while True:
            said, payload = await self.next()
            if isinstance(said, Transfer):
                return said, payload

    async def told(self, first: int, last: int, state: bytes = ACCEPTED, *, settled: bool = True) -> None:
        """Tell the outcome of messages."""
        await self.say(Disposition(True, first, last, settled, state))


@asynccontextmanager
async def peer(port: int) -> AsyncIterator[Peer]:
    """Yield a connection that says nothing yet."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        yield Peer(stream)


@asynccontextmanager
async def opened(port: int, max_frame: int = 65536, window: int = 1 << 20) -> AsyncIterator[Peer]:
    """Yield a connection with one session."""
    async with peer(port) as made:
        await made.open(max_frame, window=window)
        yield made
