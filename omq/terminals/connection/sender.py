"""The sending side of one connection: the turns of its sources, its rate limits, and the time of the next
look.

What must go at once, such as answers and pings, goes first. Otherwise the sources of messages have one turn
each, in the order in which they became ready. A rate limit holds both back until it is open again. A task
runs the sender, and everything that is ready sets its signal.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from omq.access.limits import RateLimit
from omq.drivers.backlog import Backlog
from omq.drivers.seam import Channel, Octets, Selection
from omq.drivers.signal import Signal
from omq.drivers.stalled import Stalled
from omq.drivers.tail import TailMemory
from omq.terminals.connection.forms import Form
from omq.terminals.connection.forwarding import Forwarder
from omq.terminals.connection.pace import TURN_OCTETS, Pace
from omq.terminals.connection.shared_turns import (
    LEAST_SHARED_OCTETS,
    MessageSource,
    SharedTurns,
    has_more,
    note_sent,
)
from omq.terminals.connection.transport import MOST_PARTS, Transport, rest_after

if TYPE_CHECKING:
    from omq_storage._codec import Pass

LIMIT_LOOK_SECONDS = 1.0
"""The number of seconds between two checks whether a rate limit that is waited for has been changed."""


class SendingTerminal(Protocol):
    """The terminal, as its sender sees it. None of these methods waits."""

    def urgent(self, *, may_answer: bool) -> Sequence[Octets]:
        """Take the octets that must go before all messages; of answers nothing unless they may go."""

    def urgent_sent(self) -> None:
        """Note that the octets that `urgent` returned have left, or that the connection broke."""

    def may_forward(self) -> bool:
        """Return whether sources may have their turns."""

    def has_ended(self) -> bool:
        """Return whether nothing will come any more. The sender calls this when no octets are ready."""

    def due(self) -> float:
        """Return the time of Trio's clock at which something will be urgent without the signal."""

    def channels(self) -> Iterable[Channel]:
        """Return the open channels of the connection: see `ChannelOwner`."""


