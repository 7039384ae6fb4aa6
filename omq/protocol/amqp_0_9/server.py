"""A server's side of an AMQP 0-9-1 connection, without a socket: octets to events.

Everything that the specification and docs/AMQP.md require of a client and that needs no queue is checked
here: the order of the handshake, frames and their sizes, which channels exist, methods and their arguments,
and the frames of messages. The terminal does the rest, and sends.
"""

from collections.abc import Iterator
from enum import Enum, auto

from omq.model import DEFAULT_MAX_BODY
from omq.protocol.amqp import openamq
from omq.protocol.amqp.fields import Table
from omq.protocol.amqp_0_9 import methods
from omq.protocol.amqp_0_9.channels import ChannelInput, ChannelState, widened_header
from omq.protocol.amqp_0_9.events import (
    AckRun,
    ChannelFault,
    CloseAnswered,
    ClosedByPeer,
    ConnectionFault,
    Event,
    MethodCalled,
    Opened,
    Reply,
    StartOk,
    Tuned,
)
from omq.protocol.amqp_0_9.frames import END, FRAME, LEAST_FRAME_MAX, OVERHEAD, FrameType, method_frame
from omq.protocol.amqp_0_9.layouts import Method
from omq.protocol.amqp_0_9.methods import (
    AccessRequest,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUpdateSecret,
    DirectGet,
    DirectPut,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from omq.protocol.amqp_0_9.problems import ChannelProblem, ConnectionProblem, Problem, ReplyCode
from omq.protocol.amqp_0_9.runs import ACK_IDS, RunLimits, take_acks, take_publishes

CHANNEL_MAX = 2047
FRAME_MAX = 128 << 10
HEARTBEAT_SECONDS = 60

WHOLE_BODY = 64 << 10
"""A longer body is handed on in parts."""

MOST_HELD = 1 << 20
"""The most octets of incomplete messages that a connection holds here. Beyond it, bodies of any length are
handed on in parts, so that the terminal decides about the memory.
"""

FRAMES_A_STEP = 64
"""The number of frames without an event after which there is a pause."""

VIRTUAL_HOSTS = (b"/", b"")

_CONNECTION_CLOSE = b"\x00\x0a\x00\x32"
_CHANNEL_CLOSE = b"\x00\x14\x00\x28"


class _Phase(Enum):
    """The phase of a connection."""

    STARTED = auto()
    """Connection.Start was sent; Start-Ok must follow."""
    AUTHENTICATING = auto()
    """Start-Ok was read, and nothing may follow until Tune was sent."""
    TUNING = auto()
    """Connection.Tune was sent; Tune-Ok must follow."""
    TUNED = auto()
    """Connection.Open must follow."""
    OPEN = auto()
    CLOSING = auto()
    """The server sent Connection.Close, or must: everything but Close and Close-Ok is dropped."""
    LOST = auto()
    """The client sent octets that are no frame: nothing after them can be read, not even its Close-Ok."""
    CLOSED = auto()
    """Nothing is read any more."""


_OF_CHANNELS = frozenset((
    ChannelFlow, ChannelFlowOk, AccessRequest,
    ExchangeDeclare, ExchangeDelete, ExchangeBind, ExchangeUnbind,
    QueueDeclare, QueueBind, QueuePurge, QueueDelete, QueueUnbind,
    BasicQos, BasicConsume, BasicCancel, BasicCancelOk, BasicGet, BasicAck, BasicReject, BasicNack,
    BasicRecover, BasicRecoverAsync, ConfirmSelect, TxSelect, TxCommit, TxRollback, DirectPut, DirectGet,
))  # fmt: skip
"""The methods that clients send on open channels, besides Open, Close, Close-Ok and Publish."""


class ServerConnection:
    """Parses the octets of one client after the eight octets that identify the protocol.

    It holds at most one incomplete frame and `MOST_HELD` octets of incomplete messages.
    """

    def __init__(self, max_message: int = DEFAULT_MAX_BODY, whole_body: int = WHOLE_BODY) -> None:
        """Create a connection that is started. `max_message`: the longest accepted body. A body longer than
        `whole_body` is handed on in parts.
        """
        self._max_message = max_message
        self._whole_body = min(whole_body, max_message)
        self._phase = _Phase.STARTED
        self._offered = (CHANNEL_MAX, FRAME_MAX)
        self._channels: dict[int, ChannelInput] = {}
        self._incomplete = bytearray()
        self._needed = FRAME.size
        self._held = 0
        self._is_openamq = False
        self.channel_max = CHANNEL_MAX
        self.frame_max = FRAME_MAX
        self._limits = RunLimits(self._whole_body, FRAME_MAX)

    # -- sending -------------------------------------------------------------------------------------------

    def start(self, server_properties: Table, mechanisms: bytes, locales: bytes = b"en_US") -> bytes:
        """Return the first octets of the server: Connection.Start."""
        return method_frame(0, ConnectionStart(0, 9, server_properties, mechanisms, locales))

    def tune(
        self,
        channel_max: int = CHANNEL_MAX,
        frame_max: int = FRAME_MAX,
        heartbeat: int = HEARTBEAT_SECONDS,
    ) -> bytes:
        """Return Connection.Tune, for a client that has proved who it is. `frame_max` is at least 4096."""
        self._phase = _Phase.TUNING
        self._offered = channel_max, frame_max
        return method_frame(0, ConnectionTune(channel_max, frame_max, heartbeat))

    def close_channel(self, channel: int, problem: Problem) -> bytes:
        """Return Channel.Close: from now on everything on the channel is dropped, until the client's
        Close-Ok.

        Nothing if the channel is not open any more.
        """
        found = self._channels.get(channel)
        if self._phase is not _Phase.OPEN or found is None:
            return b""
        self._drop(found)
        return method_frame(channel, ChannelClose(*_closing(problem)))

    def close(self, problem: Problem) -> bytes:
        """Return Connection.Close: from now on everything is dropped, until the client's Close-Ok."""
        self._end(_Phase.CLOSING)
        return method_frame(0, ConnectionClose(*_closing(problem)))

    @property
    def is_openamq(self) -> bool:
        """Whether the client is OpenAMQ's, to which times in tables are sent with four octets."""
        return self._is_openamq

    def is_open(self, channel: int) -> bool:
        """Return whether the channel is open and not closing."""
        found = self._channels.get(channel)
        return found is not None and found.state is ChannelState.OPEN

    # -- memory --------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """The octets that are held or reserved for an incomplete frame and incomplete messages."""
        return len(self._incomplete) + self._held

    # -- reading -------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> Iterator[Event | None]:
        """Parse octets of the client, lazily: a change that the terminal makes at an event applies to the
        next events.

        None is a pause: others may have their turn. Exhaust the iterator before the next call.
        """
        if not self._reads():
            return
        if len(self._incomplete) + len(data) < self._needed:
            self._incomplete += data
            return
        if self._incomplete:
            data = b"".join((self._incomplete, data))
            self._incomplete = bytearray()
        at = quiet = 0
        while self._reads():
            before = at
            try:
                events, at = self._next(data, at)
            except ConnectionProblem as problem:
                # The beginning of the next frame is not known any more.
                was_closing = self._phase is _Phase.CLOSING
                self._end(_Phase.LOST)
                if not was_closing:
                    yield ConnectionFault(problem)
                return
            if at == before:
                self._incomplete += memoryview(data)[at:]
                return
            quiet += 1
            for event in events:
                quiet = 0
                yield event
            if at == len(data):  # as most reads of a client that waits for each answer
                self._needed = FRAME.size
                return
            if quiet == FRAMES_A_STEP:
                quiet = 0
                yield None

    def _reads(self) -> bool:
        return self._phase not in (_Phase.LOST, _Phase.CLOSED)

    def _next(self, data: bytes, at: int) -> tuple[tuple[Event, ...], int]:
        """Parse a run of frames or one frame; return its events and the position after it, which is `at` if
        no frame is complete. Raises `ConnectionProblem` for octets that are no frame.
        """
        if len(data) - at < FRAME.size:
            self._needed = FRAME.size
            return (), at
        kind, number, size = FRAME.unpack_from(data, at)
        if kind == FrameType.METHOD:
            channel = self._channels.get(number)
            if channel is not None and channel.is_idle and (found := self._run(data, at, number)):
                return found
        self._check_frame(kind, size)
        end = at + OVERHEAD + size
        if end > len(data):
            self._needed = OVERHEAD + size
            return (), at
        if data[end - 1 : end] != END:
            text = f"a frame ends with {data[end - 1]:#04x} instead of {END[0]:#04x}"
            raise ConnectionProblem(ReplyCode.FRAME_ERROR, text)
        try:
            return self._frame(FrameType(kind), number, data[at + FRAME.size : end - 1]), end
        except ConnectionProblem as problem:
            self._end(_Phase.CLOSING)
            return (ConnectionFault(problem),), end

    def _check_frame(self, kind: int, size: int) -> None:
        if kind not in (FrameType.METHOD, FrameType.HEADER, FrameType.BODY, FrameType.HEARTBEAT):
            raise ConnectionProblem(ReplyCode.FRAME_ERROR, f"no frame has the type {kind}")
        if size > self.frame_max:  # some clients fill it with the payload alone, and RabbitMQ takes that
            text = f"a frame has {size + OVERHEAD} octets, more than {self.frame_max}"
            raise ConnectionProblem(ReplyCode.FRAME_ERROR, text)

    def _run(self, data: bytes, at: int, channel: int) -> tuple[tuple[Event, ...], int] | None:
        """Parse a run of publishes or of acknowledgements, if there is one."""
        if data.startswith(ACK_IDS, at + FRAME.size):
            ranges, end = take_acks(data, at, channel)
            return ((AckRun(channel, ranges),), end) if ranges else None
        if self._is_openamq:  # whose headers must be translated one by one
            return None
        run, end = take_publishes(data, at, channel, self._limits)
        return None if run is None else ((run,), end)

    def _frame(self, kind: FrameType, number: int, payload: bytes) -> tuple[Event, ...]:
        if kind is FrameType.HEARTBEAT:
            if number:
                raise ConnectionProblem(ReplyCode.UNEXPECTED_FRAME, f"a heartbeat on channel {number}")
            if payload:
                raise ConnectionProblem(ReplyCode.FRAME_ERROR, "a heartbeat has a payload")
            return ()
        if self._phase is _Phase.CLOSING:
            return self._while_closing(kind, number, payload)
        if not number:
            if kind is not FrameType.METHOD:
                raise ConnectionProblem(ReplyCode.UNEXPECTED_FRAME, "channel 0 carries no messages")
            return self._on_connection(payload)
        if self._phase is not _Phase.OPEN:
            text = f"a frame on channel {number} before the connection is open"
            raise ConnectionProblem(ReplyCode.UNEXPECTED_FRAME, text)
        return self._on_channel(kind, number, payload)

    # -- the connection ------------------------------------------------------------------------------------

    def _on_connection(self, payload: bytes) -> tuple[Event, ...]:
        method = methods.decode(payload)
        if isinstance(method, ConnectionClose):
            self._end(_Phase.CLOSED)
            return (ClosedByPeer(0, method.reply_code, method.reply_text),)
        match self._phase, method:
            case _Phase.STARTED, ConnectionStartOk(properties, mechanism, response, locale):
                self._phase = _Phase.AUTHENTICATING
                self._is_openamq = openamq.is_openamq(properties)
                return (StartOk(properties, mechanism, response, locale),)
            case _Phase.TUNING, ConnectionTuneOk():
                return (self._tuned(method),)
            case _Phase.TUNED, ConnectionOpen(host):
                if host not in VIRTUAL_HOSTS:
                    raise _problem(ReplyCode.NOT_ALLOWED, f"vhost {_text(host)[1:-1]} not found", method)
                self._phase = _Phase.OPEN
                return (Opened(),)
            case _Phase.OPEN, ConnectionUpdateSecret():
                return (MethodCalled(0, method),)
            case _:
                name = type(method).__name__
                raise _problem(ReplyCode.COMMAND_INVALID, f"{name} is not allowed here on channel 0", method)

    def _tuned(self, method: ConnectionTuneOk) -> Tuned:
        channels, frames = self._offered
        if method.frame_max and not LEAST_FRAME_MAX <= method.frame_max <= frames:
            text = f"frame-max is {method.frame_max}, not {LEAST_FRAME_MAX} to {frames}"
            raise _problem(ReplyCode.FRAME_ERROR, text, method)
        if method.channel_max > channels:
            text = f"channel-max is {method.channel_max}, more than {channels}"
            raise _problem(ReplyCode.FRAME_ERROR, text, method)
        # With 0 the client leaves the limit to the server.
        self.frame_max = method.frame_max or frames
        self.channel_max = method.channel_max or channels
        self._limits = RunLimits(self._whole_body, self.frame_max)
        self._phase = _Phase.TUNED
        return Tuned(self.channel_max, self.frame_max, method.heartbeat)

    def _while_closing(self, kind: FrameType, number: int, payload: bytes) -> tuple[Event, ...]:
        if number or kind is not FrameType.METHOD:
            return ()
        if payload == methods.encode(ConnectionCloseOk()):
            self._end(_Phase.CLOSED)
            return (CloseAnswered(0),)
        if payload.startswith(_CONNECTION_CLOSE):
            # Both sides closed at the same time.
            return (Reply(method_frame(0, ConnectionCloseOk())),)
        return ()

    def _end(self, phase: _Phase) -> None:
        self._phase = phase
        self._channels.clear()
        self._held = 0

    # -- channels ------------------------------------------------------------------------------------------

    def _on_channel(self, kind: FrameType, number: int, payload: bytes) -> tuple[Event, ...]:
        channel = self._channels.get(number)
        if channel is None:
            return self._unopened(kind, number, payload)
        if channel.state is ChannelState.CLOSING:
            return self._on_closing_channel(kind, channel, payload)
        try:
            match kind:
                case FrameType.METHOD:
                    if channel.publish is not None:
                        raise channel.interrupted()
                    return self._on_open_channel(channel, payload)
                case FrameType.HEADER:
                    room = max(0, MOST_HELD - self._held - len(payload))
                    if self._is_openamq:
                        payload = widened_header(payload)
                    begun = channel.header(payload, self._max_message, min(self._whole_body, room))
                    self._held += channel.held
                    return () if begun is None else (begun,)
                case _:
                    held = channel.held
                    found = channel.body(payload)
                    self._held += channel.held - held
                    return found
        except ChannelProblem as problem:
            self._drop(channel)
            return (ChannelFault(number, problem),)

    def _unopened(self, kind: FrameType, number: int, payload: bytes) -> tuple[Event, ...]:
        class_id, method_id = methods.ids(payload) if kind is FrameType.METHOD else (0, 0)
        if (class_id, method_id) != (ChannelOpen.CLASS, ChannelOpen.METHOD):
            text = f"channel {number} is not open"
            raise ConnectionProblem(ReplyCode.CHANNEL_ERROR, text, class_id, method_id)
        count = len(self._channels)
        if count >= self.channel_max:  # their number, as with RabbitMQ: libraries choose any numbers
            most = f"the negotiated channel_max ({self.channel_max})"
            text = f"number of channels opened ({count}) has reached {most}"
            raise ConnectionProblem(ReplyCode.NOT_ALLOWED, text, class_id, method_id)
        method = self._decode(payload)
        self._channels[number] = ChannelInput(number)
        return (MethodCalled(number, method),)

    def _on_open_channel(self, channel: ChannelInput, payload: bytes) -> tuple[Event, ...]:
        method = self._decode(payload)
        match method:
            case BasicPublish():
                if method.immediate:
                    raise _problem(ReplyCode.NOT_IMPLEMENTED, "immediate=true", method)
                channel.begin(method)
                return ()
            case ChannelClose():
                self._free(channel)
                return (ClosedByPeer(channel.number, method.reply_code, method.reply_text),)
            case ChannelOpen():
                text = f"channel {channel.number} is open already"
                raise _problem(ReplyCode.CHANNEL_ERROR, text, method)
            case BasicQos(prefetch_size=size) if size:
                raise _problem(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})", method)
            case ChannelFlow(False) if not self._is_openamq:
                # As with RabbitMQ: clients know from this reply that they must limit the prefetch instead.
                raise _problem(ReplyCode.NOT_IMPLEMENTED, "active=false", method)
            case BasicRecover(False) | BasicRecoverAsync(False):
                raise _problem(ReplyCode.NOT_IMPLEMENTED, "requeue=false", method)
            case _:
                pass
        if type(method) not in _OF_CHANNELS:
            name = type(method).__name__
            raise _problem(ReplyCode.COMMAND_INVALID, f"{name} is not allowed on an open channel", method)
        return (MethodCalled(channel.number, method),)

    def _on_closing_channel(
        self, kind: FrameType, channel: ChannelInput, payload: bytes
    ) -> tuple[Event, ...]:
        if kind is not FrameType.METHOD:
            return ()
        if payload == methods.encode(ChannelCloseOk()):
            self._free(channel)
            return (CloseAnswered(channel.number),)
        if payload.startswith(_CHANNEL_CLOSE):
            # Both sides closed at the same time; the client still answers the server's Close.
            return (Reply(method_frame(channel.number, ChannelCloseOk())),)
        return ()

    def _decode(self, payload: bytes) -> Method:
        return methods.decode(payload, openamq.widened_table if self._is_openamq else None)

    def _drop(self, channel: ChannelInput) -> None:
        self._held -= channel.held
        channel.close()

    def _free(self, channel: ChannelInput) -> None:
        self._drop(channel)
        del self._channels[channel.number]


def _problem(code: ReplyCode, text: str, method: Method) -> ConnectionProblem:
    return ConnectionProblem(code, text, method.CLASS, method.METHOD)


def _closing(problem: Problem) -> tuple[int, bytes, int, int]:
    return problem.code, problem.reply_text, problem.class_id, problem.method_id


def _text(name: bytes) -> str:
    return repr(name)[1:]
