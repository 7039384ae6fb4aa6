"""TLS over a blocking socket."""

import socket
import ssl
from contextlib import suppress

from omq.bulk.network import PlainWire
from omq.protocol.tls import AROUND_OCTETS, PIECE_OCTETS, RECORD_OCTETS, TlsEngine, TlsError
from omq.protocol.tls_errors import NO_TLS, TlsEnded

READ_OCTETS = 256 << 10
"""The most octets that are decrypted at once."""


class TlsWire(PlainWire):
    """TLS over a socket. `ssl.SSLSocket` cannot close one direction and continue with the other."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """Run the handshake; the server must have a certificate for `name`. Raises OSError and TlsError.

        This is `omq.protocol.tls.shake_hands` with calls that block, and the reason of a failure is raised
        also if the server does not take the alert.
        """
        super().__init__(connected)
        self._engine = TlsEngine(context, server_name=name)
        try:
            while not self._engine.shake_hands():
                self._flush()
                self._engine.feed(connected.recv(RECORD_OCTETS))
        except TlsEnded as error:
            raise TlsEnded(f"{error}; {NO_TLS}") from None
        except TlsError:
            with suppress(OSError):
                self._flush()  # send the alert, so that the server learns the reason
            raise
        self._flush()

    def send(self, octets: bytes) -> None:
        with memoryview(octets) as left:
            for start in range(0, len(left), RECORD_OCTETS):
                if self._engine.write(left[start : start + RECORD_OCTETS]) >= PIECE_OCTETS:
                    self._flush()
        self._flush()

    def receive(self, room: memoryview) -> int:
        wanted = min(len(room), READ_OCTETS)
        while (data := self._engine.read(wanted)) is None:
            self._engine.feed(self.receive_some(wanted + AROUND_OCTETS))
        room[: len(data)] = data
        return len(data)

    def finish(self) -> None:
        # `close_notify` is authenticated, unlike the end of the TCP stream. The TCP direction may stay open.
        self._engine.finish()
        self._flush()

    def close(self) -> None:
        # Without `close_notify` the server logs that the connection broke.
        self._engine.finish()
        with suppress(OSError):
            self.socket.setblocking(False)
            self.socket.send(self._engine.outgoing())
        super().close()

    def _flush(self) -> None:
        octets = self._engine.outgoing()
        if octets:
            self.send_all(octets)
