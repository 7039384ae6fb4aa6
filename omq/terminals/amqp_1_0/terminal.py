"""The terminal of AMQP 1.0: one connection (docs/AMQP-1.0.md).

One task reads frames, and executes what they mean in their order. It sends answers and messages of nodes
without queues at once, if nothing waits to be sent (`omq.drivers.immediate_sends`). Another
task sends the rest, heartbeats, and the messages of topics, the links in turn.
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import trio

from omq.access.session import Session
from omq.drivers.reasons import NO_CLIENT, Reason, Refused
from omq.drivers.seam import Channel, Octets
from omq.drivers.slices import Slices
from omq.logs import quoted, subject
from omq.model import Topic
from omq.protocol.amqp_1_0 import performatives
from omq.protocol.amqp_1_0.conditions import Condition, ConnectionProblem
from omq.protocol.amqp_1_0.connection import AmqpConnection, Stage
from omq.protocol.amqp_1_0.events import (
    Authenticating,
    Closed,
    ConnectionEnded,
    Opening,
    Pause,
)
from omq.terminals.amqp_1_0.offer import IDLE_SECONDS, offer
from omq.terminals.amqp_1_0.refusals import condition_of
from omq.terminals.amqp_1_0.service import Service
from omq.terminals.amqp_1_0.waiting import WaitingFrames
from omq.terminals.connection.admission import FREE_OCTETS
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.duplex import Duplex
from omq.terminals.connection.endings import Endings
from omq.terminals.connection.heartbeats import Heartbeats
from omq.terminals.connection.late_tasks import start_unless_over
from omq.terminals.connection.login import BadLogin, read_plain
from omq.terminals.connection.states import Greeting, InputEnded
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    Kind,
    LinkStatistics,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import BY_SHUTDOWN

MOST_WAITING = 256 << 10
"""The number of octets that may wait to be sent before nothing more is read."""

HELD_SECONDS = 1.0
"""The number of seconds that several links of a connection wait for the memory of an incomplete message."""

log = logging.getLogger("omq.terminal")


@dataclass(frozen=True, slots=True)
class Serving:
    """The connection is open."""


@dataclass(frozen=True, slots=True)
class Confirming:
    """The server ends the connection. Nothing more is executed, and no message is sent. The close follows the
    outcomes of what was published before.
    """


@dataclass(frozen=True, slots=True)
class Closing:
    """The server sends its close, and waits for that of the client."""


State = Greeting | Serving | Confirming | Closing | InputEnded
"""The states of a connection.

              open              input ended, close of the client
    Greeting -------> Serving -----------------------------------> InputEnded
                       |   |                                          ^
            disconnect |   | a problem                                | close of the client, or too late
                       v   +---------------> Closing -----------------+
                   Confirming ------------------^
                      the outcomes are known, or too late

