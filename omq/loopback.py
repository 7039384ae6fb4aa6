"""Settings of sockets for connections within this machine."""

import socket
import sys
from contextlib import suppress
from typing import Protocol


class UnconnectedSocket(Protocol):
    """A socket of the standard library or of Trio."""

    def setsockopt(self, level: int, option: int, value: bytes, /) -> None: ...


def turn_off_pacing(unconnected: UnconnectedSocket, address: str) -> None:
    """Let a socket for a loopback address use Reno as congestion control, and those that it accepts, too. Do
    nothing for other addresses.

    The default of a machine may be BBR, which spreads packets over time with timers. Over the loopback
    interface, which loses no packets, this only takes processor time. A connection that began with BBR keeps
    its pace: so the socket must not be connected yet.

    `address`: what the socket is bound or connected to afterwards, as `getaddrinfo` returns it.
    """
    if sys.platform == "linux" and (address.startswith("127.") or address == "::1"):
        with suppress(OSError):
            unconnected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
