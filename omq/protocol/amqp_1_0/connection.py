"""The server's side of a connection of AMQP 1.0: octets in, events out, and the octets to send.

Source: AMQP 1.0, part 2, section 2.4, "Connections"; part 5, section 5.3, "SASL".
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import assert_never

from omq.protocol.amqp_1_0 import frames, performatives
from omq.protocol.amqp_1_0.conditions import Condition, ConditionRaised, ConnectionProblem, SessionProblem
from omq.protocol.amqp_1_0.events import (
    Authenticating,
    Closed,
    ConnectionEnded,
    Event,
    Opening,
    Pause,
    StoredRun,
    WindowOpened,
)
from omq.protocol.amqp_1_0.frames import FrameReader, FrameType, RawFrame
from omq.protocol.amqp_1_0.link import ReceivingLink, SendingLink
from omq.protocol.amqp_1_0.outgoing_window import OutgoingWindow
from omq.protocol.amqp_1_0.performatives import (
    Begin,
    Close,
    End,
    Error,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from omq.protocol.amqp_1_0.runs import TransferRun, take_transfers
from omq.protocol.amqp_1_0.session import Session
from omq.protocol.amqp_1_0.types import NULL, DecodeError

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

MAX_FRAME = 65536
"""The longest frame that the server takes."""

CHANNEL_MAX = 32767
"""The greatest channel number. Each session has a channel, and some clients begin one for each link."""

LEAST_HEARTBEAT_SECONDS = 0.1
"""The least number of seconds between two heartbeats of the server, even if the client wants more of them."""

FRAMES_IN_TURN = 256
"""The number of frames after which the other connections have their turn, even if the frames mean nothing."""

_TRANSFER = b"\x00\x53\x14"

MOST_SESSIONS = 4096
"""The sessions that a connection may have at a time."""

FLOW_OCTETS = 64
"""The octets of a flow: never more."""

FLOWS_AT_ONCE = 64
"""The number of flows that are written in one step."""

FLUSHED_OCTETS = 256 << 10
"""The approximate octets of transfers that waited for a window that leave together, if the window allows it.
"""

MOST_FRAME = 1 << 20
"""The longest frame that the server sends, to a client that takes longer ones."""


class Stage(Enum):
    """The stage of a connection: the input for which it waits."""

    HEADER = "the protocol header"
    SASL_INIT = "the mechanism that the client chooses"
    AUTHENTICATING = "the server's decision about it"
    HEADER_AGAIN = "the protocol header after SASL"
    OPEN = "the open of the client"
    OPENING = "the open of the server"
    RUNNING = "frames of sessions"
    CLOSING = "the close of the client, after that of the server"
    CLOSED = "nothing"


@dataclass(frozen=True, slots=True)
class Offer:
    """The server's part of the SASL and the open frames."""

    container_id: str
    mechanisms: tuple[str, ...] = ("ANONYMOUS", "PLAIN")
    needs_sasl: bool = False
    """Whether a client must authenticate."""
    idle_time_out_ms: int = 60_000
    capabilities: tuple[str, ...] = ()
    properties: bytes = field(default=NULL)


