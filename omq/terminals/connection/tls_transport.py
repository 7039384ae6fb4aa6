"""A connection with TLS, with the interface of a plain one: terminals do not see a difference."""

import os
from collections.abc import Iterator, Sequence
from functools import partial

import trio

from omq.drivers.seam import Octets
from omq.protocol.tls import AROUND_OCTETS, PIECE_OCTETS, RECORD_OCTETS, TlsEngine, TlsError, shake_hands
from omq.terminals.connection.framed_transport import FramedTransport
from omq.terminals.connection.transport import Transport

SEND_OCTETS = 4 * PIECE_OCTETS
"""The number of octets that are encrypted before other tasks have their turn: some 0.2 ms of work."""


class TlsTransport(FramedTransport):
    """One connected stream socket with TLS on it, after its handshake. `sent` counts plain octets.

    A frame is a record. It ends where as many octets of `pending` as `_frames` has are behind it.
    """

    is_encrypted = True

    def __init__(self, stream: trio.SocketStream, engine: TlsEngine) -> None:
        super().__init__(stream)
        self._engine = engine

    @classmethod
    async def accept(cls, stream: trio.SocketStream, engine: TlsEngine, received: bytes) -> "TlsTransport":
        """Run the server side of the handshake, of which these octets were received already.

        Raises TlsError when it fails, after telling the client why, and trio.BrokenResourceError.
        """
        transport = cls(stream, engine)
        engine.feed(received)
        await shake_hands(engine, transport._send_octets, partial(Transport.receive, transport))
        transport.received = 0
        transport.certificate = engine.peer_name()
        return transport

    async def receive(self, octets: int = RECORD_OCTETS) -> bytes:
        """Receive as a plain connection does. Raise trio.BrokenResourceError also if the stream ends without
        `close_notify`.
        """
        before = self.received
        while (data := self._decrypted(octets)) is None:
            self._engine.feed(await super().receive(octets + AROUND_OCTETS))
        self.received = before + len(data)
        return data

    def receive_arrived(self, octets: int) -> bytes:
        try:
            self._engine.feed(self._read(octets))
        except BlockingIOError:
            pass  # the octets that have arrived were read before, and not decrypted
        data = self._decrypted(octets) or b""
        self.received += len(data)
        return data

    def arrived(self) -> int:
        return super().arrived() + self._engine.waiting

    def _decrypted(self, octets: int) -> bytes | None:
        try:
            return self._engine.read(octets)
        except TlsError as error:
            raise self._failed(error) from error

    def _failed(self, error: TlsError) -> trio.BrokenResourceError:
        self.ends(f"it broke (TLS: {error})")
        return trio.BrokenResourceError(f"TLS: {error}")

    def try_send(self, parts: Sequence[Octets]) -> int:
        """Send the octets that the socket accepts, as a plain connection does. `sent` counts the octets of a
        record when all of it has left, because the other side cannot read a part of one; the rest of a record
        is `pending`.
        """
        self._push()
        taken = 0
        for piece in _pieces(parts):
            with memoryview(piece) as octets:
                for start in range(0, len(octets), PIECE_OCTETS):
                    if self.pending or taken >= SEND_OCTETS:
                        return taken
                    taken += self._encrypt(octets[start : start + PIECE_OCTETS])
                    self._push()
        return taken

    def _encrypt(self, piece: memoryview) -> int:
        """Make records of a piece, of at most PIECE_OCTETS, and let them be `pending`."""
        plain = [piece[start : start + RECORD_OCTETS] for start in range(0, len(piece), RECORD_OCTETS)]
        try:
            ends = [self._engine.write(record) for record in plain]
        except TlsError as error:
            raise self._failed(error) from error
        octets = self._engine.outgoing()
        self.pending = memoryview(octets)
        self._frames.extend((len(octets) - end, len(record)) for end, record in zip(ends, plain, strict=True))
        return len(piece)

    def _push(self) -> None:
        """Send the octets of `pending` that the socket accepts now."""
        if not self.pending:
            return
        try:
            count = os.write(self.stream.socket.fileno(), self.pending)
        except BlockingIOError:
            return
        except OSError as problem:
            raise self._broken(problem) from problem
        self.pending = self.pending[count:]
        while self._frames and len(self.pending) <= self._frames[0][0]:
            self.sent += self._frames.popleft()[1]

    async def _send_octets(self, octets: bytes) -> None:
        """Send octets of TLS itself."""
        self.pending = memoryview(octets)
        await self.send()

    async def say_end(self) -> None:
        """Send `close_notify`, unless a record was cut off: nothing can be read after that."""
        if not self.pending:
            self._engine.finish()
            await self._send_octets(self._engine.outgoing())


def _pieces(parts: Sequence[Octets]) -> Iterator[Octets]:
    """Yield the same octets with small parts joined, because each piece takes a record of its own."""
    small: list[Octets] = []
    octets = 0
    for part in parts:
        if len(part) >= RECORD_OCTETS:
            if small:
                yield b"".join(small)
                small, octets = [], 0
            yield part
            continue
        small.append(part)
        octets += len(part)
        if octets >= PIECE_OCTETS:
            yield b"".join(small)
            small, octets = [], 0
    if small:
        yield b"".join(small)
