"""What is underneath a connection: a plain socket that blocks, or TLS on one (`tls_wire`)."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from omq.blocking.errors import OmqError, Refused
from omq.protocol.silence import SILENCE_SECONDS, keep_alive
from omq.protocol.tls_errors import CertificateRefused, TlsError

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

LOOK_SECONDS = 5.0
"""How often the other connection is looked at, at least, while one waits."""

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

    def is_readable(self) -> bool:
        """Whether something has come, or the end."""

    def be_patient(self, patience: "Waiting") -> None:
        """From here on wait for an answer, and not for a connection."""

    def peer(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a server may be silent, and whether it may show elsewhere that it is there."""

    silence: float = SILENCE_SECONDS
    """Seconds of nothing after which the connection is lost."""
    heard: Callable[[], float] | None = None
    """Asks another connection to the same server when something came from it last, by `time.monotonic`."""

    @property
    def look_seconds(self) -> float:
        """How often the other connection is asked while this one waits."""
        return self.silence if self.heard is None else min(LOOK_SECONDS, self.silence / 4)


class PlainWire:
    """A socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._waiting: Waiting | None = None

    def send(self, octets: bytes) -> None:
        self.send_all(octets)

    def receive(self, room: memoryview) -> int:
        return self._patiently(partial(self.socket.recv_into, room))

    def receive_some(self, octets: int) -> bytes:
        """What has come to the socket, at most so many octets."""
        return self._patiently(partial(self.socket.recv, octets))

    def send_all(self, octets: bytes) -> None:
        """Through the socket. `socket.sendall` will not do: its timeout is for the whole of it, and a server
        may take what it is sent as slowly as it must.
        """
        with memoryview(octets) as left:
            rest = left
            while rest:
                rest = rest[self._patiently(partial(self.socket.send, rest)) :]

    def _patiently(self, step: Callable[[], T]) -> T:
        """Do something that raises TimeoutError after a while, until the server was silent for too long."""
        begun = time.monotonic()
        while True:
            try:
                return step()
            except TimeoutError as error:
                # One with a number is the operating system's word that the connection is lost.
                if error.errno is not None or self._waiting is None or self._waiting.heard is None:
                    raise
                if time.monotonic() - max(begun, self._waiting.heard()) >= self._waiting.silence:
                    raise

    def finish(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def is_readable(self) -> bool:
        """Whether something has come, or the end."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def be_patient(self, patience: Waiting) -> None:
        self._waiting = patience
        self.socket.settimeout(patience.look_seconds)

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
        keep_alive(connected)
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
