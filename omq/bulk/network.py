"""The transport of a connection: a blocking socket (see `tls_wire` for TLS, and `opening`)."""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from omq.bulk.errors import ConnectionLost, ServerRefused
from omq.protocol.silence import SILENCE_SECONDS
from omq.protocol.tls_errors import CertificateRefused, TlsError

T = TypeVar("T")

LOOK_SECONDS = 5.0
"""The greatest number of seconds between two checks of the client's other connection by a waiting sink."""


class Wire(Protocol):
    """A connected stream of octets. Its methods raise OSError and TlsError."""

    def send(self, octets: bytes) -> None: ...

    def receive(self, room: memoryview) -> int:
        """Receive into a non-empty buffer. Return the number of octets, 0 at the end of the stream."""

    def finish(self) -> None:
        """Close the sending direction; receiving continues."""

    def is_readable(self) -> bool:
        """Return whether data or the end of the stream has arrived."""

    def use_timeouts(self, timeouts: "Waiting") -> None:
        """Use the timeouts for an established connection from now on."""

    def peer(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A limit on the silence of a server, and a check by another connection that it is alive."""

    silence: float = SILENCE_SECONDS
    """Seconds of silence after which the connection is lost."""
    heard: Callable[[], float] | None = None
    """Returns the time at which another connection last received data from the same server, by
    `time.monotonic`.
    """

    @property
    def look_seconds(self) -> float:
        """The number of seconds between two checks of the other connection while this one waits."""
        return self.silence if self.heard is None else min(LOOK_SECONDS, self.silence / 4)


class PlainWire:
    """A plain socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._waiting: Waiting | None = None

    def send(self, octets: bytes) -> None:
        self.send_all(octets)

    def receive(self, room: memoryview) -> int:
        return self._retry_timeouts(partial(self.socket.recv_into, room))

    def receive_some(self, octets: int) -> bytes:
        """Receive at most `octets` octets from the socket."""
        return self._retry_timeouts(partial(self.socket.recv, octets))

    def send_all(self, octets: bytes) -> None:
        """Send everything. `socket.sendall` is not suitable: its timeout applies to the whole call, but a
        server may read slowly, for as long as it makes progress.
        """
        with memoryview(octets) as left:
            rest = left
            while rest:
                rest = rest[self._retry_timeouts(partial(self.socket.send, rest)) :]

    def _retry_timeouts(self, step: Callable[[], T]) -> T:
        """Retry a socket call after each TimeoutError, until the server was silent for too long."""
        begun = time.monotonic()
        while True:
            try:
                return step()
            except TimeoutError as error:
                # A TimeoutError with an errno comes from the operating system: the connection is lost.
                if error.errno is not None or self._waiting is None or self._waiting.heard is None:
                    raise
                if time.monotonic() - max(begun, self._waiting.heard()) >= self._waiting.silence:
                    raise

    def finish(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def is_readable(self) -> bool:
        """Return whether data or the end of the stream has arrived."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def use_timeouts(self, timeouts: Waiting) -> None:
        self._waiting = timeouts
        self.socket.settimeout(timeouts.look_seconds)

    def peer(self) -> tuple[str, int]:
        host, port, *_ = self.socket.getpeername()
        return host, port

    def close(self) -> None:
        self.socket.close()


@contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """Translate errors of a wire. `what` describes the failure: "The connection to HOST:PORT broke".

    Raises ConnectionLost, or ServerRefused if a retry cannot succeed.
    """
    try:
        yield
    except CertificateRefused as error:
        raise ServerRefused(f"{what}: {error}.") from None
    except TlsError as error:
        raise ConnectionLost(f"{what}: {error}") from None
    except OSError as error:
        raise ConnectionLost(f"{what}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error)
