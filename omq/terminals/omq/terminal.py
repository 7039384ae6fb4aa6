"""The omq terminal: protocol one on one connection (omq text; docs/PROTOCOL.md).

Two tasks: one reads commands and acts on them, the other writes what there is to say. What there is to say:
answers in the order of the commands, pings, and messages of the subscriptions in turn.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import assert_never

import trio

from omq.access.access import Access
from omq.access.leases import DmpEnd, Principal
from omq.access.limits import UNLIMITED
from omq.access.session import Session
from omq.config import Config
from omq.drivers.memory import Memory
from omq.drivers.problems import for_clients
from omq.drivers.reasons import Refused
from omq.drivers.seam import Gone
from omq.drivers.signal import Signal
from omq.logs import quoted, subject
from omq.protocol.handshake import VERSION_ONE
from omq.protocol.omq import types
from omq.protocol.omq.frames import encode
from omq.protocol.omq.lines import Event, LineReader, Parsed, PublishRun, TooLong
from omq.protocol.omq.lines import Refused as BadLine
from omq.protocol.omq.sentences import UNKNOWN_CLIENT, gone, sentence
from omq.terminals.connection.intake import Intake
from omq.terminals.connection.liveness import Liveness, Tick
from omq.terminals.connection.statistics import (
    ConnectionStatistics,
    HeldOctets,
    Kind,
    SubscriptionStatistics,
)
from omq.terminals.connection.transport import Transport
from omq.terminals.omq.commands import Commands
from omq.terminals.omq.fetches import Fetches
from omq.terminals.omq.long_answers import LongAnswer, LongAnswers
from omq.terminals.omq.replies import Make, Replies
from omq.terminals.omq.subscriptions import Subscription, Subscriptions
from omq_storage.batches import Batch
from omq_storage.errors import StoreError

MOST_REPLIES = 1000
"""How many answers may wait to be given or sent before no more commands are read."""

MOST_REPLY_OCTETS = 32 << 10
"""How much memory they may take before no more commands are read: some answers are large."""

LONGEST_CONNECT = 4 << 10
"""Where clients are configured, the most octets of a line of somebody who is not known yet."""

TOO_SLOW = "it took too long to read while others wait for its memory"

GOODBYE_SECONDS = 2.0
"""How long a connection that the server ends may take to send what is left to say."""

log = logging.getLogger("omq.terminal")


class OmqTerminal:
    """One connection after its handshake. `serve` returns when it is over, whatever the reason."""

    def __init__(
        self,
        transport: Transport,
        access: Access,
        memory: Memory,
        config: Config,
        long_answers: LongAnswers,
        known: Callable[[], None],
        received: bytes,
    ) -> None:
        """`known` is called when Connect is accepted, and `received` is what came after the handshake."""
        self._transport = transport
        self._access = access
        self._rates = UNLIMITED
        self._config = config
        self._intake = Intake(transport, memory, self._give_way)
        self._known = known
        self._received = received
        self._lines = LineReader(config.max_line_bytes)
        self._signal = Signal()
        self._replies = Replies(self._signal.set, self._begin_long)
        self._long_answers = long_answers
        self._long: LongAnswer | None = None  # that is being sent
        self._replied = trio.lowlevel.ParkingLot()
        self._fetches = Fetches(memory, self._fetched)
        self._ready: dict[Subscription | Fetches, None] = {}
        self._session: Session | None = None  # from Connect on
        self._principal: Principal | None = None
        self._commands: Commands | None = None
        self._connect_by = math.inf
        self._over = False
        self._ending = False
        self._finished = False
        self._finishing = False
        self._ended_by_peer = False
        self._reading = trio.CancelScope()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._liveness = Liveness(config.ping_seconds, config.missed_pings)
        self._subscriptions = Subscriptions(
            transport, memory.stalled, self._replies, self._woken, self._scope.cancel
        )
        self._forwarder = self._subscriptions.forwarder

    # -- life ----------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Read and write until the other side is done, or something ends the connection."""
        if self._access.clients.are_known:
            self._connect_by = trio.current_time() + self._config.handshake_seconds
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._fetches.run)
                    await self._read()
                if self._ended_by_peer:
                    await self._transport.say_end()
                else:
                    await self._transport.finish()
        except trio.BrokenResourceError:
            pass  # it did not wait for the end
        finally:
            self._subscriptions.stop()
            if self._session is not None and self._principal is not None:
                self._session.end_leases(self._principal)
                self._session.close()
            self._over = True
            self._replied.unpark_all()
            self._intake.close()
            # Nothing here is to point back at this: so what it holds is free at once, and need not be found
            # by a garbage collection, which keeps everybody waiting.
            self._fetches.stop()
            self._nursery = None
            self._commands = None
            self._replies.clear()
            self._ready.clear()
            self._transport.close()

    def statistics(self) -> ConnectionStatistics:
        """What the connection is, and what it holds."""
        return ConnectionStatistics(
            kind=Kind.OMQ,
            client=None if self._session is None else self._session.name,
            peer=self._transport.peer(),
            is_encrypted=self._transport.is_encrypted,
            seconds=trio.current_time() - self._transport.since,
            octets_in=self._transport.received,
            octets_out=self._transport.sent,
            unconfirmed=self._replies.unconfirmed,
            waiting_answers=len(self._replies) + len(self._fetches),
            subscriptions=len(self._subscriptions),
            is_sending=self._forwarder.is_sending,
            stalled_seconds=self._forwarder.stalled_seconds,
            held=HeldOctets(
                reading=self._intake.reading,
                unfinished=self._intake.unfinished,
                answers=self._replies.octets,
                fetched=self._fetches.octets,
            ),
        )

    def subscriptions(self) -> list[SubscriptionStatistics]:
        """Its subscriptions, in the order in which they were opened."""
        return self._subscriptions.statistics()

    def sweep(self, now: float) -> None:
        """Called about every second: see whether a ping is due, or the client is gone."""
        self._forwarder.look()
        if self._long is not None and self._long.hinders(now, self._transport.sent):
            # Its frame is begun, so there is nothing that could be said on this connection.
            log.info("%s: closed in the middle of an answer: %s", self._transport.peer(), TOO_SLOW)
            self._scope.cancel()
            return
        if self._finished:
            # It cannot answer any more, but it can read.
            waiting = not (self._may_answer() and self._may_send())
            if self._liveness.is_stuck(now, self._transport.sent, waiting=waiting):
                self._scope.cancel()
            return
        if self._fetches.hinders(now):
            self.fail(self._fetches.complaint())
            return
        if self._commands is None and now > self._connect_by:
            self.fail(b"Connect: the client did not make itself known in time")
            return
        match self._liveness.tick(now):
            case Tick.NOTHING:
                pass
            case Tick.PING:
                self._signal.set()
            case Tick.DEAD:
                missed = self._config.missed_pings
                self.fail(b"Ping: %d in a row were not answered, the connection is closed" % missed)
            case other:
                assert_never(other)

    def fail(self, text: bytes) -> None:
        """End the connection with an Error, after the answers that are ready."""
        self._replies.add(types.Error(text))
        self.shut_down()

    def _give_way(self) -> None:
        self.fail(b"Line: it took too long to complete while others wait for its memory")

    def shut_down(self) -> None:
        """End the connection: no more commands, and no more messages, but the answers that are due."""
        self._ending = True
        self._subscriptions.close_all()
        self._fetches.stop()
        self._reading.cancel()
        self._scope.deadline = min(self._scope.deadline, trio.current_time() + GOODBYE_SECONDS)

    def _finish(self) -> None:
        """Nothing more comes in: answer what came, then end."""
        self._finished = True
        self._signal.set()

    def _finish_channels(self) -> None:
        """Everything is answered, what this connection published included: the rest is what there is now."""
        self._finishing = True
        self._subscriptions.finish()

    # -- writing -------------------------------------------------------------------------------------------

    def _woken(self, subscription: Subscription) -> None:
        """A subscription has something to take."""
        self._ready[subscription] = None
        self._signal.set()

    def _fetched(self) -> None:
        """A Fetch has something to send, or is answered."""
        self._ready[self._fetches] = None
        self._signal.set()

    def _may_answer(self) -> bool:
        """Whether the client's octets a second allow an answer now."""
        limit = self._rates.answered
        return limit is None or limit.is_open() or self._ending

    def _may_send(self) -> bool:
        """Whether they allow messages now."""
        limit = self._rates.sent
        return limit is None or limit.is_open()

    async def _write(self) -> None:
        try:
            while await self._write_next():
                pass
        except trio.BrokenResourceError:
            # The client is gone. That is its right, and no news to anybody else.
            self._ended_by_peer = True
            self._scope.cancel()

    async def _write_next(self) -> bool:
        """Send what is next, or wait for it; False when everything is sent."""
        octets = self._replies.collect() if self._may_answer() else b""
        self._replied.unpark_all()
        if self._liveness.take_ping():
            octets += encode(types.Ping(self._liveness.clock()))
        if octets:
            with self._spending(answer=True):
                await self._forwarder.send(octets)
        elif (answer := self._replies.take_long()) is not None:
            with self._spending(answer=True):
                await self._send_long(answer)
        elif self._ready and self._may_send() and not self._replies.is_making:
            turn = next(iter(self._ready))
            del self._ready[turn]
            if isinstance(turn, Fetches):
                await self._send_fetched()
            else:
                await self._forward(turn)
        elif self._fetches.ready:
            await self._send_fetched()  # it was read when the client's octets a second allowed it
        elif self._finished and not self._replies and not self._fetches and not self._ready:
            if self._finishing:
                self._fetches.stop()
                return False
            self._finish_channels()
        else:
            with trio.move_on_at(self._goes_on_at()):
                await self._signal.wait()
        return True

    def _goes_on_at(self) -> float:
        """When the client's octets a second allow what waits for that; never where nothing does."""
        times = []
        if self._replies and self._rates.answered is not None and not self._may_answer():
            times.append(self._rates.answered.until)
        if self._ready and self._rates.sent is not None and not self._may_send():
            times.append(self._rates.sent.until)
        return min(times, default=math.inf)

    @contextmanager
    def _spending(self, *, answer: bool) -> Iterator[None]:
        """What is sent within counts among the client's octets a second."""
        before = self._transport.sent
        try:
            yield
        finally:
            octets = self._transport.sent - before
            if answer and self._rates.answered is not None:
                self._rates.answered.spend(octets)
            if self._rates.sent is not None:
                self._rates.sent.spend(octets)

    def _begin_long(self, make: Make) -> None:
        """A long answer is next: have it made beside everything else."""
        assert self._nursery is not None
        self._nursery.start_soon(self._make_long, make)

    async def _make_long(self, make: Make) -> None:
        self._replies.made(await make())

    async def _send_long(self, answer: LongAnswer) -> None:
        self._long = answer
        try:
            for part in answer.parts:
                await self._forwarder.send(part)
        finally:
            self._long = None
            answer.close()

    async def _send_fetched(self) -> None:
        """Give the Fetch commands their turn: one block."""
        if not self._fetches.ready:
            return
        with self._spending(answer=False):
            await self._forwarder.send(*self._fetches.take())
        self._fetches.sent()
        if self._fetches.ready:
            self._ready[self._fetches] = None

    async def _forward(self, subscription: Subscription) -> None:
        """Give one subscription its turn."""
        try:
            with self._spending(answer=False):
                if await self._subscriptions.forward(subscription):
                    self._ready[subscription] = None
        except StoreError as problem:
            what = f"{for_clients(problem)}, the connection is closed"
            self.fail(sentence("Subscribe", subscription.topic.topic, what))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            with self._reading:
                while True:
                    if self._received and not await self._feed():
                        break
                    self._received = await self._receive()
                    if not self._received:
                        self._ended_by_peer = True
                        if self._lines.buffered:
                            text = sentence("Bad sexp", None, "the connection ended in the middle of a line")
                            self._replies.add(types.Error(text))
                        break
        except trio.BrokenResourceError:
            self._ended_by_peer = True
            self._scope.cancel()
        # Others may wait for the memory of a line that nobody completes: it is free before the last answers.
        self._lines.drop()
        self._intake.close()
        self._finish()

    async def _receive(self) -> bytes:
        """What comes next; not before the client's octets a second allow it."""
        limit = self._rates.received
        if limit is None:
            return await self._intake.receive()
        with self._liveness.excused():
            await trio.sleep_until(limit.until)
        received = await self._intake.receive(limit.piece)
        limit.spend(len(received))
        return received

    async def _feed(self) -> bool:
        """Act on what was received; False when the connection is to end."""
        received, self._received = self._received, b""
        alive = False
        for number, events in enumerate(self._lines.reads(received)):
            if number:
                # One connection's odd lines must not keep the others waiting.
                await trio.lowlevel.checkpoint()
            if not await self._act_on(events):
                return False
            alive = alive or bool(events)
        if alive:
            self._liveness.alive()
            self._intake.finished()
        self._intake.done()
        if (
            self._commands is None
            and self._access.clients.are_known
            and self._lines.buffered > LONGEST_CONNECT
        ):
            self._replies.add(types.Error(UNKNOWN_CLIENT))  # nobody's id is so long
            return False
        with self._liveness.excused():
            await self._intake.hold(self._lines.buffered)
        return True

    async def _act_on(self, events: Sequence[Event]) -> bool:
        """False when the connection is to end."""
        runs: dict[bytes, list[Batch]] = {}
        for event in events:
            commands = self._commands
            if commands is None:
                if not await self._connect(event):
                    return False
                continue
            match event:
                case PublishRun(topic, batch):
                    # Order matters within a topic only: one read makes one post for each.
                    runs.setdefault(topic, []).append(batch)
                    continue
                case _:
                    await commands.publish_all(runs)
            match event:
                case Parsed(command):
                    await self._room_for_replies()
                    await commands.act(command)
                case BadLine(error, publish):
                    await self._room_for_replies()
                    if publish:
                        self._replies.refuse_publish(error)
                    else:
                        self._replies.add(types.Error(error))
                case TooLong(error):
                    self._replies.add(types.Error(error))
                    return False
                case _:
                    assert_never(event)
        if runs and self._commands is not None:
            await self._commands.publish_all(runs)
        return True

    async def _connect(self, event: PublishRun | Parsed | BadLine | TooLong) -> bool:
        """The first command must be Connect, with the version of the handshake, of a client that is known."""
        match event:
            case Parsed(types.Connect(version, id)):
                if version == VERSION_ONE:
                    return await self._identify(id)
                what = f"the handshake agreed on version {VERSION_ONE}"
                self._replies.add(types.Error(sentence("Connect", str(version).encode(), what)))
            case TooLong(error):
                self._replies.add(types.Error(error))
            case _:
                self._replies.add(types.Error(b"Connect: it must be the first command of a connection"))
        return False

    async def _identify(self, id: bytes) -> bool:
        peer = self._transport.peer()
        host = self._transport.host()
        try:
            session = await self._access.connect(id, host, peer)
        except Refused as refused:
            self._replies.add(types.Error(sentence("Connect", None, str(refused))))
            return False
        self._known()
        self._session = session
        self._principal = Principal(host, session.name, self._report)
        self._rates = session.rates
        self._fetches.rate_limit = session.rates.sent
        self._commands = Commands(
            session,
            self._principal,
            self._replies,
            self._long_answers,
            self._fetches,
            self._subscriptions,
            self._room_for_replies,
            self._liveness.excused,
        )
        log.debug("%s is %s", peer, quoted(session.name), extra=subject(peer=peer, client=session.name))
        return True

    async def _room_for_replies(self) -> None:
        while not self._over and (
            len(self._replies) + len(self._fetches) >= MOST_REPLIES
            or self._replies.octets >= MOST_REPLY_OCTETS
        ):
            await self._replied.park()

    async def _report(self, end: DmpEnd, topic: bytes, what: str | Gone) -> None:
        """Report on a DMP connection whose lease was asked for here. It waits as the commands do."""
        await self._room_for_replies()
        words = gone(what.first, what.last, what.reason) if isinstance(what, Gone) else what
        self._replies.add(types.Error(sentence(end.value, topic, words)))
