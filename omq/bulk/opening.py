"""Opens the transport of a connection: a plain socket, or TLS over one."""

import socket

from omq.bulk.network import PlainWire, Wire
from omq.keepalive import keep_alive
from omq.loopback import turn_off_pacing
from omq.server_address import Security

CONNECT_SECONDS = 10.0
"""The timeout for connecting, including the TLS handshake and the first eight octets."""


def open_wire(host: str, port: int, security: Security | None) -> Wire:
    """Connect, with a TLS handshake if `security` is given. Raises OSError and TlsError."""
    connected = _connect(host, port)
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


def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers. Raises OSError.

    `socket.create_connection` does the same, but gives its sockets no options before they are connected.
    """
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(CONNECT_SECONDS)
            turn_off_pacing(made, str(address[0]))
            made.connect(address)
            return made
        except OSError as problem:
            made.close()
            failure = problem
        except BaseException:  # Ctrl-C
            made.close()
            raise
    raise failure
