"""The terminal of AMQP 1.0: one connection (docs/AMQP-1.0.md).

One task reads frames, and executes what they mean in their order. Another one sends the answers, heartbeats
and the messages of the links in turn.
"""

import logging
import math
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import assert_never

import trio

from omq.access.direct import DYNAMIC, Direct
from omq.access.rights import Right
from omq.access.session import Release, Session
from omq.drivers.direct import DirectNode
from omq.drivers.reasons import Failure, Refused
from omq.drivers.seam import Channel, Octets
from omq.logs import quoted, subject
from omq.model import Delivery, FromCurrent, Topic
from omq.protocol.amqp_1_0 import performatives, types
from omq.protocol.amqp_1_0.conditions import Condition, ConnectionProblem, LinkProblem
from omq.protocol.amqp_1_0.connection import Connection, Offer, Stage
from omq.protocol.amqp_1_0.events import (
    Aborted,
    Attaching,
    Authenticating,
    Closed,
    Credit,
    Detached,
    Event,
    Opening,
    Outcome,
    Part,
    Run,
    WindowOpened,
)
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.performatives import Source, Target
from omq.protocol.amqp_1_0.types import NULL
from omq.terminals.amqp_1_0.addresses import Address, DirectAddress, Treatment, resolve
from omq.terminals.amqp_1_0.direct import DirectIncoming, DirectOutgoing
from omq.terminals.amqp_1_0.incoming import Incoming
from omq.terminals.amqp_1_0.offsets import replay_of
from omq.terminals.amqp_1_0.outgoing import Outgoing
from omq.terminals.amqp_1_0.refusals import problem_of
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.liveness import Excuse
from omq.terminals.connection.login import BadLogin, read_plain
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    HeldOctets,
    Kind,
    SubscriptionStatistics,
)

GOODBYE_SECONDS = 2.0
"""How long a connection that the server ends may take to send its last frames, and to read the client's."""

EVENTS_IN_TURN = 64
"""After so many events the other connections have their turn."""

IDLE_SECONDS = 60.0
"""The idle-time-out that the server states. A client is gone after twice as long without an octet."""

MOST_WAITING = 256 << 10
"""How many octets may wait to be sent before nothing more is read."""

log = logging.getLogger("omq.terminal")


