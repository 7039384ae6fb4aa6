"""The block within which a client is connected."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio

from omq.client.address import parse_url
from omq.client.client import Client, Name, octets_of
from omq.client.connections import Connections, Settings
from omq.client.errors import Gap
from omq.client.network import Security
from omq.protocol.credentials import File, client_context

log = logging.getLogger("omq.client")


def warn_of_gap(gap: Gap) -> None:
    """What is done with a gap when nothing else is asked for: a warning in the log."""
    log.warning("%r: messages %d to %d are missing: %s", gap.topic, gap.first, gap.last, gap.reason)


class Connecting(AbstractAsyncContextManager[Client]):
    """The block within which a client is connected; it owns the client's tasks."""

    # No generator with a nursery in it: the nursery would wrap what the block raises into a group, and nobody
    # could write `except ServerError` around it.

    def __init__(self, settings: Settings) -> None:
        self._connections = Connections(settings)
        self._manager = trio.open_nursery()
        self._nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Client:
        self._connections.ledger.see()
        connection = await self._connections.open()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._connections.run, connection)
        self._connections.current = connection
        return Client(self._connections)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nursery is None:
            raise RuntimeError("left without being entered")
        try:
            if error is None:
                await self._connections.finish()
            else:
                await self._connections.break_off()
        finally:
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)


def connect(
    url: str = "omq://127.0.0.1:7730",
    *,
    id: Name = b"omq.client",
    reconnect: bool = False,
    on_gap: Callable[[Gap], None] = warn_of_gap,
    connect_seconds: float = 10.0,
    max_line_bytes: int = 1 << 20,
    ca: File | None = None,
    certificate: File | None = None,
    key: File | None = None,
) -> Connecting:
    """Connect to a server: `async with connect("omq://host:port", id="prices-feed") as client:`.

    `id` is who we say we are; the server logs it, up to the first colon. Connecting, handshake included,
    takes at most `connect_seconds`. A server that knows its clients wants to see `NAME:SECRET`. When that is
    refused, it is not tried again, with `reconnect` either.

    With `omqs://host:port` everything goes through TLS, and the server must show a certificate for this host:
    one that the authorities in the file `ca` vouch for, or without it those whom the system trusts. A server
    that wants to see a certificate of ours is shown that in the file `certificate`, whose private key is in
    `key`, or else in the same file.

    A connection on which the server sends nothing for 100 s is lost, like one that breaks: the protocol
    promises something every 50 s. The time in which the program takes no messages does not count.

    With `reconnect`, a lost connection is made again, as often as it takes (the first one is tried once);
    commands that were waiting for an answer still raise ConnectionLost, and so does the `confirm` after
    publishes of unknown fate. Subscriptions go on: of persistent broadcast topics behind the last
    message seen, without loss or repeat; of the others with the current messages, and `on_gap` is called with
    what a transient broadcast topic sent meanwhile. With credit, messages not confirmed come again, here or
    elsewhere.

    `on_gap` is also called when the server itself has lost messages of a subscription. It is called by the
    task that iterates, when it gets there. By default it logs a warning.

    `max_line_bytes` is the longest line that the server takes, as its key of this name has it. A message that
    makes a longer one is refused here with MessageTooLong: the server would close the connection.

    Leaving the block without an exception sends what was published and sees that the server has read
    it. Raises ConnectionFailed and HandshakeRefused when entered, ConnectionLost and PublishRefused when
    left, and ValueError at once for a bad `url` and for files that cannot be used.
    """
    host, port, tls = parse_url(url)
    security = None
    if tls:
        security = Security(client_context(ca, certificate, key), host)
    elif ca is not None or certificate is not None or key is not None:
        raise ValueError("certificates are for omqs://, and this address begins with omq://")
    return Connecting(
        Settings(host, port, security, octets_of(id), reconnect, on_gap, connect_seconds, max_line_bytes)
    )
