"""TCP keepalive for the sockets of clients."""

import socket
import sys
from typing import Protocol

KEEPALIVE_SECONDS = 50
PROBE_SECONDS = 10
PROBES = 5
"""TCP keepalive: the idle time before the first probe, the interval and the number of probes; 100 s in total.
"""


class HasOptions(Protocol):
    """A socket of the standard library or of Trio."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connected: HasOptions) -> None:
    """Turn on TCP keepalive, so that the operating system detects a dead peer of an idle connection.

    This also prevents address translators and firewalls on the path from dropping the connection.

    Do not set TCP_USER_TIMEOUT, the limit for unacknowledged data: Linux also counts the time in which the
    receiver has closed its window, and would end a connection on which the server applies backpressure to a
    publisher, although the peer answers every probe.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
