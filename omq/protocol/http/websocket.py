"""A WebSocket as a stream of octets: frames in, octets out, and the other way round (RFC 6455).

The messages of a WebSocket have no meaning here: their octets, one message after another, are the stream. A
text message has lines; the line feed after its last line may be missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import h11
from wsproto import ConnectionType
from wsproto.events import AcceptConnection
from wsproto.events import Request as Upgrade
from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode, ParseFailed
from wsproto.handshake import H11Handshake
from wsproto.utilities import RemoteProtocolError

SUBPROTOCOL = "omq"

MESSAGE_OCTETS = 16 << 20
"""The most octets of one message. No part of a message is kept, so this is to find clients that err."""

FRAMES = 32
"""The number of frames that are read at a time: each costs some microseconds, also an empty one."""


class NoUpgrade(Exception):
    """The request does not open a WebSocket; the message says why."""


def accept(method: str, target: str, fields: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the octets that accept a request for a WebSocket. Raises NoUpgrade."""
    if method != "GET":
        raise NoUpgrade("only GET opens a WebSocket")
    handshake = H11Handshake(ConnectionType.SERVER)
    try:
        handshake.initiate_upgrade_connection(list(fields), target)
    except RemoteProtocolError as problem:
        raise NoUpgrade(str(problem)) from problem
    except h11.LocalProtocolError as problem:  # HTTP/1.0, for example, needs no Host, and this does
        raise NoUpgrade(str(problem)) from problem
    except UnicodeDecodeError as problem:
        raise NoUpgrade("a header field of the handshake is not ASCII") from problem
    request = next(handshake.events(), None)
    if not isinstance(request, Upgrade):
        raise NoUpgrade("the request does not ask for a WebSocket")
    subprotocol = SUBPROTOCOL if SUBPROTOCOL in request.subprotocols else None
    return handshake.send(AcceptConnection(subprotocol=subprotocol))


@dataclass(frozen=True, slots=True)
class Read:
    """The content of some frames."""

    octets: bytes
    """The octets of the stream."""
    pong: bytes | None
    """The frame that answers the last Ping."""
    has_more: bool
    """Whether there may be further frames among the received octets."""


class WebSocket:
    """The server's side of an open WebSocket."""

    def __init__(self) -> None:
        self._frames = FrameProtocol(client=False, extensions=[])
        self._message = 0  # octets of the message that is being read
        self._ends_line = False
        self.buffered = 0
        """An upper bound for the received octets that are not read."""
        self.is_closed = False
        """Whether the client has sent Close, or something that is not allowed."""
        self._code = CloseReason.NORMAL_CLOSURE

    def feed(self, octets: bytes) -> None:
        """Take received octets."""
        self._frames.receive_bytes(octets)
        self.buffered += len(octets)

    def read(self) -> Read:
        """Read some of the received frames, as far as they have arrived."""
        octets = bytearray()
        pong: bytes | None = None
        for _ in range(FRAMES):
            if self.is_closed:
                break
            try:
                frame = next(self._frames.received_frames(), None)
            except ParseFailed as problem:
                self._end(problem.code)
                break
            if frame is None:
                self.buffered = 0
                break
            match frame.opcode:
                case Opcode.BINARY | Opcode.TEXT:
                    self._take(frame.payload, octets, ends=frame.message_finished and frame.frame_finished)
                case Opcode.PING:
                    assert isinstance(frame.payload, bytes | bytearray)
                    pong = bytes(self._frames.pong(bytes(frame.payload)))
                case Opcode.CLOSE:
                    self._end(CloseReason.NORMAL_CLOSURE)
                case _:
                    pass  # a Pong answers nothing: the server sends no Ping of WebSocket
        return Read(bytes(octets), pong, has_more=self.buffered > 0)

    def _take(self, payload: object, octets: bytearray, *, ends: bool) -> None:
        is_text = isinstance(payload, str)
        data = payload.encode() if isinstance(payload, str) else payload
        assert isinstance(data, bytes | bytearray)
        self._message += len(data)
        if self._message > MESSAGE_OCTETS:
            self._end(CloseReason.MESSAGE_TOO_BIG)
            return
        octets += data
        if data:
            self._ends_line = data.endswith(b"\n")
        if ends:
            if is_text and self._message and not self._ends_line:
                octets += b"\n"
            self._message = 0

    def _end(self, code: CloseReason) -> None:
        self.is_closed = True
        self._code = code
        self.buffered = 0

    def frame(self, octets: bytes) -> bytes:
        """Return a frame with octets of the stream: one binary message."""
        return bytes(self._frames.send_data(octets))

    def close(self) -> bytes:
        """Return the frame that ends the stream. It tells the client what it did wrong, if anything."""
        return bytes(self._frames.close(self._code))
