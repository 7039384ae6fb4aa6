"""The addresses at which a server listens, and the protocols at each of them."""

import errno
from collections.abc import Iterable, Iterator
from socket import (
    AF_INET6,
    AI_PASSIVE,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SO_ACCEPTCONN,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)
from typing import Self

import trio
from msgspec import Struct
from trio.socket import SocketType

from omq.addresses import format_address
from omq.config import Config, parse_address
from omq.loopback import turn_off_pacing
from omq.systemd import PassedSockets

BACKLOG = 0xFFFF
"""The number of connections that may wait to be accepted; the system lowers it to its own limit."""


class ListenError(Exception):
    """An address cannot be listened on; the message is one line."""


class SpokenProtocols(Struct, frozen=True):
    """The protocols at an address."""

    tls_only: bool = False
    """Whether every connection must begin with TLS."""
    http: bool = True
    others: bool = True
    """Every protocol but HTTP."""


class Sockets(Struct, frozen=True):
    """The sockets at the addresses of a server.

    They are bound early and listen later, which `trio.open_tcp_listeners` does in one step: a server that is
    not ready refuses its clients, which can try its other addresses at once.
    """

    any: list[SocketType]
    """The sockets for TLS if it is configured and the client begins with it."""
    tls: list[SocketType]
    """The sockets for TLS only."""
    http: list[SocketType]
    """The sockets for HTTP only, and TLS as the first ones."""

    @classmethod
    async def bind(cls, config: Config, passed: PassedSockets | None) -> Self:
        """Bind the configured addresses, or use the sockets that were passed. Raises ListenError."""
        if passed is not None:
            return cls(_sockets(passed.listen), _sockets(passed.listen_tls), _sockets(passed.listen_http))
        sockets = cls([], [], [])
        try:
            for address in config.listen:
                await _bind(address, sockets.any)
            for address in config.listen_tls:
                await _bind(address, sockets.tls)
            for address in config.listen_http:
                await _bind(address, sockets.http)
        except BaseException:  # cancelled, too
            sockets.close()
            raise
        return sockets

    def listen(self) -> None:
        """Listen at all addresses. Raises ListenError if there is a listener at one of them: another process
        has come first, or the address is configured twice.
        """
        for one in (*self.any, *self.tls, *self.http):
            if one.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
                continue  # it was passed, with the backlog of its unit
            try:
                one.listen(BACKLOG)
            except OSError as problem:
                address = format_address(*one.getsockname()[:2])
                raise ListenError(f"cannot listen on {address}: {problem.strerror}") from problem

    def close(self) -> None:
        """Close those that are open."""
        for one in (*self.any, *self.tls, *self.http):
            one.close()

    def spoken(self, config: Config) -> Iterator[tuple[list[trio.SocketListener], SpokenProtocols]]:
        """Yield the listeners of each kind, and their protocols. The sockets must listen."""
        http = config.http and not self.http
        yield _listeners(self.any), SpokenProtocols(http=http)
        yield _listeners(self.tls), SpokenProtocols(tls_only=True, http=http)
        yield _listeners(self.http), SpokenProtocols(others=False)


def addresses(sockets: list[SocketType]) -> list[tuple[str, int]]:
    """Return the host and the actual port of each socket."""
    return [one.getsockname()[:2] for one in sockets]


async def _bind(address: str, sockets: list[SocketType]) -> None:
    """Bind a socket to each address of the host, as `trio.open_tcp_listeners` does, and append it. Raises
    ListenError.
    """
    host, port = parse_address(address)
    before = len(sockets)
    unsupported: OSError | None = None
    try:
        found = await trio.socket.getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)
        for family, kind, protocol, _, place in found:
            try:
                one = trio.socket.socket(family, kind, protocol)
            except OSError as problem:
                if problem.errno != errno.EAFNOSUPPORT:
                    raise
                unsupported = problem  # IPv6 or IPv4 is switched off: the host's other addresses suffice
                continue
            sockets.append(one)
            # A port whose last connections are in TIME_WAIT is free; a port with a listener is not.
            one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
            if family == AF_INET6:
                one.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 1)
            turn_off_pacing(one, str(place[0]))
            await one.bind(place)
        if unsupported is not None and len(sockets) == before:
            raise unsupported
    except OSError as problem:
        raise ListenError(f"cannot listen on {address}: {problem.strerror or problem}") from problem
    except UnicodeError as problem:
        raise ListenError(f"cannot listen on {address}: that is no host name") from problem


def _sockets(passed: Iterable[socket]) -> list[SocketType]:
    return [trio.socket.from_stdlib_socket(each) for each in passed]


def _listeners(sockets: Iterable[SocketType]) -> list[trio.SocketListener]:
    return [trio.SocketListener(each) for each in sockets]
