"""What is underneath a connection: a plain socket that blocks, or TLS on one (`tls_wire`)."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from omq.blocking.errors import OmqError, Refused
from omq.protocol.tls_errors import CertificateRefused, TlsError

if TYPE_CHECKING:
    import ssl

ANSWER_SECONDS = 60.0
"""How long a server may say nothing while an answer is awaited."""

CONNECT_SECONDS = 10.0
"""How long connecting may take, with TLS and the first eight octets."""


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
        self.socket = connected

    def send(self, octets: bytes) -> None:
        self.socket.sendall(octets)

    def receive(self, room: memoryview) -> int:
        return self.socket.recv_into(room)

    def finish(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def be_patient(self) -> None:
        self.socket.settimeout(ANSWER_SECONDS)

    def peer(self) -> tuple[str, int]:
        host, port, *_ = self.socket.getpeername()
        return host, port

    def close(self) -> None:
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Security:
    """How a connection is made with TLS."""

    context: "ssl.SSLContext"
    name: str
    """Whose certificate the server must show: the host as it was given, whatever address it has."""


def open_wire(host: str, port: int, security: Security | None) -> Wire:
    """Connect, and shake hands where TLS is wanted. Raises OSError and TlsError."""
    connected = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        # Else the first question waits until the other system has acknowledged what was said before it, which
        # takes 40 ms where nothing is answered to that, as to a Connect.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security is None:
            return PlainWire(connected)
        # OpenSSL takes its time to load, and Spark starts many processes.
        from omq.blocking.tls_wire import TlsWire

        return TlsWire(connected, security.context, security.name)
    except BaseException:  # Ctrl-C, too
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
