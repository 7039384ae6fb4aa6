"""The omq terminal: one connection of the omq protocol (docs/PROTOCOL.md).

One task reads commands and executes them. Another one sends answers in the order of the commands, pings, and
the messages of the subscriptions in turn.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, assert_never

import trio

from omq import refusal_words
from omq.access.session import Session
from omq.drivers.reasons import Refused
from omq.drivers.seam import Channel, Octets
from omq.drivers.slices import Slices, in_slices
from omq.model import Topic
from omq.protocol.omq import types
from omq.protocol.omq.events import Event
from omq.protocol.omq.frames import encode
from omq.protocol.omq.lines import DEALT, LineReader
from omq.protocol.omq.sentences import sentence
from omq.terminals.connection.admission import ReadAdmission
from omq.terminals.connection.closing_deadline import set_closing_deadline
from omq.terminals.connection.context import Arrival, Context
from omq.terminals.connection.endings import Endings
from omq.terminals.connection.held import HeldPublishes
from omq.terminals.connection.last_outcomes import LastOutcomes
from omq.terminals.connection.late_tasks import start_unless_over
from omq.terminals.connection.liveness import Liveness, LivenessCheck
from omq.terminals.connection.sender import Sender
from omq.terminals.connection.states import Greeting, InputEnded
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    HeldOctets,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import BY_SHUTDOWN
from omq.terminals.omq.commands import Commands
from omq.terminals.omq.fetches import Fetches
from omq.terminals.omq.greeting import ConnectedClient, id_in
from omq.terminals.omq.long_answers import LongAnswer, LongAnswers
from omq.terminals.omq.pipeline import Pipeline
from omq.terminals.omq.replies import Make, Replies
from omq.terminals.omq.states import Answering, Finishing, Serving, State, Stopping
from omq.terminals.omq.subscriptions import Subscriptions
from omq.terminals.omq.watching import Watching

if TYPE_CHECKING:
    from omq_storage._codec import Lane, Route, Spans, StoreLane

WRITER_NAME = "writer of an omq connection"
"""The name of the tasks that write: one string for all, otherwise Trio makes one for each."""

CUT_LINE = "the connection ended in the middle of a line"

LONGEST_CONNECT = 4 << 10
"""The greatest number of octets of a line before the client is known, if clients are configured."""


class OmqTerminal:
    """One connection after its handshake. `serve` returns when the connection is over.

    It owns everything of the connection. Nothing that it owns points back to it, except its sender while that
    runs: so the memory of a connection is free when its tasks have ended, without a garbage collection.
    """

    __slots__ = (
        "_admission",
        "_client",
        "_context",
        "_endings",
        "_fetches",
        "_filled",
        "_has_routed",
        "_is_waiting",
        "_known",
        "_lacking",
        "_last_outcomes",
        "_lines",
        "_liveness",
        "_long",
        "_long_answers",
        "_nursery",
        "_reading",
        "_received",
        "_replies",
        "_scope",
        "_sender",
        "_short",
        "_state",
        "_subscriptions",
        "_transport",
        "_watching",
    )

    def __init__(self, arrival: Arrival, context: Context, long_answers: LongAnswers) -> None:
        config, memory = context.config, context.memory
        self._transport = transport = arrival.transport
        self._received = arrival.received
        self._known = arrival.known
        self._context = context
        self._state: State = Greeting(math.inf)
        self._scope = arrival.scope
        self._reading = trio.CancelScope()
        self._nursery = arrival.nursery
        self._lines = LineReader(config.max_line_bytes)
        self._liveness = Liveness(config.ping_seconds, config.missed_pings)
        self._admission = ReadAdmission(transport, memory, self._reading, self._liveness.excused)
        self._sender = Sender(
            transport, memory.stalled, memory.tails, context.pace, self._scope, context.begin
        )
        self._replies = Replies(self._sender.signal)
        self._fetches = Fetches(memory, self._sender, self._replies, self._nursery)
        self._subscriptions = Subscriptions(self._sender, self._replies)
        self._endings = Endings(context.end_turns)
        self._watching = Watching(self._sender, self._replies)
        self._long_answers = long_answers
        self._long: LongAnswer | None = None  # that is being sent
        self._client: ConnectedClient | None = None  # from Connect on
        self._last_outcomes = LastOutcomes()
        self._is_waiting = False
        """Whether the server ends the connection, and waits for outcomes before it says the last."""
        self._has_routed = False
        """Whether messages of the current read were sent at once."""
        self._filled: Lane | None = None
        """The connections for which the rest of the current read must wait."""
        self._short: Route | None = None
        """The topic for which it must wait: it keeps messages for subscribers that are behind."""
        self._lacking: StoreLane | None = None
        """The store for which it must wait."""

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and send until the client is done, or something ends the connection."""
        if self._context.access.clients.are_known:
            self._state = Greeting(trio.current_time() + self._context.config.handshake_seconds)
        self._nursery.start_soon(self._sender.run, self, self._nursery, name=WRITER_NAME)
        try:
            with self._reading:
                while not self._received or await self._feed():
                    self._received = self._admission.completed(await self._admission.receive())
                    if not self._received:
                        if self._lines.buffered:
                            self._replies.add(types.Error(sentence("Bad sexp", None, CUT_LINE)))
                        break
                if self._client is not None:
                    await self._client.held.wait_for_all()
        except trio.BrokenResourceError:
            self._scope.cancel()
        self._received_last()
        await self._sender.ended()
        await self._transport.finish()

    async def close(self) -> None:
        """Give back everything that the connection holds."""
        self._state = InputEnded()
        client = self._client
        if client is not None:
            client.held.end()
        self._endings.add(self._subscriptions)
        await self._endings.finish()
        self._watching.close()
        if client is not None:
            client.routing.close()
            await client.pipeline.commands.end()
            client.session.close()
        self._admission.close()
        self._replies.close()
        self._transport.close()

    def statistics(self) -> ConnectionStatistics:
        """Return the statistics of the connection."""
        client = self._client
        return ConnectionStatistics.of(
            self._transport,
            Kind.OMQ,
            None if client is None else client.session.name,
            messages_in=0 if client is None else client.pipeline.published,
            messages_out=self._sender.messages,
            unconfirmed=self._replies.unconfirmed,
            waiting_answers=len(self._replies) + len(self._fetches),
            subscriptions=len(self._subscriptions),
            is_sending=self._sender.forwarder.is_sending,
            stalled_seconds=self._sender.forwarder.stalled_seconds,
            held=HeldOctets(
                reading=self._admission.reading,
                unfinished=self._admission.unfinished,
                answers=self._replies.octets,
                fetched=self._fetches.octets,
                publishes=0 if client is None else client.held.octets,
            ),
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Return the statistics of its subscriptions, in the order in which they were opened."""
        return self._subscriptions.statistics()

    def open_channels(self) -> Iterator[tuple[Topic, Channel]]:
        """Yield the topics and channels of its subscriptions."""
        return self._subscriptions.open_channels()

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds back what is sent."""
        return self._sender.is_limited

    def sweep(self, now: float) -> None:
        """Check whether a ping is due, and whether the client is gone. Called about every second."""
        self._sender.forwarder.look(now)
        if self._long is not None and self._long.delays_others(now, self._transport.sent):
            # Part of its frame is sent, so no Error can be sent on this connection.
            self._log_eviction("to read an answer")
            self._scope.cancel()
            return
        if isinstance(self._state, Serving | Answering) and self._fetches.delays_others(now):
            self._log_eviction("to read a stored block")
            self.fail(self._fetches.reason_to_close())
            return
        match self._state:
            case Greeting(by):
                if now > by:
                    self.fail(sentence("Connect", None, refusal_words.NOT_IN_TIME))
                else:
                    self._look_for_life(now)
            case Serving():
                self._look_for_life(now)
            case Stopping():
                pass  # its time is bounded, see `shut_down`
            case Answering() | Finishing():
                # The client cannot answer any more, but it can read.
                if self._liveness.is_stuck(now, self._transport.sent, waiting=self._sender.is_limited):
                    self._transport.ends("its client has finished sending, and reads nothing")
                    self._scope.cancel()
            case InputEnded():
                pass
            case other:
                assert_never(other)

    def _look_for_life(self, now: float) -> None:
        if self._client is not None:
            self._client.held.look()
        match self._liveness.tick(now):
            case LivenessCheck.NOTHING:
                pass
            case LivenessCheck.PING:
                self._sender.signal.set()
            case LivenessCheck.DEAD:
                missed = self._context.config.missed_pings
                self.fail(
                    sentence("Ping", None, f"{missed} in a row were not answered, the connection is closed")
                )
            case other:
                assert_never(other)

    def _log_eviction(self, what: str) -> None:
        client = None if self._client is None else self._client.session.name
        self._context.log_eviction(self._transport, client, what)

    @property
    def session(self) -> Session | None:
        """The session of the client; None before its Connect is accepted."""
        return None if self._client is None else self._client.session

    def disconnect(self, why: str) -> None:
        """End the connection with an Error that says why."""
        self.fail(sentence("Connect", None, why))

    def fail(self, text: bytes) -> None:
        """End the connection with an Error after the answers that are ready."""
        self._transport.ends(text.decode())
        self._stop(types.Error(text))

    def shut_down(self) -> None:
        """End the connection: stop commands and messages, and send the answers that are ready."""
        self._transport.ends(BY_SHUTDOWN)
        self._stop(None)

    def _stop(self, error: types.Error | None) -> None:
        """End the connection. Send the error when what the subscriptions had is in the topics again."""
        match self._state:
            case Greeting():
                self._state = Stopping()
                self._reading.cancel()
            case Serving() | Stopping():
                self._state = Stopping()
                if not self._last_outcomes.is_executing:
                    self._reading.cancel()
            case Answering():
                self._state = Answering(is_hurried=True)
            case Finishing():
                pass
            case InputEnded():
                return
            case other:
                assert_never(other)
        if self._client is not None:
            self._client.pipeline.is_over = True
            self._client.held.end()
        self._fetches.stop()
        self._endings.add(self._subscriptions)
        self._endings.begin(self._nursery, partial(self._settle, error))

    def _settle(self, error: types.Error | None) -> None:
        """Say the last, after the answers to what was executed."""
        if not (self._last_outcomes.is_executing or self._replies.unconfirmed):
            self._say_last(error)
        elif not self._is_waiting:
            self._is_waiting = start_unless_over(self._nursery, self._wait_and_say_last, error)

    async def _wait_and_say_last(self, error: types.Error | None) -> None:
        """Wait some time for the end of what is being executed, and for the outcomes of what was published.
        Say the last, also if some are not known.
        """
        await self._last_outcomes.wait(self._replies.settled)
        self._reading.cancel()
        self._is_waiting = False
        self._say_last(error)

    def _say_last(self, error: types.Error | None) -> None:
        self._watching.close()
        self._replies.end(error)
        self._sender.signal.set()
        set_closing_deadline(self._scope)

    # -- writing: the sender asks (see omq.terminals.connection.sender.SendingTerminal) ----------------------

    def _answer(self) -> None:
        """Let the answers go that messages, which are stored now, have delayed."""
        self._context.at_once.add(self)

    def send_at_once(self) -> None:
        """Send the ready answers in this task (`omq.drivers.immediate_sends.ImmediateSender`)."""
        if self._sender.may_send_at_once() and (octets := self._replies.collect()):
            self._sender.send_at_once([octets], ())
        # Everything else is done by the sending task: long answers, watches, the end.
        if not (
            isinstance(self._state, Serving) and self._replies.are_waiting and self._watching.watcher is None
        ):
            self._sender.signal.set()

    def send_soon(self) -> None:
        """Let the sending task send the ready answers."""
        self._sender.signal.set()

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Return the answers that are ready and a ping that is due, or else a long answer."""
        if self._subscriptions.unreadable is not None:
            text, self._subscriptions.unreadable = self._subscriptions.unreadable, None
            self.fail(text)
        if not may_answer:
            may_answer = isinstance(self._state, Stopping) or self._state == Answering(is_hurried=True)
        octets = self._replies.collect() if may_answer else b""
        if self._liveness.is_ping_due:
            octets += encode(types.Ping(self._liveness.ping()))
        if self._watching.watcher is not None and not octets and not self._replies and may_answer:
            octets = self._watching.take()
        if octets or not self._replies:
            return (octets,) if octets else ()
        if may_answer and (make := self._replies.begin_long()) is not None:
            self._nursery.start_soon(self._make_long, make)
        self._long = self._replies.take_long()
        return () if self._long is None else self._long.parts

    def urgent_sent(self) -> None:
        if self._long is not None:
            self._long.close()
            self._long = None

    def may_forward(self) -> bool:
        return not self._replies.is_making

    def has_ended(self) -> bool:
        """Return whether all commands are answered, all posts settled, and all channels finished."""
        match self._state:
            case Greeting() | Serving() | Stopping():
                return False
            case Answering():
                waits = self._is_waiting or self._replies or self._fetches or self._endings
                if not waits and self._sender.is_idle:
                    self._state = self._finish()
                    return self._state.are_told and self._sender.is_idle
                return False
            case Finishing(are_told):
                return are_told and self._sender.is_idle
            case InputEnded():
                return self._sender.is_idle
            case other:
                assert_never(other)

    def _finish(self) -> Finishing:
        """Let the subscriptions finish: as many as a slice allows at once, and the others in a task."""
        self._fetches.stop()  # all are answered; its task ends
        steps = self._subscriptions.finish()
        slices = Slices()
        for _ in steps:
            if slices.is_over:
                self._nursery.start_soon(self._finish_others, steps)
                return Finishing(are_told=False)
        return Finishing(are_told=True)

    async def _finish_others(self, steps: Iterator[None]) -> None:
        await in_slices(steps)
        if isinstance(self._state, Finishing):
            self._state = Finishing(are_told=True)
            self._sender.signal.set()

    def due(self) -> float:
        return math.inf

    def channels(self) -> Iterable[Channel]:
        return self._subscriptions.channels()

    async def _make_long(self, make: Make) -> None:
        self._replies.made(await make())

    # -- reading -------------------------------------------------------------------------------------------

    def _received_last(self) -> None:
        """Note that no more commands follow: the client is done, or something ends the connection."""
        # Give the memory of an incomplete line back before the last answers: others may wait for it.
        self._lines.drop()
        self._admission.close()
        if self._admission.is_evicted:
            self._log_eviction("to complete a line")
            self.fail(sentence("Line", None, f"it took too long to complete {refusal_words.OTHERS_WAIT}"))
        self._watching.close()
        self._state = Answering(is_hurried=isinstance(self._state, Stopping))
        self._sender.signal.set()

    async def _feed(self) -> bool:
        """Execute the commands that were received. Return False if the connection must end."""
        outcomes = self._last_outcomes
        outcomes.is_executing = True
        try:
            if not await self._execute():
                return False
        finally:
            outcomes.is_executing = False
            if outcomes.executed is not None:
                outcomes.executed.set()
        unfinished = self._lines.buffered
        is_unknown = isinstance(self._state, Greeting) and self._context.access.clients.are_known
        if is_unknown and unfinished > LONGEST_CONNECT:
            # No id is so long.
            self._replies.add(types.Error(sentence("Connect", None, refusal_words.NO_CLIENT)))
            return False
        if self._admission.must_hold(unfinished):
            with self._liveness.excused:
                await self._admission.hold(unfinished)
        return True

    async def _execute(self) -> bool:
        """Execute the commands that were received, or the rest of one of them. Return False if the connection
        must end.
        """
        received, self._received = self._received, b""
        alive = self._has_routed = False
        steps = self._lines.reads(received, self._deal)
        if steps is DEALT:
            await self._wait_for_room()
        for number, events in enumerate(steps):
            if number:
                # Many slow lines of one connection must not delay the others.
                await trio.lowlevel.checkpoint()
            if events and not await self._act_on(events):
                return False
            alive = alive or bool(events)
            await self._wait_for_room()
        if alive or self._has_routed:
            self._liveness.signs += 1
            self._admission.finished()
        self._admission.done()
        return True

    async def _wait_for_room(self) -> None:
        """Wait for the room that was lacking when messages were sent at once: see `_deal`."""
        if self._filled is not None:
            filled, self._filled = self._filled, None
            assert self._client is not None
            with self._liveness.excused:
                await self._client.routing.room_to_push(filled)
        if self._short is not None:
            short, self._short = self._short, None
            assert self._client is not None
            with self._liveness.excused:
                await self._client.routing.room_to_keep(short)
        if self._replies.is_full and isinstance(self._state, Serving):
            await self._state.client.pipeline.commands.room()  # for the outcome of what is routed next
        if self._lacking is not None:
            store, self._lacking = self._lacking, None
            assert self._client is not None
            if not self._client.held.lines:  # else the next messages are not routed, see `_deal`
                with self._liveness.excused:
                    await self._client.routing.room_to_route(store)

    def _deal(
        self, lines: bytes, position: int, most: int
    ) -> tuple[list[tuple[bytes, "Spans"]], int, bool] | None:
        """Send messages at once: see `omq.protocol.omq.compiled_lines.Deal`."""
        state = self._state
        if not isinstance(state, Serving):
            return None
        client = state.client
        if client.held.lines:  # they came before, perhaps for the same topics
            return None
        dealt, position, passed, posts = client.routing.route(lines, position, most)
        if passed.messages:
            self._has_routed = True
            client.pipeline.published += passed.messages
        for post in posts:
            self._replies.routed(post, self._answer)
        self._filled = passed.filled
        self._lacking = passed.lacking
        self._short = passed.short
        return dealt, position, passed.is_full

    async def _act_on(self, events: Sequence[Event]) -> bool:
        """Return False if the connection must end."""
        if isinstance(self._state, Greeting):
            if not await self._connect(events[0]):
                return False
            events = events[1:]
        if not isinstance(self._state, Serving):
            return not events
        return await self._state.client.pipeline.execute(events)

    async def _connect(self, event: Event) -> bool:
        """Execute the first command. Return False if the connection must end."""
        id = id_in(event)
        if isinstance(id, types.Error):
            self._replies.add(id)
            return False
        peer = self._transport.peer()
        host = self._transport.host()
        try:
            session = await self._context.access.connect(id, host, peer)
        except Refused as refused:
            self._replies.add(types.Error(sentence("Connect", None, str(refused))))
            return False
        self._known()
        del self._known  # it is needed once, and holds some memory
        self._client = client = self._admit(session, host)
        rates = session.rates
        self._fetches.rate_limit = rates.sent
        self._sender.limit(rates.answered, rates.sent)
        if isinstance(self._state, Greeting):  # otherwise the server ends the connection meanwhile
            self._state = Serving(client)
        self._context.log_connected(peer, session.name)
        await self._admission.limit(rates.received, self._transport.received)
        return True

    def _admit(self, session: Session, host: str) -> ConnectedClient:
        """Return the parts of the connection that serve this session."""
        context, excused = self._context, self._liveness.excused
        held = HeldPublishes(context.memory, session, self._subscriptions, self._nursery, excused)
        commands = Commands(
            session,
            context.access,
            host,
            self._replies,
            self._long_answers,
            self._fetches,
            self._subscriptions,
            held,
            self._watching,
            excused,
        )
        routing = context.access.line_routing(session)
        return ConnectedClient(session, routing, held, Pipeline(commands, self._replies))
