"""Opens the transport of a connection: a plain socket, or TLS over one."""

import socket

from omq.bulk.network import PlainWire, Wire
from omq.keepalive import keep_alive
from omq.server_address import Security

CONNECT_SECONDS = 10.0
"""The timeout for connecting, including the TLS handshake and the first eight octets."""


def open_wire(host: str, port: int, security: Security | None) -> Wire:
    """Connect, with a TLS handshake if `security` is given. Raises OSError and TlsError."""
    connected = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        # Without this, Nagle's algorithm delays the first command until the peer's delayed ACK of the
        # previous packet, which takes 40 ms if the server does not answer that packet, as with Connect.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connected)
        if security is None:
            return PlainWire(connected)
        # Import late: OpenSSL loads slowly, and Spark starts many processes.
        from omq.bulk.tls_wire import TlsWire

        return TlsWire(connected, security.context, security.name)
    except BaseException:  # Ctrl-C, too
        connected.close()
        raise
