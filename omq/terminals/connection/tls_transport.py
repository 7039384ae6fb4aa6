"""A connection with TLS, behind the interface of a plain one: terminals do not know the difference."""

from collections.abc import Iterator, Sequence

import trio

from omq.protocol.tls import RECORD_OCTETS, TlsEngine, TlsError
from omq.terminals.connection.transport import Transport

PIECE_OCTETS = 4 * RECORD_OCTETS
"""How much is encrypted and handed to the socket at once: so much more memory a connection takes with TLS."""

AROUND_OCTETS = 1 << 10
"""Read beyond the plain octets that are wanted, for what is around them in their records."""


class TlsTransport(Transport):
    """One connected stream socket with TLS on it, after its handshake. `sent` counts plain octets."""

    is_encrypted = True

    def __init__(self, stream: trio.SocketStream, engine: TlsEngine) -> None:
        super().__init__(stream)
        self._engine = engine
        self._pending = memoryview(b"")
        """Of records that were begun: what the socket has not taken yet."""
        self._owed = 0
        """How many plain octets the records in it have that `sent` does not count."""

    @classmethod
    async def accept(cls, stream: trio.SocketStream, engine: TlsEngine, received: bytes) -> "TlsTransport":
        """The server's side of the handshake, of which some octets were received already.

        Raises TlsError when it fails, after telling the client why, and trio.BrokenResourceError.
        """
        transport = cls(stream, engine)
        engine.feed(received)
        try:
            while not engine.shake_hands():
                await transport._send_octets(engine.outgoing())
                engine.feed(await Transport.receive(transport))
        finally:
            if alert := engine.outgoing():
                await transport._send_octets(alert)
        transport.received = 0
        return transport

    async def receive(self, octets: int = RECORD_OCTETS) -> bytes:
        """Raises trio.BrokenResourceError also when the connection ends and the other side did not say so."""
        before = self.received
        while (data := self._decrypted(octets)) is None:
            self._engine.feed(await super().receive(octets + AROUND_OCTETS))
        self.received = before + len(data)
        return data

    async def receive_arrived(self, octets: int) -> bytes:
        await trio.lowlevel.checkpoint()
        try:
            self._engine.feed(self._read(octets))
        except BlockingIOError:
            pass  # what has arrived was read before, and not decrypted
        data = self._decrypted(octets) or b""
        self.received += len(data)
        return data

    def arrived(self) -> int:
        return super().arrived() + self._engine.waiting

    def _decrypted(self, octets: int) -> bytes | None:
        try:
            return self._engine.read(octets)
        except TlsError as error:
            raise trio.BrokenResourceError(f"TLS: {error}") from error

    async def send(self, data: bytes | memoryview) -> None:
        await self._send_pending()
        with memoryview(data) as octets:
            for start in range(0, len(octets), PIECE_OCTETS):
                await self._send_piece(octets[start : start + PIECE_OCTETS])

    async def send_together(self, parts: Sequence[bytes | memoryview]) -> None:
        for piece in _pieces(parts):
            await self.send(piece)

    async def send_unless_stalled(self, parts: Sequence[bytes | memoryview]) -> bool:
        """A record that is begun has to leave whole: what the socket has not taken of it, and of those that
        were made with it, is kept here until it does, and counts as sent.
        """
        if await super().send_unless_stalled(parts):
            return True
        self.sent += self._owed
        self._owed = 0
        return False

    async def wait_writable(self) -> None:
        await self._send_pending()
        await super().wait_writable()

    async def _send_piece(self, piece: memoryview) -> None:
        """Nobody can read a record that did not leave whole, so octets count when their record has left."""
        try:
            ends = [
                self._engine.write(piece[start : start + RECORD_OCTETS])
                for start in range(0, len(piece), RECORD_OCTETS)
            ]
        except TlsError as error:
            raise trio.BrokenResourceError(f"TLS: {error}") from error
        octets = self._engine.outgoing()
        until = self.sent + len(piece)
        self._pending = memoryview(octets)
        self._owed = len(piece)
        while self._pending:
            await self._send_some()
            behind = sum(end > len(octets) - len(self._pending) for end in ends)
            self._owed = 0 if not behind else len(piece) - (len(ends) - behind) * RECORD_OCTETS
            self.sent = until - self._owed

    async def _send_octets(self, octets: bytes) -> None:
        self._pending = memoryview(octets)
        await self._send_pending()

    async def _send_pending(self) -> None:
        while self._pending:
            await self._send_some()

    async def _send_some(self) -> None:
        try:
            count = await self._stream.socket.send(self._pending)
        except OSError as problem:
            raise trio.BrokenResourceError(f"the connection broke: {problem}") from problem
        self._pending = self._pending[count:]

    async def say_end(self) -> None:
        """With `close_notify`, unless a record was cut off: behind that nothing can be read."""
        if not self._pending:
            self._engine.finish()
            await self._send_octets(self._engine.outgoing())


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same octets with small parts joined: every piece costs a record of its own."""
    small: list[bytes | memoryview] = []
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
