"""The terminal of AMQP 0-9-1: one connection (docs/AMQP.md).

One task reads methods and messages, and executes them in their order. Another one sends the answers,
heartbeats and the messages of the consumers in turn. Confirms and a few messages leave in the task that reads
what was published, if nothing waits to be sent (`omq.terminals.amqp_0_9.ready_frames`).
"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import trio

from omq.access.leases import Principal
from omq.access.session import Session
from omq.drivers.reasons import NO_CLIENT, Reason, Refused
from omq.drivers.seam import Channel, Octets
from omq.drivers.slices import Slices, in_slices
from omq.logs import subject
from omq.model import Topic
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.events import (
    CloseAnswered,
    ClosedByPeer,
    ConnectionFault,
    MethodCalled,
    Opened,
    PublishRun,
    Reply,
    StartOk,
    Tuned,
)
from omq.protocol.amqp_0_9.frames import HEARTBEAT, method_frame
from omq.protocol.amqp_0_9.problems import ConnectionProblem, ReplyCode
from omq.protocol.amqp_0_9.server import ServerConnection
from omq.terminals.amqp_0_9.channels import Channels
from omq.terminals.amqp_0_9.login import MECHANISMS, read_login
from omq.terminals.amqp_0_9.outbox import Outbox
from omq.terminals.amqp_0_9.peer_properties import has_capability, server_properties
from omq.terminals.amqp_0_9.ready_frames import ReadyFrames
from omq.terminals.amqp_0_9.service import LoggedIn, Served, Service
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.duplex import Duplex
from omq.terminals.connection.heartbeats import Heartbeats
from omq.terminals.connection.late_tasks import start_unless_over
from omq.terminals.connection.login import BadLogin
from omq.terminals.connection.states import Greeting, InputEnded
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import BY_SHUTDOWN
from omq.terminals.connection.turns import EVENTS_IN_TURN, RUNS_IN_TURN

LONGEST_INTRODUCTION = 16 << 10
"""The longest frame before the client is known."""

SILENT_INTERVALS = 3
"""The intervals of silence after which a client counts as gone. RabbitMQ uses the same number."""

log = logging.getLogger("omq.terminal")


@dataclass(frozen=True, slots=True)
class Tuning:
    """The client has logged in, and was sent Tune. It answers this, and opens the connection."""

    client: LoggedIn
    by: float
    """The time by which it must open the connection: until then it need not send heartbeats."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The client has opened the connection."""

    service: Service


@dataclass(frozen=True, slots=True)
class Confirming:
    """The server ends the connection. Connection.Close follows the outcomes of what was published before.

    No method and no message that is read from now on is executed: otherwise one might be skipped and a later
    one executed, and a client relies on their order.
    """

    service: Service


@dataclass(frozen=True, slots=True)
class Closing:
    """The server has sent Connection.Close, and waits for the answer."""


OfConnection = StartOk | Tuned | Opened | ClosedByPeer | CloseAnswered | Reply | ConnectionFault
"""The events that the terminal executes itself."""

State = Greeting | Tuning | Serving | Confirming | Closing | InputEnded
"""The states of a connection.

              Start-Ok        Open           Close of the client, input ended
    Greeting --------> Tuning ----> Serving ---------------------------------> InputEnded
        |                |             |                                          ^
        | a problem      | a problem,  | a problem                                | Close-Ok, or too late
        |                | disconnect  |                                          |
        +----------------+-------------+------------------> Closing --------------+
                                       | disconnect            ^
                                       +----> Confirming ------+ the outcomes are known, or too late

Tuning and Confirming are left for InputEnded as Serving is. A disconnect in Greeting cuts the client off.
"""


