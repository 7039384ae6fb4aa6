"""The terminal of AMQP 1.0: one connection (docs/AMQP-1.0.md).

One task reads frames, and executes what they mean in their order. It sends answers and messages of nodes
without queues at once, if nothing waits to be sent (`omq.terminals.connection.immediate_sends`). Another
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
    Aborted,
    Attaching,
    Authenticating,
    Closed,
    ConnectionEnded,
    Credit,
    Detached,
    Opening,
    Part,
    Pause,
    SessionEnded,
    SettledByPeer,
    StoredRun,
    WindowOpened,
)
from omq.terminals.amqp_1_0.links import Links, QueueConsumers
from omq.terminals.amqp_1_0.offer import IDLE_SECONDS, offer
from omq.terminals.amqp_1_0.refusals import condition_of
from omq.terminals.amqp_1_0.waiting import WaitingFrames
from omq.terminals.connection.admission import FREE_OCTETS
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.duplex import Duplex
from omq.terminals.connection.endings import Endings
from omq.terminals.connection.held import HeldPublishes
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

COPIED_IN_TURN = 128 << 10
"""The octets of messages in several frames after which the other connections have their turn."""

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

Immediate = StoredRun | Aborted | Credit | WindowOpened
"""The events that are executed without a wait."""


OF_THE_CONNECTION = Pause | ConnectionEnded | Closed
"""The events that are executed although the server ends the connection."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The client of the connection is known."""

    session: Session
    links: Links


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
        self._admitted: Admitted | None = None
        self._refusal = NO_CLIENT
        """The reason why it is None, if the client has tried."""
        self._endings = Endings()
        """The links that are over."""
        self._frames = WaitingFrames(context.memory.stalled, transport, self._duplex.scope)
        self._waiting: list[bytes] = []
        self._waiting_octets = 0
        self._room = trio.lowlevel.ParkingLot()
        self._heartbeat_due = math.inf
        self._heard = 0.0
        self._heard_octets = -1

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and send until the client is done, or something ends the connection."""
        if isinstance(self._state, Greeting):
            self._state = Greeting(trio.current_time() + self._config.handshake_seconds)
        self._duplex.admission.refuse = self._give_up
        try:
            await self._duplex.serve(self)
        finally:
            self._state = InputEnded()
            self._protocol.lost()  # also if the connection was cut off
            self._drop()
            await self._endings.finish()
            if self._admitted is not None:
                self._admitted.session.close()
            self._frames.close()
            self._duplex.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        return self._duplex.statistics(
            Kind.AMQP_1_0,
            self._client,
            messages_in=0 if self._admitted is None else self._admitted.links.published,
            unconfirmed=0 if self._admitted is None else self._admitted.links.unconfirmed,
            waiting_answers=len(self._waiting),
            subscriptions=0 if self._admitted is None else self._admitted.links.consumers,
            answers=self._waiting_octets,
            publishes=0 if self._admitted is None else self._admitted.links.held_publishes,
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of the links on which the server sends."""
        return [] if self._admitted is None else self._admitted.links.subscriptions()

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the links on which the server sends."""
        return iter(()) if self._admitted is None else self._admitted.links.open_channels()

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return self._sender.is_limited

    def links(self) -> list[LinkStatistics]:
        """Return the statistics of the links on which the client sends."""
        return [] if self._admitted is None else self._admitted.links.statistics()

    @property
    def _client(self) -> bytes | None:
        return None if self._admitted is None else self._admitted.session.name

    def sweep(self, now: float) -> None:
        """Check whether the client is gone. Called about every second."""
        self._sender.forwarder.look(now)
        if self._admitted is not None:
            self._admitted.links.look_held()
        match self._state:
            case Greeting(by):
                if now > by:
                    self._duplex.scope.cancel()
            case Serving():
                if self._transport.received != self._heard_octets or self._duplex.excused.is_active:
                    self._heard, self._heard_octets = now, self._transport.received
                elif now - self._heard > 2 * IDLE_SECONDS:
                    text = "local-idle-timeout expired"
                    self._fail(ConnectionProblem(Condition.RESOURCE_LIMIT_EXCEEDED, text))
            case Confirming() | Closing() | InputEnded():
                pass  # the time is bounded
            case other:
                assert_never(other)

    @property
    def session(self) -> Session | None:
        """The session of the client; None before it has logged in."""
        return None if self._admitted is None else self._admitted.session

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
                if not (self._duplex.last_outcomes.is_executing or self._links.is_storing):
                    self._fail(problem)
                    return
                self._state = Confirming()
                self._links.stop()
                assert self._duplex.nursery is not None, "the connection is served"
                self._duplex.nursery.start_soon(self._store_and_fail, problem)
            case Confirming() | Closing() | InputEnded():
                pass
            case other:
                assert_never(other)

    async def _store_and_fail(self, problem: ConnectionProblem) -> None:
        """Wait some time for the end of what is being executed, and for what is on its way to a store. Tell
        the outcomes, and end the connection.
        """
        await self._duplex.last_outcomes.wait(self._links.stored)
        if isinstance(self._state, Confirming):
            self._fail(problem)

    def _fail(self, problem: ConnectionProblem) -> None:
        """End the connection with a close."""
        self._transport.ends(str(problem))
        if isinstance(self._state, Serving | Confirming):
            self._state = Closing()
        if self._admitted is not None:
            self._admitted.links.tell_last()
        closing = self._protocol.close(problem)
        self._drop()
        self._endings.begin(self._duplex.nursery, partial(self._close, closing))

    def _close(self, closing: bytes) -> None:
        """Send the last frame. What the links had is in the topics again."""
        self._protocol.put(closing)
        self._collect()
        self._sender.signal.set()
        set_closing_deadline(self._duplex.scope)

    def _drop(self) -> None:
        """Let all links end: the connection is over. See `Endings.begin`."""
        if self._admitted is not None:
            self._endings.add(self._admitted.links.close(self._protocol.free()))

    def _end(self) -> None:
        """Read nothing more, and send what waits."""
        self._protocol.lost()
        self._drop()
        self._state = InputEnded()
        set_closing_deadline(self._duplex.scope)
        self._endings.begin(self._duplex.nursery, self._sender.signal.set)

    # -- writing: the sender asks (see omq.terminals.connection.sender.SendingTerminal) ----------------------

    def _collect(self) -> None:
        """Take the octets that the protocol has to send."""
        octets = self._protocol.take()
        if octets:
            self._waiting.append(octets)
            self._waiting_octets += len(octets)

    def _wake(self) -> None:
        """Register the connection with the others that have something to send."""
        self._context.at_once.add(self)

    def send_at_once(self) -> None:
        """Send the ready frames in this task (`omq.terminals.connection.immediate_sends.ImmediateSender`)."""
        if not self._sender.may_send_at_once():
            self.send_soon()
            return
        answers = self.urgent(may_answer=True)
        messages = () if self._admitted is None else self._admitted.links.frames_at_once()
        if answers or messages:
            self._sender.send_at_once(answers, messages)

    def send_soon(self) -> None:
        """Let the sending task send the ready frames."""
        if self._admitted is not None:
            self._admitted.links.send_soon()
        self._sender.signal.set()

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return a heartbeat that is due, and the answers and outcomes that are ready."""
        self._frames.look(self._protocol.waiting)  # before `flush`: what it takes waits until it has left
        if self._heartbeat_due < math.inf and (now := trio.current_time()) >= self._heartbeat_due:
            self._protocol.heartbeat()
            self._heartbeat_due = now + (self._protocol.heartbeat_seconds or math.inf)
        if not may_answer and isinstance(self._state, Serving):
            return []
        if self._admitted is not None:
            self._admitted.links.tell()
            if self._protocol.may_flush and not isinstance(self._state, Confirming):
                self._admitted.links.opened(self._protocol.flush())
                self._sender.signal.set()  # look again
        self._collect()
        parts, self._waiting = self._waiting, []
        self._waiting_octets = 0
        if self._room:
            self._room.unpark_all()
        return parts

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return not isinstance(self._state, Confirming)

    def has_ended(self) -> bool:
        """Return whether everything was sent."""
        return isinstance(self._state, InputEnded) and not self._waiting and not self._endings

    def due(self) -> float:
        return self._heartbeat_due

    def channels(self) -> Iterable[Channel]:
        """Return the open channels of the seam."""
        return () if self._admitted is None else self._admitted.links.channels()

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
        if self._admitted is None or not self._admitted.links.give_up():
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
            copied = 0
            for event in self._protocol.feed(octets):
                if isinstance(self._state, Confirming) and not isinstance(event, OF_THE_CONNECTION):
                    pass  # what follows something that is not executed is not executed, either
                elif isinstance(event, SettledByPeer):
                    await self._settle(event, slices)
                elif isinstance(event, Immediate):
                    with at_once:
                        self._execute_at_once(event)
                elif isinstance(event, Part) and event.is_whole:
                    with at_once:
                        problem = self._links.take_whole(event)
                    copied += len(event.octets)
                    if problem is not None:
                        at_once.send()
                        await self._links.fail(event.link, problem)
                else:
                    at_once.send()
                    await self._execute(event)
                    must_feed = must_feed or isinstance(event, Authenticating | Opening)
                    copied += len(event.octets) if isinstance(event, Part) else 0
                    if isinstance(event, Attaching | Detached):  # some take long
                        await slices.step()
                if copied >= COPIED_IN_TURN:
                    copied = 0
                    at_once.send()
                    await trio.lowlevel.checkpoint()
                elif slices.is_over:
                    at_once.send()
                    await slices.step()
            at_once.send()
        await self._flush()
        outcomes.is_executing = False
        if outcomes.executed is not None:
            outcomes.executed.set()
        self._collect()
        if self._waiting or self._protocol.may_flush:
            self.send_at_once()
        admission = self._duplex.admission
        admission.done()
        if admission.must_hold(self._held_octets):
            await self._hold()
        while self._waiting_octets > MOST_WAITING:
            with self._duplex.excused:
                await self._room.park()
        return self._protocol.stage is not Stage.CLOSED

    @property
    def _held_octets(self) -> int:
        """The octets of frames and messages that are not complete."""
        return self._protocol.pending + (0 if self._admitted is None else self._admitted.links.held)

    async def _hold(self) -> None:
        """Wait for the memory of incomplete messages. Meanwhile the client is not read, so if it has several
        links they wait only some time: what they send may free memory. Then the longest messages are given
        up, as many as have no memory.
        """
        admission = self._duplex.admission
        links = None if self._admitted is None else self._admitted.links
        seconds = HELD_SECONDS if links is not None and links.is_shared else math.inf
        with trio.move_on_after(seconds) as limit:
            await admission.hold(self._held_octets)
        if not limit.cancelled_caught:
            return
        assert links is not None, "others wait without a limit"
        granted = max(admission.unfinished, FREE_OCTETS)
        while self._held_octets > granted and links.give_up_longest():
            self._context.log_without_memory(self._transport, self._client)
        await admission.hold(self._held_octets)

    async def _flush(self) -> None:
        if self._admitted is not None:
            await self._admitted.links.flush()

    async def _settle(self, told: SettledByPeer, slices: Slices) -> None:
        """Settle messages whose outcome a consumer told, in turn with other connections."""
        at_once = self._context.at_once
        for sent in told.sent:
            with at_once:
                self._links.settle(sent, told)
            if slices.is_over:
                at_once.send()
                await slices.step()

    def _execute_at_once(self, event: Immediate) -> None:
        """Execute an event for which nothing is waited."""
        links = self._links
        match event:
            case StoredRun():
                links.take_run(event)
            case Aborted(link):
                links.abort(link)
            case Credit(link):
                links.credited(link)
            case WindowOpened(opened):
                links.opened(opened)
            case _:
                assert_never(event)

    async def _execute(
        self,
        event: Authenticating
        | Opening
        | Pause
        | ConnectionEnded
        | Closed
        | Part
        | Attaching
        | Detached
        | SessionEnded,
    ) -> None:
        """Execute an event for which something may be waited."""
        match event:
            case Authenticating(mechanism, response):
                await self._connect(mechanism, response)
                self._protocol.authenticated(accepted=self._admitted is not None or self._is_full)
            case Opening(said):
                if self._admitted is None and not self._is_full:
                    await self._connect("ANONYMOUS", b"")
                if self._admitted is None:
                    self._fail(ConnectionProblem(condition_of(self._refusal.reason), self._refusal.text))
                    return
                self._protocol.open()
                self._links.container = said.container_id
                self._open(said.hostname)
            case Pause():
                await trio.lowlevel.checkpoint()
            case ConnectionEnded():
                await self._flush()
                if self._admitted is not None:
                    self._endings.add(self._admitted.links.end_all(self._protocol.free()))
                    await self._endings.finish()
            case Closed(error, problem):
                await self._flush()
                if self._admitted is not None:
                    await self._admitted.links.post_held()
                self._log_close(error, problem)
            case Part():
                await self._links.take(event)
            case Attaching(link):
                await self._links.flush()
                with self._duplex.excused:  # a topic is made on the disk
                    await self._links.attach(link)
            case Detached(link):
                await self._links.flush()
                self._links.detached(link)
            case SessionEnded(links):
                await self._links.flush()
                self._endings.add(self._links.end(links))
                await self._endings.finish()
            case _:
                assert_never(event)

    @property
    def _links(self) -> Links:
        assert self._admitted is not None, "links are attached when the connection is open"
        return self._admitted.links

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
        direct = self._context.access.direct(session)
        duplex = self._duplex
        assert duplex.nursery is not None, "the connection is served"
        consumers = QueueConsumers()
        held = HeldPublishes(self._context.memory, session, consumers, duplex.nursery, duplex.excused)
        missed = partial(self._context.log_gap, self._transport.peer())
        links = Links(session, direct, self._config, self._sender, self._wake, missed, consumers, held)
        self._admitted = Admitted(session, links)
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

    def _open(self, hostname: str | None) -> None:
        """Begin to serve. The host name that the client says has no effect but this line of the log."""
        assert self._admitted is not None, "the client is known when the connection is open"
        what = f": to the host {quoted(hostname.encode())}" if hostname else ""
        self._duplex.log_connected(self._admitted.session, what)
        if isinstance(self._state, Greeting):
            self._state = Serving()
        self._heard, self._heard_octets = trio.current_time(), self._transport.received
        self._heartbeat_due = trio.current_time() + (self._protocol.heartbeat_seconds or math.inf)
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