@dataclass(frozen=True, slots=True)
class Greeting:
    """It is not known whose connection it is."""

    by: float
    """The time by which it must be known."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The connection is open."""

    session: Session


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing more is read; what waits is sent."""


State = Greeting | Serving | Over


class Amqp1Terminal:
    """One connection after its first eight octets. `serve` returns when the connection is over."""

    def __init__(self, arrival: Arrival, header: bytes, context: Context) -> None:
        config, memory = context.config, context.memory
        self._transport = transport = arrival.transport
        self._received = header + arrival.received
        self._known = arrival.known
        self._context = context
        self._config = config
        needs_sasl = bool(config.clients)
        mechanisms = ("PLAIN",) if needs_sasl else ("ANONYMOUS", "PLAIN")
        self._protocol = Connection(Offer(_container(), mechanisms, needs_sasl, _IDLE_MS, (), _PROPERTIES))
        self._state: State = Greeting(math.inf)
        self._session: Session | None = None
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._excused = Excuse()
        self._admission = ReadAdmission(transport, memory, self._reading, self._excused)
        self._sender = Sender(transport, memory.stalled, memory.tails, context.pace, self._scope)
        self._waiting: list[bytes] = []
        self._waiting_octets = 0
        self._room = trio.lowlevel.ParkingLot()
        self._outgoing: dict[SendingLink, Outgoing] = {}
        self._incoming: dict[ReceivingLink, Incoming | DirectIncoming] = {}
        self._unflushed: dict[Incoming | DirectIncoming, None] = {}
        self._news: dict[Incoming | DirectIncoming, None] = {}
        """Producers that may have something to be told."""
        self._direct: Direct | None = None
        self._heartbeat_due = math.inf
        self._heard = 0.0
        self._heard_octets = -1

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and send until the client is done, or something ends the connection."""
        if isinstance(self._state, Greeting):
            self._state = Greeting(trio.current_time() + self._config.handshake_seconds)
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
                await self._transport.finish()
        finally:
            self._state = Over()
            self._drop_links()
            if self._session is not None:
                self._session.close()
            self._admission.close()
            self._transport.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        return ConnectionStatistics(
            kind=Kind.AMQP_1_0,
            client=None if self._session is None else self._session.name,
            peer=self._transport.peer(),
            is_encrypted=self._transport.is_encrypted,
            seconds=trio.current_time() - self._transport.since,
            octets_in=self._transport.received,
            octets_out=self._transport.sent,
            unconfirmed=sum(incoming.unconfirmed for incoming in self._incoming.values()),
            waiting_answers=len(self._waiting),
            subscriptions=len(self.subscriptions()),
            is_sending=self._sender.forwarder.is_sending,
            stalled_seconds=self._sender.forwarder.stalled_seconds,
            held=HeldOctets(
                reading=self._admission.reading,
                unfinished=self._admission.unfinished,
                answers=self._waiting_octets,
            ),
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the links on which the server sends."""
        return [
            SubscriptionStatistics(outgoing.topic, outgoing.channel.statistics())
            for outgoing in self._outgoing.values()
            if outgoing.channel is not None
        ]

    def sweep(self, now: float) -> None:
        """Check whether the client is gone. Called about every second."""
        self._sender.forwarder.look(now)
        match self._state:
            case Greeting(by):
                if now > by:
                    self._scope.cancel()
            case Serving():
                if self._transport.received != self._heard_octets or self._excused.is_active:
                    self._heard, self._heard_octets = now, self._transport.received
                elif now - self._heard > 2 * IDLE_SECONDS:
                    text = "local-idle-timeout expired"
                    self._fail(ConnectionProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text))
            case Over():
                pass  # the time is bounded
            case other:
                assert_never(other)

    def shut_down(self) -> None:
        """End the connection: the server stops."""
        match self._state:
            case Greeting():
                self._scope.cancel()
            case Serving():
                self._fail(ConnectionProblem(Condition.CONNECTION_FORCED, "the server is stopping"))
            case Over():
                pass
            case other:
                assert_never(other)

    def _fail(self, problem: ConnectionProblem) -> None:
        """End the connection with a close."""
        for event in self._protocol.close(problem):
            self._detached(event)
        self._collect()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + GOODBYE_SECONDS)

    def _drop_links(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for each in outgoing.values():
            each.close()
        incoming, self._incoming = self._incoming, {}
        for producer in incoming.values():
            producer.close()
        self._unflushed.clear()

    def _end(self) -> None:
        """Nothing more is read, and what waits is sent."""
        for event in self._protocol.lost():
            self._detached(event)
        self._state = Over()
        self._drop_links()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + GOODBYE_SECONDS)
        self._sender.signal.set()

    # -- writing: the sender asks (see omq.terminals.connection.sender.Side) -------------------------------

    async def _write(self) -> None:
        try:
            await self._sender.run(self)
        except trio.BrokenResourceError:
            self._scope.cancel()  # the client closed the connection, as it may at any time

    def _collect(self) -> None:
        """Take what the protocol has to send."""
        octets = self._protocol.take()
        if octets:
            self._waiting.append(octets)
            self._waiting_octets += len(octets)
            self._sender.signal.set()

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return a heartbeat that is due, and the answers and outcomes that are ready."""
        now = trio.current_time()
        if now >= self._heartbeat_due:
            self._protocol.heartbeat()
            self._heartbeat_due = now + (self._protocol.heartbeat_seconds or math.inf)
        if not may_answer and isinstance(self._state, Serving):
            return []
        news, self._news = self._news, {}
        for incoming in news:
            incoming.tell()
        self._collect()
        parts, self._waiting = self._waiting, []
        self._waiting_octets = 0
        self._room.unpark_all()
        return parts

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return True

    def has_ended(self) -> bool:
        """Return whether nothing more is to be sent."""
        return isinstance(self._state, Over) and not self._waiting

    def due(self) -> float:
        return self._heartbeat_due

    def channels(self) -> Iterable[Channel]:
        """Return the open channels of the seam."""
        for outgoing in self._outgoing.values():
            if outgoing.channel is not None:
                yield outgoing.channel

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            with self._reading:
                while not isinstance(self._state, Over):
                    if self._received or self._protocol.stage is Stage.CLOSED:
                        await self._feed()
                        continue
                    self._received = await self._admission.receive()
                    if not self._received:
                        break
        except trio.BrokenResourceError:
            self._scope.cancel()
        if self._admission.gave_way:
            client = None if self._session is None else self._session.name
            self._context.tell_gave_way(self._transport, client, "to complete a message")
        self._admission.close()
        self._end()

    async def _feed(self) -> None:
        """Execute what was received."""
        more = True
        while more:
            received, self._received = self._received, b""
            more = False
            for number, event in enumerate(self._protocol.feed(received), 1):
                if isinstance(event, Authenticating | Opening):
                    # The protocol goes on when these are answered.
                    await self._begin(event)
                    more = True
                else:
                    await self._execute(event)
                if not number % EVENTS_IN_TURN:
                    await trio.lowlevel.checkpoint()
        await self._flush()
        self._collect()
        self._admission.done()
        held = self._protocol.pending + sum(incoming.held for incoming in self._incoming.values())
        if self._admission.must_hold(held):
            await self._admission.hold(held)
        while self._waiting_octets > MOST_WAITING:
            with self._excused:
                await self._room.park()
        if self._protocol.stage is Stage.CLOSED:
            self._end()

    async def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for incoming in unflushed:
            try:
                await incoming.flush()
            except LinkProblem as problem:
                self._detach(incoming.link, problem)

    async def _begin(self, event: Authenticating | Opening) -> None:
        match event:
            case Authenticating(mechanism, response):
                await self._authenticate(mechanism, response)
            case Opening():
                if self._session is None and not await self._connect(b""):
                    text = "no client has this name and secret"
                    self._fail(ConnectionProblem(Condition.UNAUTHORIZED_ACCESS, text))
                    return
                self._protocol.open()
                self._open()
            case _:
                assert_never(event)

    async def _execute(self, event: Event) -> None:
        match event:
            case Run(link):
                if (incoming := self._incoming.get(link)) is not None:
                    await self._take(incoming, event)
            case Part(link):
                if (incoming := self._incoming.get(link)) is not None:
                    await self._take(incoming, event)
            case Aborted(link):
                if (incoming := self._incoming.get(link)) is not None:
                    incoming.abort()
            case Outcome(sent, state):
                for each in sent:
                    if (outgoing := self._outgoing.get(each.link)) is not None:
                        outgoing.settle(each.ids, state)
            case Credit(link):
                if (outgoing := self._outgoing.get(link)) is not None:
                    outgoing.credited()
            case WindowOpened(links):
                self._opened(links)
            case Attaching(link):
                await self._flush()
                await self._attach(link)
            case Detached():
                await self._flush()
                self._detached(event)
            case Closed(error, problem):
                await self._flush()
                self._log_close(error, problem)
            case Authenticating() | Opening():
                raise AssertionError("these are answered where they come")
            case _:
                assert_never(event)

    async def _take(self, incoming: Incoming | DirectIncoming, event: Run | Part) -> None:
        self._unflushed[incoming] = None
        try:
            if isinstance(event, Run):
                incoming.add(event)
            else:
                incoming.add_part(event)
        except LinkProblem as problem:
            await self._flush()  # what came before it was right
            self._detach(incoming.link, problem)

    # -- the handshake -------------------------------------------------------------------------------------

    async def _authenticate(self, mechanism: str, response: bytes) -> None:
        id = _id(mechanism, response)
        self._protocol.authenticated(accepted=id is not None and await self._connect(id))

    async def _connect(self, id: bytes) -> bool:
        peer, host = self._transport.peer(), self._transport.host()
        try:
            session = await self._context.access.connect(id, host, peer)
        except Refused as refused:
            log.debug("%s: refused: %s", peer, refused, extra=subject(peer=peer))
            return False
        self._known()
        self._session = session
        self._direct = self._context.access.direct(session)
        rates = session.rates
        self._sender.limit(rates.answered, rates.sent)
        log.debug("%s is %s", peer, quoted(session.name), extra=subject(peer=peer, client=session.name))
        await self._admission.limit(rates.received, self._transport.received)
        return True

    def _open(self) -> None:
        if isinstance(self._state, Greeting) and self._session is not None:
            self._state = Serving(self._session)
        self._heard, self._heard_octets = trio.current_time(), self._transport.received
        self._heartbeat_due = trio.current_time() + (self._protocol.heartbeat_seconds or math.inf)
        self._sender.signal.set()

    def _log_close(self, error: performatives.Error | None, problem: Exception | None) -> None:
        peer = self._transport.peer()
        if problem is not None:
            log.info("%s: closed: %s", peer, problem, extra=subject(peer=peer))
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + GOODBYE_SECONDS)
        elif error is not None:
            said = quoted(f"{error.condition}: {error.description or ''}".encode())
            log.info("%s closed with %s", peer, said, extra=subject(peer=peer))

    # -- links ---------------------------------------------------------------------------------------------

    def _opened(self, links: Sequence[SendingLink]) -> None:
        """These links may send now."""
        for link in links:
            if (outgoing := self._outgoing.get(link)) is not None:
                outgoing.wake()

    async def _attach(self, link: SendingLink | ReceivingLink) -> None:
        assert self._session is not None, "a connection has a session before it is open"
        try:
            match link:
                case SendingLink():
                    await self._attach_consumer(link, self._session)
                case ReceivingLink():
                    await self._attach_producer(link, self._session)
                case _:
                    assert_never(link)
        except Refused as refused:
            link.refuse(problem_of(refused.failure))
        except LinkProblem as problem:
            link.refuse(problem)

    async def _attach_consumer(self, link: SendingLink, session: Session) -> None:
        source = link.source
        if not isinstance(source, Source):
            raise LinkProblem(Condition.NOT_FOUND, "the link has no source")
        replay, applied = replay_of(source.filter)
        address = self._resolve(source)
        if isinstance(address, DirectAddress):
            if not await self._is_topic(session, Right.SUBSCRIBE, address):
                self._attach_direct(link, source, address)
                return
            address = address.as_topic()
        is_queue = await self._find(session, Right.SUBSCRIBE, address) is Delivery.ROUND_ROBIN
        if source.durable and source.expiry_policy == "never" and not is_queue:
            raise LinkProblem(Condition.NOT_IMPLEMENTED, "the server keeps no place of a consumer of a topic")
        if replay is not None and is_queue:
            raise LinkProblem(Condition.PRECONDITION_FAILED, "a queue cannot be replayed")

        def make(topic: Topic, place: Release) -> Outgoing:
            return Outgoing(link, topic, self._sender, place, self._failed, self._opened)

        outgoing, channel = await session.open(address.name, replay or FromCurrent(), make)
        outgoing.is_replay = replay is not None
        answered = performatives.Source(
            source.address,
            distribution_mode="move" if is_queue else "copy",
            filter=applied,
            capabilities=source.capabilities,
        )
        # Consumers of a topic have nothing to settle, unless they insist.
        settles = link.attach.snd_settle_mode == 1 or (not is_queue and link.attach.snd_settle_mode != 0)
        link.accept(performatives.write(answered), settles=settles)
        self._outgoing[link] = outgoing
        outgoing.open(channel)

    def _attach_direct(self, link: SendingLink, source: Source, address: DirectAddress) -> None:
        """Attach a consumer to a node without a queue."""
        assert self._direct is not None, "it is there with the session"

        def make(node: DirectNode, place: Release) -> DirectOutgoing:
            return DirectOutgoing(link, Topic(0, node.name), self._sender, place, self._failed, self._opened)

        outgoing, node, channel = self._direct.consume(address.name, make)
        outgoing.node, outgoing.direct, outgoing.is_own = node, channel, address.name is None
        answered = performatives.Source(
            types.write(node.name.decode()),
            dynamic=source.dynamic,
            dynamic_node_properties=source.dynamic_node_properties,
            capabilities=source.capabilities,
        )
        link.accept(performatives.write(answered), settles=link.attach.snd_settle_mode == 1)
        self._outgoing[link] = outgoing
        outgoing.open(channel)

    async def _attach_producer(self, link: ReceivingLink, session: Session) -> None:
        target = link.target
        if target is None:
            raise LinkProblem(Condition.NOT_IMPLEMENTED, "the anonymous relay is not served")
        if not isinstance(target, Target):
            raise LinkProblem(Condition.NOT_IMPLEMENTED, "transactions are not served")
        if target.address == NULL and not target.dynamic:
            raise LinkProblem(Condition.NOT_IMPLEMENTED, "the anonymous relay is not served")
        address = self._resolve(target)
        if isinstance(address, DirectAddress):
            if not await self._is_topic(session, Right.PUBLISH, address):
                self._attach_direct_producer(link, target, address)
                return
            address = address.as_topic()
        await self._find(session, Right.PUBLISH, address)
        incoming = Incoming(
            link, session, address.name, self._config.amqp1_credit, self._has_news, self._excused
        )
        answered = performatives.Target(target.address, capabilities=target.capabilities)
        incoming.accept(performatives.write(answered))
        self._incoming[link] = incoming

    def _attach_direct_producer(self, link: ReceivingLink, target: Target, address: DirectAddress) -> None:
        assert self._direct is not None, "it is there with the session"
        if address.name is None:
            raise LinkProblem(
                Condition.NOT_IMPLEMENTED, "a dynamic node is made for a consumer, not for a producer"
            )
        incoming = DirectIncoming(
            link,
            self._config.max_message_bytes,
            self._config.amqp1_credit,
            self._has_news,
            self._node_ended,
        )
        answered = performatives.Target(target.address, capabilities=target.capabilities)
        incoming.accept(self._direct, address.name, performatives.write(answered))
        self._incoming[link] = incoming

    def _node_ended(self, incoming: DirectIncoming) -> None:
        """The node of a producer is gone with the link that made it."""
        self._detach(incoming.link, LinkProblem(Condition.RESOURCE_DELETED, "the node is gone"))

    def _has_news(self, incoming: Incoming | DirectIncoming) -> None:
        self._news[incoming] = None
        self._sender.signal.set()

    def _resolve(self, terminus: Source | Target) -> Address | DirectAddress:
        default = Treatment[self._config.amqp1_default.upper()]
        return resolve(terminus, default, self._config.default_types()[1])

    async def _is_topic(self, session: Session, right: Right, address: DirectAddress) -> bool:
        """Return whether a topic has the name of a node: then it is that topic. Raises Refused."""
        name = address.name
        return (
            name is not None and not name.startswith(DYNAMIC) and await session.find(name, right) is not None
        )

    async def _find(self, session: Session, right: Right, address: Address) -> Delivery:
        """Return how the topic of an address delivers; make it if there is none. Raises Refused and
        LinkProblem.
        """
        found = await session.find(address.name, right)
        if found is None:
            await session.declare(address.name, address.delivery, address.persistence)
            return address.delivery
        if address.wanted not in (None, found.delivery):
            what = "a queue" if found.delivery is Delivery.ROUND_ROBIN else "a topic"
            raise LinkProblem(Condition.PRECONDITION_FAILED, f"it is {what}, and not what the client wants")
        return found.delivery

    def _detach(self, link: SendingLink | ReceivingLink, problem: LinkProblem) -> None:
        link.detach(problem)
        self._detached(Detached(link, None))
        self._collect()

    def _detached(self, event: Event) -> None:
        """A link is over."""
        assert isinstance(event, Detached)
        match event.link:
            case SendingLink():
                outgoing = self._outgoing.pop(event.link, None)
                if outgoing is not None:
                    outgoing.close()
            case ReceivingLink():
                incoming = self._incoming.pop(event.link, None)
                if incoming is not None:
                    incoming.close()
                    self._unflushed.pop(incoming, None)
            case _:
                assert_never(event.link)

    def _failed(self, outgoing: Outgoing, failure: Failure) -> None:
        """A link cannot go on: its topic was deleted, or cannot be read."""
        self._detach(outgoing.link, problem_of(failure))


_IDLE_MS = int(IDLE_SECONDS * 1000)

_PROPERTIES = types.write(
    types.Map(
        (
            (types.Symbol("product"), "omq"),
            (types.Symbol("version"), version("omq-server")),
            # Clients with a JMS interface put these before the names of queues and topics.
            (types.Symbol("queue-prefix"), "queue://"),
            (types.Symbol("topic-prefix"), "topic://"),
        )
    )
)


def _container() -> str:
    return f"omq-{socket.gethostname()}"


def _id(mechanism: str, response: bytes) -> bytes | None:
    """Return the id of the client that a SASL response claims to be; None if the response makes no sense."""
    match mechanism:
        case "ANONYMOUS":
            return b""
        case "PLAIN":
            try:
                return read_plain(response).id
            except BadLogin:
                return None
        case _:
            return None
