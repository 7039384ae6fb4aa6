"""What is underneath a connection: a plain socket that blocks, or TLS on one."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from omq.protocol.tls import RECORD_OCTETS, CertificateRefused, TlsEngine, TlsError
from storage.spark.errors import OmqError, Refused

ANSWER_SECONDS = 60.0
"""How long a server may say nothing while an answer is awaited."""

CONNECT_SECONDS = 10.0
"""How long connecting may take, with TLS and the first eight octets."""

PIECE_OCTETS = 4 * RECORD_OCTETS
"""About how much is encrypted and sent at once."""

READ_OCTETS = 256 << 10
"""The most that is decrypted at once."""

AROUND_OCTETS = 1 << 10
"""Read beyond the plain octets that are wanted, for what is around them in their records."""


class ConnectionLost(OmqError):
    """The connection broke, could not be made, or the server fell silent: trying again may help."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As options have it."""
        return f"{'omqs' if self.tls else 'omq'}://{self}"


class Wire(Protocol):
    """A connected stream of octets. Its methods raise OSError and TlsError."""

    def send(self, octets: bytes) -> None: ...

    def receive(self, room: memoryview) -> int:
        """Put what has come at the front of a room that is not empty; how much, 0 at the end."""

    def finish(self) -> None:
        """Nothing more will be sent; receiving goes on."""

    def be_patient(self) -> None:
        """From here on wait for an answer, and not for a connection."""

    def peer(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class PlainWire:
    """A socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, octets: bytes) -> None:
        self._socket.sendall(octets)

    def receive(self, room: memoryview) -> int:
        return self._socket.recv_into(room)

    def finish(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def be_patient(self) -> None:
        self._socket.settimeout(ANSWER_SECONDS)

    def peer(self) -> tuple[str, int]:
        host, port, *_ = self._socket.getpeername()
        return host, port

    def close(self) -> None:
        self._socket.close()


class TlsWire(PlainWire):
    """TLS on a socket. The standard library's own cannot end one direction and go on with the other."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """Shakes hands with a server that has a certificate for this name. Raises OSError and TlsError."""
        super().__init__(connected)
        self._engine = TlsEngine(context, server_name=name)
        try:
            while not self._engine.shake_hands():
                self._flush()
                self._engine.feed(connected.recv(RECORD_OCTETS))
        except TlsError:
            with suppress(OSError):
                self._flush()  # why, for the server
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
            self._engine.feed(self._socket.recv(wanted + AROUND_OCTETS))
        room[: len(data)] = data
        return len(data)

    def finish(self) -> None:
        # With `close_notify`, which nobody on the way can say for us. The socket need not say it too.
        self._engine.finish()
        self._flush()

    def _flush(self) -> None:
        octets = self._engine.outgoing()
        if octets:
            self._socket.sendall(octets)


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is made with TLS."""

    context: ssl.SSLContext
    name: str
    """Whose certificate the server must show: the host as it was given, whatever address it has."""


def open_wire(host: str, port: int, security: Security | None) -> Wire:
    """Connect, and shake hands where TLS is wanted. Raises OSError and TlsError."""
    connected = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        if security is None:
            return PlainWire(connected)
        return TlsWire(connected, security.context, security.name)
    except BaseException:
        connected.close()
        raise


@contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """Errors of a wire as ours. `what` has happened then: "The connection to HOST:PORT broke".

    Raises ConnectionLost, and Refused where trying again does not help.
    """
    try:
        yield
    except CertificateRefused as error:
        raise Refused(f"{what}: {error}.") from None
    except TlsError as error:
        raise ConnectionLost(f"{what}: {error}") from None
    except OSError as error:
        raise ConnectionLost(f"{what}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error)