class AmqpConnection:
    """One connection. `feed` it what arrives, execute the events, and send what `take` returns."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._output = 0
        self._flows: dict[object, tuple[int, Callable[[], bytes]]] = {}
        """The places of flows, in order, and what writes each, by the link that each tells about."""
        self._left = 0
        """The place of the first octets in `_out`."""
        self._refused: tuple[bytes, int] = b"", 0
        """The octets and the end of a run that must be taken frame by frame."""
        self._sessions: dict[int, Session] = {}
        self._lost: list[Session] = []
        """Sessions that were over with the connection, until `free`."""
        self._is_blocked = False
        """Whether a message did not begin, because transfers of others wait."""
        self._flushable: dict[OutgoingWindow, None] = {}
        """The windows of sessions with transfers that waited, and may leave."""
        self._told_windows: dict[Session, None] = {}  # an empty set would take three times as much
        """Sessions whose new windows are stated in the octets that `take` returns next, or soon."""
        self._ended: list[tuple[SendingLink, int]] = []
        """Settled messages that waited for a window, and have left."""
        self._links: dict[tuple[str, bool], SendingLink | ReceivingLink] = {}
        self.waiting = 0
        """The octets of transfers that wait for the windows of all sessions."""
        self.handles = 0
        """The number of handles of the client that are in use in all sessions."""
        self.stage = Stage.HEADER
        self.opened: Open | None = None
        """The open of the client; None before it arrives."""

    # -- out -----------------------------------------------------------------------------------------------

    def put(self, octets: bytes) -> None:
        """Add octets to those that `take` returns next."""
        self._out.append(octets)
        self._output += len(octets)

    def put_flow(self, write: Callable[[], bytes], told: "SendingLink | ReceivingLink | None" = None) -> None:
        """Add a flow. It is written when it leaves, because it tells how many transfers have left before
        it (section 2.5.6). An earlier one of the same link that has not left is dropped: both would tell the
        same, and the client takes the second answer of a drain for that of its next drain.
        """
        of = write if told is None else told
        self._flows.pop(of, None)
        self._flows[of] = self._left + len(self._out), write
        self._out.append(b"")
        self._output += FLOW_OCTETS

    def put_transfer(self, octets: bytes) -> None:
        """Add a transfer that counts as sent from now on: the flows before it are written first."""
        self._write_flows()
        self.put(octets)

    def _write_flows(self) -> None:
        for place, write in self._flows.values():
            self._out[place - self._left] = write()
        self._flows.clear()

    @property
    def answers(self) -> int:
        """The number of frames that `take` returns next, or some more."""
        return len(self._out)

    @property
    def output(self) -> int:
        """The octets that `take` returns next, or some more."""
        return self._output

    def take(self) -> bytes:
        """Return the octets to send since the last call. Call it when no transfer is being sent, and send
        them before the next one: the flows among them tell how many have left. If there are many flows, the
        octets behind some of them remain (`output`): let others have their turn, and call it again.
        """
        while self._told_windows:
            self._told_windows.popitem()[0].window_left()
        if len(self._flows) > FLOWS_AT_ONCE:
            return self._take_some()
        self._write_flows()
        out, self._out, self._output, self._left = self._out, [], 0, 0
        return b"".join(out)

    def _take_some(self) -> bytes:
        """Return the octets up to the last one of some flows."""
        out, flows = self._out, list(islice(self._flows, FLOWS_AT_ONCE))
        end = self._flows[flows[-1]][0] + 1 - self._left
        self._output -= sum([len(octets) or FLOW_OCTETS for octets in islice(out, end)])
        for each in flows:
            place, write = self._flows.pop(each)
            out[place - self._left] = write()
        taken = b"".join(out[:end])
        del out[:end]
        self._left += end
        return taken

    @property
    def may_flush(self) -> bool:
        """Whether transfers that waited may leave: not before flows that are too many for one step."""
        return bool(self._flushable) and len(self._flows) <= FLOWS_AT_ONCE

    def flush(self) -> tuple[SendingLink, ...]:
        """Send a portion of the transfers that waited, and return the links that may send now. Call it again
        when the portion has left: otherwise the transfers wait where nobody counts them.
        """
        opened: list[SendingLink] = []
        room = FLUSHED_OCTETS
        while self._flushable:
            window = next(iter(self._flushable))
            before = self.waiting
            opened += window.flush(room)
            room -= before - self.waiting
            if window.may_flush:
                break
            del self._flushable[window]
        return (*opened, *self.unblocked())

    def take_ended(self) -> list[tuple[SendingLink, int]]:
        """Return the settled messages whose last transfers `flush` has sent since the last call, and their
        links.
        """
        ended, self._ended = self._ended, []
        return ended

    def frame_room(self) -> int:
        """Return the octets of the longest frame that the client takes."""
        return frames.SMALLEST_MAX if self.opened is None else min(self.opened.max_frame_size, MOST_FRAME)

    @property
    def heartbeat_seconds(self) -> float | None:
        """The number of seconds between two heartbeats: half the client's idle-time-out; None without one."""
        time_out = None if self.opened is None else self.opened.idle_time_out
        return None if not time_out else max(time_out / 2000, LEAST_HEARTBEAT_SECONDS)

    def heartbeat(self) -> None:
        """Send a frame without a meaning."""
        if self.stage in (Stage.RUNNING, Stage.OPENING):
            self.put(frames.HEARTBEAT)

    def authenticated(self, *, accepted: bool) -> None:
        """Answer `Authenticating`. A client that is refused is disconnected."""
        outcome = SaslOutcome(0 if accepted else 1)
        self.put(frames.write(0, performatives.write(outcome), kind=FrameType.SASL))
        self.stage = Stage.HEADER_AGAIN if accepted else Stage.CLOSED

    def open(self) -> None:
        """Answer `Opening`: frames of sessions may come from now on."""
        offer = self._offer
        self._frame(
            Open(
                offer.container_id,
                max_frame_size=MAX_FRAME,
                channel_max=CHANNEL_MAX,
                idle_time_out=offer.idle_time_out_ms,
                offered_capabilities=offer.capabilities,
                properties=offer.properties,
            )
        )
        self.stage = Stage.RUNNING

    def close(self, problem: ConditionRaised | None = None) -> bytes:
        """Close the connection: all its links are over. Return octets to `put` when they have ended."""
        if self.stage in (Stage.OPEN, Stage.OPENING):
            self.open()  # a close comes after an open (section 2.4.6)
        if self.stage is Stage.RUNNING:
            self._finish()
            self.stage = Stage.CLOSING
            return _written(Close(NULL if problem is None else problem.error()))
        if self.stage is not Stage.CLOSING:
            self.stage = Stage.CLOSED
        return b""

    def _frame(self, frame: Open | Close) -> None:
        self.put(_written(frame))

    # -- in ------------------------------------------------------------------------------------------------

    def feed(self, octets: bytes) -> Iterator[Event]:
        """Take octets of the client; yield their events. The caller executes each event before the next.

        The octets that the caller leaves, when it stops at an event, are taken by the next call.
        """
        self._reader.add(octets)
        is_read = False
        while not is_read:
            try:
                yield from self._advance()
                is_read = True
            except (ConditionRaised, DecodeError) as problem:
                # Go on behind the frame: the client's close may have come with it. A second problem ends all.
                yield from self._fail(problem)
        self._refused = b"", 0

    @property
    def pending(self) -> int:
        """The octets of an incomplete frame."""
        return self._reader.pending

    def _fail(self, problem: ConditionRaised | DecodeError) -> Iterator[Event]:
        told = (
            problem
            if isinstance(problem, ConditionRaised)
            else ConnectionProblem(Condition.DECODE_ERROR, str(problem))
        )
        if self.stage in (Stage.CLOSING, Stage.CLOSED):
            self.stage = Stage.CLOSED
            return
        closing = self.close(told)
        yield ConnectionEnded()
        self.put(closing)
        if told.condition is Condition.FRAMING_ERROR:
            self.stage = Stage.CLOSED  # nobody knows where the next frame begins
        yield Closed(None, told)

    def _advance(self) -> Iterator[Event]:
        while True:
            before = self.stage
            match before:
                case Stage.HEADER | Stage.HEADER_AGAIN:
                    header = self._reader.header()
                    if header is None:
                        return
                    yield from self._header(header)
                case Stage.AUTHENTICATING | Stage.OPENING | Stage.CLOSED:
                    return
                case Stage.SASL_INIT | Stage.OPEN | Stage.RUNNING | Stage.CLOSING:
                    for number, frame in enumerate(self._reader.frames(), 1):
                        yield from self._take(frame)
                        if not number % FRAMES_IN_TURN:
                            yield Pause()
                        if self.stage is not before:
                            break
                    else:
                        return
                case _:
                    assert_never(before)

    def _header(self, header: bytes) -> Iterator[Event]:
        needed = self._offer.needs_sasl and self.stage is Stage.HEADER
        match header:
            case b"AMQP\x03\x01\x00\x00" if self.stage is Stage.HEADER:
                mechanisms = SaslMechanisms(self._offer.mechanisms)
                self.put(SASL_HEADER)
                self.put(frames.write(0, performatives.write(mechanisms), kind=FrameType.SASL))
                self.stage = Stage.SASL_INIT
            case b"AMQP\x00\x01\x00\x00" if not needed:
                self.put(HEADER)
                self.stage = Stage.OPEN
            case _:
                # Send the header that the server would take instead, and end (section 2.2, "Version
                # Negotiation").
                self.put(SASL_HEADER if needed else HEADER)
                self.stage = Stage.CLOSED
                yield Closed(None)

    def _take(self, frame: RawFrame) -> Iterable[Event]:
        if frame.is_heartbeat:
            return ()
        if self.stage is Stage.RUNNING and frame.octets.startswith(_TRANSFER, frame.begin):
            octets, refused_to = self._refused
            if octets is not frame.octets or frame.start >= refused_to:
                run, end = take_transfers(frame.octets, frame.start, self._reader.max_frame)
                if run is not None and (event := self._run(run)) is not None:
                    self._reader.taken(end)
                    return (event,)
                # Nothing of the run is tried again: a long one would be read once for each of its frames.
                self._refused = frame.octets, end
        return self._take_one(frame)

    def _take_one(self, frame: RawFrame) -> Iterator[Event]:
        in_sasl = self.stage is Stage.SASL_INIT
        if (frame.type is FrameType.SASL) is not in_sasl:
            raise ConnectionProblem(Condition.FRAMING_ERROR, f"a frame of type {frame.type} cannot come now")
        said, payload_at = performatives.read(frame.octets, frame.begin, frame.end)
        if self.stage is Stage.CLOSING:
            if isinstance(said, Close):  # everything before it is of a connection that is over
                self.stage = Stage.CLOSED
                yield Closed(_error(said))
            return
        match said:
            case (
                performatives.Disposition()
                | performatives.Transfer()
                | performatives.Flow()
                | performatives.Attach()
                | performatives.Detach()
                | End()
            ) if self.stage is Stage.RUNNING:
                yield from self._in_session(frame.channel, said, frame.octets[payload_at : frame.end])
            case SaslInit(mechanism, response) if in_sasl:
                self.stage = Stage.AUTHENTICATING
                yield Authenticating(mechanism, response or b"")
            case Open() if self.stage is Stage.OPEN:
                if said.max_frame_size < frames.SMALLEST_MAX:
                    raise ConnectionProblem(
                        Condition.INVALID_FIELD, f"max-frame-size is at least {frames.SMALLEST_MAX}"
                    )
                self.opened = said
                self._reader.max_frame = MAX_FRAME
                self.stage = Stage.OPENING
                yield Opening(said)
            case Close() if self.stage is Stage.RUNNING:
                error = _error(said)
                self._finish()
                self.stage = Stage.CLOSED
                yield ConnectionEnded()
                self._frame(Close())
                yield Closed(error)
            case Begin() if self.stage is Stage.RUNNING:
                self._begin(frame.channel, said)
            case _:
                name = type(said).__name__.lower()
                raise ConnectionProblem(
                    Condition.ILLEGAL_STATE, f"the connection waits for {self.stage.value}, not for {name}"
                )

    # -- sessions ------------------------------------------------------------------------------------------

    def _begin(self, channel: int, begin: Begin) -> None:
        if channel in self._sessions:
            raise ConnectionProblem(Condition.ILLEGAL_STATE, f"the channel {channel} has a session already")
        if channel > CHANNEL_MAX or begin.remote_channel is not None:
            raise ConnectionProblem(Condition.NOT_ALLOWED, f"no session can begin on the channel {channel}")
        if len(self._sessions) >= MOST_SESSIONS:
            raise ConnectionProblem(
                Condition.RESOURCE_LIMIT_EXCEEDED, f"a connection has at most {MOST_SESSIONS} sessions"
            )
        # The same number in both directions, as readers of captures expect.
        self._sessions[channel] = Session(self, channel, channel, begin)

    def _run(self, run: TransferRun) -> StoredRun | None:
        """Take whole messages of one link; None if they must be taken frame by frame."""
        session = self._sessions.get(run.channel)
        return None if session is None or session.is_over else session.run(run)

    def _in_session(
        self,
        channel: int,
        said: performatives.Frame,
        payload: bytes,
    ) -> Iterator[Event]:
        session = self._sessions.get(channel)
        if session is None:
            raise ConnectionProblem(Condition.ILLEGAL_STATE, f"the channel {channel} has no session")
        if session.is_over:
            # The server ended it, and the client has not yet: only its end counts (section 2.5.6).
            if isinstance(said, End):
                del self._sessions[channel]
            return
        try:
            yield from session.take(said, payload)
        except SessionProblem as problem:
            yield from session.end(problem)
        else:
            if isinstance(said, End):
                del self._sessions[channel]
        if links := self.unblocked():
            yield WindowOpened(links)

    def _finish(self) -> None:
        self._flushable.clear()
        self._told_windows.clear()
        self._lost += self._sessions.values()
        self._sessions.clear()
        for session in self._lost:
            session.is_over = True
        self.waiting = self.handles = 0

    def lost(self) -> None:
        """End the connection, which broke: all its links are over."""
        self.stage = Stage.CLOSED
        self._finish()

    def free(self) -> Iterator[None]:
        """Free the memory of a connection that is over, in steps: it may have thousands of links, and of
        deliveries.
        """
        while self._flows:  # what writes them refers to links, and these refer to this object
            _, (place, write) = self._flows.popitem()
            self._out[place - self._left] = write()
            yield
        while self._lost:
            yield from self._lost.pop().free()
            yield
        while self._links:
            self._links.popitem()
            yield

    def attached(self, link: SendingLink | ReceivingLink) -> SendingLink | ReceivingLink | None:
        """See `session.Peer`."""
        key = link.name, link.is_sender
        stolen = self._links.get(key)
        self._links[key] = link
        return stolen

    def told_window(self, session: Session) -> None:
        """See `session.Peer`."""
        self._told_windows[session] = None

    def waits(self, octets: int) -> None:
        """See `outgoing_window.TransferPeer`."""
        self.waiting += octets

    def flushable(self, window: OutgoingWindow) -> None:
        """See `outgoing_window.TransferPeer`."""
        self._flushable[window] = None

    def ended(self, sender: SendingLink, message: int) -> None:
        """See `outgoing_window.TransferPeer`."""
        self._ended.append((sender, message))

    def block(self) -> None:
        """See `outgoing_window.TransferPeer`."""
        self._is_blocked = True

    def unblocked(self) -> tuple[SendingLink, ...]:
        """See `outgoing_window.TransferPeer`."""
        if self.waiting or not self._is_blocked:
            return ()
        self._is_blocked = False
        return tuple(link for session in self._sessions.values() for link in session.outgoing.unblock())

    def use_handles(self, count: int) -> None:
        """See `session.Peer`."""
        self.handles += count

    def detached(self, link: SendingLink | ReceivingLink) -> None:
        """See `session.Peer`."""
        key = link.name, link.is_sender
        if self._links.get(key) is link:
            del self._links[key]


def _written(frame: Open | Close) -> bytes:
    return frames.write(0, performatives.write(frame))


def _error(said: Close) -> Error | None:
    if said.error == NULL:
        return None
    error = performatives.read_all(said.error)
    return error if isinstance(error, Error) else None