class AmqpTerminal:
    """One connection after its first eight octets. `serve` returns when the connection is over."""

    def __init__(self, arrival: Arrival, context: Context) -> None:
        self._transport = arrival.transport
        self._context = context
        self._duplex = Duplex(arrival, context, arrival.received)
        self._sender = self._duplex.sender
        self._protocol = ServerConnection(context.config.max_message_bytes)
        self._state: State = Greeting(math.inf)
        self._logged_in: LoggedIn | None = None
        self._outbox = Outbox(self._sender.signal)
        self._heartbeats = Heartbeats()
        self._channels = Channels(self._duplex, self._protocol, self._outbox, context.end_turns)
        self._ready = ReadyFrames(self._channels, self._outbox, self._sender, context.at_once)

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and send until the client is done, or something ends the connection."""
        if isinstance(self._state, Greeting):
            self._state = Greeting(trio.current_time() + self._context.config.handshake_seconds)
        self._greet()
        await self._duplex.serve(self)

    def _greet(self) -> None:
        properties = server_properties(self._transport.peer(), direct=self._context.config.amqp_direct)
        self._outbox.add(self._protocol.start(properties, MECHANISMS))

    async def close(self) -> None:
        """Give back everything that the connection holds."""
        self._state = InputEnded()
        self._channels.drop_all()
        await self._channels.endings.finish()
        if self._logged_in is not None:
            self._logged_in.topology.close()
            await self._context.access.leases.end_with(self._logged_in.principal)
            self._logged_in.session.close()
        self._outbox.clear()
        self._duplex.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        return self._duplex.statistics(
            Kind.AMQP_0_9,
            self._client,
            messages_in=self._channels.published,
            unconfirmed=self._channels.unconfirmed,
            waiting_answers=len(self._outbox),
            subscriptions=self._channels.consumers,
            answers=self._outbox.octets,
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of its consumers, channel by channel."""
        return [
            SubscriptionStatistics(topic, channel.statistics()) for topic, channel in self.open_channels()
        ]

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of the consumers that it has now."""
        return self._channels.subscribed()

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return self._sender.is_limited

    @property
    def _client(self) -> bytes | None:
        return None if self._logged_in is None else self._logged_in.session.name

    def sweep(self, now: float) -> None:
        """Check whether the client is gone. Called about every second."""
        self._sender.forwarder.look(now)
        match self._state:
            case Greeting(by):
                if now > by:
                    self._duplex.scope.cancel()
            case Tuning(by=by):
                if now > by:
                    self._transport.ends("it did not open the connection in time")
                    self._duplex.scope.cancel()
                self._look_for_life(now)
            case Serving():
                self._look_for_life(now)
            case Confirming() | Closing() | InputEnded():
                pass  # the time is bounded
            case other:
                assert_never(other)

    def _look_for_life(self, now: float) -> None:
        received = self._transport.received
        if self._heartbeats.is_gone(now, received, excused=self._duplex.excused.is_active):
            peer = self._transport.peer()
            log.info("%s: closed: no heartbeat came", peer, extra=subject(peer=peer))
            self._transport.ends("no heartbeat came")
            self._duplex.scope.cancel()

    @property
    def session(self) -> Session | None:
        """The session of the client; None before it has logged in."""
        return None if self._logged_in is None else self._logged_in.session

    def shut_down(self) -> None:
        """End the connection: the server stops."""
        self.disconnect(BY_SHUTDOWN)

    def disconnect(self, why: str) -> None:
        """End the connection with a close that says why, after the outcomes of what was published."""
        match self._state:
            case Greeting():
                self._duplex.scope.cancel()
            case Tuning():
                self._fail(ConnectionProblem(ReplyCode.CONNECTION_FORCED, why))
            case Serving(service):
                problem = ConnectionProblem(ReplyCode.CONNECTION_FORCED, why)
                if not (self._duplex.last_outcomes.is_executing or self._channels.unconfirmed):
                    self._fail(problem)
                    return
                self._state = Confirming(service)
                start_unless_over(self._duplex.nursery, self._settle_and_fail, problem)
            case Confirming() | Closing() | InputEnded():
                pass
            case other:
                assert_never(other)

    async def _settle_and_fail(self, problem: ConnectionProblem) -> None:
        """Wait some time for the end of what is being executed, and for the outcomes of what was published.
        Tell them, and end the connection.
        """
        await self._duplex.last_outcomes.wait(self._channels.settled)
        await in_slices(self._channels.tell_last())
        if isinstance(self._state, Confirming):
            self._fail(problem)

    def _fail(self, problem: ConnectionProblem) -> None:
        """End the connection with Connection.Close."""
        if isinstance(self._state, Closing | InputEnded):
            return
        self._transport.ends(str(problem))
        self._state = Closing()
        self._channels.drop_all()
        self._channels.endings.begin(
            self._duplex.nursery, partial(self._close, self._protocol.close(problem))
        )

    def _close(self, closing: bytes) -> None:
        """Send the last method. What the consumers had is in the queues again."""
        self._outbox.add(closing)
        set_closing_deadline(self._duplex.scope)

    def _end(self) -> None:
        """Read nothing more, and send what is in the outbox."""
        self._state = InputEnded()
        self._channels.drop_all()
        set_closing_deadline(self._duplex.scope)
        self._channels.endings.begin(self._duplex.nursery, self._sender.signal.set)

    # -- writing: the sender asks (see omq.terminals.connection.sender.SendingTerminal) ----------------------

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return a heartbeat that is due, and the answers and confirms that are ready."""
        parts: list[Octets] = []
        now = trio.current_time()
        if self._heartbeats.take(now):
            self._look_for_life(now)
            parts.append(HEARTBEAT)
        if may_answer or not isinstance(self._state, Tuning | Serving):
            parts += self._channels.answers()
        return parts

    def urgent_sent(self) -> None:
        pass

    def may_forward(self) -> bool:
        return isinstance(self._state, Serving)

    def has_ended(self) -> bool:
        """Return whether everything was sent."""
        return isinstance(self._state, InputEnded) and not self._outbox and not self._channels.endings

    def due(self) -> float:
        return self._heartbeats.due

    def channels(self) -> Iterable[Channel]:
        """Return the open channels of the seam, except those that the client has paused."""
        return self._channels.flowing()

    # -- reading -------------------------------------------------------------------------------------------

    def stop_reading(self, *, is_evicted: bool) -> None:
        """Read nothing more, and send what is in the outbox."""
        if is_evicted:
            self._context.log_eviction(self._transport, self._client, "to complete a message")
            text = "a message took too long to complete while others wait for its memory"
            self._fail(ConnectionProblem(ReplyCode.RESOURCE_ERROR, text))
        self._end()

    async def feed(self, received: bytes) -> bool:
        """Execute the methods in these octets. Return False if nothing more must be read."""
        outcomes = self._duplex.last_outcomes
        outcomes.is_executing = True
        slices = Slices()
        work = 0
        for event in self._protocol.feed(received):
            work += EVENTS_IN_TURN // RUNS_IN_TURN if isinstance(event, PublishRun) else 1
            if isinstance(event, Served):
                if isinstance(self._state, Serving):
                    try:
                        await self._state.service.execute(event)
                    except ConnectionProblem as problem:
                        self._fail(problem)
                if isinstance(event, MethodCalled):  # some take long
                    await slices.step()
            elif event is not None:
                await self._execute(event)
                await slices.step()  # an end of a channel takes long, too
            if self._outbox.is_full:
                await self._flush()
                with self._duplex.excused:
                    await self._outbox.room()
            if work >= EVENTS_IN_TURN or event is None:
                work = 0
                await trio.lowlevel.checkpoint()
        await self._flush()
        outcomes.is_executing = False
        if outcomes.executed is not None:
            outcomes.executed.set()
        admission = self._duplex.admission
        admission.done()
        if isinstance(self._state, Greeting) and self._protocol.unfinished > LONGEST_INTRODUCTION:
            text = f"before the client is known, a frame has at most {LONGEST_INTRODUCTION} octets"
            self._fail(ConnectionProblem(ReplyCode.FRAME_ERROR, text))
        held = self._protocol.unfinished + self._channels.long.octets
        if admission.must_hold(held):
            await admission.hold(held)
        return not isinstance(self._state, InputEnded)

    async def _flush(self) -> None:
        if isinstance(self._state, Serving | Confirming):
            await self._state.service.publishing.flush()

    async def _execute(self, event: OfConnection) -> None:
        """Execute an event of the connection, or the end of a channel."""
        if isinstance(self._state, Confirming) and not isinstance(event, ClosedByPeer | CloseAnswered):
            return
        match event:
            case StartOk():
                await self._log_in(event)
            case Tuned():
                self._begin_heartbeats(event.heartbeat)
                self._sender.signal.set()
            case Opened():
                self._open()
            case ClosedByPeer(0):
                if isinstance(self._state, Serving | Confirming):
                    await self._state.service.close_all()
                self._outbox.add(method_frame(0, methods.ConnectionCloseOk()))
                # Close-Ok tells the client to close the socket. One whose tasks close at the same time, or
                # that reads on, would take the end of the stream for a failure.
                self._duplex.is_closed_by_peer = True
                self._end()
            case ClosedByPeer(number):
                if isinstance(self._state, Serving | Confirming):
                    await self._state.service.close(number)
            case CloseAnswered(0):
                self._end()
            case CloseAnswered():
                pass
            case Reply(octets):
                self._outbox.add(octets)
            case ConnectionFault(problem):
                await self._flush()
                self._fail(problem)
            case _:
                assert_never(event)

    # -- the handshake -------------------------------------------------------------------------------------

    async def _log_in(self, event: StartOk) -> None:
        peer, host = self._transport.peer(), self._transport.host()
        try:
            login = read_login(event.mechanism, event.response)
        except BadLogin as bad:
            self._fail(ConnectionProblem(ReplyCode.ACCESS_REFUSED, str(bad)))
            return
        try:
            session = await self._context.access.connect(login.id, host, peer)
        except Refused as refused:
            self._refuse(refused, event)
            return
        self._duplex.admit(session)
        self._duplex.log_connected(session)
        self._transport.keep_alive()  # a client may want no heartbeats
        topology = self._context.access.topology(session)
        principal = Principal(host, session.name, None, is_openamq=self._protocol.is_openamq)
        wants_cancels = has_capability(event.client_properties, b"consumer_cancel_notify")
        self._logged_in = client = LoggedIn(session, topology, principal, login.name, wants_cancels)
        if not isinstance(self._state, Greeting):
            return  # the server ends the connection meanwhile
        self._state = Tuning(client, trio.current_time() + self._context.config.handshake_seconds)
        self._outbox.add(self._protocol.tune(heartbeat=self._context.config.amqp_heartbeat_seconds))
        await self._duplex.limit_reading(session)

    def _begin_heartbeats(self, interval: int) -> None:
        """Begin heartbeats, two of them in the interval that the client chose; 0 is for none."""
        seconds = interval or math.inf
        now = trio.current_time()
        self._heartbeats.begin(seconds / 2, SILENT_INTERVALS * seconds, now, self._transport.received)

    def _open(self) -> None:
        """Begin to serve. The longest frame is known now, too."""
        assert isinstance(self._state, Tuning), "the protocol has read Tune-Ok and Open in this order"
        service = Service(
            self._state.client,
            self._context,
            self._duplex,
            self._channels,
            self._outbox,
            self._ready,
            self._transport.peer(),
            self._protocol.frame_max,
        )
        self._state = Serving(service)
        self._outbox.add(method_frame(0, methods.ConnectionOpenOk()))

    def _refuse(self, refused: Refused, event: StartOk) -> None:
        """Refuse a client. One that cannot read Connection.Close at this point finds the connection
        closed.
        """
        if not has_capability(event.client_properties, b"authentication_failure_close"):
            self._end()
            return
        code = ReplyCode.ACCESS_REFUSED if refused.reason is Reason.FORBIDDEN else ReplyCode.NOT_ALLOWED
        text = refused.failure.text
        if refused.failure == NO_CLIENT:  # in the words of RabbitMQ
            mechanism = event.mechanism.decode()
            text = f"Login was refused using authentication mechanism {mechanism}. "
            text += "For details see the broker logfile."
        self._fail(ConnectionProblem(code, text))
