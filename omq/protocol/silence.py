"""When a server that sends nothing is taken for gone.

The protocol promises a Ping at least every 50 seconds on every omq connection, and a null message at least as
often on every feed. A network or a server that is gone without a word sends nothing, and the operating system
does not find that out: it looks only at what it sends itself, and repeats that for 15 minutes.
"""

import socket
import sys
from typing import Protocol

PROMISED_SECONDS = 50.0
"""A server sends something at least this often (docs/PROTOCOL.md, "Pings and silence")."""

SILENCE_SECONDS = 2 * PROMISED_SECONDS
"""A connection on which nothing comes for so long is lost."""

KEEPALIVE_SECONDS = 50
PROBE_SECONDS = 10
PROBES = 5
"""A connection on which nothing is sent is probed after this, so often, before it is lost: 100 s in all."""


class HasOptions(Protocol):
    """A socket, whoever waits for it."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connected: HasOptions) -> None:
    """Have the operating system find out when the other end of an idle connection is gone.

    It sees to it also that translators and firewalls on the way do not forget the connection.

    There is no TCP_USER_TIMEOUT, which would be for what was sent and not acknowledged: Linux also counts the
    time in which the receiver has closed its window, and would end a connection whose server makes a
    publisher wait, though every probe is answered.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