Confirming is left for InputEnded as Serving is.
"""

OfConnection = Authenticating | Opening | Pause | ConnectionEnded | Closed
"""The events that the terminal executes itself, also while it waits for the last outcomes."""


class Amqp1Terminal:
    """One connection after its first eight octets. `serve` returns when the connection is over."""

    def __init__(self, arrival: Arrival, header: bytes, context: Context) -> None:
        self._transport = transport = arrival.transport
        self._context = context
        self._config = config = context.config
        self._duplex = Duplex(arrival, context, header + arrival.received)
        self._sender = self._duplex.sender
        is_certified = context.access.clients.certified(transport.certificate) is not None
        self._protocol = AmqpConnection(offer(needs_sasl=bool(config.clients), is_certified=is_certified))
        self._state: State = Greeting(math.inf)
        self._service: Service | None = None
        self._refusal = NO_CLIENT
        """The reason why it is None, if the client has tried."""
        self._endings = Endings(context.end_turns)
        """The links that are over."""
        self._frames = WaitingFrames(context.memory.stalled, transport, self._duplex.scope)
        self._room: trio.lowlevel.ParkingLot | None = None  # made by the first wait in it
        self._heartbeats = Heartbeats()

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and send until the client is done, or something ends the connection."""
        if isinstance(self._state, Greeting):
            self._state = Greeting(trio.current_time() + self._config.handshake_seconds)
        await self._duplex.serve(self)

    async def close(self) -> None:
        """Give back everything that the connection holds."""
        self._state = InputEnded()
        self._protocol.lost()  # also if the connection was cut off
        self._drop()
        await self._endings.finish()
        if self._service is not None:
            self._service.session.close()
        self._frames.close()
        self._duplex.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        return self._duplex.statistics(
            Kind.AMQP_1_0,
            self._client,
            messages_in=0 if self._service is None else self._service.links.published,
            unconfirmed=0 if self._service is None else self._service.links.unconfirmed,
            waiting_answers=self._protocol.answers,
            subscriptions=0 if self._service is None else self._service.links.consumers,
            answers=self._protocol.output,
            publishes=0 if self._service is None else self._service.links.held_publishes,
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the links on which the server sends."""
        return [] if self._service is None else self._service.links.subscriptions()

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the links on which the server sends."""
        return iter(()) if self._service is None else self._service.links.open_channels()

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return self._sender.is_limited

    def links(self) -> list[LinkStatistics]:
        """Return the statistics of the links on which the client sends."""
        return [] if self._service is None else self._service.links.statistics()

    @property
    def _client(self) -> bytes | None:
        return None if self._service is None else self._service.session.name

    def sweep(self, now: float) -> None:
        """Check whether the client is gone. Called about every second."""
        self._sender.forwarder.look(now)
        if self._service is not None:
            self._service.links.look_held()
        match self._state:
            case Greeting(by):
                if now > by:
                    self._duplex.scope.cancel()
            case Serving():
                received, excused = self._transport.received, self._duplex.excused.is_active
                if self._heartbeats.is_gone(now, received, excused=excused):
                    text = "local-idle-timeout expired"
                    self._fail(ConnectionProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text))
            case Confirming() | Closing() | InputEnded():
                pass  # the time is bounded
            case other:
                assert_never(other)

    @property
    def session(self) -> Session | None:
        """The session of the client; None before it has logged in."""
        return None if self._service is None else self._service.session

    def shut_down(self) -> None:
        """End the connection: the server stops."""
        self.disconnect(BY_SHUTDOWN)

    def disconnect(self, why: str) -> None:
        """End the connection with a close that says why, after the outcomes of what was published."""
        match self._state:
            case Greeting():
                self._duplex.scope.cancel()
            case Serving():
                problem = ConnectionProblem(Condition.CONNECTION_FORCED, why)
                links = self._opened_service.links
                if not (self._duplex.last_outcomes.is_executing or links.is_storing):
                    self._fail(problem)
                    return
                self._state = Confirming()
                links.stop()
                start_unless_over(self._duplex.nursery, self._store_and_fail, problem)
            case Confirming() | Closing() | InputEnded():
                pass
            case other:
                assert_never(other)

    async def _store_and_fail(self, problem: ConnectionProblem) -> None:
        """Wait some time for the end of what is being executed, and for what is on its way to a store. Tell
        the outcomes, and end the connection.
        """
        await self._duplex.last_outcomes.wait(self._opened_service.links.stored)
        if isinstance(self._state, Confirming):
            self._fail(problem)

    def _fail(self, problem: ConnectionProblem) -> None:
        """End the connection with a close."""
        self._transport.ends(str(problem))
        if isinstance(self._state, Serving | Confirming):
            self._state = Closing()
        if self._service is not None:
            self._service.links.tell_last()
        closing = self._protocol.close(problem)
        self._drop()
        self._endings.begin(self._duplex.nursery, partial(self._close, closing))

    def _close(self, closing: bytes) -> None:
        """Send the last frame. What the links had is in the topics again."""
        self._protocol.put(closing)
        self._sender.signal.set()
        set_closing_deadline(self._duplex.scope)

    def _drop(self) -> None:
        """Let all links end: the connection is over. See `Endings.begin`."""
        if self._service is not None:
            self._endings.add(self._service.links.close(self._protocol.free()))

    def _end(self) -> None:
        """Read nothing more, and send what waits."""
        self._protocol.lost()
        self._drop()
        self._state = InputEnded()
        set_closing_deadline(self._duplex.scope)
        self._endings.begin(self._duplex.nursery, self._sender.signal.set)

    # -- writing: the sender asks (see omq.terminals.connection.sender.SendingTerminal) ----------------------

    def _wake(self) -> None:
        """Register the connection with the others that have something to send."""
        self._context.at_once.add(self)

    def send_at_once(self) -> None:
        """Send the ready frames in this task (`omq.drivers.immediate_sends.ImmediateSender`)."""
        if not self._sender.may_send_at_once():
            self.send_soon()
            return
        answers = self.urgent(may_answer=True)
        messages: Sequence[Octets] = ()
        if self._protocol.output:  # messages may be for links whose attach has not left
            self.send_soon()
        elif self._service is not None:
            messages = self._service.links.frames_at_once()
        if answers or messages:
            self._sender.send_at_once(answers, messages)

    def send_soon(self) -> None:
        """Let the sending task send the ready frames."""
        if self._service is not None:
            self._service.links.send_soon()
        self._sender.signal.set()

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return a heartbeat that is due, and the answers and outcomes that are ready."""
        self._frames.look(self._protocol.waiting)  # before `flush`: what it takes waits until it has left
        if self._heartbeats.due < math.inf and self._heartbeats.take(trio.current_time()):
            self._protocol.heartbeat()
        if not may_answer and isinstance(self._state, Serving):
            return []
        if self._service is not None:
            self._service.links.tell()
            if self._protocol.may_flush and not isinstance(self._state, Confirming):
                opened = self._protocol.flush()
                self._service.links.ended(self._protocol.take_ended())
                self._service.links.opened(opened)
                self._sender.signal.set()  # look again
        octets = self._protocol.take()
        if self._protocol.output:
            self._sender.signal.set()
        if self._room is not None:
            self._room.unpark_all()
        return [octets] if octets else []

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return not isinstance(self._state, Confirming)

    def has_ended(self) -> bool:
        """Return whether everything was sent."""
        return isinstance(self._state, InputEnded) and not self._protocol.output and not self._endings

    def due(self) -> float:
        return self._heartbeats.due

    def channels(self) -> Iterable[Channel]:
        """Return the open channels of the seam."""
        return () if self._service is None else self._service.links.channels()

    # -- reading -------------------------------------------------------------------------------------------

    def stop_reading(self, *, is_evicted: bool) -> None:
        """Read nothing more, and send what waits."""
        if is_evicted:
            self._context.log_eviction(self._transport, self._client, "to complete a message")
        self._end()

    def _give_up(self) -> bool:
        """Give up the incomplete messages of the client, whose memory others need. Return whether there are
        any. The connection goes on: behind a router it is that of many clients.
        """
        if self._service is None or not self._service.links.give_up():
            return False
        self._context.log_dropped(self._transport, self._client)
        return True

    async def feed(self, received: bytes) -> bool:
        """Execute the performatives in these octets. Return False if nothing more must be read."""
        at_once = self._context.at_once
        outcomes = self._duplex.last_outcomes
        outcomes.is_executing = True
        slices = Slices()
        must_feed = True
        while must_feed:
            octets, received, must_feed = received, b"", False
            for event in self._protocol.feed(octets):
                if isinstance(event, OfConnection):
                    at_once.send()
                    await self._execute(event)
                    must_feed = must_feed or isinstance(event, Authenticating | Opening)
                elif not isinstance(self._state, Confirming):
                    await self._opened_service.execute(event, slices)
                # else it follows something that was not executed
            at_once.send()
        await self._flush()
        outcomes.is_executing = False
        if outcomes.executed is not None:
            outcomes.executed.set()
        if self._protocol.output or self._protocol.may_flush:
            self.send_at_once()
        admission = self._duplex.admission
        admission.done()
        if admission.must_hold(self._held_octets):
            await self._hold()
        while self._protocol.output > MOST_WAITING:
            if self._room is None:
                self._room = trio.lowlevel.ParkingLot()
            with self._duplex.excused:
                await self._room.park()
        return self._protocol.stage is not Stage.CLOSED

    @property
    def _held_octets(self) -> int:
        """The octets of frames and messages that are not complete."""
        return self._protocol.pending + (0 if self._service is None else self._service.links.held)

    async def _hold(self) -> None:
        """Wait for the memory of incomplete messages. Meanwhile the client is not read, so if it has several
        links they wait only some time: what they send may free memory. Then the longest messages are given
        up, as many as have no memory.
        """
        admission = self._duplex.admission
        links = None if self._service is None else self._service.links
        seconds = HELD_SECONDS if links is not None and links.is_shared else math.inf
        with trio.move_on_after(seconds) as limit:
            await admission.hold(self._held_octets, self._give_up)
        if not limit.cancelled_caught:
            return
        assert links is not None, "others wait without a limit"
        granted = max(admission.unfinished, FREE_OCTETS)
        while self._held_octets > granted and links.give_up_longest():
            self._context.log_without_memory(self._transport, self._client)
        await admission.hold(self._held_octets, self._give_up)

    async def _flush(self) -> None:
        if self._service is not None:
            await self._service.links.flush()

    async def _execute(self, event: OfConnection) -> None:
        match event:
            case Authenticating(mechanism, response):
                await self._connect(mechanism, response)
                self._protocol.authenticated(accepted=self._service is not None or self._is_full)
            case Opening(said):
                if self._service is None and not self._is_full:
                    await self._connect("ANONYMOUS", b"")
                if self._service is None:
                    self._fail(ConnectionProblem(condition_of(self._refusal.reason), self._refusal.text))
                    return
                self._protocol.open()
                self._open(self._service, said)
            case Pause():
                await trio.lowlevel.checkpoint()
            case ConnectionEnded():
                if self._service is not None:
                    await self._service.end_all(self._protocol.free())
            case Closed(error, problem):
                if self._service is not None:
                    await self._service.finish()
                self._log_close(error, problem)
            case _:
                assert_never(event)

    @property
    def _opened_service(self) -> Service:
        assert self._service is not None, "the protocol has read the client's open"
        return self._service

    # -- the handshake -------------------------------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """Whether the client has as many connections as it may have. A close says so, because an outcome of
        SASL could only say that its secret is wrong.
        """
        return self._refusal.reason is Reason.QUOTA

    async def _connect(self, mechanism: str, response: bytes) -> None:
        """Admit the client, or note why not."""
        peer = self._transport.peer()
        try:
            session = await self._log_in(mechanism, response, peer)
        except (BadLogin, Refused) as refused:
            log.debug("%s: refused: %s", peer, refused, extra=subject(peer=peer))
            self._refusal = refused.failure if isinstance(refused, Refused) else NO_CLIENT
            return
        self._duplex.admit(session)
        self._service = Service(session, self._context, self._duplex, peer, self._endings, self._wake)
        await self._duplex.limit_reading(session)

    async def _log_in(self, mechanism: str, response: bytes, peer: str) -> Session:
        """Return the session of the client that a SASL response proves. Raises BadLogin and Refused."""
        access, host = self._context.access, self._transport.host()
        match mechanism:
            case "ANONYMOUS":
                return await access.connect(b"", host, peer)
            case "PLAIN":
                return await access.connect(read_plain(response).id, host, peer)
            case "EXTERNAL":
                return await access.connect_certified(self._transport.certificate, response, peer)
            case _:
                raise BadLogin("there is no such mechanism")

    def _open(self, service: Service, said: performatives.Open) -> None:
        """Begin to serve. The host name that the client says has no effect but this line of the log."""
        service.links.container = said.container_id
        what = f": to the host {quoted(said.hostname.encode())}" if said.hostname else ""
        self._duplex.log_connected(service.session, what)
        if isinstance(self._state, Greeting):
            self._state = Serving()
        interval = self._protocol.heartbeat_seconds or math.inf
        self._heartbeats.begin(interval, 2 * IDLE_SECONDS, trio.current_time(), self._transport.received)
        self._sender.signal.set()

    def _log_close(self, error: performatives.Error | None, problem: Exception | None) -> None:
        peer = self._transport.peer()
        if problem is not None:
            log.info("%s: closed: %s", peer, problem, extra=subject(peer=peer))
            self._transport.ends(str(problem))
            set_closing_deadline(self._duplex.scope)
        elif error is not None:
            said = quoted(f"{error.condition}: {error.description or ''}".encode())
            log.info("%s closed with %s", peer, said, extra=subject(peer=peer))
