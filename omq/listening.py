"""The addresses at which a server listens, and what it speaks at each of them."""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

import trio

from omq.config import Config, parse_address
from omq.systemd import PassedSockets


class ListenError(Exception):
    """An address cannot be listened on; the message is one line."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is spoken at an address."""

    tls_only: bool = False
    """Whether every connection must begin with TLS."""
    http: bool = True
    others: bool = True
    """Every protocol but HTTP."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The open addresses."""

    any: list[trio.SocketListener]
    """Accepts TLS if it is configured and the client begins with it."""
    tls: list[trio.SocketListener]
    """Accepts TLS only."""
    http: list[trio.SocketListener]
    """Accepts HTTP only, and TLS as the first ones do."""

    @classmethod
    async def open(cls, config: Config, passed: PassedSockets | None) -> Self:
        """Open the configured addresses, or use the sockets that were passed. Raises ListenError."""
        if passed is not None:
            return cls(
                _listeners(passed.listen), _listeners(passed.listen_tls), _listeners(passed.listen_http)
            )
        listeners = cls([], [], [])
        try:
            for address in config.listen:
                listeners.any.extend(await _open(address))
            for address in config.listen_tls:
                listeners.tls.extend(await _open(address))
            for address in config.listen_http:
                listeners.http.extend(await _open(address))
        except BaseException:  # cancelled, too
            listeners.close()
            raise
        return listeners

    def close(self) -> None:
        """Close those that are open."""
        for listener in (*self.any, *self.tls, *self.http):
            listener.socket.close()

    def spoken(self, config: Config) -> Iterator[tuple[list[trio.SocketListener], Spoken]]:
        """Yield the listeners of each kind, and what is spoken there."""
        http = config.http and not self.http
        yield self.any, Spoken(http=http)
        yield self.tls, Spoken(tls_only=True, http=http)
        yield self.http, Spoken(others=False)


def addresses(listeners: list[trio.SocketListener]) -> list[tuple[str, int]]:
    """Return the host and the actual port of each listener."""
    return [listener.socket.getsockname()[:2] for listener in listeners]


async def _open(address: str) -> list[trio.SocketListener]:
    """Raises ListenError."""
    host, port = parse_address(address)
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except OSError as problem:
        raise ListenError(f"cannot listen on {address}: {problem.strerror or problem}") from problem
    except UnicodeError as problem:
        raise ListenError(f"cannot listen on {address}: that is no host name") from problem


def _listeners(sockets: Iterable[socket.socket]) -> list[trio.SocketListener]:
    return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]
