"""Open a connection and exchange the protocol version."""

import anyio

from omq.addresses import format_address
from omq.client.errors import ConnectionFailed, HandshakeRefused
from omq.client.network import Stream, open_within
from omq.client.reasons import reason
from omq.protocol.omq.client import ClientHandshake, HandshakeFailed
from omq.protocol.tls_errors import TLS_ONLY
from omq.server_address import Security


async def open_greeted(host: str, port: int, seconds: float, security: Security | None) -> Stream:
    """Connect and exchange the version, within `seconds`. Raises ConnectionFailed and HandshakeRefused."""
    where = format_address(host, port)

    async def greet(stream: Stream) -> Stream:
        handshake = ClientHandshake()
        await stream.send_all(handshake.octets)
        greeted = False
        while not greeted:
            data = await stream.receive_some(handshake.missing)
            if not data:
                hint = f"; {TLS_ONLY}" if security is None else ""
                raise ConnectionFailed(f"{where} closed the connection during the handshake{hint}")
            greeted = handshake.feed(data)
        return stream

    try:
        return await open_within(seconds, host, port, security, greet)
    except HandshakeFailed as error:
        raise HandshakeRefused(f"{where} {error}") from None
    except UnicodeError as error:
        raise ConnectionFailed(f"cannot connect to {where!r}: no host can have this name") from error
    except (OSError, anyio.BrokenResourceError) as error:
        raise ConnectionFailed(f"cannot connect to {where}: {reason(error)}") from error