class Sender:
    """Sends on one connection. `run` is the only task that does."""

    __slots__ = (
        "__weakref__",
        "_answers",
        "_begin",
        "_exempt",
        "_has_ended",
        "_is_admitted",
        "_is_busy",
        "_is_heavy",
        "_is_lined_up",
        "_messages",
        "_over",
        "_pace",
        "_ready",
        "_rest",
        "_rest_ended",
        "_scope",
        "_shared",
        "_side",
        "_transport",
        "backlog",
        "delivered",
        "forwarder",
        "signal",
        "stalled_at",
    )

    def __init__(
        self,
        transport: Transport,
        stalled: Stalled,
        tails: TailMemory,
        pace: Pace,
        scope: trio.CancelScope,
        begin: Callable[[Iterator[None]], None],
    ) -> None:
        """Create a sender. `scope` is the connection: it is cancelled if the connection breaks, or a message
        that is begun cannot be completed. `begin` is given work that outlives it (`Errands.begin`).
        """
        self._transport = transport
        transport.pace = self._pace = pace
        self._scope = scope
        self._begin = begin
        self.forwarder = Forwarder(transport, stalled, scope)
        """Sources use it in their turns."""
        self._answers: RateLimit | None = None
        self._messages: RateLimit | None = None
        self._ready: dict[MessageSource, None] = {}
        self._exempt: dict[MessageSource, None] = {}  # those among them that need not wait for the rate limit
        self.signal = Signal()
        """Set it when something is urgent, or `has_ended` changes."""
        self._side: SendingTerminal | None = None  # while it runs
        self._has_ended = False  # not before it runs: sources may be ready by then
        self._over: trio.Event | None = None  # while a task waits for the end
        self._is_busy = False  # in the middle of a turn
        self.stalled_at: int | None = None
        self.delivered = 0
        self.backlog = Backlog(tails)
        self._rest_ended: Callable[[bool], None] | None = None
        self._rest = b""  # of a message that another task, or a turn, has begun to send
        self._shared = SharedTurns()
        self._is_heavy = False  # whether it sent much in its last turn
        self._is_admitted = False  # whether the pace lets a source begin its turn
        self._is_lined_up = False  # whether the pace lets one begin soon

    @property
    def is_idle(self) -> bool:
        """Whether no source is ready: all have sent what they had."""
        return not self._ready

    def limit(self, answers: RateLimit | None, messages: RateLimit | None) -> None:
        """Keep to these limits from now on. Answers count in both, and wait for the first only."""
        self._answers = answers
        self._messages = messages

    @property
    def messages(self) -> int:
        """The number of messages that have left so far."""
        return self.delivered + self.backlog.delivered + self.forwarder.delivered

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit holds something back now."""
        return not all(limit is None or limit.is_open() for limit in (self._answers, self._messages))

    def ready(self, source: MessageSource) -> None:
        """Give a source its turn, as it has something to send, unless nothing is sent any more."""
        if self._has_ended:
            return
        self._ready[source] = None
        if source.is_exempt:
            self._exempt[source] = None
        if self._may_begin():
            self.signal.set()

    def _may_begin(self) -> bool:
        """Return whether a source may have its turn in this round. If not, the signal is set when it may."""
        if not (self._is_admitted or self._is_lined_up):
            if self._pace.left > TURN_OCTETS:  # as in `begin`, which takes a call for each message
                self._pace.left -= TURN_OCTETS
                self._is_admitted = True
            else:
                self._is_admitted = self._pace.begin(self._admitted, is_heavy=self._is_heavy)
                self._is_lined_up = not self._is_admitted
        return self._is_admitted

    def _admitted(self) -> None:
        self._is_admitted = True
        self._is_lined_up = False
        self.signal.set()

    # -- at once, in any task: see omq.drivers.seam.Outlet -------------------------------------------------

    @property
    def sent(self) -> int:
        return self._transport.sent

    @property
    def pushed(self) -> int:
        return self.backlog.end

    def is_clear(self) -> bool:
        if self._is_busy or self.backlog.entries or self._transport.pending or self._ready or self._rest:
            return False
        return self._may_push()

    def has_room(self) -> bool:
        return not (self.backlog.entries and self.backlog.is_full()) and self._may_push()

    def is_filled(self) -> bool:
        return self.backlog.is_full() and self.stalled_at != self.sent and self._may_push()

    def _may_push(self) -> bool:
        if self._side is None:
            return False
        return self._side.may_forward() and (self._messages is None or self._messages.is_open())

    def push(self, passed: "Pass", lanes: Sequence[int]) -> None:
        taken = 0
        if not (self._is_busy or self._rest or self.backlog.entries):
            taken = self.try_send([passed.frames[lane] for lane in lanes])
        for lane in lanes:
            octets = len(passed.frames[lane])
            if taken < octets:
                self.backlog.add_frames(self, passed, lane, taken)
                self.signal.set()
            else:
                self.delivered += passed.counts[lane]
            taken = max(0, taken - octets)

    def try_send(self, parts: Sequence[Octets]) -> int:
        taken = 0
        try:
            for start in range(0, len(parts), MOST_PARTS):
                some = parts[start : start + MOST_PARTS]
                count = self._transport.try_send(some)
                taken += count
                if count < sum(map(len, some)):
                    break
        except trio.BrokenResourceError:
            pass  # the task finds out by itself, when it sends what was not taken
        if self._messages is not None and not self._is_busy:
            self._messages.spend(taken)
        if self._transport.pending:
            self.signal.set()
        return taken

    def complete(self, rest: bytes, ended: Callable[[bool], None] | None = None) -> None:
        self._rest = rest
        self._rest_ended = ended
        self.signal.set()

    def may_send_at_once(self) -> bool:
        """Return whether any task may send answers and messages: nothing stands before them, and no limit
        holds them back.
        """
        return self.is_clear() and (self._answers is None or self._answers.is_open())

    def send_at_once(self, answers: Sequence[Octets], messages: Sequence[Octets]) -> None:
        """Send answers, and then messages, if `may_send_at_once`. What the socket does not take now follows
        before anything else.
        """
        parts = [*answers, *messages]
        rest = rest_after(parts, self.try_send(parts))
        if self._answers is not None:
            self._answers.spend(sum(map(len, answers)))
        if rest:
            self.complete(b"".join(rest))

    def forward_at_once(self, channel: Channel, form: Form, selections: Sequence[Selection]) -> None:
        """Send messages that `Channel.take_at_once` gave, if `may_send_at_once`. What the socket does not
        take now goes back to the channel, except for the rest of a message that is begun, which follows
        before anything else.
        """
        parts = form.whole(selections)
        octets = sum(map(len, parts))
        taken = self.try_send(parts)
        if taken == octets:
            self.delivered += form.framed
            channel.written(form.framed)
            channel.traffic.octets_out += octets
        else:
            note_sent(channel, form, selections, parts, taken, self)

    def send_whole(self, parts: Sequence[Octets]) -> int:
        """Send one message if `may_send_at_once`, and return its octets; 0 if the socket took none of it.
        What the socket does not take now follows before anything else.
        """
        octets = sum(map(len, parts))
        taken = self.try_send(parts)
        if not taken:
            return 0
        if taken < octets:
            self.complete(b"".join(rest_after(parts, taken)))
        self.delivered += 1
        return octets

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self, side: SendingTerminal, nursery: trio.Nursery) -> None:
        """Send until `side` has ended, or the connection breaks: then its scope is cancelled. `nursery` has
        the tasks of the connection.
        """
        self.forwarder.attach(side, nursery, self.backlog.give_back)
        self._side = side
        self._has_ended = False
        try:
            owes_turn = False  # to a source, because the backlog was sent before
            while True:
                self.signal.clear()
                self._is_busy = True
                if (
                    self._rest
                    or self._transport.pending
                    or (self.backlog.entries and not (owes_turn and self._may_precede(side)))
                ):
                    await self._complete(side)
                    owes_turn = True
                elif not self.backlog.entries and (
                    urgent := side.urgent(may_answer=self._answers is None or self._answers.is_open())
                ):
                    await self._send_urgent(side, urgent)
                elif (source := self._next(side)) is not None and self._may_begin():
                    self._is_admitted = owes_turn = False
                    await self._give_turn(source)
                elif source is None and side.has_ended():
                    return
                else:
                    self._is_busy = False
                    await self._wait(side)
                    continue
                self._is_busy = False
                if self.signal.is_set or (self._ready and self._may_begin()):
                    # A send that the socket takes at once is no checkpoint: let the other tasks have a turn.
                    await trio.lowlevel.checkpoint()
        except trio.BrokenResourceError:
            self._scope.cancel()  # the client may close the connection at any time, so this is not logged
        finally:
            self._side = None
            self._has_ended = True
            if self._over is not None:
                self._over.set()
            # Nothing here points to the connection any more, so its memory is free when its last task ends.
            self.forwarder.detach()
            self._end_rest(has_left=False)
            self._ready.clear()
            self._exempt.clear()
            self.backlog.close(self._begin)

    async def ended(self) -> None:
        """Wait until `run`, which was started, has ended."""
        if not self._has_ended:
            self._over = trio.Event()
            await self._over.wait()

    def _next(self, side: SendingTerminal) -> MessageSource | None:
        if not self._ready or not side.may_forward():
            return None
        if self._messages is None or self._messages.is_open():
            return next(iter(self._ready))
        return next(iter(self._exempt), None)

    def _may_precede(self, side: SendingTerminal) -> bool:
        """Return whether the next source may have its turn although there is a backlog.

        While others push without a pause, the backlog never ends, and the sources must have turns all the
        same. None begins in the middle of a message, or before earlier messages of its own that were pushed.
        """
        if self.backlog.is_begun:
            return False
        source = self._next(side)
        return source is not None and source.after <= self.backlog.begin

    async def _give_turn(self, source: MessageSource) -> None:
        del self._ready[source]
        if source.is_exempt:
            del self._exempt[source]
        before = self._transport.sent
        try:
            left = self.backlog.begin if self.backlog.entries else math.inf
            if self._shared.give(source, self._ready, left, self):
                if has_more(source):
                    self.ready(source)
            elif await source.take_turn():
                self.ready(source)
        finally:
            octets = self._transport.sent - before
            self._is_heavy = octets > LEAST_SHARED_OCTETS
            if self._pace.left > octets:
                self._pace.left -= octets
            else:
                self._pace.spend(octets)
            if self._messages is not None:
                self._messages.spend(octets)

    async def _complete(self, side: SendingTerminal) -> None:
        rest, self._rest = self._rest, b""
        before = self._transport.sent
        try:
            await self.forwarder.send([rest] if rest else [])
            self._end_rest(has_left=True)
            if self.backlog.entries:
                await self._send_backlog(side)
        finally:
            if self._messages is not None:
                self._messages.spend(self._transport.sent - before)

    def _end_rest(self, *, has_left: bool) -> None:
        ended, self._rest_ended = self._rest_ended, None
        if ended is not None:
            ended(has_left)

    async def _send_backlog(self, side: SendingTerminal) -> None:
        """Send the backlog that there is now. Answers go after it: one of them may tell that no message of a
        topic will follow.
        """
        backlog = self.backlog
        urgent = side.urgent(may_answer=self._answers is None or self._answers.is_open())
        for part in urgent:
            backlog.add(part)
        end = backlog.end
        try:
            while backlog.entries and backlog.begin < end:
                # Sources wait for a turn between two entries. Without them there is no need to stop.
                until = end if self._ready else backlog.end
                backlog.sent(self._transport.try_send(backlog.parts(MOST_PARTS, until)))
                if backlog.entries and backlog.begin < end:
                    await self.forwarder.wait_taken()
        finally:
            if urgent:
                if self._answers is not None:
                    self._answers.spend(sum(map(len, urgent)))
                side.urgent_sent()
        await self.forwarder.send([])

    async def _send_urgent(self, side: SendingTerminal, urgent: Sequence[Octets]) -> None:
        before = self._transport.sent
        try:
            await self.forwarder.send(urgent)
        finally:
            octets = self._transport.sent - before
            for limit in (self._answers, self._messages):
                if limit is not None:
                    limit.spend(octets)
            side.urgent_sent()

    def _wait(self, side: SendingTerminal) -> Awaitable[object]:
        until = side.due()
        if self._answers is not None and not self._answers.is_open():
            until = min(until, self._answers.until, trio.current_time() + LIMIT_LOOK_SECONDS)
        if self._ready and self._messages is not None and not self._messages.is_open():
            until = min(until, self._messages.until, trio.current_time() + LIMIT_LOOK_SECONDS)
        return self.signal.waiting() if until == math.inf else self._wait_until(until)

    async def _wait_until(self, until: float) -> None:
        with trio.move_on_at(until):
            await self.signal.wait()
