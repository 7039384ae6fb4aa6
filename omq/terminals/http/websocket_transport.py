"""A connection through a WebSocket, with the interface of a plain one: terminals do not see a difference."""

from collections.abc import Sequence

import trio

from omq.drivers.seam import Octets
from omq.protocol.http.websocket import Read, WebSocket
from omq.terminals.connection.framed_transport import FramedTransport
from omq.terminals.connection.transport import FIRST_OCTETS, MOST_OCTETS, Transport, rest_after

FRAME_OCTETS = 64 << 10
"""The most octets of one message. What the socket does not take of a message stays in memory."""

SEND_OCTETS = 4 * FRAME_OCTETS
"""The number of octets that are put into messages before other tasks have their turn."""

AROUND_OCTETS = 1 << 10
"""The number of octets to read beyond the wanted octets of the stream, for the headers of frames."""


class WebSocketTransport(FramedTransport):
    """An open WebSocket over a plain connection, or over one with TLS.

    `received` and `sent` count octets of the stream. As with TLS, `sent` counts the octets of a message when
    all of it has left, because a browser reads whole messages only; the rest of a message is `pending`. Here
    a frame of `FramedTransport` is a message, and ends where `_handed` was when it was made.

    A Close of the client is the end of its stream: it is read as such, and the server answers it when it has
    sent everything. A connection that ends without Close is broken.
    """

    def __init__(self, inner: Transport, websocket: WebSocket) -> None:
        """Create a transport above `inner`. `websocket` may have received octets already."""
        super().__init__(inner.stream)
        self.is_encrypted = inner.is_encrypted
        self.since = inner.since
        self._inner = inner
        self._websocket = websocket
        self._kept = b""  # octets of the stream that are decoded and not read
        self._has_more = True  # frames among the received octets
        self._pong: bytes | None = None
        self._rest: Octets = b""  # of a frame, that the inner connection has not taken over
        self._handed = inner.sent  # the end of the last frame in the octets of the inner connection

    def ends(self, why: str) -> None:
        if self._inner.why_it_ended() is None:
            super().ends(why)

    def why_it_ended(self) -> str | None:
        return super().why_it_ended() or self._inner.why_it_ended()

    # -- reading -------------------------------------------------------------------------------------------

    async def receive(self, octets: int = FIRST_OCTETS) -> bytes:
        """Receive as a plain connection does. Raise trio.BrokenResourceError also if the stream ends without
        Close.
        """
        has_waited = False  # octets that are decoded already are returned after a checkpoint, too
        while not (data := self._decoded(octets)):
            if self._websocket.is_closed:
                return b""
            has_waited = True
            if self._has_more:
                await trio.lowlevel.checkpoint()
                continue
            arrived = await self._inner.receive(octets + AROUND_OCTETS)
            if not arrived:
                self.ends("it broke (it ended without Close)")
                raise trio.BrokenResourceError("the connection ended without Close")
            self._feed(arrived)
        if not has_waited:
            await trio.lowlevel.checkpoint()
        self.received += len(data)
        return data

    def receive_arrived(self, octets: int) -> bytes:
        # Frames that were received and not decoded take memory, and decoding is slower than reading. So read
        # no further while there are any: then the client has to wait.
        if not self._kept and not self._has_more and self._inner.arrived():
            self._feed(self._inner.receive_arrived(octets))
        data = self._decoded(octets)
        self.received += len(data)
        return data

    def arrived(self) -> int:
        return min(self._inner.arrived() + len(self._kept) + self._websocket.buffered, MOST_OCTETS)

    def _feed(self, octets: bytes) -> None:
        self._websocket.feed(octets)
        self._has_more = True

    def _decoded(self, octets: int) -> bytes:
        """Return at most N `octets` of the stream; none if none are there yet, or none will come."""
        if not self._kept and self._has_more:
            read: Read = self._websocket.read()
            self._kept = read.octets
            self._has_more = read.has_more
            if read.pong is not None:
                self._pong = read.pong  # RFC 6455, section 5.5.3: it is enough to answer the last Ping
                # If the socket does not take all of it now, the rest leaves with the next octets of the
                # sender.
                self._push()
        data, self._kept = self._kept[:octets], self._kept[octets:]
        return data

    # -- sending -------------------------------------------------------------------------------------------

    def try_send(self, parts: Sequence[Octets]) -> int:
        self._push()
        taken = 0
        rest = parts
        while rest and not self.pending and taken < SEND_OCTETS:
            octets = _beginning(rest)
            self._rest = self._websocket.frame(octets)
            self._handed += len(self._rest)
            self._frames.append((self._handed, len(octets)))
            self._push()
            taken += len(octets)
            rest = rest_after(rest, len(octets))
        return taken

    def _push(self) -> None:
        """Send the octets of `pending` that the socket accepts now, and an answer to Ping between two
        frames.
        """
        self._push_rest()
        if self._pong is not None and not self._rest:
            self._rest, self._pong = self._pong, None
            self._handed += len(self._rest)
            self._push_rest()
        self.pending = self._rest or self._inner.pending
        while self._frames and self._inner.sent >= self._frames[0][0]:
            self.sent += self._frames.popleft()[1]

    def _push_rest(self) -> None:
        if self._rest or self._inner.pending:
            taken = self._inner.try_send((self._rest,) if self._rest else ())
            self._rest = memoryview(self._rest)[taken:] if taken < len(self._rest) else b""

    async def say_end(self) -> None:
        """Send Close, unless a message was cut off: nothing can be read after that."""
        if not self.pending:
            self._rest = self._websocket.close()
            self._handed += len(self._rest)
            self.pending = self._rest
            await self.send()
            await self._inner.say_end()


def _beginning(parts: Sequence[Octets]) -> bytes:
    """Return the first octets of these parts, for one frame."""
    octets = bytearray()
    for part in parts:
        octets += memoryview(part)[: FRAME_OCTETS - len(octets)]
        if len(octets) == FRAME_OCTETS:
            break
    return bytes(octets)
